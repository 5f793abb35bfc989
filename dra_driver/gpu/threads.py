# SPDX-License-Identifier: Apache-2.0
"""The threads that call NVML, with a time limit for every call.

A driver with a problem can block a thread for ever, and a thread cannot be ended. So callers never call NVML on their
own thread. Work has a key: the GPU, the library (`LIBRARY`), or events (`EVENTS`). Work with the same key is done in
order, by one thread at a time. A caller waits for the answer, but not longer than the time limit. After that the key
counts as hung: further work for it is refused at once with HungError, and other keys are not affected. If the call
returns later, work for the key is accepted again.

Handing work to a thread costs some ten microseconds, so callers hand over several calls together. A question to all
GPUs is asked by one thread, one GPU after the other, because threads would wait for Python's lock and for that of the
driver. If it takes longer, a thread for each GPU helps.
"""

import contextlib
import gc
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from ..process.call_threads import CallThreads
from ..process.containment import Count, contained
from .fabric import FabricManager
from .nvml import Nvml, NvmlError, Return

log = logging.getLogger(__name__)

T = TypeVar("T")

LIBRARY: Final = "the driver"
"""The key of calls that concern no single GPU."""
EVENTS: Final = "the events"
"""The key of waiting for events."""
FABRIC: Final = "Fabric Manager"
"""The key of calls to Fabric Manager."""

STEP_SECONDS: Final = 25.0
"""The default time limit of one change of a GPU, in seconds. Creating a MIG instance takes seconds, and kubelet waits
45 seconds for an answer.
"""

_BETWEEN_JOBS: Final = 0.05

Beat = Callable[[], None]
"""Work calls this function at the beginning of each step, so that the time limit starts again. Raises LeftError if no
caller waits any more.
"""

_LOOKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Time limits in seconds: to `initialize` NVML, which may have to initialize the GPUs first, to `look` at a GPU or
    query a library, and to change a `partition` of NVSwitches, which may train NVLinks.
    """

    initialize: float = 15.0
    look: float = 10.0
    partition: float = 20.0


class LeftError(Exception):
    """Ends work whose caller no longer waits for it."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A call that has exceeded its time limit: NVML's name of the call, its key (a GPU's UUID, or `GPU 3`
    while the UUID is unknown), for how many seconds it has run, and its time limit.
    """

    call: str
    key: str
    seconds: float
    limit: float

    def __str__(self) -> str:
        return f"{self.call} for {self.key} has not returned for {self.seconds:.0f} s"


class HungError(NvmlError):
    """A call has not returned within its time limit. The text stays the same for as long as the call hangs."""

    def __init__(self, hang: Hang) -> None:
        super().__init__(Return.TIMEOUT, hang.call)
        self.hang = hang
        self.args = (
            f"{hang.call} for {hang.key} has not returned within {hang.limit:g} s; nothing can be done there until it"
            " returns or the driver is restarted (see the kernel log)",
        )


class Job(Generic[T]):
    """Work that was handed over."""

    def __init__(self, queue: "_Queue", work: Callable[[Beat], T], limit: float) -> None:
        self.queue = queue
        self.limit = limit
        self.began: float | None = None  # None while other work runs
        self.left = False  # nobody waits
        self.over = False
        self.told = False  # it was logged that this hangs
        self.error: BaseException | None = None
        self.results: list[T] = []
        self.unfinished = threading.Lock()  # held until the work has ended; quicker than an Event
        self.unfinished.acquire()
        self.afterwards = contextlib.ExitStack()
        self._work = work

    def run(self) -> None:
        """Do the work on its thread, and keep the result or the exception."""
        try:
            self._beat()
            self.results.append(self._work(self._beat))
        except BaseException as error:  # the waiting thread raises it
            self.error = error

    def wait_until(self, deadline: float) -> bool:
        """Whether the work ends before this time of the monotonic clock."""
        ended = self.unfinished.acquire(timeout=max(0.0, deadline - time.monotonic()))
        if ended:
            self.unfinished.release()
        return ended

    def _beat(self) -> None:
        if self.left:
            raise LeftError
        self.began = time.monotonic()


class NvmlThreads:
    """Runs work on the threads of a process. May be used from all other threads. When nothing refers to this object any
    more, its threads end.

    If a thread that asks several GPUs has not done so after `soon` seconds, other threads help.
    """

    def __init__(self, soon: float = 0.05) -> None:
        self._soon = soon
        self._guard = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        self._threads = CallThreads("nvml")
        self._listeners: list[Callable[[str], None]] = []
        self.unexpected: Count = lambda _work: None
        """Counts unexpected exceptions of work on one GPU."""
        weakref.finalize(self, self._threads.shutdown).atexit = False

    def listen(self, on_return: Callable[[str], None]) -> None:
        """Have `on_return` called with the key of a call that hung, on its thread, when it has returned."""
        self._listeners.append(on_return)

    # Work

    def run(
        self,
        key: str,
        work: Callable[[Beat], T],
        seconds: float = STEP_SECONDS,
        when_left: Callable[[], Callable[[], object]] | None = None,
    ) -> T:
        """Run `work`, and return its result or raise its exception. Raises HungError if one step exceeds the time
        limit. Then `when_left` is called at once, and the function that it returns is called when the work finally
        ends.
        """
        return self.wait(self.start(key, work, seconds), when_left=when_left)

    def start(self, key: str, work: Callable[[Beat], T], seconds: float) -> Job[T]:
        """Start `work`. Each step of it may take `seconds`. Raises HungError if a call for this key hangs, and another
        NvmlError if no thread can be started, as after `end`.
        """
        job = self._put(key, work, seconds)
        self._have_done([job])
        return job

    def wait(
        self, job: Job[T], seconds: float | None = None, when_left: Callable[[], Callable[[], object]] | None = None
    ) -> T:
        """The result of `job`, see `run`. Raises TimeoutError after `seconds` if other work for its key is not done."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not job.unfinished.acquire(timeout=_pause(job.queue, deadline)):
            hung = job.queue.hung()
            late = deadline is not None and time.monotonic() >= deadline
            if hung is None and not late:
                continue
            with self._guard:
                if job.over:
                    continue
                job.left = True
                if when_left is not None:
                    job.afterwards.callback(when_left())
            if hung is None:
                raise TimeoutError(f"other work for {job.queue.key} is not done")
            raise HungError(self._told(hung))
        if job.error is not None:
            raise job.error
        return job.results[0]

    def gather(self, work: Mapping[str, Callable[[], T]], seconds: float) -> dict[str, T | NvmlError | None]:
        """Run work with several keys, and return the results by key after `seconds` at the latest. Instead of a result
        there may be the error, or None for a key whose other work is not done. An unexpected exception becomes an error
        of that GPU only.
        """
        jobs: dict[str, Job[T]] = {}
        found: dict[str, T | NvmlError | None] = {}
        for key, task in work.items():
            try:
                jobs[key] = self._put(key, _without_beat(task), seconds)
            except HungError as error:
                found[key] = error
        deadline = time.monotonic() + seconds + _BETWEEN_JOBS
        if jobs:
            self._have_done(list(jobs.values()))
            self._help(list(jobs.values()))
        for key, job in jobs.items():
            try:
                found[key] = self.wait(job, max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                found[key] = None
            except NvmlError as error:
                found[key] = error
            except Exception as error:
                found[key] = NvmlError(Return.UNKNOWN, "reading the GPU", f"{type(error).__name__}: {error}")
                with contained("read GPU", key, self.unexpected, gpu=key):
                    raise
        return found

    # What hangs

    def hangs(self) -> tuple[Hang, ...]:
        """All calls that have exceeded their time limits."""
        with self._guard:
            queues = list(self._queues.values())
        return tuple(self._told(hung) for queue in queues if (hung := queue.hung()) is not None)

    def problem(self) -> str | None:
        """The text of `hangs` in one line, or None if no call hangs."""
        return "; ".join(map(str, self.hangs())) or None

    def check(self, keys: Iterable[str]) -> None:
        """Raises HungError if a call for one of these keys hangs."""
        for key in keys:
            queue = self._queues.get(key)
            hung = None if queue is None else queue.hung()
            if hung is not None:
                raise HungError(self._told(hung))

    # Which keys there are

    def rename(self, old: str, new: str) -> None:
        """Change a key, after the UUID of its GPU was read. If there is work for the new key, that key stays."""
        with self._guard:
            queue = self._queues.pop(old, None)
            if queue is not None and self._queues.setdefault(new, queue) is queue:
                queue.key = new

    def keep(self, keys: Iterable[str]) -> None:
        """Forget all other GPUs, except those with a call that hangs."""
        self._keep({LIBRARY, EVENTS, FABRIC, *keys})

    def end(self) -> None:
        """End the threads when their work is done."""
        self._keep(set())
        self._threads.shutdown()

    # Parts

    def _keep(self, keys: Set[str]) -> None:
        with self._guard:
            for key in [key for key, queue in self._queues.items() if key not in keys and queue.hung() is None]:
                del self._queues[key]

    def _put(self, key: str, work: Callable[[Beat], T], seconds: float) -> Job[T]:
        with self._guard:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(key, self._guard, weakref.WeakMethod(self._ended))
            hung = queue.hung()
            if hung is None:
                job = Job(queue, work, seconds)
                queue.jobs.append(job)
                return job
        raise HungError(self._told(hung))

    def _have_done(self, jobs: Sequence[Job[Any]]) -> None:
        """Let one thread do these jobs, unless their keys have threads. Raises NvmlError if there is none."""
        with self._guard:
            waiting = [job.queue for job in jobs if not job.queue.has_thread]
        if not waiting:
            return
        try:
            self._threads.start(partial(_do_work, waiting))
        except RuntimeError as error:
            for job in jobs:  # a thread that comes to it later must not do it
                job.left = True
            raise NvmlError(Return.INSUFFICIENT_RESOURCES, "starting a thread", str(error)) from None

    def _help(self, jobs: Sequence[Job[Any]]) -> None:
        """Wait a moment for these jobs, and then let a thread do each one that has not begun."""
        deadline = time.monotonic() + self._soon
        # Usually all jobs have ended when the last one has, so this thread is woken once.
        if not all(job.wait_until(deadline) for job in reversed(jobs)):
            for job in jobs:
                if job.began is None:
                    with contextlib.suppress(RuntimeError):
                        self._threads.start(job.queue.do_work)

    def _told(self, job: Job[Any]) -> Hang:
        """The hang of this job. It is logged once."""
        hang = job.queue.hang_of(job)
        with self._guard:
            news, job.told = not job.told, True
        if news:
            log.error("%s", HungError(hang), extra={"gpu": hang.key, "call": hang.call})
        return hang

    def _ended(self, job: Job[Any]) -> None:
        """Called on the thread after each job. If its caller no longer waits, clean up."""
        with self._guard:
            job.over = True
        job.afterwards.close()
        if job.told:
            key = job.queue.key
            log.warning("the call that hung has returned", extra={"gpu": key, "error": str(job.error or "")})
            for on_return in self._listeners:
                on_return(key)


class _Queue:
    """The work for one key, which is done in order, by one thread at a time. `guard` is held while `jobs` changes."""

    def __init__(
        self, key: str, guard: threading.Lock, ended: "weakref.WeakMethod[Callable[[Job[Any]], None]]"
    ) -> None:
        self.key = key
        self.jobs: deque[Job[Any]] = deque()
        self.running: Job[Any] | None = None
        self._guard = guard
        self._ended = ended
        self._thread: int | None = None  # the ident of the thread that does the work

    @property
    def has_thread(self) -> bool:
        """Whether a thread does the work, also that of all jobs that are in `jobs` now. Read it with `guard` held."""
        return self._thread is not None

    def hung(self) -> Job[Any] | None:
        """The job that has exceeded its time limit, or None."""
        job = self.running
        if job is None or job.began is None:
            return None
        return job if time.monotonic() - job.began >= job.limit else None

    def hang_of(self, job: Job[Any]) -> Hang:
        """The hang of a running job."""
        now = time.monotonic()
        return Hang(self._call(), self.key, now - (job.began or now), job.limit)

    def do_work(self) -> None:
        """Do all work on this thread, unless another thread does it."""
        thread = threading.current_thread()
        with self._guard:
            if self._thread is not None:
                return
            self._thread = thread.ident
        thread.name = f"nvml-{self.key[-12:]}"
        while (job := self._next()) is not None:
            self.running = job
            job.run()
            self.running = None
            if (ended := self._ended()) is not None:
                ended(job)
                del ended
            else:
                job.afterwards.close()
            job.unfinished.release()
            del job  # do not keep its result until the next one

    def _next(self) -> Job[Any] | None:
        with self._guard:
            if self.jobs:
                return self.jobs.popleft()
            self._thread = None
            return None

    def _call(self) -> str:
        """The NVML call that the thread is executing, from its stack."""
        frame = _frame_of(self._thread or 0)
        names = [name for name in _nvml_calls(frame) if name]
        return names[-1] if names else "a call to the driver"


def _do_work(queues: Iterable[_Queue]) -> None:
    for queue in queues:
        queue.do_work()


def _pause(queue: _Queue, deadline: float | None) -> float:
    """The number of seconds until a time limit may be exceeded."""
    job, now = queue.running, time.monotonic()
    pause = _BETWEEN_JOBS if job is None or job.began is None else max(0.0, job.began + job.limit - now)
    return pause if deadline is None else max(0.0, min(pause, deadline - now))


def _without_beat(work: Callable[[], T]) -> Callable[[Beat], T]:
    return lambda _beat: work()


def _frame_of(thread: int) -> FrameType | None:
    """What a thread executes.

    Before Python 3.12, garbage collection during `_current_frames` can run Python code while the interpreter's list of
    threads is locked. Another thread that needs this list then blocks the whole process (gh-106883). So it is disabled.
    """
    with _LOOKING:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if collects:
                gc.enable()


def _nvml_calls(frame: FrameType | None) -> Iterable[str]:
    """The NVML functions in a call stack of the interface's methods, the innermost first."""
    while frame is not None:
        name = frame.f_code.co_name
        for interface in (Nvml, FabricManager):
            if isinstance(frame.f_locals.get("self"), interface) and name in interface.__abstractmethods__:
                documented = getattr(interface, name).__doc__ or name
                yield documented.split()[0].strip(".:,;")
        frame = frame.f_back
