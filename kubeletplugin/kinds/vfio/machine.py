# SPDX-License-Identifier: Apache-2.0
"""What devices of virtual machines have in common: a container gets them through VFIO, for its machine."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.kube.resource.codec import Fields

from ...claims.model import JSON, Kind


@dataclass(frozen=True, slots=True)
class Passthrough:
    """How a container gets a GPU for its virtual machine: whether through iommufd, if the kernel has it, and whether
    with the device of the interface itself. `variables` are KubeVirt's variables that have the GPU's address.
    """

    prefer_iommufd: bool = False
    api_device: bool = False
    variables: tuple[str, ...] = ()

    def to_json(self) -> JSON:
        """The values in records."""
        return {
            "preferIommuFD": self.prefer_iommufd,
            "apiDevice": self.api_device,
            "variables": list(self.variables),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> "Passthrough":
        """The values of a record."""
        return cls(fields.flag("preferIommuFD"), fields.flag("apiDevice"), fields.texts("variables"))


NOTHING_EXTRA: Final = Passthrough()
"""Only the node of the IOMMU group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKind(Kind):
    """A device that a virtual machine gets, in the way of `access`."""

    NEEDS_DRIVER_FILES = False  # the virtual machine has a driver of its own

    access: Passthrough = NOTHING_EXTRA

    @property
    @abstractmethod
    def identifier(self) -> str:
        """By what a virtual machine monitor finds it: the UUID of a mediated device, or the address of a function."""

    @property
    def is_mediated(self) -> bool:
        """Whether it is a mediated device."""
        return False

    @abstractmethod
    def sysfs(self, sys_root: Path) -> tuple[Path, int]:
        """The folder of the device in sysfs, and its IOMMU group. Raises DriverFilesError if it has none."""
