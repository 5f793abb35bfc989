# SPDX-License-Identifier: Apache-2.0
"""The devices of this node as the controller publishes them, and what is wrong with each.

The controller is another process, so this one looks at the hardware too, in the same way: on a thread of its own, a
look that costs little every few seconds and everything when that look differs. What a claim's MIG instance changes
makes no difference to what is published. GPUs that vanished stay for as long as they stay published.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.health import Finding, HealthMonitor, LostGpus
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.ownership import MigMarks, MigPlace
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.pulse import Pulse
from dra_driver.gpu.session import Session
from dra_driver.resource import ResourceSlice

log = logging.getLogger(__name__)

Published = tuple[tuple[GpuDevices, ...], tuple[Finding, ...]]
"""The devices, and all that is held against them."""

_LOOK_NOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Looks:
    """When the hardware is looked at, in seconds; the same as the controller's by default. `patience` is for a driver
    that stops answering, before its GPUs are taken for lost.
    """

    poll: float = 5.0
    everything: float = 60.0
    patience: float = 10.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What there was, with the places of MIG instances made for claims."""

    inventory: Inventory
    owned: Set[MigPlace]


@dataclass(frozen=True, slots=True)
class _Description:
    """Devices as they were described last, and of what: that takes long enough to do it once."""

    seen: _Seen | None = None
    policy: NodePolicy | None = None
    gpus: tuple[GpuDevices, ...] = ()

    def of(self, seen: _Seen, policy: NodePolicy) -> "_Description":
        """The description of these: this one if it is."""
        if seen is self.seen and policy == self.policy:
            return self
        return _Description(seen, policy, describe(seen.inventory, policy, seen.owned).gpus)


class NodeDevices:
    """Looks from `start` to `stop`, tells the monitor which GPUs to watch, and calls `on_change` when there is news.

    Only the thread waits for the driver; everything else answers at once, or after a given time, on any thread.
    """

    def __init__(
        self,
        session: Session,
        marks: MigMarks,
        policy: Callable[[], NodePolicy],
        monitor: HealthMonitor,
        *,
        on_change: Callable[[], None] = lambda: None,
        looks: Looks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.on_change = on_change
        self._session = session
        self._marks = marks
        self._policy = policy
        self._monitor = monitor
        self._looks = looks or Looks()
        self._clock = clock
        self._lock = threading.Lock()
        self._lost = LostGpus()
        self._seen: _Seen | None = None
        self._description = _Description()
        self._problem: str | None = "the GPUs were not looked at yet"
        self._turns = threading.Condition()
        self._begun = self._ended = 0
        self._asked = self._stopped = False
        self._thread = threading.Thread(target=self._run, name="health-devices", daemon=True)
        # Of the thread only:
        self._last: tuple[Pulse, Set[MigPlace]] | None = None
        self._wanted: NodePolicy | None = None
        self._read_at = self._answered_at = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A look under way ends by itself."""
        with self._turns:
            self._stopped = True
            self._turns.notify_all()

    @property
    def problem(self) -> str | None:
        """Why the last look failed."""
        return self._problem

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Miss the GPUs of these slices, too, which were published before this process began."""
        with self._lock:
            self._lost.adopt(slices)

    def published(self) -> Published:
        """As of now. No devices before the first look that succeeds."""
        with self._lock:
            seen = self._seen
            if seen is None:
                return (), ()
            policy = self._policy()
            self._description = self._description.of(seen, policy)
            gpus, findings = self._description.gpus, self._monitor.findings()
            withdraw_after = policy.health.withdraw_after
            lost, missed = self._lost.update(gpus, seen.inventory, findings, self._clock(), withdraw_after)
            return (*gpus, *lost), (*findings, *missed)

    @property
    def described(self) -> Sequence[GpuDevices]:
        """The devices when they were described last, which costs nothing."""
        return self._description.gpus

    def look_soon(self) -> None:
        """Something is different for sure."""
        with self._turns:
            self._asked = True
            self._turns.notify_all()

    def look_now(self, seconds: float = _LOOK_NOW_SECONDS) -> bool:
        """Look, and wait for it. Whether a look that began after this call has ended within the time."""
        with self._turns:
            due = self._begun + 1
            self._asked = True
            self._turns.notify_all()
            return self._turns.wait_for(lambda: self._ended >= due, seconds)

    # The thread

    def _run(self) -> None:
        while self._begin():
            self._look()
            with self._turns:
                self._ended = self._begun
                self._turns.notify_all()
                self._turns.wait_for(lambda: self._asked or self._stopped, self._looks.poll)

    def _begin(self) -> bool:
        with self._turns:
            self._asked = False
            self._begun += 1
            return not self._stopped

    def _look(self) -> None:
        now = time.monotonic()
        try:
            changed = self._read(now)
            problem = None
        except NvmlError as error:
            problem = str(error)
            changed = self._failed(now)
        if problem is not None and problem != self._problem:
            log.info("the GPUs cannot be looked at: %s", problem)
        changed |= problem != self._problem
        self._problem = problem
        policy = self._policy()
        changed |= policy != self._wanted
        self._wanted = policy
        if changed and self._seen is not None:
            self._monitor.watch(self._seen.inventory, policy)
            self.on_change()

    def _read(self, now: float) -> bool:
        """Whether there is something else than before."""
        # Claims come and go meanwhile: what was marked before or is marked now is the driver's.
        before = self._marks.all()
        pulse = self._session.pulse()
        self._answered_at = now
        owned = before | self._marks.all()
        if (pulse, owned) == self._last and now - self._read_at < self._looks.everything:
            return False
        inventory = self._session.inventory()
        seen = _Seen(inventory, owned | self._marks.all())
        self._last, self._read_at = (pulse, owned), now
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def _failed(self, now: float) -> bool:
        """The driver does not answer. What it said last holds for a while; then its GPUs are gone."""
        self._last = None
        seen = self._seen
        if seen is None or not (seen.inventory.gpus or seen.inventory.failures):
            return False
        if now - self._answered_at < self._looks.patience:
            return False
        gone = replace(seen.inventory, gpus=(), failures=(), pci_gpus=())
        self._seen = replace(seen, inventory=gone)
        log.error("the NVIDIA driver does not answer: its GPUs are taken for lost")
        return True
