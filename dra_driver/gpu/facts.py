# SPDX-License-Identifier: Apache-2.0
"""What a node has, as plain facts. `inventory` reads them."""

from dataclasses import dataclass

from .fabric import NO_SWITCHES, SwitchFacts
from .mig import MigDevice, MigInstance, PartialInstance
from .nvml import Fabric, GpuInstanceProfile, MigMode, Placement
from .vgpus import VgpuHost


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile of one GPU, with every placement on the memory slices where an instance of it can be."""

    name: str
    info: GpuInstanceProfile
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. A value that NVML or sysfs does not report is None. `memory` is in bytes.

    `nvlink_group` is the same for all GPUs of the node that reach each other over NVLink, and None for a GPU that
    reaches no other. `mig_switchable` tells that MIG mode can be switched without a reset (Hopper and later). The MIG
    profiles of such a GPU are known in both modes; those of other GPUs only while MIG mode is enabled. `is_vgpu` marks
    a vGPU that a host gave to this virtual machine: only the host can split it. `vgpu_host` is set where NVIDIA's vGPU
    manager runs. `data_direct_nic` is the PCI address of the NIC that Data Direct pairs with the GPU. `memory_limits`
    tells that the NVIDIA driver can limit the memory of containers on the GPU. `problems` are queries that failed.
    """

    index: int
    minor: int
    uuid: str
    product_name: str | None
    brand: str | None
    architecture: str | None
    compute_capability: tuple[int, int] | None
    memory: int | None
    pci_address: str | None
    pcie_root: str | None
    numa_node: int | None
    addressing_mode: str | None
    module_id: int | None = None
    nvlink_group: str | None = None
    data_direct_nic: str | None = None
    fabric: Fabric | None = None
    is_vgpu: bool = False
    vgpu_host: VgpuHost | None = None
    mig_mode: MigMode | None = None
    mig_switchable: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    partial_instances: tuple[PartialInstance, ...] = ()
    memory_limits: bool = False
    problems: tuple[str, ...] = ()

    @property
    def in_mig_mode(self) -> bool:
        """Whether MIG mode is enabled, so that the GPU cannot be used as a whole."""
        return self.mig_mode is not None and self.mig_mode.current

    @property
    def gpu_instances(self) -> tuple[MigInstance | PartialInstance, ...]:
        """All GPU instances, in the order of their IDs."""
        return tuple(
            sorted((*self.mig_instances, *self.partial_instances), key=lambda mig_instance: mig_instance.gpu_instance)
        )

    def mig_device(self, profile_id: int, placement: Placement) -> MigDevice:
        """The MIG device at a placement of this GPU. Its profile may be one that NVML does not report."""
        profile = next((each for each in self.mig_profiles if each.info.id == profile_id), None)
        if profile is None:
            return MigDevice(self.uuid, profile_id, placement, self.minor)
        address = self.pci_address if "gfx" in profile.name.partition("+")[2] else None
        slices = profile.info.slice_count
        return MigDevice(self.uuid, profile_id, placement, self.minor, profile.name, slices, address or "")

    def mig_devices(self) -> tuple[MigDevice, ...]:
        """Every MIG device that can be created on this GPU, if it has no other instances."""
        return tuple(
            self.mig_device(profile.info.id, placement)
            for profile in self.mig_profiles
            for placement in profile.placements
        )


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU on the PCI bus, whichever kernel driver it is bound to.

    `position` counts the node's GPUs in the order of their addresses. `driver` is `nvidia`, `vfio-pci` or another
    kernel driver, and None if no driver is bound. `addressable_memory` is the sum of its 64-bit BARs in bytes, rounded
    up to a power of two. `group_obstacles` are other functions in its IOMMU group because of which the GPU cannot be
    given to a virtual machine. `group_gpus` are the addresses of the other GPUs in its IOMMU group.
    `virtual_functions` is the number of its SR-IOV virtual functions that are enabled.
    """

    position: int
    address: str
    device_id: int
    product_name: str | None
    driver: str | None
    iommu_group: int | None
    addressable_memory: int | None
    pcie_root: str | None
    numa_node: int | None
    group_obstacles: tuple[str, ...] = ()
    group_gpus: tuple[str, ...] = ()
    virtual_functions: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A GPU that NVML counts, but about which it does not report enough to publish the GPU. The UUID and the PCI
    address are None if they are unknown. `hung` tells that a call for this GPU has not returned.
    """

    index: int
    reason: str
    uuid: str | None = None
    pci_address: str | None = None
    hung: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of the node: `gpus` in NVML's order, and `pci_gpus` as they are on the PCI bus. `iommufd` tells whether
    the kernel offers /dev/iommu. `switches` is what Fabric Manager reports.
    """

    driver_version: str
    cuda_driver_version: int | None
    gpus: tuple[Gpu, ...]
    failures: tuple[Failure, ...] = ()
    pci_gpus: tuple[PciGpu, ...] = ()
    iommufd: bool = False
    switches: SwitchFacts = NO_SWITCHES

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU with this UUID, or None if NVML does not report it."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
