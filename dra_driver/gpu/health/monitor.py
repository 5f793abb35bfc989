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

from ...kube.resource import ResourceSlice
from ...process.backoff import Backoff
from ...process.worker import Worker
from ..inventory import Inventory
from ..marked import NodeMarks
from ..nvml import NO_INSTANCE, DeviceHandle, Event, Nvml, NvmlError, Placement, Return
from ..policy import NodePolicy
from ..session import LettingGoError, Session
from ..threads import LIBRARY, HungError
from .conditions import DRIVER_GONE, Reading, event_condition, failed_reading, read_gpu
from .records import HealthRecords
from .taints import Finding
from .watching import EventWatch

log = logging.getLogger(__name__)

_AGE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MonitorTiming:
    """Times in seconds. `wait`: how long one call waits for events at most. A GPU goes to a virtual machine only after
    this call has ended, so it is shorter if Session.watch_seconds is. `look`: the interval at which all GPUs are read.
    `settle`: the delay after an event before all GPUs are read, because more events may follow. `first_retry`: the
    delay after a failure, which doubles each time up to `look`. `patience`: if the driver fails for longer than this,
    its GPUs count as unmonitored.
    """

    wait: float = 3.0
    look: float = 10.0
    settle: float = 0.2
    first_retry: float = 0.2
    patience: float = 10.0


class HealthMonitor:
    """Watches the GPUs of a node between `start` and `stop`.

    `on_change` is called whenever the result of `findings` has changed, on a thread of the monitor or of a caller. It
    should return quickly. Findings from before `booted_at` (seconds of the epoch) are not restored. A GPU that is given
    to a virtual machine, according to `marks`, is not watched.
    """

    def __init__(
        self,
        session: Session,
        *,
        marks: NodeMarks,
        on_change: Callable[[], None] = lambda: None,
        timing: MonitorTiming | None = None,
        clock: Callable[[], float] = time.time,
        booted_at: float = 0.0,
    ) -> None:
        self.on_change = on_change
        self._session = session
        self._marks = marks
        self._timing = timing or MonitorTiming()
        self._clock = clock
        self._lock = threading.Lock()
        self._ledger = HealthRecords(booted_at)
        self._findings: tuple[Finding, ...] = ()
        self._looking = Worker("watch GPUs", self._look_if_due, at_end=self._unwatch)
        self._listening = Worker("wait for GPU events", self._listen)
        self._driver = _Trouble("the health of the GPUs cannot be watched", self._timing)
        self._events = _Trouble("the events of the GPUs cannot be watched", self._timing)
        self._load = session.driver_load()
        self._driver_gone = False
        self._next_look = self._looked_at = time.monotonic()
        self._watch: EventWatch | None = None  # changed by the thread that looks
        self._covered: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}

    # For callers on other threads

    def start(self) -> None:
        """Start the threads."""
        self._looking.start()
        self._listening.start()

    def stop(self, *, wait: bool = True) -> None:
        """Stop the threads. With `wait`, wait until they have ended, except for a call to NVML that hangs. A process
        that ends anyway need not wait.
        """
        workers = (self._looking, self._listening)
        for worker in workers:
            worker.stop()
        if wait:
            for worker in workers:
                worker.stop(2 * self._timing.wait)

    def findings(self) -> tuple[Finding, ...]:
        """All current findings, by GPU. Never waits."""
        return self._findings

    @property
    def seconds_since_look(self) -> float:
        """The time since all GPUs were read. It is much longer than MonitorTiming.look while the driver hangs or is
        missing.
        """
        return time.monotonic() - self._looked_at

    def watch(self, inventory: Inventory, policy: NodePolicy) -> None:
        """Set the GPUs of the node and their policy. A GPU that has vanished is watched as long as it stays published
        (HealthPolicy.withdraw_after).
        """
        with self._lock:
            self._ledger.watch(inventory, policy, self._clock())
            news = self._ledger.gpus().keys() != self._covered
        self._tell()
        if news:
            self._look_in(0.0)

    def restore(self, slices: Iterable[ResourceSlice]) -> None:
        """Take over the findings of an earlier process from the taints that it published."""
        with self._lock:
            self._ledger.restore(tuple(slices), self._clock())
        self._tell()

    def _tell(self) -> None:
        """Publish the findings if they have changed."""
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
        """Read the state in so many seconds, or earlier if that was already planned."""
        with self._lock:
            self._next_look = min(self._next_look, time.monotonic() + seconds)
        self._looking.wake(seconds)

    # The thread that reads the state

    def _look_if_due(self) -> float:
        if time.monotonic() >= self._next_look:
            with self._lock:
                self._next_look = time.monotonic() + self._timing.look
            try:
                self._look()
                self._driver.over()
            except LettingGoError:
                self._unwatch()
                self._look_in(self._timing.first_retry)
            except NvmlError as error:
                self._failed(error)
        with self._lock:
            self._ledger.age(self._clock())
        self._tell()
        return max(0.0, min(self._next_look - time.monotonic(), _AGE_SECONDS))

    def _look(self) -> None:
        """Read every GPU. NVML does not see GPUs of virtual machines, which are not lost."""
        watch = self._current_watch()
        with self._lock:
            gpus = self._ledger.gpus()
        asks = {uuid: partial(read_gpu, instances=confined) for uuid, confined in gpus.items()}
        answers, marked = self._marks.around(lambda: self._session.gpus(asks, watch.generation))
        away = {mark.gpu_uuid for mark in marked.away}
        readings = {
            uuid: failed_reading(answer) if isinstance(answer, NvmlError) else answer
            for uuid, answer in answers.items()
            if answer is not None and uuid not in away
        }
        hung = {uuid for uuid, reading in readings.items() if reading.hung}
        lost = {uuid for uuid, reading in readings.items() if reading.lost}
        if lost and not self._session.is_current(watch.generation):  # an older initialization lacks GPUs that came back
            readings = {uuid: reading for uuid, reading in readings.items() if uuid not in lost}
            self._look_in(self._timing.first_retry)
        readings |= dict.fromkeys(watch.cover(gpus.keys() - hung - lost - away, hung), Reading(hung=True))
        self._listening.wake()
        self._record(readings, watch)
        self._covered = frozenset(gpus)
        self._looked_at = time.monotonic()

    def _current_watch(self) -> EventWatch:
        """The watch for events of the current initialization. A watch of an older one, or that failed, is replaced."""
        generation = self._reach()
        version = self._session.ask(LIBRARY, generation, lambda nvml: nvml.driver_version())  # fails without a driver
        watch = self._watch
        if watch is None or watch.generation != generation:
            load = self._session.driver_load()
            with self._lock:
                self._ledger.driver_runs(version, self._driver_gone or load != self._load, self._clock())
            self._driver_gone, self._load = False, load
        elif not watch.failed:
            return watch
        self._unwatch()
        watch = self._watch = EventWatch(self._session, generation)
        return watch

    def _reach(self) -> int:
        """The generation of an initialization in which a pulse was taken, so that the index of each GPU that answers is
        known. Otherwise NVML would search for GPUs by their UUIDs, and hang at every GPU that hangs.
        """
        watch, known = self._watch, 0
        if watch is not None and self._driver.since is None and self._session.is_current(watch.generation):
            known = watch.generation
        while (generation := self._session.reach()) != known:
            known = self._session.pulse().generation  # also finds out whether NVML answers
        return generation

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
        """Handle a failure of the driver as a whole."""
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

    # The thread that waits for events

    def _listen(self) -> float | None:
        """Wait for events once. Without a watch, wait until there is one."""
        watch = self._watch
        if watch is None or not watch.covers:
            return None
        try:
            events = watch.wait(min(self._timing.wait, self._session.watch_seconds))
        except NvmlError as error:
            if watch is self._watch:
                self._miss(watch, error)
            return 0.0
        self._events.over()
        for uuid, event in events:
            self._take(watch.generation, uuid, event)
        if events:
            self._tell()
        return 0.0

    def _miss(self, watch: EventWatch, error: NvmlError) -> None:
        """Handle a failure to wait for events."""
        self._driver_gone |= error.code in DRIVER_GONE
        if not isinstance(error, HungError):  # a hanging call breaks nothing: its watch works again when it returns
            watch.failed = True
        pause = self._events.begins(error)
        self._look_in(0.0)
        self._listening.pause(pause)

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
        """The memory slices of the GPU instance that an event concerns. None for the whole GPU, or if the GPU does not
        report where the instance is. Raises NvmlError with NOT_FOUND if the instance no longer exists.
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
    """A repeated failure: since when, why, and when to try again."""

    def __init__(self, what: str, timing: MonitorTiming) -> None:
        self._what = what
        self._timing = timing
        self._backoff = Backoff(timing.first_retry, timing.look)
        self._error: NvmlError | None = None
        self.since: float | None = None

    def begins(self, error: NvmlError) -> float:
        """Record a failure. Returns in how many seconds to try again."""
        if self.since is None:
            self.since = time.monotonic()
        news = str(error) != str(self._error)
        logged = isinstance(error, HungError) or error.code is Return.UNINITIALIZED  # by the code that notices it first
        if news and not logged:
            log.warning("%s: %s", self._what, error)
        self._error = error
        return self._backoff.pause()

    def over(self) -> None:
        """Record a success."""
        self.since = self._error = None
        self._backoff.reset()

    @property
    def problem(self) -> str | None:
        """The error, if it has lasted too long. A call that hangs counts at once, because its time limit has already
        passed.
        """
        if self.since is None or self._error is None:
            return None
        late = time.monotonic() - self.since >= self._timing.patience
        return str(self._error) if late or isinstance(self._error, HungError) else None


def _details(finding: Finding) -> dict[str, object]:
    where = {} if finding.placement is None else {"placement": str(finding.placement)}
    return {"gpu": finding.gpu_uuid, "taint": f"{finding.key}={finding.value}:{finding.effect}", **where}
