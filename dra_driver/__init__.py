# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes Dynamic Resource Allocation driver for NVIDIA GPUs.

This package has the code that several processes of the driver use, and the commands for people, from the lowest layer:

- `process`: what every process needs
- `kube`: the types of resource.k8s.io, and a client for the API server
- `config`: the opaque configurations of claims and classes
- `gpu`: the GPUs of a node, and their description as DRA devices
- `domains`: ComputeDomains, and the process dra-imex-daemon
- `scheduler`: the decisions of kube-scheduler
- `dryrun`: the command dra-dryrun
- `sandbox`: the command dra-sandbox

The other processes are in two packages: `controller` publishes devices, and `kubeletplugin` prepares claims.
`docs/architecture.md` describes all packages.
"""

import enum
import os
from typing import Final

# gRPC prints notices to standard error in a format of its own. It reads this when it is imported, which is later.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"

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
