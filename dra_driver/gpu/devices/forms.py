# SPDX-License-Identifier: Apache-2.0
"""The devices that one GPU can be: a whole GPU, a vfio device, existing MIG devices, MIG placements; and their order.
`vgpus` does the same for GPUs with NVIDIA's vGPU manager.

The scheduler must not be able to allocate two devices that exclude each other, nor one that cannot be created. Devices
that may be claimed while the GPU is free consume the same counters. An instance for which no such device is published
is an obstacle: its slices are not in the counter set, and devices that need them are not published. Obstacles are

- instances that were not created for claims (they are published as static devices, which need no counters), and
- instances that were created for claims, if no placements are published, because the policy changed later or the
  API server does not store counters.

LeftOut describes a device that the node has and does not publish. The reason goes into the log and a metric.

`by_preference` orders MIG placements. The scheduler takes the first device that fits. So a driver can influence where
small instances are placed only by the order of its devices. Small profiles come first, for claims that accept any
profile. Within a profile, the next placement takes the least space from the largest profiles, assuming that the
previous placements are occupied. Among equal placements, the one nearer to the end of the memory slices comes first.
The order is computed from the placements alone. So small instances fill one GPU from its edge before they use the next
GPU; tests/bench/packing.py measures the effect. (An order over all GPUs, with the better half for 3g of every GPU
first, would save more space for 4g. But it would use all GPUs at once, and leave no GPU whole.)
"""

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from ..functions import obstacle_text
from ..inventory import Gpu, MigProfile, PciGpu
from ..mig import MigDevice, MigInstance, PartialInstance
from ..nvml import GpuInstanceProfile, Placement
from ..ownership import Owned
from ..policy import GpuPolicy, MigPolicy, PassthroughMode
from .capacity import Counters, drawn, fits, less, totals
from .names import VgpuDevice


class Reason(enum.StrEnum):
    """Why a device is left out."""

    UNREADABLE = "unreadable"
    """NVML does not report enough about the GPU."""
    POLICY = "policy"
    OTHER_DRIVER = "other-driver"
    """The GPU is bound to a kernel driver that is neither NVIDIA's nor VFIO."""
    NO_IOMMU = "no-iommu"
    SHARED_GROUP = "shared-iommu-group"
    """The IOMMU group has other devices that the node uses, or other GPUs that stay on the node."""
    VIRTUAL_FUNCTIONS = "virtual-functions"
    """SR-IOV virtual functions of the GPU are enabled."""
    NO_MIG_PROFILES = "no-mig-profiles"
    NO_MIG_DEVICES = "no-mig-devices"
    """The policy publishes only existing MIG devices, and there are none."""
    FOREIGN_INSTANCE = "foreign-instance"
    """A MIG instance is in the way. It was not created for a claim, or its placement is not published."""
    PARTIAL_INSTANCE = "partial-instance"
    """A GPU instance does not consist of exactly one compute instance."""
    VGPU = "vgpu"
    """The GPU is a vGPU, and only its host can split it."""
    VGPU_HOST = "vgpu-host"
    """The vGPU manager runs for the GPU, so containers cannot use it; or vGPUs are wanted, and it does not run."""
    VGPU_TYPES = "vgpu-types"
    """The GPU cannot have the vGPU types of the policy."""
    FOREIGN_VGPU = "foreign-vgpu"
    """An administrator has created vGPUs on the GPU."""
    TAINTED = "tainted"
    """The device should have a taint, and the API server does not store taints."""
    INVALID = "invalid"
    """The device breaks a rule of the API. That is a defect of this driver."""
    NO_PARTITIONABLE_DEVICES = "no-partitionable-devices"
    NO_CONSUMABLE_CAPACITY = "no-consumable-capacity"
    NOT_ENFORCEABLE = "not-enforceable"
    """The policy enforces shares in a way that the device or the node does not support."""
    AMBIGUOUS_PARTITION = "ambiguous-partition"
    """The GPU is in two NVSwitch partitions of one size, and has only one attribute for a size."""
    NO_LIST_ATTRIBUTES = "no-list-attributes"
    NO_BINDING_CONDITIONS = "no-binding-conditions"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`subject` is a GPU's UUID, PCI address or index, or `node`. `text` tells what is left out, and why."""

    subject: str
    reason: Reason
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


Complaint = tuple[Reason, str]


NO_VGPU_MANAGER: Complaint = (Reason.VGPU_HOST, "its vGPUs: NVIDIA's vGPU manager does not run for it")
"""The policy names vGPU types for an ordinary GPU."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The devices to publish of a GPU. `pot` has the counters that MIG placements or vGPUs share, and is None if there
    are none of these: then the counters are those of the whole GPU. `vgpus` has what each vGPU consumes. `overlapping`
    tells whether some of the devices exclude each other.
    """

    whole: bool = False
    vfio: bool = False
    static: tuple[MigInstance, ...] = ()
    placements: tuple[MigDevice, ...] = ()
    pot: Counters | None = None
    complaints: tuple[Complaint, ...] = ()
    vgpus: tuple[tuple[VgpuDevice, Counters], ...] = ()
    overlapping: bool = False


def forms(gpu: Gpu, pci: PciGpu | None, wanted: GpuPolicy, owned: Set[Owned], partitionable: bool) -> Forms:
    """The devices of a GPU that NVML sees. `pci` is the same GPU on the PCI bus. `partitionable` tells whether the API
    server stores counters. `owned` are the places of instances that were created for claims.
    """
    complaints: list[Complaint] = []
    if wanted.vgpu_types:
        complaints.append(NO_VGPU_MANAGER)
    if wanted.passthrough is PassthroughMode.ONLY:  # nothing excludes the vfio device, so it needs no counters
        problem = _passthrough_problem(pci, bool(gpu.gpu_instances), partitionable=True)
        complaints += [] if problem is None else [problem]
        return Forms(vfio=problem is None, complaints=tuple(complaints))
    switching = wanted.mig is MigPolicy.DYNAMIC and gpu.mig_switchable and bool(gpu.mig_profiles)
    making = switching or (gpu.in_mig_mode and wanted.mig is not MigPolicy.STATIC)
    if gpu.is_vgpu and (making or (gpu.mig_mode is not None and wanted.mig is MigPolicy.DYNAMIC)):
        complaints.append((Reason.VGPU, "its MIG placements: it is a vGPU, and only its host can split it"))
        switching = making = False
    if making and not partitionable:
        complaints.append((Reason.NO_PARTITIONABLE_DEVICES, "its MIG placements: the API server stores no counters"))
        switching = making = False
    could_be_whole = switching or not gpu.in_mig_mode
    possible = gpu.mig_devices() if making else ()
    foreign = [gpu_instance for gpu_instance in gpu.gpu_instances if gpu_instance.device not in owned]
    obstacles, pot, placements = _settle(gpu, owned, possible)
    whole = could_be_whole and not obstacles

    problem = _passthrough_problem(pci, bool(obstacles), partitionable) if wanted.passthrough else None
    vfio = bool(wanted.passthrough) and problem is None
    found = [_static_device(gpu_instance) for gpu_instance in foreign]
    static = tuple(form for form in found if isinstance(form, MigInstance))
    complaints += [form for form in (*found, problem) if isinstance(form, tuple)]
    if obstacles and (could_be_whole or len(placements) < len(possible)):
        complaints.append(_withheld(obstacles, len(possible) - len(placements), could_be_whole))
    if not (whole or vfio or static or placements or complaints):
        complaints.append(_nothing(making))
    return Forms(
        whole,
        vfio,
        static,
        placements,
        pot if placements else None,
        tuple(complaints),
        overlapping=bool(placements) or (whole and vfio),
    )


def passthrough_problem(pci: PciGpu) -> Complaint | None:
    """Why a GPU cannot be given to a virtual machine, whichever driver it is bound to, or None."""
    if pci.iommu_group is None:
        return Reason.NO_IOMMU, "its vfio device: it has no IOMMU group (enable the IOMMU in firmware and kernel)"
    if pci.virtual_functions:
        return (
            Reason.VIRTUAL_FUNCTIONS,
            f"its vfio device: {pci.virtual_functions} SR-IOV virtual functions are enabled",
        )
    if pci.group_obstacles:
        return Reason.SHARED_GROUP, f"its vfio device: {obstacle_text(pci.iommu_group, pci.group_obstacles)}"
    return None


def among_peers(pci: PciGpu, goes: Callable[[str], bool]) -> PciGpu:
    """The GPU, whose obstacles now are those GPUs of its IOMMU group that do not go to a virtual machine together with
    it, unless it has other obstacles. `goes` tells which GPUs of the group do, by address.
    """
    if not pci.group_gpus or pci.group_obstacles:
        return pci
    staying = tuple(group_gpu for group_gpu in pci.group_gpus if not goes(group_gpu))
    return replace(pci, group_obstacles=staying if goes(pci.address) else pci.group_gpus)


def _settle(
    gpu: Gpu, owned: Set[Owned], possible: tuple[MigDevice, ...]
) -> tuple[Sequence[MigDevice], Counters, tuple[MigDevice, ...]]:
    """(Obstacles, remaining counters, placements that fit into these.) If the placement of an instance does not fit and
    is not published, the instance becomes an obstacle too. So this is repeated until nothing changes.
    """
    infos, placements = _infos(gpu.mig_profiles), possible
    while True:
        obstacles = _obstacles(gpu, owned, placements)
        pot = _left_beside(gpu, obstacles)
        fitting = tuple(
            placement for placement in placements if fits(drawn(infos[placement.profile_id], placement.placement), pot)
        )
        if fitting == placements:
            return obstacles, pot, placements
        placements = fitting


def _obstacles(gpu: Gpu, owned: Set[Owned], possible: Iterable[MigDevice]) -> list[MigDevice]:
    """The places of the instances for which no MIG placement is published."""
    ours = owned & frozenset(possible)
    return [gpu_instance.device for gpu_instance in gpu.gpu_instances if gpu_instance.device not in ours]


def _left_beside(gpu: Gpu, obstacles: Sequence[MigDevice]) -> Counters:
    """The counters that remain beside the obstacles. Empty if the profile of an obstacle is unknown."""
    infos = _infos(gpu.mig_profiles)
    if any(obstacle.profile_id not in infos for obstacle in obstacles):
        return {}
    return less(
        totals(gpu.mig_profiles), (drawn(infos[obstacle.profile_id], obstacle.placement) for obstacle in obstacles)
    )


def _infos(profiles: Iterable[MigProfile]) -> dict[int, GpuInstanceProfile]:
    return {profile.info.id: profile.info for profile in profiles}


def _static_device(instance: MigInstance | PartialInstance) -> MigInstance | Complaint:
    """A GPU instance is published only if it is one MIG device, because only then that has the profile's capacities."""
    device = instance.device
    if not device.profile:
        text = f"GPU instance {instance.gpu_instance}: NVML does not report its profile {device.profile_id}"
        return Reason.UNREADABLE, text
    if isinstance(instance, MigInstance):
        return instance
    many = len(instance.uuids) > 1
    has = f"{len(instance.uuids)} compute instances" if many else "a smaller one" if instance.uuids else "none"
    return (
        Reason.PARTIAL_INSTANCE,
        f"GPU instance {instance.gpu_instance} ({device.profile}): one compute instance should fill it, and it has"
        f" {has}",
    )


def _passthrough_problem(pci: PciGpu | None, has_instances: bool, partitionable: bool) -> Complaint | None:
    """Why a GPU that is bound to NVIDIA's driver cannot be given to virtual machines, or None."""
    if pci is None:
        return Reason.UNREADABLE, "its vfio device: it was not found on the PCI bus"
    if has_instances:
        return Reason.FOREIGN_INSTANCE, "its vfio device: MIG instances are on it"
    if not partitionable:
        return Reason.NO_PARTITIONABLE_DEVICES, "its vfio device: the API server stores no counters"
    return passthrough_problem(pci)


def _withheld(obstacles: Sequence[MigDevice], placements: int, whole: bool) -> Complaint:
    """The devices that are left out because of the obstacles."""
    where = ", ".join(f"{obstacle.profile or 'instance'} at {obstacle.placement}" for obstacle in obstacles)
    what = [*(["the whole GPU"] if whole else []), *([f"{placements} MIG placements"] if placements else [])]
    return Reason.FOREIGN_INSTANCE, f"{' and '.join(what)}: MIG instances are in the way ({where})"


def _nothing(making: bool) -> Complaint:
    if making:
        return Reason.NO_MIG_PROFILES, "the GPU: it is in MIG mode, and NVML reports no MIG profile"
    return Reason.NO_MIG_DEVICES, "the GPU: in MIG mode, the policy publishes existing MIG devices, and there are none"


def by_preference(profiles: Iterable[MigProfile], devices: Iterable[MigDevice]) -> list[MigDevice]:
    """The MIG devices of one GPU with these profiles, preferred ones first."""
    every = list(devices)
    return [device for group in _groups(profiles, every) for device in _sequence(group, every)]


def _groups(profiles: Iterable[MigProfile], every: Iterable[MigDevice]) -> list[list[MigDevice]]:
    """The devices by profile, small profiles first. Among equal ones, the profile with fewer special engines is
    first.
    """
    groups: dict[int, list[MigDevice]] = defaultdict(list)
    for device in every:
        groups[device.profile_id].append(device)
    by_id = {profile.info.id: profile for profile in profiles}
    return sorted(groups.values(), key=lambda group: (_size(group[0]), _rank(by_id[group[0].profile_id])))


def _size(device: MigDevice) -> tuple[int, int]:
    """The numbers of memory slices and compute slices."""
    return device.placement.size, device.slices


def _rank(profile: MigProfile) -> tuple[int, int, str]:
    info = profile.info
    return info.memory_mib, info.decoders + info.encoders + info.jpeg_engines + info.ofa_engines, profile.name


def _sequence(group: Sequence[MigDevice], every: Iterable[MigDevice]) -> list[MigDevice]:
    """The devices of one profile in the order in which they should be allocated."""
    larger = tuple(device.placement for device in every if _size(device) > _size(group[0]))
    by_placement = {device.placement: device for device in group}
    return [by_placement[placement] for placement in _order(tuple(by_placement), larger)]


@lru_cache(maxsize=256)  # the GPUs of a node mostly have the same profiles
def _order(placements: tuple[Placement, ...], larger: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """The order in which placements of one profile should be allocated, beside the placements of larger profiles."""
    left, sequence = list(placements), []
    while left:
        best = min(left, key=lambda placement: (_damage(placement, larger), -placement.start))
        left.remove(best)
        sequence.append(best)
        larger = tuple(other for other in larger if not other.overlaps(best))
    return tuple(sequence)


def _damage(placement: Placement, larger: Iterable[Placement]) -> tuple[int, ...]:
    """For each size, how many larger placements of this size become impossible, the largest first."""
    taken = [other.size for other in larger if other.overlaps(placement)]
    return tuple(taken.count(size) for size in sorted({other.size for other in larger}, reverse=True))
