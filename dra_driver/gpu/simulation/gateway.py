# SPDX-License-Identifier: Apache-2.0
"""The NVML gateway of a simulated node.

Every call reads the state from the node's folder, so that all processes see one hardware, and changes it
under the board's lock. Nothing is remembered here except whether the library is initialized.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from ..nvml import (
    NO_INSTANCE,
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
    Pci,
    Placement,
    Return,
)
from .board import COMPUTE_PROFILES, Board
from .description import NodeDescription
from .faults import Fault
from .files import DriverFiles
from .store import Store, SystemState, parse_system

_BRAND_NVIDIA = 14
_NAMESPACE = uuid.UUID("6c1d2c1e-6c0f-5b43-9d4c-0a1b5f3c7e21")  # ours, for name-based UUIDs
_EVENT_POLL_SECONDS = 0.02
_COMPUTE_SLICES = {constant: slices for slices, constant in COMPUTE_PROFILES.items()}
_SUPPORTED_EVENTS = EventType.SINGLE_BIT_ECC | EventType.DOUBLE_BIT_ECC | EventType.XID


@dataclass(frozen=True, slots=True)
class _Gpu:
    index: int


@dataclass(frozen=True, slots=True)
class _Instance:
    gpu: int
    id: int


@dataclass(frozen=True, slots=True)
class _Compute:
    gpu: int
    instance: int
    id: int


@dataclass(frozen=True, slots=True)
class _Mig:
    gpu: int
    instance: int
    compute: int


class _EventSet:
    def __init__(self, position: int) -> None:
        self.position = position
        self.registered: dict[int, EventType] = {}


def gpu_uuid(identity: str, index: int) -> str:
    """The UUID of a simulated GPU."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{identity}/{index}')}"


def mig_uuid(gpu: str, instance: int, compute: int) -> str:
    """The UUID of a MIG device: the driver derives it from GPU, GPU instance and compute instance."""
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu}/{instance}/{compute}')}"


class SimulatedNvml(Nvml):
    """NVML of the simulated node in `root` (see SimulatedNode, which makes it)."""

    def __init__(self, root: Path) -> None:
        self._store = Store(root / "state")
        self._files = DriverFiles(root / "driver")
        self._description: NodeDescription | None = None
        self._system = SystemState()
        self._system_text = b""

    def initialize(self) -> None:
        call = "nvmlInitWithFlags"
        description = self._store.read_description()
        if description is None:
            raise NvmlError(Return.LIBRARY_NOT_FOUND, call, f"no simulated node in {self._store.folder}")
        absent = self._store.read_system().absent
        if absent is not None:
            raise NvmlError(absent, call)
        self._description = description
        try:
            self._enter(call)
        except NvmlError:
            self._description = None
            raise

    def shutdown(self) -> None:
        self._enter("nvmlShutdown")
        self._description = None

    # The system

    def driver_version(self) -> str:
        return self._enter("nvmlSystemGetDriverVersion").driver_version

    def cuda_driver_version(self) -> int:
        major, _, minor = self._enter("nvmlSystemGetCudaDriverVersion").cuda_version.partition(".")
        return 1000 * int(major) + 10 * int(minor or 0)

    # GPUs

    def device_count(self) -> int:
        return len(self._enter("nvmlDeviceGetCount").gpus)

    def device_by_index(self, index: int) -> DeviceHandle:
        call = "nvmlDeviceGetHandleByIndex"
        description = self._enter(call, index)
        if not 0 <= index < len(description.gpus):
            raise NvmlError(Return.INVALID_ARGUMENT, call, f"no GPU {index}")
        self._load(description, index, call)
        return DeviceHandle(_Gpu(index))

    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        call = "nvmlDeviceGetHandleByUUID"
        for index in range(0 if self._description is None else len(self._description.gpus)):
            handle = self._find_on_gpu(uuid, index)
            if handle is not None:
                self._board(call, index)
                return DeviceHandle(handle)
        self._enter(call)
        raise NvmlError(Return.NOT_FOUND, call, uuid)

    def uuid(self, device: DeviceHandle) -> str:
        call = "nvmlDeviceGetUUID"
        if isinstance(device, _Mig):
            self._board(call, device.gpu).compute_instance(device.instance, device.compute, call)
            return mig_uuid(self._gpu_uuid(device.gpu), device.instance, device.compute)
        self._board(call, device)
        return self._gpu_uuid(self._gpu(device, call))

    def minor(self, device: DeviceHandle) -> int:
        call = "nvmlDeviceGetMinorNumber"
        self._board(call, device)
        return self._gpu(device, call)

    def name(self, device: DeviceHandle) -> str:
        return self._board("nvmlDeviceGetName", device).model.product_name

    def brand(self, device: DeviceHandle) -> int:
        self._board("nvmlDeviceGetBrand", device)
        return _BRAND_NVIDIA

    def architecture(self, device: DeviceHandle) -> int:
        return int(self._board("nvmlDeviceGetArchitecture", device).model.architecture)

    def compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        return self._board("nvmlDeviceGetCudaComputeCapability", device).model.compute_capability

    def memory_total(self, device: DeviceHandle) -> int:
        return self._board("nvmlDeviceGetMemoryInfo", device).model.memory_mib << 20

    def pci(self, device: DeviceHandle) -> Pci:
        call = "nvmlDeviceGetPciInfo"
        self._board(call, device)
        assert self._description is not None
        gpu = self._description.gpus[self._gpu(device, call)]
        domain, bus, rest = gpu.pci_address.split(":")
        return Pci(int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16), gpu.board.pci_device_id)

    def addressing_mode(self, device: DeviceHandle) -> str:
        self._board("nvmlDeviceGetAddressingMode", device)
        return "HMM"

    def nvlink_active(self, device: DeviceHandle, link: int) -> bool:
        call = "nvmlDeviceGetNvLinkState"
        board = self._board(call, device)
        if not 0 <= link < board.model.nvlinks:
            code = Return.INVALID_ARGUMENT if board.model.nvlinks else Return.NOT_SUPPORTED
            raise NvmlError(code, call, f"no link {link}")
        return True

    def fabric(self, device: DeviceHandle) -> Fabric:
        call = "nvmlDeviceGetGpuFabricInfo"
        self._board(call, device)
        assert self._description is not None
        fabric = self._description.fabric
        if fabric is None:
            return Fabric(FabricState.NOT_SUPPORTED)
        return Fabric(FabricState.COMPLETED, fabric.cluster_uuid, fabric.clique)

    def compute_processes(self, device: DeviceHandle) -> tuple[int, ...]:
        call = "nvmlDeviceGetComputeRunningProcesses"
        if isinstance(device, _Mig):
            processes = self._board(call, device.gpu).state.processes
            place = (device.instance, device.compute)
            return tuple(one.pid for one in processes if (one.gpu_instance, one.compute_instance) == place)
        return tuple(one.pid for one in self._board(call, device).state.processes)

    # MIG

    def mig_mode(self, device: DeviceHandle) -> MigMode:
        return self._board("nvmlDeviceGetMigMode", device).mig_mode()

    def set_mig_mode(self, device: DeviceHandle, enabled: bool) -> Return | None:
        with self._changing("nvmlDeviceSetMigMode", device) as board:
            return board.set_mig_mode(enabled)

    def gpu_instance_profile(self, device: DeviceHandle, constant: int) -> GpuInstanceProfile:
        call = "nvmlDeviceGetGpuInstanceProfileInfo"
        for profile in self._board(call, device).model.profiles:
            if profile.info.constant == constant:
                return profile.info
        raise NvmlError(Return.NOT_SUPPORTED, call, f"profile constant {constant}")

    def gpu_instance_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        call = "nvmlDeviceGetGpuInstancePossiblePlacements"
        board = self._board(call, device)
        board.require_mig(call)
        return board.profile(profile_id, call).placements

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstanceHandle, ...]:
        call = "nvmlDeviceGetGpuInstances"
        index = self._gpu(device, call)
        board = self._board(call, device)
        board.require_mig(call)
        instances = board.state.gpu_instances
        return tuple(GpuInstanceHandle(_Instance(index, one.id)) for one in instances if one.profile_id == profile_id)

    def gpu_instance_by_id(self, device: DeviceHandle, instance_id: int) -> GpuInstanceHandle:
        call = "nvmlDeviceGetGpuInstanceById"
        board = self._board(call, device)
        board.require_mig(call)
        board.gpu_instance(instance_id, call)
        return GpuInstanceHandle(_Instance(self._gpu(device, call), instance_id))

    def gpu_instance_info(self, instance: GpuInstanceHandle) -> GpuInstance:
        call = "nvmlGpuInstanceGetInfo"
        handle = _instance(instance, call)
        state = self._board(call, handle.gpu).gpu_instance(handle.id, call)
        return GpuInstance(state.id, state.profile_id, Placement(state.start, state.size))

    def create_gpu_instance(self, device: DeviceHandle, profile_id: int, placement: Placement) -> GpuInstanceHandle:
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        index = self._gpu(device, call)
        with self._changing(call, device) as board:
            created = board.create_gpu_instance(profile_id, placement)
            self._files.add_gpu_instance(index, created.id)
        return GpuInstanceHandle(_Instance(index, created.id))

    def destroy_gpu_instance(self, instance: GpuInstanceHandle) -> None:
        call = "nvmlGpuInstanceDestroy"
        handle = _instance(instance, call)
        with self._changing(call, DeviceHandle(_Gpu(handle.gpu))) as board:
            board.destroy_gpu_instance(handle.id)
            self._files.remove_gpu_instance(handle.gpu, handle.id)

    def compute_instance_profile(self, instance: GpuInstanceHandle, constant: int) -> ComputeInstanceProfile:
        call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        handle = _instance(instance, call)
        board = self._board(call, handle.gpu)
        slices = _COMPUTE_SLICES.get(constant)
        whole = board.profile(board.gpu_instance(handle.id, call).profile_id, call).info.slice_count
        if slices is None or slices > whole:
            raise NvmlError(Return.NOT_SUPPORTED, call, f"profile constant {constant}")
        return ComputeInstanceProfile(constant, constant, slices, whole // slices)

    def compute_instances(self, instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstanceHandle, ...]:
        call = "nvmlGpuInstanceGetComputeInstances"
        handle = _instance(instance, call)
        computes = self._board(call, handle.gpu).gpu_instance(handle.id, call).compute_instances
        return tuple(
            ComputeInstanceHandle(_Compute(handle.gpu, handle.id, one.id))
            for one in computes
            if one.profile_id == profile_id
        )

    def compute_instance_by_id(self, instance: GpuInstanceHandle, instance_id: int) -> ComputeInstanceHandle:
        call = "nvmlGpuInstanceGetComputeInstanceById"
        handle = _instance(instance, call)
        self._board(call, handle.gpu).compute_instance(handle.id, instance_id, call)
        return ComputeInstanceHandle(_Compute(handle.gpu, handle.id, instance_id))

    def compute_instance_info(self, instance: ComputeInstanceHandle) -> ComputeInstance:
        call = "nvmlComputeInstanceGetInfo"
        handle = _compute(instance, call)
        state = self._board(call, handle.gpu).compute_instance(handle.instance, handle.id, call)
        return ComputeInstance(state.id, state.profile_id, DeviceHandle(_Mig(handle.gpu, handle.instance, handle.id)))

    def create_compute_instance(self, instance: GpuInstanceHandle, profile_id: int) -> ComputeInstanceHandle:
        call = "nvmlGpuInstanceCreateComputeInstance"
        handle = _instance(instance, call)
        with self._changing(call, DeviceHandle(_Gpu(handle.gpu))) as board:
            created = board.create_compute_instance(handle.id, profile_id)
            self._files.add_compute_instance(handle.gpu, handle.id, created.id)
        return ComputeInstanceHandle(_Compute(handle.gpu, handle.id, created.id))

    def destroy_compute_instance(self, instance: ComputeInstanceHandle) -> None:
        call = "nvmlComputeInstanceDestroy"
        handle = _compute(instance, call)
        with self._changing(call, DeviceHandle(_Gpu(handle.gpu))) as board:
            board.destroy_compute_instance(handle.instance, handle.id)
            self._files.remove_compute_instance(handle.gpu, handle.instance, handle.id)

    def mig_devices(self, device: DeviceHandle) -> tuple[DeviceHandle, ...]:
        call = "nvmlDeviceGetMigDeviceHandleByIndex"
        index = self._gpu(device, call)
        self._board(call, device)
        return tuple(DeviceHandle(mig) for mig in self._mig_devices(index))

    def mig_instance_ids(self, mig_device: DeviceHandle) -> tuple[int, int]:
        call = "nvmlDeviceGetGpuInstanceId"
        if not isinstance(mig_device, _Mig):
            raise NvmlError(Return.INVALID_ARGUMENT, call, "not a MIG device")
        self._board(call, mig_device.gpu).compute_instance(mig_device.instance, mig_device.compute, call)
        return mig_device.instance, mig_device.compute

    # Events

    def event_set(self) -> EventSetHandle:
        self._enter("nvmlEventSetCreate")
        return EventSetHandle(_EventSet(self._store.events.stat().st_size))

    def register_events(self, device: DeviceHandle, types: EventType, events: EventSetHandle) -> EventType:
        call = "nvmlDeviceRegisterEvents"
        index = self._gpu(device, call)
        self._board(call, device)
        supported = types & _SUPPORTED_EVENTS
        cast(_EventSet, events).registered[index] = supported
        return supported

    def wait_event(self, events: EventSetHandle, timeout_ms: int) -> Event | None:
        waiting = cast(_EventSet, events)
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._enter("nvmlEventSetWait")
            event = self._next_event(waiting)
            if event is not None or time.monotonic() >= deadline:
                return event
            time.sleep(_EVENT_POLL_SECONDS)

    def free_event_set(self, events: EventSetHandle) -> None:
        self._enter("nvmlEventSetFree")

    def _next_event(self, waiting: _EventSet) -> Event | None:
        with self._store.events.open("rb") as file:
            file.seek(waiting.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                waiting.position += len(line)
                row = json.loads(line)
                kind = EventType(row["type"])
                if kind & waiting.registered.get(row["gpu"], EventType(0)):
                    return Event(
                        DeviceHandle(_Gpu(row["gpu"])),
                        kind,
                        row["data"],
                        row.get("gpuInstance", NO_INSTANCE),
                        row.get("computeInstance", NO_INSTANCE),
                    )
        return None

    # State

    def _enter(self, call: str, gpu: int | None = None) -> NodeDescription:
        """What every call begins with: the library must be there, and an injected fault may strike."""
        if self._description is None:
            raise NvmlError(Return.UNINITIALIZED, call)
        self._refresh_system()
        if self._system.absent is not None:
            raise NvmlError(self._system.absent, call, "the driver was unloaded")
        if self._system.faults:
            self._strike(call, gpu)
        return self._description

    def _strike(self, call: str, gpu: int | None) -> None:
        fault = next((fault for fault in self._system.faults if fault.hits(call, gpu)), None)
        if fault is not None and fault.times:
            fault = self._use_up(call, gpu)
        if fault is None:
            return
        time.sleep(fault.seconds)
        if fault.code is not None:
            raise NvmlError(fault.code, call, "injected fault")

    def _use_up(self, call: str, gpu: int | None) -> Fault | None:
        """Count down the fault that hits; None when another process has used it up meanwhile."""
        with self._store.lock("system"):
            system = self._store.read_system()
            for index, fault in enumerate(system.faults):
                if fault.hits(call, gpu):
                    if fault.times:
                        left = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                        system.faults[index : index + 1] = left
                        self._store.write_system(system)
                    return fault
        return None

    def _refresh_system(self) -> None:
        text = self._store.read_system_text()
        if text != self._system_text:
            self._system, self._system_text = parse_system(text), text

    def _gpu(self, device: object, call: str) -> int:
        if not isinstance(device, _Gpu):
            raise NvmlError(Return.INVALID_ARGUMENT, call, "not a GPU")
        return device.index

    def _gpu_uuid(self, index: int) -> str:
        return gpu_uuid(self._system.identity, index)

    def _board(self, call: str, device: DeviceHandle | int) -> Board:
        """The board behind a handle, for reading."""
        index = device if isinstance(device, int) else self._gpu(device, call)
        description = self._enter(call, index)
        return self._load(description, index, call)

    def _load(self, description: NodeDescription, index: int, call: str) -> Board:
        state = self._store.read_board(index)
        if state.lost:
            raise NvmlError(Return.GPU_IS_LOST, call)
        return Board(description.gpus[index].board, state)

    @contextlib.contextmanager
    def _changing(self, call: str, device: DeviceHandle) -> Iterator[Board]:
        """The board behind a handle, for changing; what an error leaves half done is not stored."""
        index = self._gpu(device, call)
        description = self._enter(call, index)
        with self._store.lock(f"gpu-{index}"):
            board = self._load(description, index, call)
            yield board
            self._store.write_board(index, board.state)

    def _find_on_gpu(self, uuid: str, index: int) -> _Gpu | _Mig | None:
        """GPU `index`, or the MIG device of it, with this UUID."""
        gpu = self._gpu_uuid(index)
        if gpu == uuid:
            return _Gpu(index)
        if not uuid.startswith("MIG-"):
            return None
        migs = (mig for mig in self._mig_devices(index) if mig_uuid(gpu, mig.instance, mig.compute) == uuid)
        return next(migs, None)

    def _mig_devices(self, index: int) -> list[_Mig]:
        instances = sorted(self._store.read_board(index).gpu_instances, key=lambda one: one.id)
        return [_Mig(index, one.id, compute.id) for one in instances for compute in one.compute_instances]


def _instance(handle: object, call: str) -> _Instance:
    if not isinstance(handle, _Instance):
        raise NvmlError(Return.INVALID_ARGUMENT, call, "not a GPU instance")
    return handle


def _compute(handle: object, call: str) -> _Compute:
    if not isinstance(handle, _Compute):
        raise NvmlError(Return.INVALID_ARGUMENT, call, "not a compute instance")
    return handle
