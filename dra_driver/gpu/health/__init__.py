# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs: what NVML reports, by events and when asked -> findings -> taints on the devices concerned."""

from .findings import Finding

__all__ = ["Finding"]
