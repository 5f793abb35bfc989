# SPDX-License-Identifier: Apache-2.0
"""The IMEX channels of a node, which workloads of a ComputeDomain get.

The device nodes have explicit numbers and a mode, because the NVIDIA driver makes none for channels on the host.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.domains.names import CHANNEL_TYPE
from dra_driver.errors import ImexFilesError
from dra_driver.gpu.imex import CHANNELS_FOLDER, Channels, read_channels
from dra_driver.kube.resource.codec import Fields

from ..claims.model import JSON, NO_EDITS, Device, SpecPlace
from ..containers import cdi
from ..containers.cdi.spec import DeviceNode
from ..errors import PrepareError
from .domain import DomainKind, DomainName

_MODE: Final = 0o666
_PERMISSIONS: Final = "rw"


@dataclass(frozen=True, slots=True)
class ChannelKind(DomainKind):
    """Channel 0 of the node, or all of them."""

    TAG = CHANNEL_TYPE
    NEEDS_DRIVER_FILES = False  # the devices of a GPU come with them

    all_channels: bool = False

    @property
    def is_given(self) -> bool:
        """Whether the node is in a fabric. Elsewhere there is nothing to get, and pods start without channels."""
        return bool(self.clique)

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The device nodes. Raises NoDriverError while there is no NVIDIA driver."""
        if not self.is_given:
            return NO_EDITS
        place.node.gpus()
        found = channels_of(place.node.folders.hardware.proc_root)
        return cdi.ContainerEdits(
            device_nodes=tuple(
                DeviceNode(
                    f"{CHANNELS_FOLDER}/channel{number}",
                    type="c",
                    major=found.major,
                    minor=number,
                    file_mode=_MODE,
                    permissions=_PERMISSIONS,
                )
                for number in range(found.count if self.all_channels else 1)
            )
        )

    def to_json(self) -> JSON:
        """See Kind."""
        return {**DomainKind.to_json(self), "allChannels": self.all_channels}

    @classmethod
    def from_json(cls, fields: Fields) -> "ChannelKind":
        """See Kind."""
        domain = DomainName.from_json(fields.required_object("domain"))
        return cls(domain, fields.text("clique"), fields.flag("allChannels"))


def channels_of(proc_root: Path) -> Channels:
    """The channels of the node whose /proc this is. Raises PrepareError."""
    try:
        found = read_channels(proc_root)
    except ImexFilesError as error:
        raise PrepareError(str(error)) from None
    if found is None:
        raise PrepareError(
            f"{proc_root / 'devices'} has no IMEX channels: load the nvidia module without the parameter"
            " NVreg_ImexChannelCount=0"
        )
    return found
