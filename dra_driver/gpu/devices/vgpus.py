# SPDX-License-Identifier: Apache-2.0
"""The devices of a GPU with NVIDIA's vGPU manager: vGPUs, and the GPU for a virtual machine. Containers cannot use it.

- If an administrator has created vGPUs on the GPU, those of the policy's types are published. Nothing is created beside
  them, because neither NVML nor sysfs tells which part of the GPU a vGPU will take when its machine starts.
- Otherwise the types of the policy are published: one device for each place at which a vGPU can be created.
- All vGPUs of a GPU in homogeneous mode have one type. Counters cannot express that. So the policy must name one type.
- In heterogeneous mode, each placement of each type is a device, and the counters are the parts of the GPU between all
  ends of placements. The plugin creates a vGPU at exactly this placement.
- vGPUs of claims whose type the policy no longer names keep everything else back until they are gone.
- The vfio device consumes all counters. A board with virtual functions has none.
"""

from collections.abc import Sequence, Set
from itertools import pairwise

from ...kube.resource import Quantity
from ...kube.resource.limits import COUNTERS_PER_SET, DEVICES_PER_SLICE_WITH_EXTRAS
from ..inventory import Gpu, PciGpu
from ..ownership import Owned
from ..policy import GpuPolicy
from ..vgpus import VgpuHost, VgpuPlace, VgpuType
from .capacity import Counters
from .forms import Complaint, Forms, Reason, passthrough_problem
from .names import VgpuDevice, existing_vgpu, possible_vgpus

_ONE = Quantity.of(1)
_TAKEN = "an administrator has created vGPUs on it"


def vgpu_forms(
    gpu: Gpu, host: VgpuHost, pci: PciGpu | None, wanted: GpuPolicy, owned: Set[Owned], partitionable: bool
) -> Forms:
    """The devices of a GPU with a vGPU manager. For the arguments, see `forms`."""
    foreign = [place for place in host.existing if place not in owned]
    if foreign:
        return _existing(gpu, foreign, wanted)
    types, complaint = _types(host, wanted)
    if {place.type_id for place in host.existing} - {kind.id for kind in types}:
        text = "everything: vGPUs that were created for claims are on it, and the policy does not name their types"
        return Forms(complaints=((Reason.VGPU_TYPES, text),))
    complaints = [] if complaint is None else [complaint]
    problem = _vfio_problem(pci) if wanted.passthrough else None
    vfio = bool(wanted.passthrough) and problem is None
    complaints += [] if problem is None else [problem]
    vgpus, pot, overlapping = _counted(gpu, types)
    if vgpus and overlapping and not partitionable:
        text = "its vGPUs: the API server stores no counters, so the policy must name one type"
        complaints.append((Reason.NO_PARTITIONABLE_DEVICES, text))
        vgpus = ()
    elif len(pot) > COUNTERS_PER_SET or len(vgpus) + vfio > DEVICES_PER_SLICE_WITH_EXTRAS:
        text = f"its vGPUs: its types have {len(vgpus)} placements, which is too many; name fewer or larger types"
        complaints.append((Reason.VGPU_TYPES, text))
        vgpus = ()
    if vfio and vgpus and not partitionable:
        complaints.append((Reason.NO_PARTITIONABLE_DEVICES, "its vfio device: the API server stores no counters"))
        vfio = False
    if not (vgpus or vfio or complaints):
        text = "the GPU: NVIDIA's vGPU manager runs for it, and the policy has neither vgpuTypes nor passthrough"
        complaints.append((Reason.VGPU_HOST, text))
    return Forms(
        vfio=vfio,
        vgpus=vgpus,
        pot=pot if vgpus else None,
        complaints=tuple(complaints),
        overlapping=bool(vgpus) and (vfio or overlapping),
    )


def _existing(gpu: Gpu, foreign: Sequence[VgpuPlace], wanted: GpuPolicy) -> Forms:
    """The vGPUs of an administrator, as far as the policy names their types."""
    vgpus: list[VgpuDevice] = []
    others: set[str] = set()
    for place in foreign:
        vgpu = existing_vgpu(gpu, place)
        if vgpu is not None and not {vgpu.type.name, vgpu.type.profile}.isdisjoint(wanted.vgpu_types):
            vgpus.append(vgpu)
        else:
            others.add(str(place.type_id) if vgpu is None else vgpu.type.name)
    complaints: list[Complaint] = []
    if others:
        text = f"vGPUs that an administrator created, of type {', '.join(sorted(others))}: the policy does not name it"
        complaints.append((Reason.POLICY, text))
    if wanted.vgpu_types:
        complaints.append((Reason.FOREIGN_VGPU, f"further vGPUs: {_TAKEN}"))
    if wanted.passthrough:
        complaints.append((Reason.FOREIGN_VGPU, f"its vfio device: {_TAKEN}"))
    pot = {"vgpus": Quantity.of(len(vgpus))} if vgpus else None
    return Forms(vgpus=tuple((vgpu, {"vgpus": _ONE}) for vgpu in vgpus), pot=pot, complaints=tuple(complaints))


def _types(host: VgpuHost, wanted: GpuPolicy) -> tuple[tuple[VgpuType, ...], Complaint | None]:
    """The types of the policy, or why there are none."""
    if not wanted.vgpu_types:
        return (), None
    if host.problem:
        return (), (Reason.VGPU_HOST, f"its vGPUs: {host.problem}")
    by_name = {name: kind for kind in host.types.types for name in (kind.name, kind.profile)}
    missing = [name for name in wanted.vgpu_types if name not in by_name]
    if missing:
        known = ", ".join(kind.name for kind in host.types.types)
        return (), (Reason.VGPU_TYPES, f"its vGPUs: it has no type {' or '.join(missing)} (it has {known})")
    types = tuple(dict.fromkeys(by_name[name] for name in wanted.vgpu_types))
    if len(types) > 1 and not host.types.mixed:
        text = "its vGPUs: the policy names several types, and all vGPUs of the GPU must have one type, because its"
        return (), (Reason.VGPU_TYPES, f"{text} heterogeneous mode is off (nvidia-smi vgpu -shm 1); name one type")
    return types, None


def _vfio_problem(pci: PciGpu | None) -> Complaint | None:
    if pci is None:
        return Reason.UNREADABLE, "its vfio device: it was not found on the PCI bus"
    return passthrough_problem(pci)


def _counted(gpu: Gpu, types: Sequence[VgpuType]) -> tuple[tuple[tuple[VgpuDevice, Counters], ...], Counters, bool]:
    """(The vGPUs of these types with what they consume, all there is, whether any two of them overlap.) Small types
    come first, and of each type the placement nearest to the end, so that the front stays free for large types.
    """
    every = [(vgpu, vgpu.start) for vgpu in possible_vgpus(gpu) if vgpu.type in types and vgpu.start is not None]
    every.sort(key=lambda pair: (pair[0].type.size, pair[0].type.memory, -pair[1]))
    parts = list(pairwise(sorted({end for vgpu, start in every for end in (start, start + vgpu.type.size)})))

    def drawn(first: int, end: int) -> Counters:
        return {f"vgpu-part-{start}": _ONE for start, last in parts if first <= start and last <= end}

    counted = tuple((vgpu, drawn(start, start + vgpu.type.size)) for vgpu, start in every)
    taken = [name for _, counters in counted for name in counters]
    if len(taken) > len(set(taken)):
        return counted, dict.fromkeys(taken, _ONE), True
    return tuple((vgpu, {"vgpus": _ONE}) for vgpu, _ in every), {"vgpus": Quantity.of(len(every))}, False
