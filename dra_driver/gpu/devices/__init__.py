# SPDX-License-Identifier: Apache-2.0
"""GPUs as DRA devices: names, attributes, capacities, counters.

They are those of NVIDIA's DRA driver, so that claims written for it work. In addition there is `model`, and `uuid`,
`profile` and `parentUUID` are on every device that has one. `describe` turns an inventory into devices,
`device_targets` tells which part of the hardware a device's name stands for, and `without_tainted` serves API servers
without taints.
"""

from .attributes import GPU_TYPE, MIG_TYPE, VFIO_TYPE, model_name
from .describe import AVAILABLE, UNAVAILABLE, Description, GpuDevices, describe, without_tainted
from .forms import LeftOut, Reason
from .names import MigPlacement, device_targets, gpu_name, mig_name, mig_placements, vfio_name

__all__ = [
    "AVAILABLE",
    "GPU_TYPE",
    "MIG_TYPE",
    "UNAVAILABLE",
    "VFIO_TYPE",
    "Description",
    "GpuDevices",
    "LeftOut",
    "MigPlacement",
    "Reason",
    "describe",
    "device_targets",
    "gpu_name",
    "mig_name",
    "mig_placements",
    "model_name",
    "vfio_name",
    "without_tainted",
]
