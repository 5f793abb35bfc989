# SPDX-License-Identifier: Apache-2.0
"""MPS of a group of devices, for one claim.

The step comes after the instances and compute modes of all GPUs of the group. A whole GPU is in the compute mode
EXCLUSIVE_PROCESS during that time, because otherwise a process that does not find its daemon would run without MPS. A
GPU in MIG mode has no compute mode, and each MIG device has its own daemon, because a CUDA process sees only one MIG
device.

The share's file is the mark: it is written before the daemon starts, and the folder of the group is removed last.
"""

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.gpu.policy import Enforcement
from dra_driver.kube.resource.codec import DecodeError, Fields
from dra_driver.kube.resource.meta import empty

from ...claims.call import Call
from ...claims.model import JSON, NO_EDITS, Device, EnforcedShare, Plan, SpecPlace, Step, Undoable
from ...containers import cdi
from ...errors import PrepareError
from ...kinds.container import ContainerKind
from ...node.node import Node
from .edits import mps_edits
from .services import MpsServices
from .shares import MpsShare, ShareName

_DIGITS: Final = 10
_PROTOCOLS: Final = (2, 3)


@dataclass(frozen=True, slots=True)
class MpsLimits:
    """The configured limits: a percentage of the multiprocessors, and MiB of memory, for all devices or for the device
    with this UUID, or with this index among the sorted UUIDs of the configuration's devices.
    """

    percentage: int | None = None
    memory: int | None = None
    per_device: Mapping[str, int] = field(default_factory=empty)

    def of(self, uuids: tuple[str, ...], group: tuple[str, ...]) -> dict[str, int]:
        """The limits in MiB of `uuids`, which are some of the `group`. Raises PrepareError."""
        found = {} if self.memory is None else dict.fromkeys(uuids, self.memory)
        ordered = sorted(group)
        by_uuid: dict[str, int] = {}
        for key, limit in self.per_device.items():
            if key.isdigit() and int(key) < len(ordered):
                by_uuid.setdefault(ordered[int(key)], limit)
            elif key in ordered:
                by_uuid[key] = limit
            else:
                raise PrepareError(
                    f"defaultPerDevicePinnedMemoryLimit[{key}] is for no device of the claim: they are"
                    f" {', '.join(f'{index} ({uuid})' for index, uuid in enumerate(ordered))}"
                )
        return found | {uuid: limit for uuid, limit in by_uuid.items() if uuid in uuids}


@dataclass(frozen=True, slots=True)
class MpsStep(Step):
    """MPS serves the clients of `share` (a key of the claim) on `devices`, by device name. `group` has all devices with
    the same configuration.

    If `share_id` is set, MPS enforces this share of one device, and other shares of the device have other limits. With
    protocol 2, a daemon has one set of limits, so the containers get the limits of their share in variables.
    """

    TAG = "mps"

    devices: tuple[str, ...]
    group: tuple[tuple[str, ContainerKind], ...]
    share: str
    protocol: int
    limits: MpsLimits
    multi_user: bool
    shared_memory: bool
    share_id: str = ""

    def __str__(self) -> str:
        return f"MPS of {', '.join(self.devices)}"

    def __hash__(self) -> int:
        return hash((self.devices, self.share))

    @property
    def kinds(self) -> tuple[ContainerKind, ...]:
        """The hardware of `devices`."""
        kinds = dict(self.group)
        return tuple(kinds[name] for name in self.devices)

    @property
    def key(self) -> str:
        """The GPU of the first device. The claim's locks are held for the GPUs of all devices."""
        return min(self.kinds[0].keys)

    @property
    def mark(self) -> Hashable:
        """The place of the share."""
        return self.name

    @property
    def name(self) -> ShareName:
        """The place of the share. Claims with shares of the same devices have the same group."""
        server = _short(*sorted(kind.place_name for kind in self.kinds))
        return ShareName(f"s{server}", self.key, self.share)

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the MPS daemon for GPU {self.key}"

    def is_done(self, node: Node) -> bool:
        """Whether the share is served with these limits, on the current MIG devices."""
        uuids = self._uuids(node)
        return all(uuids.values()) and node.of(MpsServices).has(self.name, self._wanted(uuids))

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Let dra-mps serve the share."""
        uuids = self._uuids(node)
        missing = next((name for name, uuid in uuids.items() if not uuid), None)
        if missing is not None:
            raise PrepareError(f"there is no MIG device {missing} for MPS")
        node.of(MpsServices).provide(self.name, self._wanted(uuids))
        return {}

    def is_marked(self, node: Node) -> bool:
        """Whether the share exists, or a group without shares has left something."""
        return node.of(MpsServices).files.leaves_something(self.name)

    def undo(self, node: Node, call: Call) -> str:
        """Let dra-mps no longer serve the share. The daemon ends with its last share."""
        if self.is_marked(node):
            node.of(MpsServices).release(self.name)
        return ""

    def clash(self, owner: Plan, other: Plan) -> str:
        """A device has one daemon, and a whole GPU with MPS admits no other processes."""
        for device in other.devices:
            if device.admin or device.kind not in self.kinds:
                continue
            served = [step for step in mps_steps_of(other) if device.kind in step.kinds]
            if not served or not all(step.is_served_with(self) for step in served):
                way = "with other MPS limits or devices" if served else "without MPS"
                return (
                    f"claim {other.claim} uses device {device.name} {way}, and claim {owner.claim} shares it through"
                    " MPS: a device has one MPS daemon, so use the same sharing configuration in both"
                )
        return ""

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The pipe directory of the daemon, and the variables of CUDA."""
        if not self.serves(device):
            return NO_EDITS
        return mps_edits(place, self.name, self.protocol, self.shared_memory, self._limit_variables(place))

    def enforces(self, device: Device) -> EnforcedShare | None:
        """The limits of an enforced share."""
        if not self.share_id or not self.serves(device):
            return None
        return EnforcedShare(Enforcement.MPS, self.limits.memory, self.limits.percentage)

    @classmethod
    def strays(cls, node: Node) -> Iterator["StrayShare"]:
        """The shares that dra-mps is asked for."""
        return map(StrayShare, node.of(MpsServices).files.all())

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove the share files. dra-mps removes what else there is."""
        files = node.of(MpsServices).files
        for share in files.all():
            files.remove(share)

    def to_json(self) -> JSON:
        """See Step."""
        return {
            "devices": list(self.devices),
            "group": [name for name, _ in self.group],
            "share": self.share,
            "protocol": self.protocol,
            "percentage": self.limits.percentage,
            "memory": self.limits.memory,
            "perDevice": dict(self.limits.per_device),
            "multiUser": self.multi_user,
            "sharedMemory": self.shared_memory,
            **({"shareID": self.share_id} if self.share_id else {}),
        }

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "MpsStep":
        """See Step."""
        served, group = fields.texts("devices"), fields.texts("group")
        usable = {name: device.kind for name, device in devices.items() if isinstance(device.kind, ContainerKind)}
        unknown = [name for name in (*served, *group) if name not in usable]
        if unknown or not served or not set(served) <= set(group):
            raise DecodeError(fields.path("devices"), f"{', '.join(unknown) or 'they'} are no devices of this record")
        per_device = fields.raw_object("perDevice") or {}
        if not all(isinstance(limit, int) for limit in per_device.values()):
            raise DecodeError(fields.path("perDevice"), "limits must be integers")
        protocol = fields.required_integer("protocol")
        if protocol not in _PROTOCOLS:
            raise fields.error("protocol", f"{protocol} is unknown")
        return cls(
            devices=served,
            group=tuple((name, usable[name]) for name in group),
            share=fields.required_text("share"),
            protocol=protocol,
            limits=MpsLimits(fields.integer("percentage"), fields.integer("memory"), dict(per_device)),
            multi_user=fields.flag("multiUser"),
            shared_memory=fields.flag("sharedMemory"),
            share_id=fields.text("shareID"),
        )

    def serves(self, device: Device) -> bool:
        """Whether the step is for this device of its claim, or for this share of it."""
        return device.name in self.devices and self.share_id in ("", device.share_id)

    @property
    def limits_clients(self) -> bool:
        """Whether the limits are in variables of the containers, and not in the daemon."""
        return bool(self.share_id) and self.protocol == 2

    def is_served_with(self, other: "MpsStep") -> bool:
        """Whether one daemon can serve both. With protocol 3 their limits may differ."""
        if (self.name.server, self.protocol) != (other.name.server, other.protocol):
            return False
        return self.protocol == 3 or self._for_daemon() == other._for_daemon()

    def _for_daemon(self) -> "MpsStep":
        """What a daemon of protocol 2 is started with."""
        if not self.limits_clients:
            return replace(self, share="")
        return replace(self, share="", share_id="enforced", limits=MpsLimits())

    def memory_of(self, uuids: Mapping[str, str]) -> dict[str, int]:
        """The limits in MiB by UUID, from the UUIDs of all devices of the group by name. Raises PrepareError."""
        served, group = (uuids[name] for name in self.devices), (uuids[name] for name, _ in self.group)
        return self.limits.of(tuple(served), tuple(group))

    def _limit_variables(self, place: SpecPlace) -> list[str]:
        """The limits of a share that differ from those of other shares, and the limit of a MIG device, which drivers
        read only from a client's variable. The daemon shows the container this device only, as device 0.
        """
        variables = []
        if self.limits_clients or any(kind.part is not None for kind in self.kinds):
            found = place.record.found
            uuids = {name: kind.recorded_uuid(found.get(name, {})) for name, kind in self.group}
            variables += [f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit}M" for limit in self.memory_of(uuids).values()]
        if self.limits_clients and self.limits.percentage is not None:
            variables.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={self.limits.percentage}")
        return variables

    def _uuids(self, node: Node) -> dict[str, str]:
        """The UUIDs of the devices of the group, by name. Empty for one that does not exist."""
        return {name: kind.cuda_uuid(node) for name, kind in self.group}

    def _wanted(self, uuids: Mapping[str, str]) -> MpsShare:
        devices = tuple(uuids[name] for name in self.devices)
        percentage, memory = self.limits.percentage, self.memory_of(uuids)
        if self.limits_clients:
            percentage, memory = None, {}
        return MpsShare(self.protocol, devices, percentage, memory, self.multi_user, self.shared_memory)


@dataclass(frozen=True, slots=True)
class StrayShare(Undoable):
    """A share of MPS, of which only the place is known."""

    name: ShareName

    def __str__(self) -> str:
        return f"MPS share {self.name.key} of {self.name.server}"

    @property
    def key(self) -> str:
        """A GPU of the share's group."""
        return self.name.gpu

    @property
    def mark(self) -> Hashable:
        """The place."""
        return self.name

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the MPS daemon for GPU {self.key}"

    def undo(self, node: Node, call: Call) -> str:
        """Let dra-mps no longer serve the share."""
        node.of(MpsServices).release(self.name)
        return ""


def mps_steps_of(plan: Plan) -> tuple[MpsStep, ...]:
    """The steps of a claim for MPS."""
    return tuple(step for step in plan.steps if isinstance(step, MpsStep))


def share_key(claim_uid: str, number: int) -> str:
    """The key of a claim's share, which is the name of a namespace and part of the path of a socket."""
    return _short(claim_uid, str(number))


def _short(*parts: str) -> str:
    return hashlib.sha256(",".join(parts).encode()).hexdigest()[:_DIGITS]
