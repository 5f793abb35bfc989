# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes whose health is watched."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dra_driver.gpu.health import Finding, HealthMonitor, MonitorTiming
from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.session import Session
from tests.support.nodes import TestNode
from tests.support.waiting import wait_for

QUICK = MonitorTiming(wait=0.02, look=0.05, settle=0.0, first_retry=0.02, patience=0.2)


@dataclass
class Watched:
    """A monitor at work on a simulated node. `changes` counts how often it said that something changed."""

    node: TestNode
    session: Session
    monitor: HealthMonitor
    changes: list[tuple[Finding, ...]] = field(default_factory=list)

    def uuid(self, index: int) -> str:
        """The UUID of a GPU."""
        return self.node.nvml.uuid(self.node.nvml.device_by_index(index))

    def held(self) -> dict[str, list[str]]:
        """What is held, as `key=value`, by GPU; keys without their domain."""
        found: dict[str, list[str]] = {}
        for one in self.monitor.findings():
            found.setdefault(one.gpu_uuid, []).append(f"{one.key.partition('/')[2]}={one.value}")
        return found

    def wait(self, expected: dict[str, list[str]]) -> None:
        """Wait until exactly this is held."""
        wait_for(lambda: self.held() == expected, f"{expected}, not {self.held()}")

    def start(self) -> None:
        """Begin to watch, and wait until all GPUs were looked at once."""
        before = time.monotonic()
        self.monitor.start()
        self._wait_for_look_after(before)

    def looked(self) -> None:
        """Wait for the end of a look that began after this call: of the second that ends."""
        for _ in range(2):
            self._wait_for_look_after(time.monotonic())

    def _wait_for_look_after(self, moment: float) -> None:
        wait_for(lambda: time.monotonic() - self.monitor.seconds_since_look > moment, "a look at all GPUs")


@contextlib.contextmanager
def watched(
    node: TestNode,
    *,
    timing: MonitorTiming = QUICK,
    policy: NodePolicy | None = None,
    clock: Callable[[], float] = lambda: 1_000_000.0,
    start: bool = True,
) -> Iterator[Watched]:
    """A monitor that watches the GPUs of the node, and has looked at them once."""
    session = Session(node.node.nvml, node.sys_root)
    folder = node.node.driver_root.parent
    marks = NodeMarks(MigMarks(folder / "mig"), VfioMarks(folder / "vfio"))
    monitor = HealthMonitor(session, marks=marks, timing=timing, clock=clock, booted_at=1000.0)
    one = Watched(node, session, monitor)
    monitor.on_change = lambda: one.changes.append(monitor.findings())
    monitor.watch(session.inventory(), policy or NodePolicy())
    try:
        if start:
            one.start()
        yield one
    finally:
        monitor.stop()
