# SPDX-License-Identifier: Apache-2.0
"""The thread that watches the health of a node's GPUs.

It waits for events and looks at the state of every GPU in between; what it hears goes through the rules in `records`.
The records change under a lock that no call to NVML is made under, so that a driver that hangs blocks nobody else.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from ...resource import ResourceSlice
from ..inventory import Inventory
from ..nvml import NO_INSTANCE, Event, Nvml, NvmlError, Placement, Return
from ..policy import NodePolicy
from .findings import Finding
from .ledger import Ledger
from .readings import DRIVER_GONE, Reading, read_gpu
from .rules import event_condition
from .watching import EventWatch

log = logging.getLogger(__name__)


class LiveNvml(Protocol):
    """Who keeps NVML initialized: `gpu.session.Session`."""

    @property
    def generation(self) -> int:
        """Another number after NVML was initialized anew: handles and event sets of before are void."""

    def use(self) -> AbstractContextManager[Nvml]:
        """The gateway, which stays while it is used. Raises NvmlError while there is no driver."""

    def pulse(self) -> object:
        """Find out whether NVML answers, and initialize it anew when it does not. Raises NvmlError."""


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds: how long to `wait` for an event at a time, how often to `look` at the state of all GPUs, how long
    after an event (`settle`: others may follow it). After a failure it is tried again from `first_retry` on, ever more
    slowly, up to `look`; with a driver that fails for longer than `patience`, its GPUs count as unmonitored.
    """

    wait: float = 1.0
    look: float = 10.0
    settle: float = 0.2
    first_retry: float = 0.2
    patience: float = 10.0


class HealthMonitor:
    """What is wrong with the GPUs of a node, from `start` to `stop`.

    `on_change` is called, on the monitor's thread or that of a caller, whenever `findings` gives something else than
    before; it should return soon. `driver_load` tells which load of the driver it is, by a value that is another after
    every load. `booted_at` (seconds of the epoch): what was found before is not restored.
    """

    def __init__(
        self,
        session: LiveNvml,
        *,
        on_change: Callable[[], None] = lambda: None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.time,
        driver_load: Callable[[], object] = lambda: None,
        booted_at: float = 0.0,
    ) -> None:
        self.on_change = on_change
        self._session = session
        self._timing = timing or Timing()
        self._clock = clock
        self._lock = threading.Lock()
        self._ledger = Ledger(booted_at)
        self._findings: tuple[Finding, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        # Of the thread only:
        self._watch: EventWatch | None = None
        self._generation: int | None = None
        self._covered: frozenset[str] = frozenset()
        self._next_look = self._looked_at = time.monotonic()
        self._driver_load = driver_load
        self._load = driver_load()
        self._driver_gone = False
        self._retry = self._timing.first_retry
        self._failing_since: float | None = None
        self._problem: str | None = None
        self._problems: dict[str, str] = {}

    # For callers on other threads

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """Watch no more. With `wait`, until the thread has ended, but not for a call to NVML that hangs; a process that
        ends anyway need not.
        """
        self._stopped.set()
        if wait and self._thread.is_alive():
            self._thread.join(2 * self._timing.wait)

    def findings(self) -> tuple[Finding, ...]:
        """Everything that is wrong now, GPU by GPU. Never waits."""
        return self._findings

    @property
    def seconds_since_look(self) -> float:
        """How long ago all GPUs were looked at: much more than Timing.look while the driver hangs or is away."""
        return time.monotonic() - self._looked_at

    def watch(self, inventory: Inventory, policy: NodePolicy) -> None:
        """From now on, these GPUs are the node's and this is what is wanted of them. A GPU that vanished is watched on
        for as long as it stays published (HealthPolicy.withdraw_after).
        """
        with self._lock:
            self._ledger.watch(inventory, policy, self._clock())
        self._tell()

    def restore(self, slices: Iterable[ResourceSlice]) -> None:
        """Remember what an earlier process found, from the taints it published."""
        with self._lock:
            self._ledger.restore(tuple(slices), self._clock())
        self._tell()

    def _tell(self) -> None:
        """Publish what the ledger says now, if it is something else."""
        with self._lock:
            before, self._findings = self._findings, self._ledger.findings()
            after = self._findings
        if before == after:
            return
        for finding in after:
            if finding not in before:
                log.warning("GPU %s: %s", finding.gpu_uuid, finding.message, extra=_details(finding))
        for finding in before:
            if finding not in after:
                log.info("GPU %s: over: %s", finding.gpu_uuid, finding.message, extra=_details(finding))
        self.on_change()

    # The thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause = 0.0
            try:
                self._turn()
            except NvmlError as error:
                pause = self._failed(error)
            with self._lock:
                self._ledger.age(self._clock())
            self._tell()
            self._stopped.wait(pause)
        self._close()

    def _turn(self) -> None:
        """Look if it is time to, else wait for one event: what a look finds is told before anything is waited for."""
        if self._failing_since is not None:
            self._session.pulse()
        with self._session.use() as nvml:
            watch = self._connected(nvml)
            with self._lock:
                gpus = self._ledger.gpus()
            if time.monotonic() >= self._next_look or gpus.keys() != self._covered:
                self._look(nvml, watch, gpus)
                return
            seconds = min(self._timing.wait, max(self._next_look - time.monotonic(), 0.0))
            event = watch.wait(seconds) if watch.covers else None
            if event is not None:
                self._take(nvml, event)
        if not watch.covers:
            self._stopped.wait(seconds)
        self._retry, self._failing_since, self._problem = self._timing.first_retry, None, None

    def _connected(self, nvml: Nvml) -> EventWatch:
        """The events registered through this gateway; what was of another generation is left behind."""
        generation = self._session.generation
        if self._watch is None or generation != self._generation:
            self._close()
            version, load = nvml.driver_version(), self._driver_load()
            with self._lock:
                self._ledger.driver_runs(version, self._driver_gone or load != self._load, self._clock())
            self._driver_gone, self._load = False, load
            self._watch, self._generation = EventWatch(nvml), generation
            self._next_look = time.monotonic()
        return self._watch

    def _look(self, nvml: Nvml, watch: EventWatch, gpus: dict[str, bool]) -> None:
        nvml.driver_version()  # fails when all would: then it is not a fault of the GPUs
        readings: dict[str, Reading] = {}
        for uuid, confined in gpus.items():
            readings[uuid] = read_gpu(nvml, uuid, instances=confined)
        watch.cover(uuid for uuid, reading in readings.items() if not reading.lost)
        failing = self._problem if self._patience_is_over else None
        problems = {}
        with self._lock:
            for uuid, reading in readings.items():
                problem = None if reading.lost else failing or reading.problem or watch.problem(uuid)
                self._ledger.looked(uuid, reading, self._clock(), watched=problem is None)
                if problem is not None:
                    problems[uuid] = problem
        for uuid in problems:
            if problems[uuid] != self._problems.get(uuid):
                log.warning("GPU %s cannot be watched: %s", uuid, problems[uuid])
        self._problems = problems
        self._covered = frozenset(gpus)
        self._looked_at = time.monotonic()
        self._next_look = self._looked_at + self._timing.look

    def _take(self, nvml: Nvml, event: Event) -> None:
        self._next_look = min(self._next_look, time.monotonic() + self._timing.settle)
        condition = event_condition(event)
        if condition is None:
            return
        try:
            uuid = nvml.uuid(event.device)
        except NvmlError as error:
            # The look that follows finds the GPU that cannot even tell its name.
            log.warning("%s=%s of an unknown GPU: %s", condition.key, condition.value, error)
            return
        try:
            where = _place(nvml, event)
        except NvmlError as error:
            log.info("GPU %s: %s=%s of an instance that is gone: %s", uuid, condition.key, condition.value, error)
            return
        with self._lock:
            self._ledger.noted(uuid, condition, self._clock(), where)

    @property
    def _patience_is_over(self) -> bool:
        since = self._failing_since
        return since is not None and time.monotonic() - since >= self._timing.patience

    def _failed(self, error: NvmlError) -> float:
        """Make up for a call that failed; gives the seconds to pause."""
        self._driver_gone |= error.code in DRIVER_GONE
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        if self._problem != str(error):
            self._problem = str(error)
            log.warning("health cannot be watched: %s", error)
        self._close()
        if self._patience_is_over:
            with self._lock:
                self._ledger.unmonitored(self._clock())
        pause, self._retry = self._retry, min(2 * self._retry, self._timing.look)
        return pause

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch, self._covered = None, frozenset()


def _place(nvml: Nvml, event: Event) -> Placement | None:
    """The memory slices of the GPU instance that an event is about; None for the whole GPU, also when the GPU does not
    tell where the instance is. Raises NvmlError with NOT_FOUND when there is no such instance any more.
    """
    if event.gpu_instance == NO_INSTANCE:
        return None
    try:
        return nvml.gpu_instance_info(nvml.gpu_instance_by_id(event.device, event.gpu_instance)).placement
    except NvmlError as error:
        if error.code is Return.NOT_FOUND:
            raise
        return None


def _details(finding: Finding) -> dict[str, object]:
    where = {} if finding.placement is None else {"placement": str(finding.placement)}
    return {"gpu": finding.gpu_uuid, "taint": f"{finding.key}={finding.value}:{finding.effect}", **where}
