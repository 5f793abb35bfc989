# SPDX-License-Identifier: Apache-2.0
"""Names that every layer uses: of the driver for GPUs, and of the devices that a configuration or a policy adds."""

import enum
from typing import Final

DRIVER_NAME: Final = "gpu.nvidia.com"
"""The name of the DRA driver. It is also the domain of its attributes."""


class AdditionalDevice(enum.StrEnum):
    """Devices of the node that containers get beside their GPU, if the policy or a configuration asks for them.

    GDS: GPUDirect Storage (nvidia-fs). GDRCOPY: the driver gdrdrv. MOFED: InfiniBand and RoCE adapters, all of them.
    NVSWITCH: control of the NVSwitches.
    """

    GDS = "gds"
    GDRCOPY = "gdrcopy"
    MOFED = "mofed"
    NVSWITCH = "nvswitch"

    @property
    def reaches_beyond_the_claim(self) -> bool:
        """Whether they give access to hardware that other claims use or that nobody has allocated."""
        return self in (AdditionalDevice.MOFED, AdditionalDevice.NVSWITCH)
