# SPDX-License-Identifier: Apache-2.0
"""One simulated GPU: the rules by which a board accepts and refuses MIG changes, and the known boards (boards.yaml).

Follows NVML's documented return codes and observations of real boards: instance ids, the placement of each profile,
engines that run out, and modes that stay pending while a process runs.
"""

import functools
import operator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from ..nvml import (
    Architecture,
    ComputeMode,
    Fabric,
    FabricState,
    GpuInstanceProfile,
    MigMode,
    NvmlError,
    Placement,
    RemappedRows,
    Return,
)
from .state import BoardState, ComputeInstanceState, GpuInstanceState

COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""The id of the compute instance profile by its number of slices. The NVML constant has the same value."""

_ENGINES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
_engines_of = operator.attrgetter(*_ENGINES)
"""The numbers of engines in the description of a profile. The largest profile of a board has all of them."""


@dataclass(frozen=True, slots=True)
class ProfileModel:
    """A MIG profile: NVML's description, and its placements."""

    info: GpuInstanceProfile
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class BoardModel:
    """One kind of GPU. `pci_name` is its name in pci.ids, and `bar1_mib` the size of the window to its memory. Boards
    without MIG have neither memory slices nor profiles.
    """

    model: str
    product_name: str
    architecture: Architecture
    compute_capability: tuple[int, int]
    memory_mib: int
    pci_device_id: int
    pci_subsystem_id: int
    pci_name: str
    bar1_mib: int
    nvlinks: int
    memory_slices: int
    profiles: tuple[ProfileModel, ...]

    def profile_by_id(self, profile_id: int) -> ProfileModel | None:
        """The profile with this id in the driver."""
        return next((profile for profile in self.profiles if profile.info.id == profile_id), None)

    def profile_by_name(self, name: str) -> ProfileModel | None:
        """The profile with this name, such as `1g.10gb`."""
        return next((profile for profile in self.profiles if profile.info.name == name), None)


@functools.cache
def boards() -> dict[str, BoardModel]:
    """All boards, by model."""
    text = resources.files(__package__).joinpath("boards.yaml").read_bytes()
    return {board.model: board for board in map(_board, yaml.load(text, yaml.CSafeLoader)["boards"])}


def _board(row: dict[str, Any]) -> BoardModel:
    major, minor = row["computeCapability"]
    return BoardModel(
        model=row["model"],
        product_name=row["productName"],
        architecture=Architecture[row["architecture"]],
        compute_capability=(major, minor),
        memory_mib=row["memoryMiB"],
        pci_device_id=row["pciDeviceId"],
        pci_subsystem_id=row["pciSubsystemId"],
        pci_name=row["pciName"],
        bar1_mib=row["bar1MiB"],
        nvlinks=row["nvlinks"],
        memory_slices=row.get("memorySlices", 0),
        profiles=tuple(_profile(name, profile) for name, profile in row.get("profiles", {}).items()),
    )


def _profile(name: str, row: dict[str, Any]) -> ProfileModel:
    copy, decode, encode, jpeg, ofa = row["engines"]
    info = GpuInstanceProfile(
        constant=row["constant"],
        id=row["id"],
        name=name,
        slice_count=row["slices"],
        instance_count=row["instances"],
        memory_mib=row["memoryMiB"],
        multiprocessors=row["multiprocessors"],
        copy_engines=copy,
        decoders=decode,
        encoders=encode,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
    )
    return ProfileModel(info, tuple(Placement(start, row["size"]) for start in row["starts"]))


class Board:
    """The rules, applied to a state that the caller loads and stores. Methods have the names of NVML's calls.

    A `vgpu` is a board as a virtual machine sees it. Its GPU instances and MIG mode can be changed only by the host.
    """

    def __init__(self, model: BoardModel, state: BoardState, *, vgpu: bool = False) -> None:
        self.model = model
        self.state = state
        self.vgpu = vgpu

    # MIG mode

    def mig_mode(self) -> MigMode:
        """The modes now and after the next reset."""
        self._require_profiles("nvmlDeviceGetMigMode")
        return MigMode(self.state.mig_current, self.state.mig_pending)

    def set_mig_mode(self, enabled: bool) -> Return | None:
        """Set the mode. It stays pending while a process uses the GPU."""
        self._require_profiles("nvmlDeviceSetMigMode")
        self._require_host("nvmlDeviceSetMigMode")
        if not enabled and self.state.gpu_instances:
            raise NvmlError(Return.IN_USE, "nvmlDeviceSetMigMode", "GPU instances exist")
        self.state.mig_pending = enabled
        if self.state.processes:
            return Return.IN_USE
        self.state.mig_current = enabled
        return None

    def set_compute_mode(self, mode: int) -> None:
        """Set the compute mode. Not possible in MIG mode."""
        call = "nvmlDeviceSetComputeMode"
        self._require_host(call)
        if self.state.mig_current:
            raise NvmlError(Return.NOT_SUPPORTED, call, "MIG mode is enabled")
        if mode not in tuple(ComputeMode):
            raise NvmlError(Return.INVALID_ARGUMENT, call, f"no compute mode {mode}")
        self.state.compute_mode = mode

    # NVLink, fabric and memory

    def reaches_peers(self) -> bool:
        """Whether other GPUs can be reached over NVLink. GPUs in MIG mode reach none."""
        return bool(self.model.nvlinks) and self.state.health.nvlinks_up and not self.state.mig_current

    def nvlinks(self) -> tuple[bool, ...]:
        """Whether each link is up."""
        return (self.state.health.nvlinks_up,) * self.model.nvlinks

    def fabric(self, described: Fabric) -> Fabric:
        """The state of the registration with the fabric. `described` is the state after a successful registration."""
        health = self.state.health
        state = described.state if health.fabric_state is None else FabricState(health.fabric_state)
        if state is not FabricState.COMPLETED:
            return Fabric(state, status=health.fabric_status, health_mask=health.fabric_health)
        cluster, clique = health.clique or (described.cluster_uuid, described.clique)
        return Fabric(state, cluster, clique, health.fabric_status, health.fabric_health)

    def remapped_rows(self) -> RemappedRows:
        """The rows of memory that were replaced."""
        if self.model.architecture < Architecture.AMPERE:
            raise NvmlError(Return.NOT_SUPPORTED, "nvmlDeviceGetRemappedRows")
        health = self.state.health
        rows = health.correctable_rows, health.uncorrectable_rows
        return RemappedRows(*rows, pending=health.rows_pending, failed=health.rows_failed)

    def retired_pages_pending(self) -> bool:
        """Whether pages wait to be retired."""
        if self.model.architecture >= Architecture.AMPERE:
            raise NvmlError(Return.NOT_SUPPORTED, "nvmlDeviceGetRetiredPagesPendingStatus")
        return self.state.health.pages_pending

    # GPU instances

    def placements(self, profile_id: int) -> tuple[Placement, ...]:
        """The placements of a profile. From Hopper on, they are known also while MIG mode is disabled."""
        call = "nvmlDeviceGetGpuInstancePossiblePlacements"
        if self.model.architecture < Architecture.HOPPER:
            self.require_mig(call)
        return self.profile(profile_id, call).placements

    def profile(self, profile_id: int, call: str) -> ProfileModel:
        """A profile by the driver's id."""
        profile = self.model.profile_by_id(profile_id)
        if profile is None:
            raise NvmlError(Return.INVALID_ARGUMENT, call, f"no GPU instance profile {profile_id}")
        return profile

    def create_gpu_instance(self, profile_id: int, placement: Placement) -> GpuInstanceState:
        """Create a GPU instance at exactly this placement."""
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        self.require_mig(call)
        self._require_host(call)
        profile = self.profile(profile_id, call)
        if placement not in profile.placements:
            raise NvmlError(Return.INVALID_ARGUMENT, call, f"{profile.info.name} cannot be at {placement}")
        taken = {
            memory_slice
            for gpu_instance in self.state.gpu_instances
            for memory_slice in range(gpu_instance.start, gpu_instance.start + gpu_instance.size)
        }
        if taken.intersection(placement.slices):
            raise NvmlError(Return.INSUFFICIENT_RESOURCES, call, f"memory slices of {placement} are taken")
        self._require_engines(profile, call)
        instance = GpuInstanceState(self._next_id(profile), profile_id, placement.start, placement.size)
        self.state.gpu_instances.append(instance)
        return instance

    def gpu_instance(self, instance_id: int, call: str) -> GpuInstanceState:
        """The GPU instance with this id."""
        for instance in self.state.gpu_instances:
            if instance.id == instance_id:
                return instance
        raise NvmlError(Return.NOT_FOUND, call, f"no GPU instance {instance_id}")

    def destroy_gpu_instance(self, instance_id: int) -> None:
        """Remove a GPU instance that is not in use."""
        call = "nvmlGpuInstanceDestroy"
        self._require_host(call)
        instance = self.gpu_instance(instance_id, call)
        if instance.compute_instances:
            raise NvmlError(Return.IN_USE, call, f"GPU instance {instance_id} has compute instances")
        self.state.gpu_instances.remove(instance)

    # Compute instances

    def create_compute_instance(self, instance_id: int, profile_id: int) -> ComputeInstanceState:
        """Create a compute instance in a GPU instance."""
        call = "nvmlGpuInstanceCreateComputeInstance"
        instance = self.gpu_instance(instance_id, call)
        slices_of = {profile: slices for slices, profile in COMPUTE_PROFILES.items()}
        if profile_id not in slices_of:
            raise NvmlError(Return.INVALID_ARGUMENT, call, f"no compute instance profile {profile_id}")
        used = sum(slices_of[compute_instance.profile_id] for compute_instance in instance.compute_instances)
        if used + slices_of[profile_id] > self.profile(instance.profile_id, call).info.slice_count:
            raise NvmlError(Return.INSUFFICIENT_RESOURCES, call, "the GPU instance has no slices left")
        ids = {compute_instance.id for compute_instance in instance.compute_instances}
        created = ComputeInstanceState(next(i for i in range(8) if i not in ids), profile_id)
        instance.compute_instances.append(created)
        return created

    def compute_instance(self, instance_id: int, compute_id: int, call: str) -> ComputeInstanceState:
        """The compute instance with this id."""
        for compute in self.gpu_instance(instance_id, call).compute_instances:
            if compute.id == compute_id:
                return compute
        raise NvmlError(Return.NOT_FOUND, call, f"no compute instance {compute_id} in GPU instance {instance_id}")

    def destroy_compute_instance(self, instance_id: int, compute_id: int) -> None:
        """Remove a compute instance that no process uses."""
        call = "nvmlComputeInstanceDestroy"
        compute = self.compute_instance(instance_id, compute_id, call)
        if any(
            (process.gpu_instance, process.compute_instance) == (instance_id, compute_id)
            for process in self.state.processes
        ):
            raise NvmlError(Return.IN_USE, call, "a process uses the compute instance")
        self.gpu_instance(instance_id, call).compute_instances.remove(compute)

    def require_mig(self, call: str) -> None:
        """Refuse a call that is possible in MIG mode only."""
        if not self.state.mig_current:
            raise NvmlError(Return.NOT_SUPPORTED, call, "MIG mode is disabled")

    def _require_profiles(self, call: str) -> None:
        """Refuse a call that is possible only with MIG."""
        if not self.model.profiles:
            raise NvmlError(Return.NOT_SUPPORTED, call, "this GPU has no MIG")

    def _require_host(self, call: str) -> None:
        """Refuse a call that a virtual machine may not make for its vGPU."""
        if self.vgpu:
            raise NvmlError(Return.NOT_SUPPORTED, call, "this is a vGPU")

    def _require_engines(self, wanted: ProfileModel, call: str) -> None:
        """Refuse a profile if engines of a kind, or the number of its instances, would be exceeded."""
        existing = [self.profile(gpu_instance.profile_id, call).info for gpu_instance in self.state.gpu_instances]
        if sum(info.id == wanted.info.id for info in existing) >= wanted.info.instance_count:
            raise NvmlError(Return.INSUFFICIENT_RESOURCES, call, f"no more instances of {wanted.info.name}")
        largest = map(max, zip(*(_engines_of(profile.info) for profile in self.model.profiles), strict=True))
        together = map(sum, zip(*map(_engines_of, (*existing, wanted.info)), strict=True))
        for engine, there_are, needed in zip(_ENGINES, largest, together, strict=True):
            if needed > there_are:
                raise NvmlError(Return.INSUFFICIENT_RESOURCES, call, f"{needed} {engine} of {there_are}")

    def _next_id(self, profile: ProfileModel) -> int:
        """The lowest free id for a profile. A board numbers its partitions like the nodes of a binary tree: 0 for the
        whole board, 1-2 for the halves, 3-6 for the quarters, 7-14 for the eighths.
        """
        width = 1 << (profile.info.slice_count - 1).bit_length()
        parts = max(self.model.memory_slices // width, 1)
        taken = {gpu_instance.id for gpu_instance in self.state.gpu_instances}
        return next(i for i in range(parts - 1, 2 * parts - 1) if i not in taken)
