# SPDX-License-Identifier: Apache-2.0
"""A thread for every call that runs, so that no call waits for the thread of another.

Calls for claims wait: for the lock of their GPU, for the driver, for the API server. A pool of a fixed size is used up
by them, and then calls that need nothing of that GPU wait too, the liveness check among them. The number of threads is
bounded by the caller: kubelet has one call a pod at a time and gives it up after 45 s. Threads that have nothing to do
serve the next call, and end after a while.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_SECONDS = 10.0


class CallThreads(Executor):
    """Runs each call at once, on a daemon thread called `name`. A call that hangs does not keep the process from
    ending. `idle_seconds` is how long a thread waits for its next call.
    """

    def __init__(self, name: str, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._name = name
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self._ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._ended:
                raise RuntimeError(f"the threads of {self._name} take no more calls")
            self._calls.append(lambda: _run(future, lambda: fn(*args, **kwargs)))
            if len(self._calls) <= self._idle:
                self._changed.notify()
            else:
                self._add_thread()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Those that run go on, and nobody waits for them."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _add_thread(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError as error:  # the machine has no more: the next thread that is free takes the call
            if not self._threads:
                self._calls.pop()
                raise
            log.warning("a call has to wait for a thread: %s", error)
        else:
            self._threads += 1

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # do not keep its result until the next one

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._calls or self._ended, self._idle_seconds)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None


def _run(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
