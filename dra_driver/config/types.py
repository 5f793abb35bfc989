# SPDX-License-Identifier: Apache-2.0
"""The configurations of an allocated device."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..kube.resource import Quantity
from ..kube.resource.meta import empty
from ..names import AdditionalDevice


class Strategy(enum.StrEnum):
    """How several processes share a GPU."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class TimeSlice(enum.StrEnum):
    """How long a process runs before another process runs."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


@dataclass(frozen=True, slots=True)
class MpsConfig:
    """Limits of an MPS control daemon. Percentages are 1 to 100.

    The keys of limits for each device are UUIDs, or indices of the sorted UUIDs of the group.
    """

    active_thread_percentage: int | None = None
    pinned_memory_limit: Quantity | None = None
    per_device_memory_limits: Mapping[str, Quantity] = field(default_factory=empty)
    multi_user: bool = False


@dataclass(frozen=True, slots=True)
class Sharing:
    """A strategy and its settings. `mps` is only set for MPS."""

    strategy: Strategy
    interval: TimeSlice = TimeSlice.DEFAULT
    mps: MpsConfig | None = None


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """Configuration of a whole GPU. Without `sharing`, nothing is changed."""

    sharing: Sharing | None = None
    additional_devices: tuple[AdditionalDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class MigDeviceConfig:
    """Configuration of a MIG device. Time-slicing is accepted, but has no effect."""

    sharing: Sharing | None = None
    additional_devices: tuple[AdditionalDevice, ...] = ()


class IommuBackend(enum.StrEnum):
    """The kernel's interface for devices of virtual machines: VFIO groups only, or iommufd where the kernel has it."""

    LEGACY_ONLY = "LegacyOnly"
    PREFER_IOMMUFD = "PreferIommuFD"


@dataclass(frozen=True, slots=True)
class VfioDeviceConfig:
    """Configuration of a GPU for a virtual machine. With `api_device`, the container also gets the device of the
    interface itself: `/dev/vfio/vfio` or `/dev/iommu`.
    """

    backend: IommuBackend = IommuBackend.LEGACY_ONLY
    api_device: bool = False


DeviceConfig = GpuConfig | MigDeviceConfig | VfioDeviceConfig

DEVICE_TYPES: Mapping[type[DeviceConfig], tuple[str, ...]] = {
    GpuConfig: ("gpu",),
    MigDeviceConfig: ("mig",),
    VfioDeviceConfig: ("vfio", "vgpu"),
}
"""The values of the attribute `type` of the devices to which a configuration applies."""


@dataclass(frozen=True, slots=True)
class ComputeDomainChannelConfig:
    """Configuration of a channel of the driver compute-domain.nvidia.com. `domain` is the UID of the ComputeDomain.
    With `all_channels`, containers get every channel of the node.
    """

    domain: str
    all_channels: bool = False


@dataclass(frozen=True, slots=True)
class ComputeDomainDaemonConfig:
    """Configuration of the daemon of a ComputeDomain, which only the cluster controller makes."""

    domain: str


DomainConfig = ComputeDomainChannelConfig | ComputeDomainDaemonConfig
