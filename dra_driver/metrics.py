# SPDX-License-Identifier: Apache-2.0
"""The registry of a process's metrics.

Every process makes one and hands it to those who count, so that two of them in one process (as in tests) never share
a number. Names begin with `nvidia_dra_`, as the official driver's do.
"""

import prometheus_client
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

PREFIX = "nvidia_dra"
"""What every metric's name begins with; prometheus_client calls it a namespace."""

HANGING_CALLS = "hanging_calls"
HANGING_CALLS_TEXT = "Calls to the NVIDIA driver that have not returned within their time limit."


def new_registry() -> CollectorRegistry:
    """A registry with what is known of the process itself: CPU time, memory, open files, the interpreter."""
    # A second series for each counter, which no query of ours needs.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
