# SPDX-License-Identifier: Apache-2.0
"""Who uses which GPU: nodes, their GPUs, the devices of a GPU, and the claims, pods and owners that use them."""

import enum
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...gpu.picture import GpuPicture
from ...kube.resource.meta import empty

WHOLE: Final = "whole"
SHARE: Final = "share"
PASSTHROUGH: Final = "passthrough"


class GpuUsage(enum.Enum):
    """How much of a GPU is in use."""

    FREE = "free"
    PARTLY = "partly used"
    USED = "used"
    UNAVAILABLE = "unavailable"
    """Nothing of it is in use, and a taint keeps new claims away from all of it."""


@dataclass(frozen=True, slots=True)
class DeviceConsumer:
    """One claim that uses a device. `request` is that of the claim.

    `pods` are namespace/name of the pods for which the claim is reserved. `owner` is their controller, such as `Job
    train-3`; empty if it is not known. `since` is the time at which the first of the pods started, or at which the
    claim was created, in RFC 3339. `amounts` are those of a share, by their names. A use with `admin` access takes
    nothing from others.
    """

    claim: str
    request: str
    pods: tuple[str, ...] = ()
    owner: str = ""
    since: str = ""
    amounts: tuple[tuple[str, str], ...] = ()
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a device in words, and since when it is there (RFC 3339, or empty)."""

    text: str
    since: str = ""
    unhealthy: bool = False


@dataclass(frozen=True, slots=True)
class UsedDevice:
    """A device that a driver publishes. `kind` is its MIG profile or vGPU type, WHOLE, SHARE or PASSTHROUGH; empty for
    devices of other drivers. `memory` is as published.
    """

    name: str
    kind: str = ""
    memory: str = ""
    uses: tuple[DeviceConsumer, ...] = ()
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedGpu:
    """A GPU. `devices` are those of its devices that are in use or tainted. `free` has the kinds of devices of which a
    claim without tolerations could get one now. `picture` has its memory slices, or one cell if it cannot be divided.
    """

    name: str
    model: str
    uuid: str
    memory: str
    state: GpuUsage
    picture: GpuPicture
    devices: tuple[UsedDevice, ...] = ()
    free: tuple[str, ...] = ()

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints of its devices, each once."""
        return tuple(dict.fromkeys(taint for device in self.devices for taint in device.taints))

    @property
    def is_unhealthy(self) -> bool:
        """Whether a taint tells of a fault of the GPU or of a part of it."""
        return any(taint.unhealthy for taint in self.taints)

    @property
    def uses(self) -> Iterator[tuple[UsedDevice, DeviceConsumer]]:
        """The devices in use, with each of their uses."""
        return ((device, use) for device in self.devices for use in device.uses)

    @property
    def look(self) -> Hashable:
        """All but the names of the GPU and of its devices. GPUs with equal looks can be shown as one."""
        devices = tuple((device.kind, device.uses, device.taints) for device in self.devices)
        return (self.model, self.memory, self.state, self.picture.look, devices, self.free)


@dataclass(frozen=True, slots=True)
class OtherDevices:
    """The devices of another driver on a node: their number, and the devices that are in use or tainted."""

    driver: str
    total: int
    devices: tuple[UsedDevice, ...] = ()

    @property
    def in_use(self) -> int:
        """The number of devices in use."""
        return sum(any(not use.admin for use in device.uses) for device in self.devices)


@dataclass(frozen=True, slots=True)
class UsedNode:
    """A node with its GPUs and other devices. `name` is empty for devices that are not of a single node. `total` is the
    number of its GPUs, of which `gpus` may be a selection. `problems` tell which pools offer nothing, and why.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=empty)
    total: int = 0
    gpus: tuple[UsedGpu, ...] = ()
    others: tuple[OtherDevices, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def counts(self) -> "GpuCounts":
        """The numbers of its GPUs."""
        return GpuCounts.of(self.gpus)

    @property
    def models(self) -> str:
        """The models of its GPUs, separated by commas."""
        return ", ".join(dict.fromkeys(gpu.model for gpu in self.gpus if gpu.model))

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners of pods that use its GPUs, the most frequent first."""
        found = Counter(use.owner for gpu in self.gpus for _, use in gpu.uses if use.owner)
        return tuple(owner for owner, _ in found.most_common())


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """Numbers of GPUs. A GPU is free, partly used, used or unavailable, and besides it may be unhealthy."""

    total: int = 0
    free: int = 0
    partly: int = 0
    used: int = 0
    unavailable: int = 0
    unhealthy: int = 0

    @staticmethod
    def of(gpus: Sequence[UsedGpu]) -> "GpuCounts":
        """The numbers of these GPUs."""
        states = Counter(gpu.state for gpu in gpus)
        return GpuCounts(
            len(gpus),
            states[GpuUsage.FREE],
            states[GpuUsage.PARTLY],
            states[GpuUsage.USED],
            states[GpuUsage.UNAVAILABLE],
            sum(gpu.is_unhealthy for gpu in gpus),
        )

    @staticmethod
    def sum(counts: Iterable["GpuCounts"]) -> "GpuCounts":
        """The sum of each number."""
        total = GpuCounts()
        for count in counts:
            total = GpuCounts(
                total.total + count.total,
                total.free + count.free,
                total.partly + count.partly,
                total.used + count.used,
                total.unavailable + count.unavailable,
                total.unhealthy + count.unhealthy,
            )
        return total
