# SPDX-License-Identifier: Apache-2.0
"""The health of GPUs: from what NVML reports, by events and when queried, to taints on the devices concerned.

`xids` and `meanings` are tables. `rules` turns a report into a finding, `records` keeps the findings of one GPU.
`queries` and `watching` call NVML, `monitor` has the threads. `taints` converts findings to device taints and back.
`lost` keeps the findings of all GPUs, and the devices of GPUs that have vanished.
"""

from .lost import LostGpus
from .meanings import documented
from .monitor import HealthMonitor, MonitorTiming
from .records import Finding, activation_findings
from .taints import concerns, keep_times, taint, worst_first

__all__ = [
    "Finding",
    "HealthMonitor",
    "LostGpus",
    "MonitorTiming",
    "activation_findings",
    "concerns",
    "documented",
    "keep_times",
    "taint",
    "worst_first",
]
