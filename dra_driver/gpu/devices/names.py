# SPDX-License-Identifier: Apache-2.0
"""Names of devices, as NVIDIA's DRA driver forms them, and the hardware that each name refers to.

A name contains everything that is needed to prepare the device. So its meaning does not depend on what is published.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..inventory import Gpu, Inventory, PciGpu
from ..mig import MigDevice
from ..profiles import device_suffix
from ..vgpus import VgpuFramework, VgpuPlace, VgpuType


@dataclass(frozen=True, slots=True)
class VgpuDevice:
    """An existing or possible vGPU. `place.mdev` is empty while a mediated device does not exist.

    `start` is the first unit of a possible one (see VgpuType), and None for an existing one.
    """

    gpu: Gpu
    type: VgpuType
    framework: VgpuFramework
    place: VgpuPlace
    start: int | None = None

    @property
    def name(self) -> str:
        """`gpu-<minor>-vgpu-<profile>-<type id>-<start>` of a possible vGPU. Of an existing one, instead of the last
        two parts, the UUID of the mediated device or the address of the function.
        """
        where = f"{self.type.id}-{self.start}" if self.start is not None else self.place.mdev or self.place.address
        return f"{gpu_name(self.gpu)}-vgpu-{self.type.profile.lower()}-{where.replace(':', '-').replace('.', '-')}"


def gpu_name(gpu: Gpu) -> str:
    """`gpu-<minor>`."""
    return f"gpu-{gpu.minor}"


def mig_name(device: MigDevice) -> str:
    """`gpu-<minor>-mig-<profile>-<the driver's profile id>-<first memory slice>`."""
    return f"gpu-{device.minor}-mig-{device_suffix(device.profile)}-{device.profile_id}-{device.placement.start}"


def vfio_name(gpu: PciGpu) -> str:
    """`gpu-vfio-<position on the PCI bus>`."""
    return f"gpu-vfio-{gpu.position}"


def possible_vgpus(gpu: Gpu) -> Iterator[VgpuDevice]:
    """The vGPUs that could be created on a GPU, if it had no other vGPUs.

    Where each function is one vGPU, each start has a function of its own. So vGPUs that fit together have different
    functions. If there are more starts than functions, those at which only small types start are left out.
    """
    host = gpu.vgpu_host
    if host is None or host.problem:
        return
    sizes = sorted((-kind.size, start) for kind in host.types.types for start in kind.starts)
    starts = dict.fromkeys(start for _, start in sizes)
    own = dict(zip(starts, host.functions, strict=False))
    if host.functions == (gpu.pci_address,):
        own = dict.fromkeys(starts, host.functions[0])
    for kind in host.types.types:
        for start in kind.starts:
            if start in own:
                yield VgpuDevice(gpu, kind, host.framework, VgpuPlace(gpu.uuid, own[start], kind.id), start)


def existing_vgpu(gpu: Gpu, place: VgpuPlace) -> VgpuDevice | None:
    """The device of an existing vGPU. None if NVML does not report its type."""
    host = gpu.vgpu_host
    types = {} if host is None else {kind.id: kind for kind in host.types.types}
    if host is None or place.type_id not in types:
        return None
    return VgpuDevice(gpu, types[place.type_id], host.framework, place)


def device_targets(inventory: Inventory) -> Mapping[str, Gpu | MigDevice | VgpuDevice | PciGpu]:
    """The hardware of every device name of the node, published or not."""
    targets: dict[str, Gpu | MigDevice | VgpuDevice | PciGpu] = {}
    for gpu in inventory.gpus:
        targets[gpu_name(gpu)] = gpu
        targets.update((mig_name(device), device) for device in gpu.mig_devices())
        existing = () if gpu.vgpu_host is None else gpu.vgpu_host.existing
        vgpus = (*possible_vgpus(gpu), *(existing_vgpu(gpu, place) for place in existing))
        targets.update((vgpu.name, vgpu) for vgpu in vgpus if vgpu is not None)
    targets.update((vfio_name(gpu), gpu) for gpu in inventory.pci_gpus)
    return targets
