# SPDX-License-Identifier: Apache-2.0
"""The edits for a GPU of a virtual machine: the nodes through which the virtual machine monitor gets the GPU.

A container with such devices gets no files of NVIDIA's driver. The virtual machine has its own driver.
"""

from dra_driver import cdi

from ..hardware.targets import VfioGpu
from ..plans.plan import Plan
from ..plans.resources import container_of

_NO_DRIVER_FILES = "NVIDIA_VISIBLE_DEVICES=void"
"""NVIDIA's container runtime, where it is the default, adds nothing."""


def vfio_edits(root: cdi.DriverRoot, plan: Plan, name: str) -> cdi.ContainerEdits:
    """The edits for the device `name` of a plan, a GPU that is bound to a vfio driver. Raises DriverFilesError.

    A container that gets several devices keeps only the last value of a variable. So each device has KubeVirt's
    variables with the addresses of all devices of its container.
    """
    devices = {one.name: (one, one.target) for one in plan.devices if isinstance(one.target, VfioGpu)}
    device, gpu = devices[name]
    container, access = container_of(device.request), device.passthrough
    env = [_NO_DRIVER_FILES]
    for variable in access.variables:
        others = (one for one in devices.values() if variable in one[0].passthrough.variables)
        found = [target.address for one, target in others if container_of(one.request) == container]
        env.append(f"{variable}={','.join(found)}")
    nodes = cdi.vfio_edits(
        root.sys,
        root.machine,
        gpu.address,
        gpu.group,
        prefer_iommufd=access.prefer_iommufd,
        api_device=access.api_device,
    )
    allocated = [target.address for _, target in devices.values()]
    return cdi.ContainerEdits(env=tuple(env)) + nodes + cdi.egm_edits(root.sys, root.machine, gpu.address, allocated)
