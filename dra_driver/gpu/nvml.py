# SPDX-License-Identifier: Apache-2.0
"""The NVML interface: the calls that this driver needs.

Each method is one NVML call, or a few that belong together. Arguments and return codes have the meaning of NVIDIA's
NVML API reference. Handles are opaque and belong to the object that returned them. Methods may raise NvmlError.
"""

import abc
import enum
from dataclasses import dataclass
from typing import NewType

from ..errors import DriverError
from .memory_limits import MemoryLimits
from .vgpus import VgpuTypes

DeviceHandle = NewType("DeviceHandle", object)
"""nvmlDevice_t: a GPU or a MIG device."""
GpuInstanceHandle = NewType("GpuInstanceHandle", object)
"""nvmlGpuInstance_t."""
ComputeInstanceHandle = NewType("ComputeInstanceHandle", object)
"""nvmlComputeInstance_t."""
EventSetHandle = NewType("EventSetHandle", object)
"""nvmlEventSet_t."""

NO_INSTANCE = 0xFFFFFFFF
"""The instance id in an event that concerns the whole GPU."""


class Return(enum.IntEnum):
    """nvmlReturn_t: why a call failed."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999

    @classmethod
    def _missing_(cls, value: object) -> "Return":
        return cls.UNKNOWN  # a code of a newer driver


NO_DRIVER = frozenset({Return.UNINITIALIZED, Return.DRIVER_NOT_LOADED, Return.LIBRARY_NOT_FOUND})
"""Codes of calls that fail because the whole NVIDIA driver is missing."""


class NvmlError(DriverError):
    """An NVML call failed."""

    def __init__(self, code: Return, call: str, detail: str = "") -> None:
        super().__init__(f"{call}: {code.name}" + (f" ({detail})" if detail else ""))
        self.code = code
        self.call = call
        self.detail = detail


class Architecture(enum.IntEnum):
    """nvmlDeviceArchitecture_t."""

    KEPLER = 2
    MAXWELL = 3
    PASCAL = 4
    VOLTA = 5
    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10
    RUBIN = 13


@dataclass(frozen=True, slots=True)
class MigMode:
    """The MIG mode of a GPU, now and after its next reset."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Consecutive memory slices: the first one and their number."""

    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"

    @property
    def slices(self) -> range:
        """The numbers of the memory slices."""
        return range(self.start, self.start + self.size)

    def overlaps(self, other: "Placement") -> bool:
        """Whether the two have a memory slice in common."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """nvmlGpuInstanceProfileInfo_t. `constant` is the NVML_GPU_INSTANCE_PROFILE_* that the profile was queried by, and
    `id` is its id in the driver (`nvidia-smi mig -lgip`).
    """

    constant: int
    id: int
    name: str
    slice_count: int
    instance_count: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class ComputeInstanceProfile:
    """nvmlComputeInstanceProfileInfo_t."""

    constant: int
    id: int
    slice_count: int
    instance_count: int


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """nvmlGpuInstanceInfo_t."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """nvmlComputeInstanceInfo_t. `device` is the handle of its MIG device."""

    id: int
    profile_id: int
    device: DeviceHandle


class VirtualizationMode(enum.IntEnum):
    """nvmlGpuVirtualizationMode_t. In a virtual machine, VGPU is a share of a GPU of the host, and PASSTHROUGH is a
    whole GPU. The other modes are those of hosts.
    """

    NONE = 0
    PASSTHROUGH = 1
    VGPU = 2
    HOST_VGPU = 3
    HOST_VSGA = 4


class ComputeMode(enum.IntEnum):
    """nvmlComputeMode_t: which processes may use a GPU. A change does not affect existing contexts."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class FabricState(enum.IntEnum):
    """nvmlGpuFabricState_t."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


@dataclass(frozen=True, slots=True)
class Fabric:
    """nvmlGpuFabricInfo_t. Until registration is completed, `cluster_uuid` is empty, `clique` and `status` are 0."""

    state: FabricState
    cluster_uuid: str = ""
    clique: int = 0
    status: int = 0
    health_mask: int = 0


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """nvmlDeviceGetRemappedRows: rows replaced by spares; whether rows wait for a reset; whether that ever failed."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class RecoveryAction(enum.IntEnum):
    """nvmlDeviceGpuRecoveryAction_t: the action that the driver requests to make a GPU healthy again."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class EventType(enum.IntFlag):
    """nvmlEventType*: the events that an event set can report."""

    SINGLE_BIT_ECC = 0x1
    DOUBLE_BIT_ECC = 0x2
    XID = 0x8
    SINGLE_BIT_ECC_STORM = 0x200
    DRAM_RETIREMENT = 0x400
    DRAM_RETIREMENT_FAILURE = 0x800
    NON_FATAL_POISON = 0x1000
    FATAL_POISON = 0x2000
    GPU_UNAVAILABLE = 0x4000
    GPU_RECOVERY_ACTION = 0x8000


@dataclass(frozen=True, slots=True)
class Event:
    """nvmlEventData_t. `data` is the XID if the event is an XID."""

    device: DeviceHandle
    type: EventType
    data: int
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class Nvml(abc.ABC):
    """NVML of one driver on one node. Call `initialize` first; it alone lists the GPUs. Methods may be called from
    several threads. After `shutdown`, the object may be initialized again. Then older handles are invalid.
    """

    @abc.abstractmethod
    def initialize(self) -> None:
        """nvmlInitWithFlags, which accepts a node without GPUs. Raises DRIVER_NOT_LOADED, ALREADY_INITIALIZED, …"""

    @abc.abstractmethod
    def shutdown(self) -> None:
        """nvmlShutdown. Waits for running calls. From then on, other calls raise UNINITIALIZED, also if it fails."""

    def identity(self, device: DeviceHandle) -> object:
        """A value that is equal for all handles of one GPU. Does not call NVML."""
        return device

    # The system

    @abc.abstractmethod
    def driver_version(self) -> str:
        """nvmlSystemGetDriverVersion: `570.158.01`."""

    @abc.abstractmethod
    def cuda_driver_version(self) -> int:
        """nvmlSystemGetCudaDriverVersion: 1000 * major + 10 * minor."""

    # GPUs

    @abc.abstractmethod
    def device_count(self) -> int:
        """nvmlDeviceGetCount."""

    @abc.abstractmethod
    def device_by_index(self, index: int) -> DeviceHandle:
        """nvmlDeviceGetHandleByIndex."""

    @abc.abstractmethod
    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        """nvmlDeviceGetHandleByUUID, of a GPU or a MIG device."""

    @abc.abstractmethod
    def uuid(self, device: DeviceHandle) -> str:
        """nvmlDeviceGetUUID: `GPU-…` or `MIG-…`."""

    @abc.abstractmethod
    def minor(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetMinorNumber: N of /dev/nvidiaN."""

    @abc.abstractmethod
    def name(self, device: DeviceHandle) -> str:
        """nvmlDeviceGetName: `NVIDIA H100 80GB HBM3`."""

    @abc.abstractmethod
    def brand(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetBrand, an nvmlBrandType_t."""

    @abc.abstractmethod
    def architecture(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetArchitecture, see Architecture. A newer driver may return other values."""

    @abc.abstractmethod
    def compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        """nvmlDeviceGetCudaComputeCapability: (major, minor)."""

    @abc.abstractmethod
    def memory_total(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetMemoryInfo, in bytes. NOT_SUPPORTED by GPUs that share the memory of the system."""

    @abc.abstractmethod
    def pci_address(self, device: DeviceHandle) -> str:
        """nvmlDeviceGetPciInfo: `0000:3b:00.0`, as in sysfs. A domain of more than four digits keeps all of them."""

    @abc.abstractmethod
    def module_id(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetModuleId: the position on a baseboard, from 1. Cards in slots report 0, 1 or NOT_SUPPORTED."""

    @abc.abstractmethod
    def addressing_mode(self, device: DeviceHandle) -> str:
        """nvmlDeviceGetAddressingMode: `None`, `HMM` or `ATS`."""

    @abc.abstractmethod
    def virtualization_mode(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetVirtualizationMode, see VirtualizationMode. A newer driver may return other values."""

    @abc.abstractmethod
    def vgpu_types(self, device: DeviceHandle) -> VgpuTypes:
        """nvmlDeviceGetSupportedVgpus, nvmlDeviceGetVgpuHeterogeneousMode, and the queries about each type."""

    @abc.abstractmethod
    def nvlinks(self, device: DeviceHandle) -> tuple[bool, ...]:
        """nvmlDeviceGetNvLinkState of each NVLink: whether it is up. Empty for a GPU without NVLinks."""

    @abc.abstractmethod
    def nvlink_peers(self, first: DeviceHandle, second: DeviceHandle) -> bool:
        """nvmlDeviceGetP2PStatus for NVML_P2P_CAPS_INDEX_NVLINK: whether the two GPUs reach each other over NVLink."""

    @abc.abstractmethod
    def fabric(self, device: DeviceHandle) -> Fabric:
        """nvmlDeviceGetGpuFabricInfo."""

    @abc.abstractmethod
    def compute_processes(self, device: DeviceHandle) -> tuple[int, ...]:
        """nvmlDeviceGetComputeRunningProcesses: process ids."""

    @abc.abstractmethod
    def compute_mode(self, device: DeviceHandle) -> int:
        """nvmlDeviceGetComputeMode; see ComputeMode."""

    @abc.abstractmethod
    def set_compute_mode(self, device: DeviceHandle, mode: int) -> None:
        """nvmlDeviceSetComputeMode. NOT_SUPPORTED in MIG mode. NO_PERMISSION without root."""

    @abc.abstractmethod
    def memory_limits(self, device: DeviceHandle, cgroup: str) -> MemoryLimits:
        """nvmlDeviceGetMemoryLimits_v1 of a cgroup, by the path of its folder. FUNCTION_NOT_FOUND before driver 615."""

    @abc.abstractmethod
    def set_memory_limits(self, device: DeviceHandle, cgroup: str, limits: MemoryLimits) -> None:
        """nvmlDeviceSetMemoryLimits_v1. NOT_FOUND if the cgroup lacks the controller dmem. Not for MIG devices."""

    # Health

    @abc.abstractmethod
    def remapped_rows(self, device: DeviceHandle) -> RemappedRows:
        """nvmlDeviceGetRemappedRows. NOT_SUPPORTED before Ampere, where pages are retired instead."""

    @abc.abstractmethod
    def retired_pages_pending(self, device: DeviceHandle) -> bool:
        """nvmlDeviceGetRetiredPagesPendingStatus: whether pages wait for a reset. NOT_SUPPORTED since Ampere."""

    @abc.abstractmethod
    def recovery_action(self, device: DeviceHandle) -> RecoveryAction:
        """nvmlDeviceGetFieldValues for NVML_FI_DEV_GET_GPU_RECOVERY_ACTION. NOT_SUPPORTED by drivers before 570."""

    # MIG

    @abc.abstractmethod
    def mig_mode(self, device: DeviceHandle) -> MigMode:
        """nvmlDeviceGetMigMode. NOT_SUPPORTED by GPUs without MIG."""

    @abc.abstractmethod
    def set_mig_mode(self, device: DeviceHandle, enabled: bool) -> Return | None:
        """nvmlDeviceSetMigMode. None if the mode is active at once, else the reason why it is pending (IN_USE, …)."""

    @abc.abstractmethod
    def gpu_instance_profile(self, device: DeviceHandle, constant: int) -> GpuInstanceProfile:
        """nvmlDeviceGetGpuInstanceProfileInfo. NOT_SUPPORTED if the GPU does not have the profile."""

    @abc.abstractmethod
    def gpu_instance_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        """nvmlDeviceGetGpuInstancePossiblePlacements, both free and occupied ones."""

    @abc.abstractmethod
    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstanceHandle, ...]:
        """nvmlDeviceGetGpuInstances: the existing ones."""

    @abc.abstractmethod
    def gpu_instance_by_id(self, device: DeviceHandle, instance_id: int) -> GpuInstanceHandle:
        """nvmlDeviceGetGpuInstanceById. NOT_FOUND if there is no such instance."""

    @abc.abstractmethod
    def gpu_instance_info(self, instance: GpuInstanceHandle) -> GpuInstance:
        """nvmlGpuInstanceGetInfo."""

    @abc.abstractmethod
    def create_gpu_instance(self, device: DeviceHandle, profile_id: int, placement: Placement) -> GpuInstanceHandle:
        """nvmlDeviceCreateGpuInstanceWithPlacement. INSUFFICIENT_RESOURCES if the placement is occupied."""

    @abc.abstractmethod
    def destroy_gpu_instance(self, instance: GpuInstanceHandle) -> None:
        """nvmlGpuInstanceDestroy. IN_USE while the instance has compute instances or processes."""

    @abc.abstractmethod
    def compute_instance_profile(self, instance: GpuInstanceHandle, constant: int) -> ComputeInstanceProfile:
        """nvmlGpuInstanceGetComputeInstanceProfileInfo for shared engines."""

    @abc.abstractmethod
    def compute_instances(self, instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstanceHandle, ...]:
        """nvmlGpuInstanceGetComputeInstances: the existing ones."""

    @abc.abstractmethod
    def compute_instance_info(self, instance: ComputeInstanceHandle) -> ComputeInstance:
        """nvmlComputeInstanceGetInfo."""

    @abc.abstractmethod
    def create_compute_instance(self, instance: GpuInstanceHandle, profile_id: int) -> ComputeInstanceHandle:
        """nvmlGpuInstanceCreateComputeInstance."""

    @abc.abstractmethod
    def destroy_compute_instance(self, instance: ComputeInstanceHandle) -> None:
        """nvmlComputeInstanceDestroy. IN_USE while a process uses the instance."""

    @abc.abstractmethod
    def mig_devices(self, device: DeviceHandle) -> tuple[DeviceHandle, ...]:
        """nvmlDeviceGetMigDeviceHandleByIndex up to nvmlDeviceGetMaxMigDeviceCount: the MIG devices of a GPU."""

    @abc.abstractmethod
    def mig_instance_ids(self, mig_device: DeviceHandle) -> tuple[int, int]:
        """nvmlDeviceGetGpuInstanceId and nvmlDeviceGetComputeInstanceId of a MIG device."""

    # Events

    @abc.abstractmethod
    def event_set(self) -> EventSetHandle:
        """nvmlEventSetCreate."""

    @abc.abstractmethod
    def register_events(self, device: DeviceHandle, types: EventType, events: EventSetHandle) -> EventType:
        """nvmlDeviceRegisterEvents for those of `types` that the GPU supports; returns these."""

    @abc.abstractmethod
    def wait_event(self, events: EventSetHandle, timeout_ms: int) -> Event | None:
        """nvmlEventSetWait; None when nothing happened within the time."""

    @abc.abstractmethod
    def free_event_set(self, events: EventSetHandle) -> None:
        """nvmlEventSetFree."""
