# SPDX-License-Identifier: Apache-2.0
"""The name of a MIG device, which exists or can be created, and the instances of one that exists."""

from dataclasses import dataclass, field

from .nvml import Placement


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device: one GPU instance on the memory slices `placement` of a GPU, with one compute instance that has all
    of its compute slices. `profile_id` is the profile's ID in the NVIDIA driver.

    GPU, profile and placement identify the device. The other values follow from them, and may be unknown: `minor`, the
    GPU's minor number (-1), the name of the profile (""), its compute slices (0). `pci_address` is that of the GPU if
    the device supports graphics, and otherwise empty.
    """

    gpu_uuid: str
    profile_id: int
    placement: Placement
    minor: int = field(default=-1, compare=False)
    profile: str = field(default="", compare=False)
    slices: int = field(default=0, compare=False)
    pci_address: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.profile or f'profile {self.profile_id}'} at {self.placement} of GPU {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device that exists: the IDs of its GPU instance and its compute instance, and its UUID."""

    device: MigDevice
    gpu_instance: int
    compute_instance: int
    uuid: str


@dataclass(frozen=True, slots=True)
class PartialInstance:
    """A GPU instance at the place of `device` that is not this MIG device, as far as is known: it has no compute
    instance, a smaller one, or several. `uuids` are those of its compute instances.
    """

    device: MigDevice
    gpu_instance: int
    uuids: tuple[str, ...]
