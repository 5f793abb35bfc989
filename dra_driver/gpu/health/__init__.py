# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs: from what NVML reports, by events and when queried, to taints on the devices concerned.

`meanings` has tables. `conditions` and `watching` call NVML, `records` keeps the findings, `monitor` has the threads.
`taints` converts findings to device taints and back. `lost` keeps the devices of GPUs that have vanished.
"""

from .lost import LostGpus
from .monitor import HealthMonitor, MonitorTiming
from .taints import Finding, activation_findings, concerns, keep_times, taint, worst_first

__all__ = [
    "Finding",
    "HealthMonitor",
    "LostGpus",
    "MonitorTiming",
    "activation_findings",
    "concerns",
    "keep_times",
    "taint",
    "worst_first",
]
