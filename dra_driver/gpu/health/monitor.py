# SPDX-License-Identifier: Apache-2.0
"""The threads that watch the health of a node's GPUs.

One thread waits for events, and another reads the state of every GPU at intervals. Both apply the rules in `records`.
The records change under a lock, and no call to NVML is made while the lock is held. Every call has a time limit, so a
driver that hangs blocks nothing else.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ...resource import ResourceSlice
from ..calls import LIBRARY, HungError
from ..inventory import Inventory
from ..nvml import NO_INSTANCE, DeviceHandle, Event, Nvml, NvmlError, Placement, Return
from ..policy import NodePolicy
from ..session import Session
from .lost import HealthRecords
from .queries import DRIVER_GONE, Reading, failed_reading, read_gpu
from .records import Finding
from .rules import event_condition
from .watching import EventWatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MonitorTiming:
    """In seconds: how long to `wait` for an event at a time, how often to `look` at the state of all GPUs, how long
    after an event (`settle`: others may follow it). After a failure it is tried again from `first_retry` on, ever more
    slowly, up to `look`; with a driver that fails for longer than `patience`, its GPUs count as unmonitored.
    """

    wait: float = 2.0
    look: float = 10.0
    settle: float = 0.2
    first_retry: float = 0.2
    patience: float = 10.0


_AGE_SECONDS = 5.0


class HealthMonitor:
    """What is wrong with the GPUs of a node, from `start` to `stop`.

    `on_change` is called, on the monitor's thread or that of a caller, whenever `findings` gives something else than
    before; it should return soon. `driver_load` tells which load of the driver it is, by a value that is another after
    every load. `booted_at` (seconds of the epoch): what was found before is not restored.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_change: Callable[[], None] = lambda: None,
        timing: MonitorTiming | None = None,
        clock: Callable[[], float] = time.time,
        driver_load: Callable[[], object] = lambda: None,
        booted_at: float = 0.0,
    ) -> None:
        self.on_change = on_change
        self._session = session
        self._timing = timing or MonitorTiming()
        self._clock = clock
        self._lock = threading.Lock()
        self._ledger = HealthRecords(booted_at)
        self._findings: tuple[Finding, ...] = ()
        self._stopped = threading.Event()
        self._woken = threading.Event()  # something is to be looked at
        self._rewatched = threading.Event()  # there are other events to wait for
        self._looking = threading.Thread(target=self._look_on, name="health", daemon=True)
        self._listening = threading.Thread(target=self._listen, name="health-events", daemon=True)
        self._driver = _Trouble("the health of the GPUs cannot be watched", self._timing)
        self._events = _Trouble("the events of the GPUs cannot be watched", self._timing)
        self._driver_load = driver_load
        self._load = driver_load()
        self._driver_gone = False
        self._next_look = self._looked_at = time.monotonic()
        self._watch: EventWatch | None = None  # changed by the thread that looks
        self._broken: EventWatch | None = None  # changed by the thread that listens
        self._covered: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}

    # For callers on other threads

    def start(self) -> None:
        """Begin to watch."""
        self._looking.start()
        self._listening.start()

    def stop(self, *, wait: bool = True) -> None:
        """Watch no more. With `wait`, until the threads have ended, but not for a call to NVML that hangs; a process
        that ends anyway need not.
        """
        self._stopped.set()
        self._woken.set()
        self._rewatched.set()
        for thread in (self._looking, self._listening):
            if wait and thread.is_alive():
                thread.join(2 * self._timing.wait)

    def findings(self) -> tuple[Finding, ...]:
        """Everything that is wrong now, GPU by GPU. Never waits."""
        return self._findings

    @property
    def seconds_since_look(self) -> float:
        """How long ago all GPUs were looked at: much more than MonitorTiming.look while the driver hangs or is away."""
        return time.monotonic() - self._looked_at

    def watch(self, inventory: Inventory, policy: NodePolicy) -> None:
        """From now on, these GPUs are the node's and this is what is wanted of them. A GPU that vanished is watched on
        for as long as it stays published (HealthPolicy.withdraw_after).
        """
        with self._lock:
            self._ledger.watch(inventory, policy, self._clock())
            news = self._ledger.gpus().keys() != self._covered
        self._tell()
        if news:
            self._look_in(0.0)

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
                log.info("GPU %s: no longer reported: %s", finding.gpu_uuid, finding.message, extra=_details(finding))
        self.on_change()

    def _look_in(self, seconds: float) -> None:
        """Look so soon, if not sooner."""
        with self._lock:
            self._next_look = min(self._next_look, time.monotonic() + seconds)
        self._woken.set()

    # The thread that looks

    def _look_on(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            if time.monotonic() >= self._next_look:
                with self._lock:
                    self._next_look = time.monotonic() + self._timing.look
                try:
                    self._look()
                    self._driver.over()
                except NvmlError as error:
                    self._failed(error)
            with self._lock:
                self._ledger.age(self._clock())
            self._tell()
            self._woken.wait(max(0.0, min(self._next_look - time.monotonic(), _AGE_SECONDS)))
        self._unwatch()

    def _look(self) -> None:
        """Look at every GPU, each on its own thread."""
        watched = self._watch is not None and self._session.is_current(self._watch.generation)
        if self._driver.since is not None or not watched:
            self._session.pulse()  # finds out whether NVML answers, and which GPU has which index
        watch = self._current_watch()
        with self._lock:
            gpus = self._ledger.gpus()
        asks = {uuid: partial(read_gpu, instances=confined) for uuid, confined in gpus.items()}
        answers = self._session.gpus(asks, watch.generation)
        readings = {
            uuid: failed_reading(answer) if isinstance(answer, NvmlError) else answer
            for uuid, answer in answers.items()
            if answer is not None
        }
        hung = {uuid for uuid, one in readings.items() if one.hung}
        lost = {uuid for uuid, one in readings.items() if one.lost}
        readings |= dict.fromkeys(watch.cover(gpus.keys() - hung - lost, hung), Reading(hung=True))
        self._rewatched.set()
        self._record(readings, watch)
        self._covered = frozenset(gpus)
        self._looked_at = time.monotonic()

    def _current_watch(self) -> EventWatch:
        """The events of this initialization. Those of another one, or that failed, are left behind."""
        generation = self._session.reach()
        version = self._session.ask(LIBRARY, generation, lambda nvml: nvml.driver_version())  # fails when all would
        watch = self._watch
        if watch is None or watch.generation != generation:
            load = self._driver_load()
            with self._lock:
                self._ledger.driver_runs(version, self._driver_gone or load != self._load, self._clock())
            self._driver_gone, self._load = False, load
        elif watch is not self._broken:
            return watch
        self._unwatch()
        watch = self._watch = EventWatch(self._session, generation)
        return watch

    def _record(self, readings: dict[str, Reading], watch: EventWatch) -> None:
        failing, problems = self._events.problem, {}
        with self._lock:
            for uuid, reading in readings.items():
                problem = None if reading.lost or reading.hung else failing or reading.problem or watch.problem(uuid)
                self._ledger.looked(uuid, reading, self._clock(), watched=problem is None)
                if problem is not None:
                    problems[uuid] = problem
        for uuid in problems:
            if problems[uuid] != self._problems.get(uuid):
                log.warning("GPU %s cannot be watched: %s", uuid, problems[uuid])
        self._problems = problems

    def _failed(self, error: NvmlError) -> None:
        """The driver as a whole failed."""
        self._driver_gone |= error.code in DRIVER_GONE
        self._unwatch()
        self._look_in(self._driver.begins(error))
        if self._driver.problem is not None:
            with self._lock:
                self._ledger.unmonitored(self._clock())

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch, self._covered = None, frozenset()

    # The thread that listens

    def _listen(self) -> None:
        while not self._stopped.is_set():
            self._rewatched.clear()
            watch = self._watch
            if watch is None or not watch.covers:
                self._rewatched.wait(self._timing.wait)
                continue
            try:
                events = watch.wait(self._timing.wait)
            except NvmlError as error:
                if watch is self._watch:
                    self._miss(watch, error)
                continue
            self._events.over()
            for uuid, event in events:
                self._take(watch.generation, uuid, event)
            if events:
                self._tell()

    def _miss(self, watch: EventWatch, error: NvmlError) -> None:
        """No events come."""
        self._driver_gone |= error.code in DRIVER_GONE
        if not isinstance(error, HungError):  # else all is well as soon as the call returns
            self._broken = watch
        pause = self._events.begins(error)
        self._look_in(0.0)
        self._stopped.wait(pause)

    def _take(self, generation: int, uuid: str, event: Event) -> None:
        self._look_in(self._timing.settle)
        condition = event_condition(event)
        if condition is None:
            return
        try:
            where = self._place(generation, uuid, event)
        except NvmlError as error:
            log.info(
                "GPU %s: %s=%s of an instance that no longer exists: %s", uuid, condition.key, condition.value, error
            )
            return
        with self._lock:
            self._ledger.noted(uuid, condition, self._clock(), where)

    def _place(self, generation: int, uuid: str, event: Event) -> Placement | None:
        """The memory slices of the GPU instance that an event is about; None for the whole GPU, also when the GPU does
        not tell where the instance is. Raises NvmlError with NOT_FOUND when there is no such instance any more.
        """
        if event.gpu_instance == NO_INSTANCE:
            return None

        def placement(nvml: Nvml, gpu: DeviceHandle) -> Placement:
            return nvml.gpu_instance_info(nvml.gpu_instance_by_id(gpu, event.gpu_instance)).placement

        answer = self._session.gpus({uuid: placement}, generation)[uuid]
        if isinstance(answer, NvmlError) and answer.code is Return.NOT_FOUND:
            raise answer
        return answer if isinstance(answer, Placement) else None


class _Trouble:
    """Something that fails again and again: since when, why, and how soon it is tried again."""

    def __init__(self, what: str, timing: MonitorTiming) -> None:
        self._what = what
        self._timing = timing
        self._pause = timing.first_retry
        self._error: NvmlError | None = None
        self.since: float | None = None

    def begins(self, error: NvmlError) -> float:
        """It failed. In how many seconds to try again."""
        if self.since is None:
            self.since = time.monotonic()
        news = str(error) != str(self._error)
        logged = isinstance(error, HungError) or error.code is Return.UNINITIALIZED  # by who notices it first
        if news and not logged:
            log.warning("%s: %s", self._what, error)
        self._error = error
        pause, self._pause = self._pause, min(2 * self._pause, self._timing.look)
        return pause

    def over(self) -> None:
        """It went well."""
        self.since, self._error, self._pause = None, None, self._timing.first_retry

    @property
    def problem(self) -> str | None:
        """Why it has failed for too long: at once if a call hangs, since that took its time already."""
        if self.since is None or self._error is None:
            return None
        late = time.monotonic() - self.since >= self._timing.patience
        return str(self._error) if late or isinstance(self._error, HungError) else None


def _details(finding: Finding) -> dict[str, object]:
    where = {} if finding.placement is None else {"placement": str(finding.placement)}
    return {"gpu": finding.gpu_uuid, "taint": f"{finding.key}={finding.value}:{finding.effect}", **where}
