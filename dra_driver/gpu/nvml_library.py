# SPDX-License-Identifier: Apache-2.0
"""The NVML interface through pynvml, and loading and unloading the NVML library.

The library is taken from the driver root when one is given, because in a container the driver's files are not where the
loader looks for them. After a driver upgrade a process still has the old library, which the new kernel module
refuses. So the library is unloaded when the last user in the process shuts it down, and the next initialization loads
the library that is installed then.

pynvml never unloads a library: it keeps it in `nvmlLib`, and the functions that it has looked up in
`_nvmlGetFunctionPointer_cache`. Both are module globals without a way to reset them, so they are set here.
"""

import _ctypes
import contextlib
import ctypes
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pynvml

from ..process.loader_cache import CACHE, library_folders
from .memory_limits import MemoryLimits
from .nvml import (
    ComputeInstance,
    ComputeInstanceHandle,
    ComputeInstanceProfile,
    DeviceHandle,
    Event,
    EventSetHandle,
    EventType,
    Fabric,
    FabricState,
    GpuInstance,
    GpuInstanceHandle,
    GpuInstanceProfile,
    MigMode,
    Nvml,
    NvmlError,
    Placement,
    RecoveryAction,
    RemappedRows,
    Return,
)
from .vgpus import VgpuType, VgpuTypes

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    ".",
)
"""Where the driver installs its libraries, below the driver root."""

_INIT_WITHOUT_GPUS = 1  # NVML_INIT_FLAG_NO_GPUS

T = TypeVar("T")

_process = threading.Lock()
_users = 0  # the number of NvmlLibrary objects that are or are being initialized; guarded by _process

_MOST_COMPUTE_INSTANCES = 8  # a compute instance has at least one slice of its GPU instance
_NO_PROFILE = 0xFFFFFFFF  # INVALID_GPU_INSTANCE_PROFILE_ID
_PLACEMENTS_VERSION = 2  # in version 1, pynvml gives no room for placements
_ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}


def find_library(driver_root: Path, name: str = LIBRARY, folders: Sequence[str] = ()) -> Path | None:
    """The library with this name below `driver_root`: by default NVML. It may be in `folders`, too, or in a folder that
    the loader's cache has for it.
    """

    def candidates() -> Iterator[Path]:
        for directory in (*LIBRARY_DIRECTORIES, *folders):
            yield driver_root / directory.lstrip("/") / name
        for directory in library_folders(driver_root / CACHE, lambda file: file == name):
            yield driver_root / directory.lstrip("/") / name

    return next((path for path in candidates() if path.exists()), None)


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call a pynvml function. Its errors are raised as NvmlError."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        code = Return(error.value)
        detail = f"code {error.value}" if code is Return.UNKNOWN else ""
        raise NvmlError(code, function.__name__, detail) from None


class LibraryGate:
    """The access of one NvmlLibrary object to the library. Calls pass while the gate is open. Closing waits for running
    calls.

    Without the gate, a call could run in a library that is being unloaded, or use a handle of an earlier initialization
    for a GPU whose position in NVML's list has changed since.
    """

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._is_open = False
        self._passing = 0

    def open(self, driver_root: Path | None, folders: Sequence[str]) -> None:
        """Load the library, if no other object has loaded it, and initialize it. Raises NvmlError."""
        with self._state:
            if self._is_open:
                raise NvmlError(Return.ALREADY_INITIALIZED, "nvmlInitWithFlags", "this object is initialized")
            _start(driver_root, folders)
            self._is_open = True

    def close(self) -> None:
        """Refuse new calls, wait for running ones, and shut NVML down. The gate is closed also if this raises
        NvmlError.
        """
        with self._state:
            if not self._is_open:
                raise NvmlError(Return.UNINITIALIZED, "nvmlShutdown")
            self._is_open = False
            self._state.wait_for(lambda: not self._passing)
        _stop()

    @contextlib.contextmanager
    def passing(self, name: str) -> Iterator[None]:
        """A context for one call. Raises NvmlError with UNINITIALIZED if the gate is closed."""
        with self._state:
            if not self._is_open:
                raise NvmlError(Return.UNINITIALIZED, name)
            self._passing += 1
        try:
            yield
        finally:
            with self._state:
                self._passing -= 1
                self._state.notify_all()


def _start(driver_root: Path | None, folders: Sequence[str]) -> None:
    global _users
    with _process:
        if not _users:
            pynvml.nvmlLib = _load(driver_root, folders)
        try:
            call(pynvml.nvmlInitWithFlags, _INIT_WITHOUT_GPUS)
        except NvmlError:
            if not _users:
                _unload()
            raise
        _users += 1


def _stop() -> None:
    global _users
    with _process:
        _users -= 1
        try:
            call(pynvml.nvmlShutdown)
        finally:
            if not _users:
                _unload()


def _load(driver_root: Path | None, folders: Sequence[str]) -> ctypes.CDLL:
    # By its path, because the loader would answer a mere name with a library that is loaded already.
    path = find_library(driver_root or Path("/"), folders=folders)
    try:
        return ctypes.CDLL(str(path or LIBRARY))
    except OSError as error:
        raise NvmlError(Return.LIBRARY_NOT_FOUND, "dlopen", str(error)) from None


def _unload() -> None:
    library, pynvml.nvmlLib = pynvml.nvmlLib, None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    _ctypes.dlclose(library._handle)


class NvmlLibrary(Nvml):
    """NVML of the installed driver. `driver_root` is where this process sees the driver's files, and `folders` are more
    folders of its libraries below it.

    A new initialization uses the library that is installed at that time. Handles belong to one initialization. After
    `shutdown`, every call raises UNINITIALIZED, also while another object of the process is initialized.
    """

    def __init__(self, driver_root: Path | None = None, folders: Sequence[str] = ()) -> None:
        self._driver_root = driver_root
        self._folders = folders
        self._gate = LibraryGate()

    def initialize(self) -> None:
        self._gate.open(self._driver_root, self._folders)

    def shutdown(self) -> None:
        self._gate.close()

    def identity(self, device: DeviceHandle) -> object:
        return ctypes.cast(cast(Any, device), ctypes.c_void_p).value

    def driver_version(self) -> str:
        return str(self._call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_driver_version(self) -> int:
        return int(self._call(pynvml.nvmlSystemGetCudaDriverVersion_v2))

    def device_count(self) -> int:
        return int(self._call(pynvml.nvmlDeviceGetCount))

    def device_by_index(self, index: int) -> DeviceHandle:
        return DeviceHandle(self._call(pynvml.nvmlDeviceGetHandleByIndex, index))

    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        return DeviceHandle(self._call(pynvml.nvmlDeviceGetHandleByUUID, uuid.encode()))

    def uuid(self, device: DeviceHandle) -> str:
        return str(self._call(pynvml.nvmlDeviceGetUUID, device))

    def minor(self, device: DeviceHandle) -> int:
        return int(self._call(pynvml.nvmlDeviceGetMinorNumber, device))

    def name(self, device: DeviceHandle) -> str:
        return str(self._call(pynvml.nvmlDeviceGetName, device))

    def brand(self, device: DeviceHandle) -> int:
        return int(self._call(pynvml.nvmlDeviceGetBrand, device))

    def architecture(self, device: DeviceHandle) -> int:
        return int(self._call(pynvml.nvmlDeviceGetArchitecture, device))

    def compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        major, minor = self._call(pynvml.nvmlDeviceGetCudaComputeCapability, device)
        return int(major), int(minor)

    def memory_total(self, device: DeviceHandle) -> int:
        return int(self._call(pynvml.nvmlDeviceGetMemoryInfo, device).total)

    def pci_address(self, device: DeviceHandle) -> str:
        info = self._call(pynvml.nvmlDeviceGetPciInfo, device)
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"

    def module_id(self, device: DeviceHandle) -> int:
        # pynvml's default for this argument is an object that all threads share
        return int(self._call(pynvml.nvmlDeviceGetModuleId, device, ctypes.c_uint()))

    def addressing_mode(self, device: DeviceHandle) -> str:
        mode = self._call(pynvml.nvmlDeviceGetAddressingMode, device)
        return _ADDRESSING_MODES.get(int(mode), str(mode))

    def virtualization_mode(self, device: DeviceHandle) -> int:
        return int(self._call(pynvml.nvmlDeviceGetVirtualizationMode, device))

    def vgpu_types(self, device: DeviceHandle) -> VgpuTypes:
        mixed = self._known(pynvml.nvmlDeviceGetVgpuHeterogeneousMode, device) == 1
        ids = [int(id_) for id_ in self._call(pynvml.nvmlDeviceGetSupportedVgpus, device)]
        # A type without a profile of GPU instances shares the whole GPU in time.
        whole = [
            id_ for id_ in ids if self._known(pynvml.nvmlVgpuTypeGetGpuInstanceProfileId, id_) in (None, _NO_PROFILE)
        ]
        return VgpuTypes(mixed, tuple(self._vgpu_type(device, id_, mixed) for id_ in whole))

    def nvlinks(self, device: DeviceHandle) -> tuple[bool, ...]:
        states: list[bool] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                states.append(bool(self._call(pynvml.nvmlDeviceGetNvLinkState, device, link)))
            except NvmlError as error:
                if error.code not in (Return.NOT_SUPPORTED, Return.INVALID_ARGUMENT):
                    raise
                break  # there are no more
        return tuple(states)

    def nvlink_peers(self, first: DeviceHandle, second: DeviceHandle) -> bool:
        status = self._call(pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return bool(status == pynvml.NVML_P2P_STATUS_OK)

    def fabric(self, device: DeviceHandle) -> Fabric:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        self._call(pynvml.nvmlDeviceGetGpuFabricInfoV, device, ctypes.byref(info))
        raw = bytes(info.clusterUuid)
        state = info.state & 0xFF  # a byte in NVML; pynvml reads the padding behind it as well
        if state not in tuple(FabricState):
            raise NvmlError(Return.UNKNOWN, "nvmlDeviceGetGpuFabricInfoV", f"state {state}")
        return Fabric(
            state=FabricState(state),
            cluster_uuid=str(uuid.UUID(bytes=raw)) if any(raw) else "",
            clique=info.cliqueId,
            status=info.status,
            health_mask=info.healthMask,
        )

    def compute_processes(self, device: DeviceHandle) -> tuple[int, ...]:
        return tuple(process.pid for process in self._call(pynvml.nvmlDeviceGetComputeRunningProcesses, device))

    def compute_mode(self, device: DeviceHandle) -> int:
        return int(self._call(pynvml.nvmlDeviceGetComputeMode, device))

    def set_compute_mode(self, device: DeviceHandle, mode: int) -> None:
        self._call(pynvml.nvmlDeviceSetComputeMode, device, mode)

    def memory_limits(self, device: DeviceHandle, cgroup: str) -> MemoryLimits:
        found = pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup))
        self._call(pynvml.nvmlDeviceGetMemoryLimits_v1, device, found)
        return MemoryLimits(found.hardLimit, found.softLimit, found.currentUsed)

    def set_memory_limits(self, device: DeviceHandle, cgroup: str, limits: MemoryLimits) -> None:
        wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), limits.soft, limits.hard)
        self._call(pynvml.nvmlDeviceSetMemoryLimits_v1, device, wanted)

    def remapped_rows(self, device: DeviceHandle) -> RemappedRows:
        correctable, uncorrectable, pending, failed = self._call(pynvml.nvmlDeviceGetRemappedRows, device)
        return RemappedRows(correctable, uncorrectable, bool(pending), bool(failed))

    def retired_pages_pending(self, device: DeviceHandle) -> bool:
        return bool(self._call(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, device))

    def recovery_action(self, device: DeviceHandle) -> RecoveryAction:
        call = "nvmlDeviceGetFieldValues"
        (field,) = self._call(pynvml.nvmlDeviceGetFieldValues, device, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if field.nvmlReturn:
            # A driver that does not know the field reports that its number is invalid.
            code = Return(field.nvmlReturn)
            raise NvmlError(Return.NOT_SUPPORTED if code is Return.INVALID_ARGUMENT else code, call, "recovery action")
        action = field.value.uiVal
        if action not in tuple(RecoveryAction):
            raise NvmlError(Return.UNKNOWN, call, f"recovery action {action}")
        return RecoveryAction(action)

    def mig_mode(self, device: DeviceHandle) -> MigMode:
        current, pending = self._call(pynvml.nvmlDeviceGetMigMode, device)
        return MigMode(bool(current), bool(pending))

    def set_mig_mode(self, device: DeviceHandle, enabled: bool) -> Return | None:
        activation = self._call(pynvml.nvmlDeviceSetMigMode, device, int(enabled))
        return Return(activation) if activation else None

    def gpu_instance_profile(self, device: DeviceHandle, constant: int) -> GpuInstanceProfile:
        info = self._call(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device, constant, 2)
        return GpuInstanceProfile(
            constant=constant,
            id=info.id,
            name=str(info.name).removeprefix("MIG "),  # decoded by pynvml
            slice_count=info.sliceCount,
            instance_count=info.instanceCount,
            memory_mib=info.memorySizeMB,
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
        )

    def gpu_instance_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        placements = self._sized_array(
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, pynvml.c_nvmlGpuInstancePlacement_t, device, profile_id
        )
        return tuple(Placement(placement.start, placement.size) for placement in placements)

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstanceHandle, ...]:
        most = int(self._call(pynvml.nvmlDeviceGetMaxMigDeviceCount, device))
        handles = self._array(pynvml.nvmlDeviceGetGpuInstances, pynvml.c_nvmlGpuInstance_t, most, device, profile_id)
        return tuple(GpuInstanceHandle(handle) for handle in handles)

    def gpu_instance_by_id(self, device: DeviceHandle, instance_id: int) -> GpuInstanceHandle:
        return GpuInstanceHandle(self._call(pynvml.nvmlDeviceGetGpuInstanceById, device, instance_id))

    def gpu_instance_info(self, instance: GpuInstanceHandle) -> GpuInstance:
        info = self._call(pynvml.nvmlGpuInstanceGetInfo, instance)
        return GpuInstance(info.id, info.profileId, Placement(info.placement.start, info.placement.size))

    def create_gpu_instance(self, device: DeviceHandle, profile_id: int, placement: Placement) -> GpuInstanceHandle:
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        handle = self._call(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, device, profile_id, ctypes.byref(place))
        return GpuInstanceHandle(handle)

    def destroy_gpu_instance(self, instance: GpuInstanceHandle) -> None:
        self._call(pynvml.nvmlGpuInstanceDestroy, instance)

    def compute_instance_profile(self, instance: GpuInstanceHandle, constant: int) -> ComputeInstanceProfile:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        info = self._call(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, constant, shared, 1)
        return ComputeInstanceProfile(constant, info.id, info.sliceCount, info.instanceCount)

    def compute_instances(self, instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstanceHandle, ...]:
        get, kind = pynvml.nvmlGpuInstanceGetComputeInstances, pynvml.c_nvmlComputeInstance_t
        handles = self._array(get, kind, _MOST_COMPUTE_INSTANCES, instance, profile_id)
        return tuple(ComputeInstanceHandle(handle) for handle in handles)

    def compute_instance_info(self, instance: ComputeInstanceHandle) -> ComputeInstance:
        info = self._call(pynvml.nvmlComputeInstanceGetInfo_v2, instance)
        return ComputeInstance(info.id, info.profileId, DeviceHandle(info.device))

    def create_compute_instance(self, instance: GpuInstanceHandle, profile_id: int) -> ComputeInstanceHandle:
        return ComputeInstanceHandle(self._call(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile_id))

    def destroy_compute_instance(self, instance: ComputeInstanceHandle) -> None:
        self._call(pynvml.nvmlComputeInstanceDestroy, instance)

    def mig_devices(self, device: DeviceHandle) -> tuple[DeviceHandle, ...]:
        devices = []
        for index in range(int(self._call(pynvml.nvmlDeviceGetMaxMigDeviceCount, device))):
            try:
                devices.append(DeviceHandle(self._call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, index)))
            except NvmlError as error:
                if error.code is not Return.NOT_FOUND:  # indexes may have holes
                    raise
        return tuple(devices)

    def mig_instance_ids(self, mig_device: DeviceHandle) -> tuple[int, int]:
        return (
            int(self._call(pynvml.nvmlDeviceGetGpuInstanceId, mig_device)),
            int(self._call(pynvml.nvmlDeviceGetComputeInstanceId, mig_device)),
        )

    def event_set(self) -> EventSetHandle:
        return EventSetHandle(self._call(pynvml.nvmlEventSetCreate))

    def register_events(self, device: DeviceHandle, types: EventType, events: EventSetHandle) -> EventType:
        supported = EventType(int(self._call(pynvml.nvmlDeviceGetSupportedEventTypes, device)) & types)
        if supported:
            self._call(pynvml.nvmlDeviceRegisterEvents, device, int(supported), events)
        return supported

    def wait_event(self, events: EventSetHandle, timeout_ms: int) -> Event | None:
        try:
            data = self._call(pynvml.nvmlEventSetWait_v2, events, timeout_ms)
        except NvmlError as error:
            if error.code is Return.TIMEOUT:
                return None
            raise
        kind = EventType(data.eventType)
        return Event(DeviceHandle(data.device), kind, data.eventData, data.gpuInstanceId, data.computeInstanceId)

    def free_event_set(self, events: EventSetHandle) -> None:
        self._call(pynvml.nvmlEventSetFree, events)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a pynvml function. Its errors are raised as NvmlError."""
        with self._gate.passing(function.__name__):
            return call(function, *arguments)

    def _known(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Like `_call`. None if the GPU or its driver does not have the feature."""
        try:
            return self._call(function, *arguments)
        except NvmlError as error:
            if error.code in (Return.NOT_SUPPORTED, Return.FUNCTION_NOT_FOUND, Return.ARGUMENT_VERSION_MISMATCH):
                return None
            raise

    def _vgpu_type(self, device: DeviceHandle, type_id: int, mixed: bool) -> VgpuType:
        name = str(self._call(pynvml.nvmlVgpuTypeGetName, type_id))
        memory = int(self._call(pynvml.nvmlVgpuTypeGetFramebufferSize, type_id))
        most = int(self._call(pynvml.nvmlVgpuTypeGetMaxInstances, device, type_id))
        size, starts = 1, tuple(range(most))
        if mixed:
            found = self._call(
                pynvml.nvmlDeviceGetVgpuTypeSupportedPlacements,
                device,
                type_id,
                pynvml.NVML_VGPU_PGPU_HETEROGENEOUS_MODE,
                _PLACEMENTS_VERSION,
            )
            size, starts = int(found.placementSize), tuple(sorted(found.placementIds[: found.count]))
        return VgpuType(
            type_id, name.removeprefix("NVIDIA ").removeprefix("GRID ").replace(" ", "-"), memory, size, starts
        )

    def _array(self, function: Callable[..., object], kind: Any, size: int, *arguments: object) -> list[Any]:
        """The elements that an NVML call writes into an array of `size` places."""
        count = ctypes.c_uint(size)
        elements = (kind * size)()
        self._call(function, *arguments, elements, ctypes.byref(count))
        return list(elements[: count.value])

    def _sized_array(self, function: Callable[..., object], kind: Any, *arguments: object) -> list[Any]:
        """Like `_array`, for a call that can report the number of elements first."""
        count = ctypes.c_uint(0)
        self._call(function, *arguments, None, ctypes.byref(count))
        return self._array(function, kind, count.value, *arguments) if count.value else []
