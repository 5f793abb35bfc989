# SPDX-License-Identifier: Apache-2.0
"""A MIG device, for containers."""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.gpu.devices import MIG_TYPE
from dra_driver.gpu.mig import MigDevice, MigInstance
from dra_driver.gpu.nvml import Placement
from dra_driver.kube.resource import AttributeValue
from dra_driver.kube.resource.codec import Fields

from ...claims.model import JSON, Device, Kind, SpecPlace
from ...containers import cdi
from ...node.node import Node
from ..container import ContainerKind
from .instances import MigInstances


@dataclass(frozen=True, slots=True)
class MigKind(ContainerKind):
    """The MIG device with this name in `dra_driver.gpu`."""

    TAG = "mig"

    device: MigDevice

    @property
    def keys(self) -> frozenset[str]:
        """The UUID of the GPU."""
        return frozenset((self.device.gpu_uuid,))

    @property
    def minor(self) -> int:
        """The minor number of the GPU."""
        return self.device.minor

    @property
    def part(self) -> tuple[str, Placement]:
        """The profile and the memory slices."""
        return self.device.profile, self.device.placement

    def excludes(self, other: Kind) -> bool:
        """MIG devices of a GPU exclude each other if they share memory slices."""
        if not isinstance(other, MigKind) or self.keys != other.keys:
            return Kind.excludes(self, other)
        mine, theirs = self.device.placement, other.device.placement
        return mine.start < theirs.start + theirs.size and theirs.start < mine.start + mine.size

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The device nodes of the GPU and of the instances."""
        made = decode_instance(self.device, place.record.found[device.name])
        minor, pci_address = self.device.minor, self.device.pci_address
        found = cdi.mig_edits(place.root, minor, made.gpu_instance, made.compute_instance, pci_address, place.hook)
        return found.edits

    @property
    def place_name(self) -> str:
        """The GPU, the profile and the memory slices."""
        return f"{self.device.gpu_uuid}/{self.device.profile_id}/{self.device.placement}"

    def cuda_uuid(self, node: Node) -> str:
        """The UUID of the device that is there now."""
        made = node.gpus().of(MigInstances).find(self.device)
        return "" if made is None else made.uuid

    def recorded_uuid(self, found: JSON) -> str:
        """The UUID of the device that a step has found."""
        return decode_instance(self.device, found).uuid

    def attributes(self, found: JSON) -> JSON:
        """The UUID, if the device exists, its profile, and its GPU."""
        return {
            "type": MIG_TYPE,
            **self.identity(found),
            "profile": self.device.profile,
            "parentUUID": self.device.gpu_uuid,
        }

    def identity(self, found: JSON) -> Mapping[str, AttributeValue]:
        """The UUID of the device, which is published only if an administrator created it."""
        return {"uuid": found["uuid"]} if found else {}

    def to_json(self) -> JSON:
        """See Kind."""
        device = self.device
        return {
            "gpuUUID": device.gpu_uuid,
            "minor": device.minor,
            "profile": device.profile,
            "profileID": device.profile_id,
            "slices": device.slices,
            "start": device.placement.start,
            "size": device.placement.size,
            **({"pciAddress": device.pci_address} if device.pci_address else {}),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> "MigKind":
        """See Kind."""
        return cls(
            MigDevice(
                gpu_uuid=fields.required_text("gpuUUID"),
                minor=fields.required_integer("minor"),
                profile=fields.required_text("profile"),
                profile_id=fields.required_integer("profileID"),
                slices=fields.required_integer("slices"),
                placement=Placement(fields.required_integer("start"), fields.required_integer("size")),
                pci_address=fields.text("pciAddress"),
            )
        )


def encode_instance(made: MigInstance) -> JSON:
    """The instances of a MIG device, as what a step has found."""
    return {"gi": made.gpu_instance, "ci": made.compute_instance, "uuid": made.uuid}


def decode_instance(device: MigDevice, found: JSON) -> MigInstance:
    """The instances that a step has found. Raises LookupError if it has not found them."""
    return MigInstance(device, found["gi"], found["ci"], found["uuid"])
