# SPDX-License-Identifier: Apache-2.0
"""The edits for a device of a virtual machine: the nodes through which the virtual machine monitor gets it.

A container with such devices gets no files of NVIDIA's driver. The virtual machine has its own driver.
"""

from typing import Final

from ...claims.model import Device, SpecPlace
from ...containers import cdi
from .kubevirt import container_of
from .machine import MachineKind

_NO_DRIVER_FILES: Final = "NVIDIA_VISIBLE_DEVICES=void"
"""NVIDIA's container runtime, where it is the default, adds nothing."""
_MDEV: Final = "MDEV_"
"""KubeVirt looks for mediated devices in variables that begin with this."""


def machine_edits(place: SpecPlace, device: Device) -> cdi.ContainerEdits:
    """The nodes and variables for a device, whose kind is a MachineKind. Raises DriverFilesError.

    A container that gets several devices keeps only the last value of a variable. So each device has KubeVirt's
    variables with the identifiers of all devices of its container.
    """
    kind, container = device.kind, container_of(device.request)
    assert isinstance(kind, MachineKind)
    values: dict[str, list[str]] = {}
    for other in place.record.plan.devices:
        if isinstance(other.kind, MachineKind) and container_of(other.request) == container:
            for variable in other.kind.access.variables:
                values.setdefault(_variable(variable, other.kind), []).append(other.kind.identifier)
    own = [_variable(variable, kind) for variable in kind.access.variables]
    folder, group = kind.sysfs(place.root.sys)
    access = kind.access
    nodes = cdi.vfio_edits(
        folder, place.root.machine, group, prefer_iommufd=access.prefer_iommufd, api_device=access.api_device
    )
    env = (_NO_DRIVER_FILES, *(f"{variable}={','.join(values[variable])}" for variable in own))
    return cdi.ContainerEdits(env=env) + nodes


def _variable(name: str, kind: MachineKind) -> str:
    return f"{_MDEV}{name}" if kind.is_mediated else name
