# SPDX-License-Identifier: Apache-2.0
"""What a node has, as plain facts. `inventory` reads them."""

from dataclasses import dataclass

from .nvml import Fabric, GpuInstanceProfile, MigMode, Placement


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A profile of one GPU and every place on its memory slices where an instance of it can be."""

    name: str
    info: GpuInstanceProfile
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance that exists, with the UUIDs of the MIG devices in it by compute instance id. `filled`: one compute
    instance has all of its slices.
    """

    id: int
    profile_id: int
    placement: Placement
    devices: tuple[tuple[int, str], ...]
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. What NVML or sysfs did not tell is None; `memory` is in bytes.

    `nvlink_group` is the same for all GPUs of the node that reach each other over NVLink, None for one that reaches no
    other. `mig_switchable` says that MIG mode can be switched without a reset (Hopper and later); the profiles of
    such a GPU are known in both modes, those of others only while the mode is on. `is_vgpu`: it is a vGPU that a host
    gave to this virtual machine, and how it is split is the host's to say.
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
    fabric: Fabric | None = None
    is_vgpu: bool = False
    mig_mode: MigMode | None = None
    mig_switchable: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def in_mig_mode(self) -> bool:
        """Whether it is split, or ready to be, rather than usable whole."""
        return self.mig_mode is not None and self.mig_mode.current


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU as the PCI bus sees it, whichever kernel driver has it. `position` counts the node's GPUs in the order of
    their addresses; `driver` is `nvidia`, `vfio-pci` or the like, None when no driver is bound; `addressable_memory`
    is the size of its 64-bit BARs together, rounded up to a power of two, in bytes.
    """

    position: int
    address: str
    vendor_id: int
    device_id: int
    product_name: str | None
    driver: str | None
    iommu_group: int | None
    addressable_memory: int | None
    pcie_root: str | None
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A GPU that NVML counts but does not tell enough about to publish it. Its UUID and address, where known; `hung`
    says that a call for it has not returned.
    """

    index: int
    reason: str
    uuid: str | None = None
    pci_address: str | None = None
    hung: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the node, in NVML's order, and in `pci_gpus` those on the bus. `iommufd` says that the kernel offers
    /dev/iommu.
    """

    driver_version: str
    cuda_driver_version: int | None
    gpus: tuple[Gpu, ...]
    failures: tuple[Failure, ...] = ()
    pci_gpus: tuple[PciGpu, ...] = ()
    iommufd: bool = False
