# SPDX-License-Identifier: Apache-2.0
"""Additional devices of the node, such as those of GPUDirect, for containers with a GPU."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.config import VfioDeviceConfig
from dra_driver.gpu.policy import NodePolicy
from dra_driver.kube.resource.codec import Fields
from dra_driver.names import AdditionalDevice

from ..claims.model import JSON, NO_EDITS, Device, SpecPlace, SpecStep
from ..containers import cdi
from ..kinds.container import Allotted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdditionalDevicesStep(SpecStep):
    """Containers with the device of this CDI name also get the devices `names`."""

    TAG = "additionalDevices"

    gpu_uuid: str
    cdi_name: str
    names: tuple[AdditionalDevice, ...]

    def __str__(self) -> str:
        return f"additional devices {', '.join(self.names)} of {self.cdi_name}"

    @property
    def key(self) -> str:
        """The GPU."""
        return self.gpu_uuid

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The device nodes and mounts that the node has."""
        edits = NO_EDITS
        for name in self.names if device.cdi_name == self.cdi_name else ():
            found = cdi.find_additional(place.root, name)
            for warning in found.warnings:
                claim = str(place.record.plan.claim)
                log.warning("%s", warning, extra={"claim": claim, "device": device.name})
            edits += found.edits
        return edits

    def to_json(self) -> JSON:
        """See Step."""
        return {"gpuUUID": self.gpu_uuid, "device": self.cdi_name, "names": list(self.names)}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "AdditionalDevicesStep":
        """See Step. Raises ValueError."""
        names = tuple(map(AdditionalDevice, fields.texts("names")))
        return cls(fields.required_text("gpuUUID"), fields.required_text("device"), names)


def additional_device_steps(allotted: Allotted, policy: NodePolicy) -> tuple[AdditionalDevicesStep, ...]:
    """The additional devices of the policy and of the configuration, for one device of a claim."""
    config = allotted.chosen.config
    configured = () if isinstance(config, VfioDeviceConfig) else config.additional_devices
    names = tuple(dict.fromkeys((*policy.for_gpu(allotted.gpu).additional_devices, *configured)))
    return (AdditionalDevicesStep(allotted.gpu.uuid, allotted.device.cdi_name, names),) if names else ()
