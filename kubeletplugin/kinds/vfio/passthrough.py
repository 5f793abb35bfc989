# SPDX-License-Identifier: Apache-2.0
"""Planning a GPU or a vGPU for a virtual machine. Pure."""

import uuid
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.config import DeviceConfig, IommuBackend, VfioDeviceConfig
from dra_driver.gpu.devices import VgpuDevice, among_peers, passthrough_problem
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.policy import NodePolicy, PassthroughMode
from dra_driver.gpu.vgpus import VgpuFramework
from dra_driver.kube.resource import AllocatedDevice

from ...errors import PrepareError
from ..targets import VfioGpu, Vgpu

_MDEVS: Final = uuid.UUID("6d0bb4a2-6f0f-5f4f-9d6c-6f1b0f3b8e57")
"""The namespace of the UUIDs of mediated devices."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What is known about a GPU on the PCI bus. `gpu` is None while NVML does not see it. `uuid` is empty, and the
    module ID None, if no process of this driver has seen it since the node was booted.
    """

    gpu: Gpu | None = None
    uuid: str = ""
    module_id: int | None = None


@dataclass(frozen=True, slots=True)
class Passthrough:
    """How a container gets a GPU for its virtual machine: whether through iommufd, if the kernel has it, and whether
    with the device of the interface itself. `variables` are KubeVirt's variables that have the GPU's address.
    """

    prefer_iommufd: bool = False
    api_device: bool = False
    variables: tuple[str, ...] = ()


NOTHING_EXTRA = Passthrough()
"""Only the node of the IOMMU group."""


def passthrough_of(config: DeviceConfig, variables: tuple[str, ...]) -> Passthrough:
    """What follows from the configuration of a GPU for a virtual machine."""
    if not isinstance(config, VfioDeviceConfig):
        raise TypeError(f"{config!r} is for another kind of device")
    return Passthrough(config.backend is IommuBackend.PREFER_IOMMUFD, config.api_device, variables)


def vgpu_target(result: AllocatedDevice, vgpu: VgpuDevice, claim_uid: str) -> Vgpu:
    """The target of an allocated vGPU. The UUID of a mediated device that will be created follows from the claim and
    the device. Raises PrepareError.
    """
    _require_exclusive(result)
    place = vgpu.place
    if vgpu.start is not None and vgpu.framework is VgpuFramework.MDEV:
        place = replace(place, mdev=str(uuid.uuid5(_MDEVS, f"{claim_uid}/{result.device}")))
    host = vgpu.gpu.vgpu_host
    return Vgpu(place, vgpu.type.name, vgpu.start, vgpu.type.size, host is not None and host.types.mixed)


def _require_exclusive(result: AllocatedDevice) -> None:
    if result.admin_access:
        raise PrepareError(
            f"device {result.device} is a GPU for a virtual machine, and the request has adminAccess: a virtual machine"
            " needs the GPU for itself, so leave adminAccess out"
        )


def vfio_target(result: AllocatedDevice, pci: PciGpu, seen: SeenGpu, policy: NodePolicy) -> VfioGpu:
    """The target of an allocated vfio device, or of another GPU in its IOMMU group. Raises PrepareError."""
    _require_exclusive(result)
    goes = seen.gpu is None or policy.for_gpu(seen.gpu, pci).passthrough is PassthroughMode.ONLY
    problem = passthrough_problem(among_peers(pci, lambda _: goes))
    if problem is not None or pci.iommu_group is None:
        text = "" if problem is None else problem[1].removeprefix("its vfio device: ")
        raise PrepareError(f"device {result.device} (GPU {pci.address}) cannot be given to a virtual machine: {text}")
    uuid = seen.gpu.uuid if seen.gpu is not None else seen.uuid
    return VfioGpu(uuid or pci.address, pci.address, pci.iommu_group, -1 if seen.gpu is None else seen.gpu.minor)
