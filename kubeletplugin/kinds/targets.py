# SPDX-License-Identifier: Apache-2.0
"""The hardware of an allocated device, and the name of the claim that has it."""

from dataclasses import dataclass, field

from dra_driver.gpu.devices import VgpuDevice
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.vgpus import VgpuPlace

Found = Gpu | MigDevice | VgpuDevice | PciGpu
"""The hardware of a device name of this node."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The name of a claim, as kubelet sends it. If the claim's record is damaged, only the UID may be known."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"with UID {self.uid}"


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A whole GPU."""

    uuid: str
    minor: int
    pci_address: str

    @property
    def gpu_uuid(self) -> str:
        """The UUID of the GPU."""
        return self.uuid


@dataclass(frozen=True, slots=True)
class MigSlot:
    """A MIG device: the placement of its GPU instance on a GPU. One compute instance has all of its `slices`.

    `pci_address` is the GPU's if the device supports graphics, else empty. It is not part of the slot's identity.
    """

    gpu_uuid: str
    minor: int
    profile: str
    profile_id: int
    slices: int
    placement: Placement
    pci_address: str = field(default="", compare=False)

    @property
    def place(self) -> MigDevice:
        """The place in the form of the marks."""
        return MigDevice(self.gpu_uuid, self.profile_id, self.placement)

    def __str__(self) -> str:
        return f"{self.profile} at {self.placement} of GPU {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class MigInstanceIds:
    """The instances of a MIG device. `made` is false if they existed before the claim."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    made: bool = True


@dataclass(frozen=True, slots=True)
class VfioGpu:
    """A GPU for a virtual machine: the function at `address` on the PCI bus, in the IOMMU group `group`.

    `gpu_uuid` is the GPU's UUID. While a GPU is bound to a vfio driver, NVML does not see it. So a GPU that was bound
    before this driver saw it (by an administrator) has its PCI address instead. `minor` is its minor number, or
    -1 if it is unknown. It is not part of the GPU's identity.
    """

    gpu_uuid: str
    address: str
    group: int
    minor: int = field(default=-1, compare=False)

    def __str__(self) -> str:
        return f"GPU {self.address} (IOMMU group {self.group})"


@dataclass(frozen=True, slots=True)
class Vgpu:
    """A vGPU for a virtual machine, of the type `name` (`L40S-12Q`).

    One that is created for a claim takes `size` units of its GPU from `start` on (see dra_driver.gpu.vgpus), and is
    placed there if vGPUs of several types can be on the GPU (`mixed`). `start` is None for one that exists already.
    """

    place: VgpuPlace
    name: str
    start: int | None = None
    size: int = 1
    mixed: bool = False

    @property
    def gpu_uuid(self) -> str:
        """The UUID of the GPU."""
        return self.place.gpu_uuid

    @property
    def identifier(self) -> str:
        """By what a virtual machine monitor finds it: the UUID of a mediated device, or the address of a function."""
        return self.place.mdev or self.place.address

    def __str__(self) -> str:
        return f"vGPU {self.name} {self.identifier}"


ContainerTarget = WholeGpu | MigSlot
"""The hardware of a device that containers use through NVIDIA's driver."""

MachineTarget = VfioGpu | Vgpu
"""The hardware of a device for a virtual machine."""

Target = ContainerTarget | MachineTarget
"""The hardware of an allocated device."""
