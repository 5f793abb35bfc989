# SPDX-License-Identifier: Apache-2.0
"""The NVML interface of a simulated node.

Every call reads the state from the node's folder, so that all processes see the same hardware, and changes it under
the board's lock. Handles contain the position of a GPU in the node's description, not its NVML index.
"""

import functools
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ..memory_limits import MemoryLimits
from ..nvml import (
    NO_INSTANCE,
    Architecture,
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
    VirtualizationMode,
)
from ..vgpus import VgpuTypes
from .access import Access, FileWatch
from .board import COMPUTE_PROFILES, Board, BoardModel
from .description import NodeDescription
from .fabric import SimulatedFabric
from .files import DriverFiles
from .limits import get_limits, require_limits, set_limits
from .store import StateFolder
from .vgpu import vgpu_types

BRAND = 14
"""NVML_BRAND_NVIDIA, which all simulated GPUs are."""
ADDRESSING_MODE = "HMM"
"""That of all simulated GPUs."""
_NAMESPACE = uuid.UUID("6c1d2c1e-6c0f-5b43-9d4c-0a1b5f3c7e21")  # a random one, for name-based UUIDs
_COMPUTE_SLICES = {constant: slices for slices, constant in COMPUTE_PROFILES.items()}
_EVENTS = EventType.SINGLE_BIT_ECC | EventType.DOUBLE_BIT_ECC | EventType.XID
_EVENTS_SINCE_HOPPER = ~EventType(0)


@dataclass(frozen=True, slots=True)
class _Gpu:
    position: int


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
    def __init__(self, watch: FileWatch, position: int) -> None:
        self.watch = watch
        self.position = position
        self.registered: dict[int, EventType] = {}


@functools.lru_cache(1024)
def gpu_uuid(identity: str, position: int) -> str:
    """The UUID of a simulated GPU."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{identity}/{position}')}"


def mig_uuid(gpu: str, instance: int, compute: int) -> str:
    """The UUID of a MIG device, derived from GPU, GPU instance and compute instance, as in the real driver."""
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu}/{instance}/{compute}')}"


def cuda_version(node: NodeDescription) -> int:
    """The version of CUDA as NVML reports it: 12080 for 12.8."""
    major, _, minor = node.cuda_version.partition(".")
    return 1000 * int(major) + 10 * int(minor or 0)


def module_id(model: BoardModel, position: int) -> int:
    """The number of a GPU's place on the baseboard, from 1 on. 0 for a board that is not on one."""
    return position + 1 if model.nvlinks else 0


class SimulatedNvml(Nvml):
    """NVML of the simulated node in `root` (see SimulatedNode, which creates the node)."""

    def __init__(self, root: Path) -> None:
        self._store = StateFolder(root / "state")
        self._files = DriverFiles(root / "driver")
        self._access = Access(self._store)
        self._switches = SimulatedFabric(root)

    def initialize(self) -> None:
        self._access.initialize()

    def shutdown(self) -> None:
        self._access.shutdown()

    # The system

    def driver_version(self) -> str:
        self._access.enter("nvmlSystemGetDriverVersion")
        return self._access.driver_version

    def cuda_driver_version(self) -> int:
        self._access.enter("nvmlSystemGetCudaDriverVersion")
        return cuda_version(self._access.description)

    # GPUs

    def device_count(self) -> int:
        self._access.enter("nvmlDeviceGetCount")
        return len(self._access.enumerated)

    def device_by_index(self, index: int) -> DeviceHandle:
        call = "nvmlDeviceGetHandleByIndex"
        positions = self._access.enumerated
        if not 0 <= index < len(positions):
            self._access.enter(call)
            raise NvmlError(Return.INVALID_ARGUMENT, call, f"no GPU {index}")
        self._access.board(call, positions[index])
        return DeviceHandle(_Gpu(positions[index]))

    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        call = "nvmlDeviceGetHandleByUUID"
        for position in self._access.enumerated:
            handle = self._find_on_gpu(uuid, position)
            if handle is not None:
                self._access.board(call, position)
                return DeviceHandle(handle)
            self._access.pass_by(call, position)  # NVML asks one GPU after the other
        self._access.enter(call)
        raise NvmlError(Return.NOT_FOUND, call, uuid)

    def uuid(self, device: DeviceHandle) -> str:
        call = "nvmlDeviceGetUUID"
        if isinstance(device, _Mig):
            self._access.board(call, device.gpu).compute_instance(device.instance, device.compute, call)
            return mig_uuid(self._gpu_uuid(device.gpu), device.instance, device.compute)
        self._board(call, device)
        return self._gpu_uuid(_position(device, call))

    def minor(self, device: DeviceHandle) -> int:
        call = "nvmlDeviceGetMinorNumber"
        self._board(call, device)
        return self._access.description.gpus[_position(device, call)].minor

    def name(self, device: DeviceHandle) -> str:
        return self._board("nvmlDeviceGetName", device).model.product_name

    def brand(self, device: DeviceHandle) -> int:
        self._board("nvmlDeviceGetBrand", device)
        return BRAND

    def architecture(self, device: DeviceHandle) -> int:
        return int(self._board("nvmlDeviceGetArchitecture", device).model.architecture)

    def compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        return self._board("nvmlDeviceGetCudaComputeCapability", device).model.compute_capability

    def memory_total(self, device: DeviceHandle) -> int:
        return self._board("nvmlDeviceGetMemoryInfo", device).model.memory_mib << 20

    def pci_address(self, device: DeviceHandle) -> str:
        call = "nvmlDeviceGetPciInfo"
        self._board(call, device)
        return self._access.description.gpus[_position(device, call)].pci_address

    def module_id(self, device: DeviceHandle) -> int:
        call = "nvmlDeviceGetModuleId"
        return module_id(self._board(call, device).model, _position(device, call))

    def addressing_mode(self, device: DeviceHandle) -> str:
        self._board("nvmlDeviceGetAddressingMode", device)
        return ADDRESSING_MODE

    def virtualization_mode(self, device: DeviceHandle) -> int:
        call = "nvmlDeviceGetVirtualizationMode"
        if self._board(call, device).vgpu:
            return VirtualizationMode.VGPU
        hosted = self._access.description.gpus[_position(device, call)].vgpu_host is not None
        return VirtualizationMode.HOST_VGPU if hosted else VirtualizationMode.NONE

    def vgpu_types(self, device: DeviceHandle) -> VgpuTypes:
        call = "nvmlDeviceGetSupportedVgpus"
        model, host = self._board(call, device).model, self._access.description.gpus[_position(device, call)].vgpu_host
        if host is None:
            raise NvmlError(Return.NOT_SUPPORTED, call)
        return vgpu_types(model, host)

    def nvlinks(self, device: DeviceHandle) -> tuple[bool, ...]:
        return self._board("nvmlDeviceGetNvLinkState", device).nvlinks()

    def nvlink_peers(self, first: DeviceHandle, second: DeviceHandle) -> bool:
        call = "nvmlDeviceGetP2PStatus"
        boards = [self._board(call, device) for device in (first, second)]
        return first != second and all(board.reaches_peers() for board in boards)

    def fabric(self, device: DeviceHandle) -> Fabric:
        board = self._board("nvmlDeviceGetGpuFabricInfo", device)
        fabric = self._access.description.fabric
        if fabric is None:
            return board.fabric(Fabric(FabricState.NOT_SUPPORTED))
        if not self._switches.links(self.module_id(device)):
            return board.fabric(Fabric(FabricState.IN_PROGRESS))
        return board.fabric(Fabric(FabricState.COMPLETED, fabric.cluster_uuid, fabric.clique))

    def compute_processes(self, device: DeviceHandle) -> tuple[int, ...]:
        call = "nvmlDeviceGetComputeRunningProcesses"
        if isinstance(device, _Mig):
            processes = self._access.board(call, device.gpu).state.processes
            place = (device.instance, device.compute)
            return tuple(
                process.pid for process in processes if (process.gpu_instance, process.compute_instance) == place
            )
        return tuple(process.pid for process in self._board(call, device).state.processes)

    def compute_mode(self, device: DeviceHandle) -> int:
        return self._board("nvmlDeviceGetComputeMode", device).state.compute_mode

    def set_compute_mode(self, device: DeviceHandle, mode: int) -> None:
        call = "nvmlDeviceSetComputeMode"
        with self._access.changing(call, _position(device, call)) as board:
            board.set_compute_mode(mode)

    def memory_limits(self, device: DeviceHandle, cgroup: str) -> MemoryLimits:
        call = "nvmlDeviceGetMemoryLimits_v1"
        require_limits(self._access.driver_version, call)
        return get_limits(self._board(call, device).state, cgroup, call)

    def set_memory_limits(self, device: DeviceHandle, cgroup: str, limits: MemoryLimits) -> None:
        call = "nvmlDeviceSetMemoryLimits_v1"
        require_limits(self._access.driver_version, call)
        position = _position(device, call)
        with self._access.changing(call, position) as board:
            set_limits(board.state, cgroup, limits, self._access.description.gpus[position].pci_address)

    # Health

    def remapped_rows(self, device: DeviceHandle) -> RemappedRows:
        return self._board("nvmlDeviceGetRemappedRows", device).remapped_rows()

    def retired_pages_pending(self, device: DeviceHandle) -> bool:
        return self._board("nvmlDeviceGetRetiredPagesPendingStatus", device).retired_pages_pending()

    def recovery_action(self, device: DeviceHandle) -> RecoveryAction:
        return RecoveryAction(self._board("nvmlDeviceGetFieldValues", device).state.health.recovery_action)

    # MIG

    def mig_mode(self, device: DeviceHandle) -> MigMode:
        return self._board("nvmlDeviceGetMigMode", device).mig_mode()

    def set_mig_mode(self, device: DeviceHandle, enabled: bool) -> Return | None:
        call = "nvmlDeviceSetMigMode"
        with self._access.changing(call, _position(device, call)) as board:
            return board.set_mig_mode(enabled)

    def gpu_instance_profile(self, device: DeviceHandle, constant: int) -> GpuInstanceProfile:
        call = "nvmlDeviceGetGpuInstanceProfileInfo"
        for profile in self._board(call, device).model.profiles:
            if profile.info.constant == constant:
                return profile.info
        raise NvmlError(Return.NOT_SUPPORTED, call, f"profile constant {constant}")

    def gpu_instance_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        return self._board("nvmlDeviceGetGpuInstancePossiblePlacements", device).placements(profile_id)

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstanceHandle, ...]:
        call = "nvmlDeviceGetGpuInstances"
        position = _position(device, call)
        board = self._board(call, device)
        board.require_mig(call)
        instances = board.state.gpu_instances
        return tuple(
            GpuInstanceHandle(_Instance(position, instance.id))
            for instance in instances
            if instance.profile_id == profile_id
        )

    def gpu_instance_by_id(self, device: DeviceHandle, instance_id: int) -> GpuInstanceHandle:
        call = "nvmlDeviceGetGpuInstanceById"
        board = self._board(call, device)
        board.require_mig(call)
        board.gpu_instance(instance_id, call)
        return GpuInstanceHandle(_Instance(_position(device, call), instance_id))

    def gpu_instance_info(self, instance: GpuInstanceHandle) -> GpuInstance:
        call = "nvmlGpuInstanceGetInfo"
        handle = _instance(instance, call)
        state = self._access.board(call, handle.gpu).gpu_instance(handle.id, call)
        return GpuInstance(state.id, state.profile_id, Placement(state.start, state.size))

    def create_gpu_instance(self, device: DeviceHandle, profile_id: int, placement: Placement) -> GpuInstanceHandle:
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        position = _position(device, call)
        with self._access.changing(call, position) as board:
            created = board.create_gpu_instance(profile_id, placement)
            self._files.add_instance(self._minor(position), created.id)
        return GpuInstanceHandle(_Instance(position, created.id))

    def destroy_gpu_instance(self, instance: GpuInstanceHandle) -> None:
        call = "nvmlGpuInstanceDestroy"
        handle = _instance(instance, call)
        with self._access.changing(call, handle.gpu) as board:
            board.destroy_gpu_instance(handle.id)
            self._files.remove_instance(self._minor(handle.gpu), handle.id)

    def compute_instance_profile(self, instance: GpuInstanceHandle, constant: int) -> ComputeInstanceProfile:
        call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        handle = _instance(instance, call)
        board = self._access.board(call, handle.gpu)
        slices = _COMPUTE_SLICES.get(constant)
        whole = board.profile(board.gpu_instance(handle.id, call).profile_id, call).info.slice_count
        if slices is None or slices > whole:
            raise NvmlError(Return.NOT_SUPPORTED, call, f"profile constant {constant}")
        return ComputeInstanceProfile(constant, constant, slices, whole // slices)

    def compute_instances(self, instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstanceHandle, ...]:
        call = "nvmlGpuInstanceGetComputeInstances"
        handle = _instance(instance, call)
        computes = self._access.board(call, handle.gpu).gpu_instance(handle.id, call).compute_instances
        return tuple(
            ComputeInstanceHandle(_Compute(handle.gpu, handle.id, compute.id))
            for compute in computes
            if compute.profile_id == profile_id
        )

    def compute_instance_info(self, instance: ComputeInstanceHandle) -> ComputeInstance:
        call = "nvmlComputeInstanceGetInfo"
        handle = _compute(instance, call)
        state = self._access.board(call, handle.gpu).compute_instance(handle.instance, handle.id, call)
        return ComputeInstance(state.id, state.profile_id, DeviceHandle(_Mig(handle.gpu, handle.instance, handle.id)))

    def create_compute_instance(self, instance: GpuInstanceHandle, profile_id: int) -> ComputeInstanceHandle:
        call = "nvmlGpuInstanceCreateComputeInstance"
        handle = _instance(instance, call)
        with self._access.changing(call, handle.gpu) as board:
            created = board.create_compute_instance(handle.id, profile_id)
            self._files.add_instance(self._minor(handle.gpu), handle.id, created.id)
        return ComputeInstanceHandle(_Compute(handle.gpu, handle.id, created.id))

    def destroy_compute_instance(self, instance: ComputeInstanceHandle) -> None:
        call = "nvmlComputeInstanceDestroy"
        handle = _compute(instance, call)
        with self._access.changing(call, handle.gpu) as board:
            board.destroy_compute_instance(handle.instance, handle.id)
            self._files.remove_instance(self._minor(handle.gpu), handle.instance, handle.id)

    def mig_devices(self, device: DeviceHandle) -> tuple[DeviceHandle, ...]:
        call = "nvmlDeviceGetMigDeviceHandleByIndex"
        position = _position(device, call)
        self._board(call, device)
        return tuple(DeviceHandle(mig) for mig in self._mig_devices(position))

    def mig_instance_ids(self, mig_device: DeviceHandle) -> tuple[int, int]:
        call = "nvmlDeviceGetGpuInstanceId"
        if not isinstance(mig_device, _Mig):
            raise NvmlError(Return.INVALID_ARGUMENT, call, "not a MIG device")
        self._access.board(call, mig_device.gpu).compute_instance(mig_device.instance, mig_device.compute, call)
        return mig_device.instance, mig_device.compute

    # Events

    def event_set(self) -> EventSetHandle:
        self._access.enter("nvmlEventSetCreate")
        return EventSetHandle(_EventSet(FileWatch(self._store.events), self._reported()))

    def register_events(self, device: DeviceHandle, types: EventType, events: EventSetHandle) -> EventType:
        call = "nvmlDeviceRegisterEvents"
        position = _position(device, call)
        hopper = self._board(call, device).model.architecture >= Architecture.HOPPER
        supported = types & (_EVENTS_SINCE_HOPPER if hopper else _EVENTS)
        cast(_EventSet, events).registered[position] = supported
        return supported

    def wait_event(self, events: EventSetHandle, timeout_ms: int) -> Event | None:
        waiting = cast(_EventSet, events)
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._access.enter("nvmlEventSetWait")
            event = self._next_event(waiting)
            left = deadline - time.monotonic()
            if event is not None or left <= 0:
                return event
            waiting.watch.wait(left)

    def free_event_set(self, events: EventSetHandle) -> None:
        self._access.enter("nvmlEventSetFree")

    def _reported(self) -> int:
        """The size of the file of events in bytes."""
        return os.stat(self._store.events).st_size  # noqa: PTH116

    def _next_event(self, waiting: _EventSet) -> Event | None:
        if self._reported() <= waiting.position:
            return None
        with open(self._store.events, "rb") as file:  # noqa: PTH123
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

    def _board(self, call: str, device: DeviceHandle) -> Board:
        """The board of a GPU's handle, for reading."""
        return self._access.board(call, _position(device, call))

    def _gpu_uuid(self, position: int) -> str:
        return gpu_uuid(self._access.identity, position)

    def _minor(self, position: int) -> int:
        return self._access.description.gpus[position].minor

    def _find_on_gpu(self, uuid: str, position: int) -> _Gpu | _Mig | None:
        """The GPU at this position, or a MIG device of it, if it has this UUID."""
        gpu = self._gpu_uuid(position)
        if gpu == uuid:
            return _Gpu(position)
        if not uuid.startswith("MIG-"):
            return None
        migs = (mig for mig in self._mig_devices(position) if mig_uuid(gpu, mig.instance, mig.compute) == uuid)
        return next(migs, None)

    def _mig_devices(self, position: int) -> list[_Mig]:
        instances = sorted(self._store.read_board(position).gpu_instances, key=lambda gpu_instance: gpu_instance.id)
        return [
            _Mig(position, instance.id, compute.id) for instance in instances for compute in instance.compute_instances
        ]


def _position(device: object, call: str) -> int:
    if not isinstance(device, _Gpu):
        raise NvmlError(Return.INVALID_ARGUMENT, call, "not a GPU")
    return device.position


def _instance(handle: object, call: str) -> _Instance:
    if not isinstance(handle, _Instance):
        raise NvmlError(Return.INVALID_ARGUMENT, call, "not a GPU instance")
    return handle


def _compute(handle: object, call: str) -> _Compute:
    if not isinstance(handle, _Compute):
        raise NvmlError(Return.INVALID_ARGUMENT, call, "not a compute instance")
    return handle
