# SPDX-License-Identifier: Apache-2.0
"""GPUs as DRA devices: names, attributes, capacities, counters.

They are those of NVIDIA's DRA driver, so that claims written for that driver work. In addition, devices have the
attribute `model`, and every device that has a `uuid`, `profile` or `parentUUID` publishes it. `describe` turns an
inventory into devices. `device_targets` maps the names of devices to hardware. `without_tainted` removes devices for
API servers without taints.
"""

from .attributes import ENFORCED_BY, GPU_TYPE, MIG_TYPE, PCI_BUS_ID, VFIO_TYPE, VGPU_TYPE
from .describe import AVAILABLE, UNAVAILABLE, Description, GpuDevices, describe, without_tainted
from .forms import NO_VGPU_MANAGER, Forms, LeftOut, Reason, among_peers, passthrough_problem
from .names import VgpuDevice, device_targets, vfio_name
from .vgpus import vgpu_forms

__all__ = [
    "AVAILABLE",
    "ENFORCED_BY",
    "GPU_TYPE",
    "MIG_TYPE",
    "NO_VGPU_MANAGER",
    "PCI_BUS_ID",
    "UNAVAILABLE",
    "VFIO_TYPE",
    "VGPU_TYPE",
    "Description",
    "Forms",
    "GpuDevices",
    "LeftOut",
    "Reason",
    "VgpuDevice",
    "among_peers",
    "describe",
    "device_targets",
    "passthrough_problem",
    "vfio_name",
    "vgpu_forms",
    "without_tainted",
]
