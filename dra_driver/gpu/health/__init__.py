# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs: what NVML reports, by events and when asked -> findings -> taints on the devices concerned.

`xids` and `meanings` are the tables, `rules` and `records` the decisions, `readings` and `watching` what is asked of
NVML, `monitor` the threads that bring them together; `taints` goes from findings to devices and back, and `lost` keeps
the devices of GPUs that vanished.
"""

from .findings import Finding
from .lost import LostGpus
from .meanings import documented
from .monitor import HealthMonitor, Timing
from .taints import concerns, keep_times, taint, worst_first

__all__ = [
    "Finding",
    "HealthMonitor",
    "LostGpus",
    "Timing",
    "concerns",
    "documented",
    "keep_times",
    "taint",
    "worst_first",
]
