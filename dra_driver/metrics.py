# SPDX-License-Identifier: Apache-2.0
"""The registry of a process's metrics.

Every process makes one and hands it to those who count, so that two of them in one process (as in tests) never share
a number. Names begin with `nvidia_dra_`, as the official driver's do.
"""

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector

from . import DRIVER_NAME
from .containment import Count

PREFIX = "nvidia_dra"
"""What every metric's name begins with; prometheus_client calls it a namespace."""


def new_registry() -> CollectorRegistry:
    """A registry with what is known of the process itself: CPU time, memory, open files, the interpreter."""
    # A second series for each counter, which no query of ours needs.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def unexpected_errors(registry: CollectorRegistry) -> Count:
    """What counts the failures that `dra_driver.containment` contained, by kind of work."""
    text = "Failures that nobody expected, by the work that failed; other work went on."
    errors = Counter("unexpected_errors", text, ("driver", "work"), namespace=PREFIX, registry=registry)
    return lambda work: errors.labels(DRIVER_NAME, work).inc()
