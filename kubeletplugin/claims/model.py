# SPDX-License-Identifier: Apache-2.0
"""All that the engine knows of devices and of changes of the node. It imports no kind of device and no feature.

A claim becomes a plan: its devices, each of a kind, and the steps that make them ready. A driver is a table of kinds
and steps, with the function that plans a claim. A new kind or feature is a class of these and a line in a table.

A step can be done, undone, and checked whether it is done. All three look only at the hardware and at marks, and never
at what was done before. So a step that was interrupted anywhere can be repeated or undone, by the same process or by
the next. Therefore it is enough to record the list of steps once, before the first of them.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dra_driver.gpu.nvml import Placement
from dra_driver.kube.resource import AttributeValue, ResourceClaim
from dra_driver.kube.resource.codec import DecodeError, Fields
from dra_driver.kube.resource.meta import empty

from ..containers.cdi.root import DriverRoot
from ..containers.cdi.spec import ContainerEdits
from .call import Call

if TYPE_CHECKING:
    from ..containers.cdi.libraries import HookTool
    from ..node.node import Node

JSON = dict[str, Any]

K = TypeVar("K", bound="Kind")

NO_EDITS = ContainerEdits()


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The name of a claim, as kubelet sends it. If the claim's record is damaged, only the UID may be known."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"with UID {self.uid}"


class Kind(ABC):
    """The hardware of an allocated device: a frozen dataclass of its own file. Equal kinds are the same hardware."""

    __slots__ = ()

    TAG: ClassVar[str]
    """The name of the kind in records and in `status.devices`."""

    NEEDS_DRIVER_FILES: ClassVar[bool] = True
    """Whether a container with such a device gets the common files of NVIDIA's driver."""

    @property
    @abstractmethod
    def keys(self) -> frozenset[str]:
        """What is locked while claims with the device change, usually the UUID of its GPU."""

    @property
    @abstractmethod
    def minor(self) -> int:
        """The minor number of the GPU, or -1 if it is unknown."""

    @property
    def part(self) -> tuple[str, Placement] | None:
        """The profile and the memory slices of a part of a GPU. None for a whole GPU."""
        return None

    def excludes(self, other: "Kind") -> bool:
        """Whether this device excludes another one. Asked in both directions."""
        return not self.keys.isdisjoint(other.keys)

    @property
    def is_given(self) -> bool:
        """Whether containers get anything for the device. Otherwise it has no CDI device."""
        return True

    @property
    def group(self) -> Hashable:
        """Devices of a request with the same group are given to containers by the first of them. None: by itself."""
        return None

    @abstractmethod
    def edits(self, place: "SpecPlace", device: "Device") -> ContainerEdits:
        """What a container needs for the device. Raises DriverFilesError, PrepareError or OSError."""

    @abstractmethod
    def attributes(self, found: JSON) -> JSON:
        """The details of the device for users, in `status.devices`. `found` is what its steps have found."""

    def identity(self, found: JSON) -> Mapping[str, AttributeValue]:
        """The attributes by which a program in the container finds the device, if they are not published."""
        return {}

    @abstractmethod
    def to_json(self) -> JSON:
        """The kind in records."""

    @classmethod
    @abstractmethod
    def from_json(cls, fields: Fields) -> "Kind":
        """The kind of a record. Raises ValueError."""


class Undoable(ABC):
    """A change of the node. Of a change that no claim has any more, only the mark is known."""

    __slots__ = ()

    NVML: ClassVar[bool] = True
    """Whether it uses NVML, which stays initialized meanwhile."""

    SPEC_ONLY: ClassVar[bool] = False
    """Whether it changes nothing on the node, and only adds to what containers get."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The GPU whose thread changes it. The caller holds the locks of all keys of the claim."""

    @property
    @abstractmethod
    def mark(self) -> Hashable:
        """Equal for a step and for the stray change that was found by the mark of this step."""

    @abstractmethod
    def undo(self, node: "Node", call: Call) -> str:
        """Undo what `do` did, if anything. Repeating it changes nothing. Returns the reason if the change and its mark
        stay and no pod should wait for that; it is tried again later. Usually empty.
        """

    @property
    def target(self) -> str:
        """What is changed, in messages."""
        return f"GPU {self.key}"

    @property
    def remains(self) -> str:
        """What `dra-kubeletplugin cleanup` tells about the change. Empty if it says nothing."""
        return str(self)

    def disturbs(self, plan: "Plan") -> bool:
        """Whether the change must be undone before this claim gets its devices, although no claim needs it."""
        return False


@dataclass(frozen=True, slots=True)
class EnforcedShare:
    """What enforces a share of a device: MiB of memory, and the percentage of the multiprocessors, if any."""

    by: str
    memory: int | None
    percentage: int | None = None


class Step(Undoable):
    """A change that claims need. Equal steps are one change, and the last claim that has it undoes it.

    Every method may raise NvmlError, FabricError, OSError, or PrepareError with a text for the user.
    """

    __slots__ = ()

    TAG: ClassVar[str]
    """The name of the step in records."""

    QUICK: ClassVar[bool] = False
    """Whether a claim with only such steps is recorded once, as prepared, if all of them are done already."""

    DISTURBS: ClassVar[bool] = False
    """Whether a stray change of this class can disturb the next claim (see `disturbs`)."""

    IN_CONTAINERS: ClassVar[bool] = True
    """Whether containers have to be restarted if the change was lost and was made again."""

    WAITS: ClassVar[bool] = False
    """Whether `waits_for` may tell something. An interrupted prepare with such a step keeps what it has, also if the
    process ends, because kubelet repeats its call.
    """

    LOOK_SECONDS: ClassVar[float | None] = None
    """The interval at which `was_lost` is asked, if it has to be."""

    @abstractmethod
    def do(self, node: "Node", call: Call) -> Mapping[str, JSON]:
        """Do the step, or the missing part of it. Returns what it found, by the name of its device. Repeating it
        changes nothing.
        """

    @abstractmethod
    def is_done(self, node: "Node") -> bool:
        """Whether the step is done."""

    @abstractmethod
    def is_marked(self, node: "Node") -> bool:
        """Whether the driver may have something to undo. Needs no NVIDIA driver."""

    def waits_for(self, node: "Node") -> str:
        """What must be there before the later steps, or an empty text. Asked without locks, until it is there, and not
        any more after the claim was prepared.
        """
        return ""

    def is_disruptive(self, node: "Node") -> bool:
        """Whether the state of the node disturbs other claims, so that a failed claim must not repeat it soon."""
        return False

    def clash(self, owner: "Plan", other: "Plan") -> str:
        """Why the claim `owner`, which has this step, and `other` cannot hold together; empty if they can. Asked in
        both directions, and also for two requests of one claim: then both are the same plan.
        """
        return ""

    def edits(self, place: "SpecPlace", device: "Device") -> ContainerEdits:
        """What a container with the device needs because of this step."""
        return NO_EDITS

    def enforces(self, device: "Device") -> EnforcedShare | None:
        """How this step limits a share of the device, if it does."""
        return None

    @classmethod
    def strays(cls, node: "Node") -> Iterable[Undoable]:
        """A change for each mark of this class of steps, whether claims need it or not. Needs no NVIDIA driver."""
        return ()

    @classmethod
    def forget(cls, node: "Node") -> None:
        """Remove all marks, because a reboot has undone what they describe. Raises OSError."""

    @classmethod
    def was_lost(cls, node: "Node") -> bool:
        """Whether such changes may have been undone by something else since this was last asked."""
        return False

    @abstractmethod
    def to_json(self) -> JSON:
        """The step in records, without what its devices tell."""

    @classmethod
    @abstractmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, "Device"]) -> "Step":
        """The step of a record with these devices. Raises ValueError."""


class IdleStep(Step):
    """A step that changes nothing on the node."""

    __slots__ = ()

    @property
    def mark(self) -> Hashable:
        """Nothing on the node."""
        return self

    def do(self, node: "Node", call: Call) -> Mapping[str, JSON]:
        """Do nothing."""
        return {}

    def is_done(self, node: "Node") -> bool:
        """Always."""
        return True

    def is_marked(self, node: "Node") -> bool:
        """Never."""
        return False

    def undo(self, node: "Node", call: Call) -> str:
        """Do nothing."""
        return ""


class SpecStep(IdleStep):
    """A step that only adds to what containers get."""

    __slots__ = ()

    SPEC_ONLY = True
    QUICK = True


@dataclass(frozen=True, slots=True)
class Device:
    """A device, once for each result of the allocation. With `admin` access, its settings are not changed."""

    name: str
    request: str
    kind: Kind
    admin: bool = False
    share_id: str | None = None

    @property
    def cdi_name(self) -> str:
        """The name of the CDI device in the claim's spec. A claim may have several shares of one device."""
        return self.name if self.share_id is None else f"{self.name}-{self.share_id}"

    def excludes(self, other: "Device") -> bool:
        """Whether only one of the two devices can be used at a time. Shares of one device, and administrators, do not
        exclude each other.
        """
        if self.admin or other.admin or not (self.kind.excludes(other.kind) or other.kind.excludes(self.kind)):
            return False
        return self.share_id is None or other.share_id is None or self.kind != other.kind


@dataclass(frozen=True, slots=True)
class Plan:
    """What a claim needs on this node. `pool` is the pool of all its devices. The steps are done in their order, and
    undone in reverse order.
    """

    claim: ClaimRef
    pool: str
    devices: tuple[Device, ...]
    steps: tuple[Step, ...] = ()

    @property
    def keys(self) -> frozenset[str]:
        """What is locked while the claim changes."""
        return frozenset[str]().union(*(device.kind.keys for device in self.devices))

    def given(self) -> tuple[Device, ...]:
        """The devices that containers are given by name: of each group, the first one."""
        leaders: dict[Hashable, Device] = {}
        for device in self.devices:
            group = device.kind.group
            leaders.setdefault(id(device) if group is None else (device.request, group), device)
        return tuple(leaders.values())

    def enforced(self, device: Device) -> EnforcedShare | None:
        """What enforces the share of a device of this plan, or None."""
        return next((share for step in self.steps if (share := step.enforces(device)) is not None), None)


def device_in(fields: Fields, devices: Mapping[str, Device], kind: type[K], what: str) -> tuple[str, K]:
    """The name in the field `device` of a step, and the hardware of the device with this name, for `Step.from_json`.
    Raises DecodeError if the record has no such device of this kind, which `what` names (`a MIG device`).
    """
    name = fields.required_text("device")
    found = devices[name].kind if name in devices else None
    if not isinstance(found, kind):
        raise DecodeError(fields.path("device"), f"{name!r} is not {what} of this record")
    return name, found


class State(enum.StrEnum):
    """The progress of a claim."""

    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


@dataclass(frozen=True, slots=True)
class Record:
    """A claim's plan and its progress. `found` has what the steps found, by device name, and is known only while the
    claim is prepared. In other states, the hardware shows what exists.
    """

    state: State
    boot_id: str
    plan: Plan
    found: Mapping[str, JSON] = field(default_factory=empty)


@dataclass(frozen=True, slots=True)
class SpecPlace:
    """What the CDI spec of a claim is written for: the claim's `record` on `node`, with the driver's files at `root`.
    `hook` is NVIDIA's hook program, if there is one.
    """

    record: Record
    node: "Node"
    root: DriverRoot
    hook: "HookTool | None" = None


class Remains(ABC):
    """What a feature has on the node beside the changes of its steps, for `dra-kubeletplugin cleanup`."""

    @abstractmethod
    def lines(self) -> list[str]:
        """A text for each thing that is no file."""

    @abstractmethod
    def paths(self) -> list[Path]:
        """Files and folders outside of the driver's folder, or that must be removed before it."""

    @abstractmethod
    def end(self) -> list[str]:
        """End what is no file. Returns the problems as texts."""

    @abstractmethod
    def remove(self, path: Path) -> str:
        """Remove one of `paths`. Returns a text about it."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver as the engine sees it. Only `kubeletplugin.drivers` knows all kinds and features.

    The steps of a phase are done GPU by GPU, one phase after the other. The order of the phases, and of the classes
    inside of them, is the order of doing; the reversed order is that of undoing and of sweeping.

    `plan` makes the plan of an allocated claim. It raises PrepareError, and errors of what it reads of the node.
    `older` reads records of older versions of the format, by version.
    """

    name: str
    kinds: Sequence[type[Kind]]
    phases: Sequence[Sequence[type[Step]]]
    plan: Callable[["Node", ClaimRef, ResourceClaim], Plan]
    older: Mapping[int, Callable[[Fields], Record]] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[type[Step], ...]:
        """All classes of steps, in the order of doing."""
        return tuple(step for phase in self.phases for step in phase)

    def ordered(self, steps: Iterable[Step], devices: Iterable[Device]) -> tuple[Step, ...]:
        """The steps of a claim in the order of doing, without duplicates. Inside of a phase, GPUs are in the order of
        the devices, so that consecutive steps of a GPU are handed over together.
        """
        distinct = tuple(dict.fromkeys(steps))
        if len(distinct) < 2:
            return distinct
        keys = {key: index for index, device in reversed(tuple(enumerate(devices))) for key in device.kind.keys}
        phase_of = {step: index for index, phase in enumerate(self.phases) for step in phase}
        classes = self.steps

        def order(step: Step) -> tuple[int, int, int]:
            return phase_of[type(step)], keys.get(step.key, -1), classes.index(type(step))

        return tuple(sorted(distinct, key=order))
