# SPDX-License-Identifier: Apache-2.0
"""The limit of a device's memory, as a part of a claim's plan. The hook program sets it when a container starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.gpu.policy import Enforcement
from dra_driver.kube.resource.codec import Fields

from ...claims.model import JSON, NO_EDITS, Device, EnforcedShare, SpecPlace, SpecStep
from ...containers import cdi
from ...kinds.container import Allotted
from .files import limit_files


@dataclass(frozen=True, slots=True)
class MemoryLimitStep(SpecStep):
    """Containers with the device of this CDI name may allocate at most so many MiB of the GPU's memory."""

    TAG = "memoryLimit"

    gpu_uuid: str
    cdi_name: str
    mebibytes: int

    def __str__(self) -> str:
        return f"memory limit of {self.cdi_name}"

    @property
    def key(self) -> str:
        """The GPU."""
        return self.gpu_uuid

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The hook."""
        if device.cdi_name != self.cdi_name:
            return NO_EDITS
        return place.node.of(limit_files).edits(place.record.plan.claim.uid, self.cdi_name)

    def enforces(self, device: Device) -> EnforcedShare | None:
        """The limit of the share."""
        return EnforcedShare(Enforcement.MEMORY_LIMITS, self.mebibytes) if device.cdi_name == self.cdi_name else None

    def to_json(self) -> JSON:
        """See Step."""
        return {"gpuUUID": self.gpu_uuid, "device": self.cdi_name, "mebibytes": self.mebibytes}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "MemoryLimitStep":
        """See Step."""
        return cls(
            fields.required_text("gpuUUID"), fields.required_text("device"), fields.required_integer("mebibytes")
        )


def memory_limit_steps(allotted: Allotted) -> tuple[MemoryLimitStep, ...]:
    """The limit of one device of a claim, if the policy wants it."""
    if allotted.limits is None or allotted.limits.by is not Enforcement.MEMORY_LIMITS:
        return ()
    return (MemoryLimitStep(allotted.gpu.uuid, allotted.device.cdi_name, allotted.limits.memory),)
