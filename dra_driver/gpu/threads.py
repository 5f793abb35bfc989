# SPDX-License-Identifier: Apache-2.0
"""The threads that call NVML, with a time limit for every call.

A driver with a problem can block a thread for ever, and a thread cannot be ended. So callers never call NVML on their
own thread: there is one thread for each GPU, one for the library (`LIBRARY`), and one for events (`EVENTS`). A caller
waits for the answer, but not longer than the time limit. After that the thread counts as hung: further work for it is
refused at once with HungError, and the other threads are not affected. If the call returns later, the thread is used
again.

Handing work to a thread costs some ten microseconds, so callers hand over several calls together.
"""

import contextlib
import gc
import logging
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from ..process.containment import Count, contained
from .fabric import FabricManager
from .nvml import Nvml, NvmlError, Return

log = logging.getLogger(__name__)

T = TypeVar("T")

LIBRARY: Final = "the driver"
"""The key of the thread for calls that concern no single GPU."""
EVENTS: Final = "the events"
"""The key of the thread that waits for events."""
FABRIC: Final = "Fabric Manager"
"""The key of the thread for calls to Fabric Manager."""

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
    """A call that has exceeded its time limit: NVML's name of the call, the key of its thread (a GPU's UUID, or `GPU 3`
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
    """Work that was handed to a thread."""

    def __init__(self, thread: "_Thread", work: Callable[[Beat], T], limit: float) -> None:
        self.thread = thread
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

    def _beat(self) -> None:
        if self.left:
            raise LeftError
        self.began = time.monotonic()


class NvmlThreads:
    """Runs work on the threads of a process. May be used from all other threads. When nothing refers to this object any
    more, its threads end.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._threads: dict[str, _Thread] = {}
        self._listeners: list[Callable[[str], None]] = []
        self.unexpected: Count = lambda _work: None
        """Counts unexpected exceptions of work on one GPU."""
        weakref.finalize(self, _end_all, self._threads).atexit = False

    def listen(self, on_return: Callable[[str], None]) -> None:
        """Have `on_return` called with the key of a thread, on that thread, when a call that hung has returned."""
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
        """Start `work` on a thread. Each step of it may take `seconds`. Raises HungError if the thread hangs."""
        with self._guard:
            thread = self._threads.get(key)
            if thread is None:
                thread = self._threads[key] = _Thread(key, weakref.WeakMethod(self._ended))
            hung = thread.hung()
            if hung is None:
                job = Job(thread, work, seconds)
                thread.jobs.put(job)
                return job
        raise HungError(self._told(hung))

    def wait(
        self, job: Job[T], seconds: float | None = None, when_left: Callable[[], Callable[[], object]] | None = None
    ) -> T:
        """The result of `job`, see `run`. Raises TimeoutError after `seconds` if the thread is busy with other work."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not job.unfinished.acquire(timeout=_pause(job.thread, deadline)):
            hung = job.thread.hung()
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
                raise TimeoutError(f"the thread of {job.thread.key} is busy")
            raise HungError(self._told(hung))
        if job.error is not None:
            raise job.error
        return job.results[0]

    def gather(self, work: Mapping[str, Callable[[], T]], seconds: float) -> dict[str, T | NvmlError | None]:
        """Run work on several threads, and return the results by key after `seconds` at the latest. Instead of a result
        there may be the error, or None for a thread that is busy with other work. An unexpected exception becomes an
        error of that thread's GPU only.
        """
        jobs: dict[str, Job[T]] = {}
        found: dict[str, T | NvmlError | None] = {}
        for key, task in work.items():
            try:
                jobs[key] = self.start(key, _without_beat(task), seconds)
            except HungError as error:
                found[key] = error
        deadline = time.monotonic() + seconds + _BETWEEN_JOBS
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
            threads = list(self._threads.values())
        return tuple(self._told(hung) for thread in threads if (hung := thread.hung()) is not None)

    def problem(self) -> str | None:
        """The text of `hangs` in one line, or None if no call hangs."""
        return "; ".join(map(str, self.hangs())) or None

    def check(self, keys: Iterable[str]) -> None:
        """Raises HungError if a call on one of these threads hangs."""
        for key in keys:
            thread = self._threads.get(key)
            hung = None if thread is None else thread.hung()
            if hung is not None:
                raise HungError(self._told(hung))

    # Which threads there are

    def rename(self, old: str, new: str) -> None:
        """Change the key of a thread, after the UUID of its GPU was read. If a thread with the new key exists, that one
        stays.
        """
        with self._guard:
            thread = self._threads.pop(old, None)
            if thread is None:
                return
            if self._threads.setdefault(new, thread) is thread:
                thread.key = new
            else:
                thread.jobs.put(None)

    def keep(self, keys: Iterable[str]) -> None:
        """End the threads of all other GPUs when their work is done."""
        self._end_all_but({LIBRARY, EVENTS, FABRIC, *keys})

    def end(self) -> None:
        """End all threads when their work is done."""
        self._end_all_but(set())

    # Parts

    def _end_all_but(self, wanted: Set[str]) -> None:
        with self._guard:
            for key in [key for key, thread in self._threads.items() if key not in wanted and thread.hung() is None]:
                self._threads.pop(key).jobs.put(None)

    def _told(self, job: Job[Any]) -> Hang:
        """The hang of this job. It is logged once."""
        hang = job.thread.hang_of(job)
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
            key = job.thread.key
            log.warning("the call that hung has returned", extra={"gpu": key, "error": str(job.error or "")})
            for on_return in self._listeners:
                on_return(key)


class _Thread:
    """One thread."""

    def __init__(self, key: str, ended: "weakref.WeakMethod[Callable[[Job[Any]], None]]") -> None:
        self.key = key
        self.jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self.running: Job[Any] | None = None
        self._ended = ended
        # A thread that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"nvml-{key[-12:]}", daemon=True)
        self._thread.start()

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

    def _call(self) -> str:
        """The NVML call that the thread is executing, from its stack."""
        frame = _frame_of(self._thread.ident or 0)
        names = [name for name in _nvml_calls(frame) if name]
        return names[-1] if names else "a call to the driver"

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
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


def _end_all(threads: Mapping[str, _Thread]) -> None:
    for thread in threads.values():
        thread.jobs.put(None)


def _pause(thread: _Thread, deadline: float | None) -> float:
    """The number of seconds until a time limit may be exceeded."""
    job, now = thread.running, time.monotonic()
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
