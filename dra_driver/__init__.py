# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes Dynamic Resource Allocation driver for NVIDIA GPUs.

This package is what the driver's processes share; `docs/architecture.md` describes its packages.
The processes themselves live beside it: `controller` publishes devices, `kubeletplugin`
prepares claims.
"""

from typing import Final

__version__ = "0.1.0"

DRIVER_NAME: Final = "gpu.nvidia.com"
"""The DRA driver name: registration, ResourceSlices, opaque configs and attribute domain."""
