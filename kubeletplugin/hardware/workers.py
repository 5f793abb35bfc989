# SPDX-License-Identifier: Apache-2.0
"""One thread a GPU for the calls that may never return.

A driver in trouble can keep a thread for ever, and a thread cannot be ended. So whatever asks or changes a GPU runs
on that GPU's own thread, while the caller waits for as long as a step may take. When that is over, the caller goes on
without an answer, further work for the GPU is refused at once, and other GPUs do not notice. When the call does come
back, the rest of the work that it belonged to is left undone, and whoever has to know of it is told.

A hand-over costs some ten microseconds, so a claim's steps on one GPU are handed over together.
"""

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import TypeVar

from dra_driver.gpu.nvml import Nvml

log = logging.getLogger(__name__)

T = TypeVar("T")

STEP_SECONDS = 30.0
"""How long one step may take by default: MIG instances take seconds, and kubelet waits for 45."""


class HungError(Exception):
    """A call to the driver did not return in time; the text names call and GPU."""


class LeftError(Exception):
    """Nobody waits for the work any more: it ends here."""


Beat = Callable[[], None]
"""The work says that its next step begins. Raises LeftError when nobody waits for it any more."""


@dataclass(eq=False)
class _Job:
    work: Callable[[Beat], None]
    began: float = field(default_factory=time.monotonic)
    left: bool = False
    over: bool = False
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def beat(self) -> None:
        if self.left:
            raise LeftError
        self.began = time.monotonic()


class Workers:
    """Runs work for GPUs, which go by any key. `seconds` is for one step; `on_return(key)` is called, on the GPU's
    thread, when a call that was given up has returned.
    """

    def __init__(self, seconds: float = STEP_SECONDS, on_return: Callable[[str], None] | None = None) -> None:
        self._seconds = seconds
        self._on_return = on_return
        self._guard = threading.Lock()
        self._threads: dict[str, _Worker] = {}
        self._hung: dict[str, str] = {}

    def check(self, keys: Iterable[str]) -> None:
        """Raises HungError when a call for one of these GPUs hangs."""
        if self._hung:
            for key in keys:
                if key in self._hung:
                    raise HungError(self._hung[key])

    def run(self, key: str, work: Callable[[Beat], T], when_left: Callable[[], Callable[[], None]] | None = None) -> T:
        """The result of `work`, or its exception. Raises HungError when one of its steps takes too long; then
        `when_left` is called at once, and its result when the work has ended after all.
        """
        self.check((key,))
        results: list[T] = []
        job = _Job(lambda beat: results.append(work(beat)))
        worker = self._worker(key)
        worker.jobs.put(job)
        while not job.done.wait(max(0.0, job.began + self._seconds - time.monotonic())):
            if time.monotonic() - job.began < self._seconds:
                continue
            with self._guard:
                if job.over:
                    continue
                job.left = True
                text = (
                    f"{worker.call()} for {key} has not returned for {self._seconds:g} s; nothing can be done there"
                    " until it does, or the driver is restarted (see the log of the kernel)"
                )
                self._hung[key] = text
                worker.afterwards = contextlib.ExitStack()
                if when_left is not None:
                    worker.afterwards.callback(when_left())
            log.error("%s", text, extra={"gpu": key})
            raise HungError(text)
        if job.error is not None:
            raise job.error
        return results[0]

    def _worker(self, key: str) -> "_Worker":
        with self._guard:
            worker = self._threads.get(key)
            if worker is None:
                worker = self._threads[key] = _Worker(key, self._ended)
            return worker

    def _ended(self, worker: "_Worker", job: _Job) -> None:
        """A job has ended; when nobody waited for it any more, tidy up after it."""
        with self._guard:
            job.over = True
            if not job.left:
                return
            del self._hung[worker.key]
            afterwards, worker.afterwards = worker.afterwards, contextlib.ExitStack()
        log.warning("the call that hung has returned", extra={"gpu": worker.key, "error": str(job.error or "")})
        afterwards.close()
        if self._on_return is not None:
            self._on_return(worker.key)


class _Worker:
    """The thread of one GPU."""

    def __init__(self, key: str, ended: Callable[["_Worker", _Job], None]) -> None:
        self.key = key
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.afterwards = contextlib.ExitStack()
        self._ended = ended
        # A thread that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"gpu-{key[-12:]}", daemon=True)
        self._thread.start()

    def call(self) -> str:
        """The NVML call that the thread is in, as far as that can be seen from outside."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        names = [name for name in _gateway_calls(frame) if name]
        return names[-1] if names else "a call to the driver"

    def _run(self) -> None:
        while True:
            job = self.jobs.get()
            try:
                job.beat()
                job.work(job.beat)
            except BaseException as error:  # the waiting thread raises it
                job.error = error
            self._ended(self, job)
            job.done.set()
            del job  # do not keep its result until the next one


def _gateway_calls(frame: FrameType | None) -> Iterable[str]:
    """The NVML functions of the gateway's methods in a call stack, the innermost first."""
    while frame is not None:
        name = frame.f_code.co_name
        if isinstance(frame.f_locals.get("self"), Nvml) and name in Nvml.__abstractmethods__:
            documented = getattr(Nvml, name).__doc__ or name
            yield documented.split()[0].strip(".:,")
        frame = frame.f_back
