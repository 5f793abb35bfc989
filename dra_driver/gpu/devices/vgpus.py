# SPDX-License-Identifier: Apache-2.0
"""The devices of a GPU with NVIDIA's vGPU manager: vGPUs, and the GPU for a virtual machine. Containers cannot use it.

- If an administrator has created vGPUs on the GPU, exactly these are published. Nothing is created beside them, because
  neither NVML nor sysfs tells which part of the GPU a vGPU will take when its machine starts.
- Otherwise the types of the policy are published: one device for each place at which a vGPU can be created.
- All vGPUs of a GPU in homogeneous mode have one type. Counters cannot express that. So the policy must name one type.
- In heterogeneous mode, each placement of each type is a device, and the counters are the parts of the GPU between all
  ends of placements. The plugin creates a vGPU at exactly this placement.
- vGPUs of claims whose type the policy no longer names keep everything else back until they are gone.
- The vfio device consumes all counters. A board with virtual functions has none.
"""

from collections.abc import Sequence, Set
from itertools import pairwise

from ...resource import Quantity
from ...resource.limits import COUNTERS_PER_SET, DEVICES_PER_SLICE_WITH_EXTRAS
from ..inventory import Gpu, PciGpu
from ..ownership import Owned
from ..policy import GpuPolicy
from ..vgpus import VgpuHost, VgpuType
from .capacity import ONE_GPU, Counters
from .forms import Complaint, Forms, Reason, passthrough_problem
from .names import VgpuDevice, existing_vgpu, possible_vgpus

_TAKEN = "an administrator has created vGPUs on it"


def vgpu_forms(
    gpu: Gpu, host: VgpuHost, pci: PciGpu | None, wanted: GpuPolicy, owned: Set[Owned], partitionable: bool
) -> Forms:
    """The devices of a GPU with a vGPU manager. For the arguments, see `forms`."""
    foreign = [place for place in host.existing if place not in owned]
    if foreign:
        devices = [existing_vgpu(gpu, place) for place in foreign]
        unknown = [place.type_id for place, device in zip(foreign, devices, strict=True) if device is None]
        complaints = [_unknown(unknown)] if unknown else []
        if wanted.vgpu_types:
            complaints.append((Reason.FOREIGN_VGPU, f"the vGPUs of the policy: {_TAKEN}"))
        if wanted.passthrough:
            complaints.append((Reason.FOREIGN_VGPU, f"its vfio device: {_TAKEN}"))
        return Forms(vgpus=tuple((one, {}) for one in devices if one is not None), complaints=tuple(complaints))
    types, complaint = _types(host, wanted)
    if {place.type_id for place in host.existing} - {one.id for one in types}:
        text = "everything: vGPUs that were created for claims are on it, and the policy does not name their types"
        return Forms(complaints=((Reason.VGPU_TYPES, text),))
    complaints = [] if complaint is None else [complaint]
    problem = _vfio_problem(pci) if wanted.passthrough else None
    vfio = wanted.passthrough and problem is None
    complaints += [] if problem is None else [problem]
    if vfio and types and not partitionable:
        complaints.append((Reason.NO_PARTITIONABLE_DEVICES, "its vfio device: the API server stores no counters"))
        vfio = False
    if len(types) > 1 and not partitionable:
        text = "its vGPUs: the API server stores no counters, so the policy must name one type"
        complaints.append((Reason.NO_PARTITIONABLE_DEVICES, text))
        types = ()
    vgpus, pot = _counted(gpu, types)
    if len(pot) > COUNTERS_PER_SET or len(vgpus) + vfio > DEVICES_PER_SLICE_WITH_EXTRAS:
        text = f"its vGPUs: its types have {len(vgpus)} placements, which is too many; name fewer or larger types"
        complaints.append((Reason.VGPU_TYPES, text))
        vgpus, pot = (), ONE_GPU
    if not (vgpus or vfio or complaints):
        text = "the GPU: NVIDIA's vGPU manager runs for it, and the policy has neither vgpuTypes nor passthrough"
        complaints.append((Reason.VGPU_HOST, text))
    if not vgpus or not (vfio or len(types) > 1):  # no two of them exclude each other
        return Forms(vfio=vfio, vgpus=tuple((one, {}) for one, _ in vgpus), complaints=tuple(complaints))
    return Forms(vfio=vfio, vgpus=vgpus, pot=pot, complaints=tuple(complaints))


def _unknown(types: Sequence[int]) -> Complaint:
    text = f"vGPUs of the types {', '.join(map(str, sorted(set(types))))}: NVML does not report these types"
    return Reason.VGPU_TYPES, text


def _types(host: VgpuHost, wanted: GpuPolicy) -> tuple[tuple[VgpuType, ...], Complaint | None]:
    """The types of the policy, or why there are none."""
    if not wanted.vgpu_types:
        return (), None
    if host.problem:
        return (), (Reason.VGPU_HOST, f"its vGPUs: {host.problem}")
    by_name = {name: one for one in host.types.types for name in (one.name, one.profile)}
    missing = [name for name in wanted.vgpu_types if name not in by_name]
    if missing:
        known = ", ".join(one.name for one in host.types.types)
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


def _counted(gpu: Gpu, types: Sequence[VgpuType]) -> tuple[tuple[tuple[VgpuDevice, Counters], ...], Counters]:
    """The vGPUs of these types with what they consume, and all there is. Small types come first, and of each type the
    placement nearest to the end, so that the front stays free for large types.
    """
    every = [one for one in possible_vgpus(gpu) if one.type in types]
    every.sort(key=lambda one: (one.type.size, one.type.memory, -(one.start or 0)))
    unit = Quantity.of(1)
    if len(types) <= 1:
        return tuple((vgpu, {"vgpus": unit}) for vgpu in every), {"vgpus": Quantity.of(len(every))}
    spans = {id(vgpu): (vgpu.start or 0, (vgpu.start or 0) + vgpu.type.size) for vgpu in every}
    parts = list(pairwise(sorted({end for span in spans.values() for end in span})))

    def drawn(vgpu: VgpuDevice) -> Counters:
        first, end = spans[id(vgpu)]
        return {f"vgpu-part-{start}": unit for start, last in parts if first <= start and last <= end}

    counted = tuple((vgpu, drawn(vgpu)) for vgpu in every)
    return counted, {name: unit for _, counters in counted for name in counters}
