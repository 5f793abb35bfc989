# SPDX-License-Identifier: Apache-2.0
"""Threads for calls that may take any time: as many as calls are running, and some that wait for the next one."""

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
    """Runs each call at once, on a daemon thread called `name`, so that a call that hangs does not prevent the process
    from ending. A thread waits `idle_seconds` for its next call.
    """

    def __init__(self, name: str, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._name = name
        self._idle_seconds = idle_seconds
        self._guard = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting = 0  # calls without a thread
        self._threads = 0
        self._idle = 0
        self._ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call. If no more threads are possible, the next free one runs it. Raises RuntimeError after
        `shutdown`.
        """
        future: Future[T] = Future()
        self.start(lambda: _run(future, lambda: fn(*args, **kwargs)), may_wait=True)
        return future

    def start(self, call: Callable[[], None], *, may_wait: bool = False) -> None:
        """Start a call whose exception ends the thread. Raises RuntimeError if no more threads are possible, unless it
        `may_wait` for one that runs another call, and after `shutdown`.
        """
        with self._guard:
            if self._ended:
                raise RuntimeError(f"the threads of {self._name} take no more calls")
            if self._waiting >= self._idle:
                self._add_thread(may_wait)
            self._waiting += 1
        self._calls.put(call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Running calls continue, and this does not wait for them."""
        with self._guard:
            self._ended = True
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def _add_thread(self, may_wait: bool) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError as error:
            if not may_wait or not self._threads:
                raise
            log.warning("a call has to wait for a thread: %s", error)
        else:
            self._threads += 1
            self._idle += 1

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # otherwise its result would be kept until the next call
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
                    continue  # a call is about to arrive, and needs this thread
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
