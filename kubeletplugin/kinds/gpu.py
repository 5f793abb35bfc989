# SPDX-License-Identifier: Apache-2.0
"""A whole GPU, for containers."""

from dataclasses import dataclass

from dra_driver.gpu.devices import GPU_TYPE
from dra_driver.gpu.inventory import Gpu
from dra_driver.kube.resource.codec import Fields

from ..claims.model import JSON, Device, SpecPlace
from ..containers import cdi
from ..node.node import Node
from .container import ContainerKind


@dataclass(frozen=True, slots=True)
class GpuKind(ContainerKind):
    """The GPU with this UUID, the node /dev/nvidia`minor_number`, and the address on the PCI bus, if it is known."""

    TAG = "gpu"

    uuid: str
    minor_number: int
    pci_address: str

    @classmethod
    def of(cls, gpu: Gpu) -> "GpuKind":
        """The kind of a GPU of the inventory."""
        return cls(gpu.uuid, gpu.minor, gpu.pci_address or "")

    @property
    def keys(self) -> frozenset[str]:
        """The UUID."""
        return frozenset((self.uuid,))

    @property
    def minor(self) -> int:
        """The minor number."""
        return self.minor_number

    @property
    def place_name(self) -> str:
        """The UUID."""
        return self.uuid

    def cuda_uuid(self, node: Node) -> str:
        """The UUID."""
        return self.uuid

    def recorded_uuid(self, found: JSON) -> str:
        """The UUID."""
        return self.uuid

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The device nodes of the GPU."""
        return cdi.gpu_edits(place.root, self.minor_number, self.pci_address, place.hook).edits

    def attributes(self, found: JSON) -> JSON:
        """The UUID."""
        return {"type": GPU_TYPE, "uuid": self.uuid}

    def to_json(self) -> JSON:
        """See Kind."""
        return {"uuid": self.uuid, "minor": self.minor_number, "pciAddress": self.pci_address}

    @classmethod
    def from_json(cls, fields: Fields) -> "GpuKind":
        """See Kind."""
        return cls(fields.required_text("uuid"), fields.required_integer("minor"), fields.text("pciAddress"))
