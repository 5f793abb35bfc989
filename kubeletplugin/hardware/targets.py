# SPDX-License-Identifier: Apache-2.0
"""The part of the hardware that an allocated device stands for, and the name of the claim that it is for."""

from dataclasses import dataclass, field

from dra_driver.errors import DriverError
from dra_driver.gpu.devices import MigPlacement
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.ownership import MigPlace


class PrepareError(DriverError):
    """A claim cannot be prepared. The text reaches the pod's events: it says what is wrong and what to do."""


class ClaimGoneError(PrepareError):
    """The API server has no such claim any more."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """How kubelet names a claim. Only the UID is known of a claim whose record is damaged."""

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
        """The GPU that it is on: itself."""
        return self.uuid


@dataclass(frozen=True, slots=True)
class MigSlot:
    """A MIG device: where on which GPU its GPU instance is to be. One compute instance of `slices` fills it.

    `pci_address` is the GPU's if the device does graphics, else empty. It says nothing of which slot this is.
    """

    gpu_uuid: str
    minor: int
    profile: str
    profile_id: int
    slices: int
    placement: Placement
    pci_address: str = field(default="", compare=False)

    @property
    def place(self) -> MigPlace:
        """The same as its mark of ownership names it."""
        return MigPlace(self.gpu_uuid, self.profile_id, self.placement)

    def __str__(self) -> str:
        return f"{self.profile} at {self.placement} of GPU {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class MigInstanceIds:
    """The instances behind a MIG device once they exist. `made` is false for ones that were there before."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    made: bool = True


Target = WholeGpu | MigSlot
"""What an allocated device is on the hardware."""

Found = Gpu | MigPlacement | PciGpu
"""What a device name stands for on this node."""
