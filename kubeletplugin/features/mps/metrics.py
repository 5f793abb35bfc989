# SPDX-License-Identifier: Apache-2.0
"""The metrics of MPS: the daemons that claims use, and their restarts."""

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import Counter

from dra_driver.names import DRIVER_NAME
from dra_driver.process.endpoints import PREFIX

from ...metrics import Gauges, PluginMetrics
from .watch import ServedDevices

MPS_STATES: Final = ("running", "down")


def restart_counter(metrics: PluginMetrics) -> Callable[[int], None]:
    """Publish the number of restarts of daemons that claims use. Returns a function that adds to it."""
    counter = Counter(
        "mps_daemon_restarts",
        "MPS daemons of claims that were started again.",
        ("driver",),
        namespace=PREFIX,
        registry=metrics.registry,
    ).labels(DRIVER_NAME)
    return counter.inc


def publish_daemons(metrics: PluginMetrics, served: Callable[[], Sequence[ServedDevices]]) -> None:
    """Publish the number of daemons that claims use, by state, and the time of their start."""

    def states() -> Tally[tuple[str, ...]]:
        counts: Tally[tuple[str, ...]] = Tally({(DRIVER_NAME, state): 0 for state in MPS_STATES})
        counts.update((DRIVER_NAME, MPS_STATES[bool(devices.status.problem)]) for devices in served())
        return counts

    def starts() -> dict[tuple[str, ...], float]:
        running = (devices for devices in served() if not devices.status.problem)
        return {(DRIVER_NAME, ",".join(devices.devices)): devices.status.since for devices in running}

    text = "Groups of devices that claims use through MPS, by the state of their daemon."
    metrics.registry.register(Gauges("mps_daemons", text, ("driver", "state"), states))
    text = "Time at which the running MPS daemon of these devices was started, in seconds of the epoch."
    metrics.registry.register(Gauges("mps_daemon_start_time_seconds", text, ("driver", "devices"), starts))
