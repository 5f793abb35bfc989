# SPDX-License-Identifier: Apache-2.0
"""A thread for every running call, so that no call waits for the thread of another.

Calls for claims wait for the lock of their GPU, for the NVIDIA driver, or for the API server. They could use up a
pool of fixed size, and then calls that do not need this GPU would wait too, including the liveness check. kubelet
bounds the number of threads: it has one call for each pod at a time, and gives up after 45 s. Idle threads serve the
next call, and end after a while.
"""

import logging
import queue
import threading
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
        self._guard = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting = 0  # calls that no thread has taken yet
        self._threads = 0
        self._idle = 0
        self._ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._guard:
            if self._ended:
                raise RuntimeError(f"the threads of {self._name} take no more calls")
            if self._waiting >= self._idle:
                self._add_thread()
            self._waiting += 1
        self._calls.put(lambda: _run(future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Those that run go on, and nobody waits for them."""
        with self._guard:
            self._ended = True
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def _add_thread(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError as error:  # the machine has no more: the next thread that is free takes the call
            if not self._threads:
                raise
            log.warning("a call has to wait for a thread: %s", error)
        else:
            self._threads += 1
            self._idle += 1

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # do not keep its result until the next one
            with self._guard:
                self._idle += 1

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                call = self._calls.get(timeout=self._idle_seconds)
            except queue.Empty:
                call = None
            with self._guard:
                if call is None and not self._ended and self._waiting >= self._idle:
                    continue  # a call is on its way, and counts on this thread
                self._idle -= 1
                if call is None:
                    self._threads -= 1
                else:
                    self._waiting -= 1
                return call


def _run(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
