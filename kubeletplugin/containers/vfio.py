# SPDX-License-Identifier: Apache-2.0
"""The edits for a GPU or a vGPU of a virtual machine: the nodes through which the virtual machine monitor gets it.

A container with such devices gets no files of NVIDIA's driver. The virtual machine has its own driver.
"""

from pathlib import Path

from dra_driver.gpu.functions import device_folder, group_of
from dra_driver.gpu.vgpus import vgpu_folder
from kubeletplugin.containers import cdi

from ..kinds.targets import MachineTarget, VfioGpu
from ..plans.plan import Plan
from ..plans.resources import container_of

_NO_DRIVER_FILES = "NVIDIA_VISIBLE_DEVICES=void"
"""NVIDIA's container runtime, where it is the default, adds nothing."""
_MDEV = "MDEV_"
"""KubeVirt looks for mediated devices in variables that begin with this."""


def vfio_edits(root: cdi.DriverRoot, plan: Plan, name: str) -> cdi.ContainerEdits:
    """The edits for the device `name` of a plan. Raises DriverFilesError.

    A container that gets several devices keeps only the last value of a variable. So each device has KubeVirt's
    variables with the identifiers of all devices of its container.
    """
    devices = {one.name: (one, one.target) for one in plan.devices if isinstance(one.target, MachineTarget)}
    device, target = devices[name]
    container, access = container_of(device.request), device.passthrough
    values: dict[str, list[str]] = {}
    for other, its in devices.values():
        for variable in other.passthrough.variables if container_of(other.request) == container else ():
            values.setdefault(_variable(variable, its), []).append(_identifier(its))
    own = [_variable(variable, target) for variable in access.variables]
    folder, group = _place(root, target)
    nodes = cdi.vfio_edits(
        folder, root.machine, group, prefer_iommufd=access.prefer_iommufd, api_device=access.api_device
    )
    env = (_NO_DRIVER_FILES, *(f"{variable}={','.join(values[variable])}" for variable in own))
    if not isinstance(target, VfioGpu):
        return cdi.ContainerEdits(env=env) + nodes
    allocated = [its for _, its in devices.values() if isinstance(its, VfioGpu)]
    members = [its.address for its in allocated if its.group == target.group]
    memory = cdi.egm_edits(root.sys, root.machine, members, [its.address for its in allocated])
    return cdi.ContainerEdits(env=env) + nodes + memory


def _variable(name: str, target: MachineTarget) -> str:
    return f"{_MDEV}{name}" if not isinstance(target, VfioGpu) and target.place.mdev else name


def _identifier(target: MachineTarget) -> str:
    return target.address if isinstance(target, VfioGpu) else target.identifier


def _place(root: cdi.DriverRoot, target: MachineTarget) -> tuple[Path, int]:
    """The folder of the device in sysfs, and its IOMMU group, which a mediated device has only while it exists."""
    if isinstance(target, VfioGpu):
        return device_folder(root.sys, target.address), target.group
    folder = vgpu_folder(root.sys, target.place)
    group = group_of(folder)
    if group is None:
        raise cdi.DriverFilesError(f"{folder} has no IOMMU group")
    return folder, group
