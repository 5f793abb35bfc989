# SPDX-License-Identifier: Apache-2.0
"""A thread that repeats its work: at intervals, when it is woken, or both.

Most threads of a process are workers. The other threads wait for something that cannot be woken: a connection, the
output or the end of another program, a call of a library.
"""

import math
import threading
import time
from collections.abc import Callable

from .containment import Count, contained


def _nothing() -> None:
    """Does not do anything."""


class Worker:
    """Calls `work` again and again between `start` and `stop`, one round at a time.

    `work` returns the seconds until its next round. If it returns None, these are `interval`; without an interval, the
    next round begins after `wake`. The methods for callers may be called on any thread, also before `start`.

    `name` is a verb and a kind of object, such as `watch MPS`: the name of the thread, and the label of the metric of
    unexpected errors. With `count`, an unexpected exception of `work` is logged and counted, and the work is repeated
    after `interval`, or after `retry` seconds if there is no interval. Without `count`, the exception ends the thread,
    and so the process (`dra_driver.process.command.end_when_a_thread_fails`). `at_end` is called once, on the same
    thread after the last round.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None],
        *,
        interval: float | None = None,
        count: Count | None = None,
        retry: float = 10.0,
        at_end: Callable[[], None] = _nothing,
    ) -> None:
        self.name = name
        self._work = work
        self._interval = interval
        self._count = count
        self._retry = retry if interval is None else interval
        self._at_end = at_end
        self._state = threading.Condition()
        self._due = 0.0  # the next round begins at this time
        self._begun = self._ended = 0  # rounds
        self._finishing = self._stopped = False
        self._thread: threading.Thread | None = None

    # For callers

    def start(self, after: float = 0.0) -> None:
        """Start the thread. The first round begins after so many seconds, or when the worker is woken. May be called
        once.
        """
        if after:
            self._due = time.monotonic() + after
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self, after: float = 0.0) -> None:
        """Begin a round in so many seconds at the latest. It is a round that begins after this call, so the work sees
        everything that was changed before. With a pause, more changes may follow before the round.
        """
        due = time.monotonic() + after
        with self._state:
            if due < self._due:
                self._due = due
                self._state.notify_all()

    def complete_round(self, seconds: float) -> bool:
        """Wake the worker, and wait until a round has ended that began after this call. False if there was none within
        so many seconds, or the worker has stopped. Must not be called by the work.
        """
        with self._state:
            wanted = self._begun + 1
            self.wake()
            self._state.wait_for(lambda: self._ended >= wanted or self._stopped, seconds)
            return self._ended >= wanted

    def stop(self, wait: float = 0.0) -> None:
        """End after the current round. Waits at most so many seconds (math.inf: without a limit) for the end of the
        thread, unless the work itself calls this.
        """
        with self._state:
            self._stopped = True
            self._state.notify_all()
        self._join(wait)

    def finish(self, wait: float) -> None:
        """Begin a round at once, and end after the first round that leaves nothing to do: the work has returned None,
        without an interval, and the worker was not woken since the round began. Waits for the end like `stop`.
        """
        with self._state:
            self._finishing = True
            self.wake()
        self._join(wait)

    def _join(self, seconds: float) -> None:
        thread = self._thread
        if seconds and thread is not None and thread is not threading.current_thread():
            thread.join(None if seconds == math.inf else seconds)

    # For the work

    @property
    def is_stopped(self) -> bool:
        """Whether no more rounds begin."""
        return self._stopped

    @property
    def is_finishing(self) -> bool:
        """Whether the worker ends when nothing is left to do."""
        return self._finishing

    def pause(self, seconds: float) -> None:
        """Wait inside of a round. Only `stop` ends the pause early. A wake takes effect after the round."""
        with self._state:
            self._state.wait_for(lambda: self._stopped, seconds)

    # The rounds

    def run(self) -> None:
        """Work on the calling thread, instead of `start`. Returns after `stop` or `finish`."""
        try:
            while self._next_round():
                self._end_round(self._do())
        finally:
            with self._state:
                self._stopped = True
                self._state.notify_all()
            self._at_end()

    def _next_round(self) -> bool:
        """Wait until a round is due. False if the worker was stopped."""
        with self._state:
            while not self._stopped:
                left = self._due - time.monotonic()
                if left <= 0:
                    self._due = math.inf  # a wake from now on is one for the round after this one
                    self._begun += 1
                    return True
                self._state.wait(None if left == math.inf else left)
            return False

    def _do(self) -> float | None:
        """Do the work. Returns the seconds until the next round, or None if it is only woken."""
        if self._count is None:
            return self._pause_of(self._work())
        with contained(self.name, "", self._count):
            return self._pause_of(self._work())
        return self._retry

    def _pause_of(self, returned: float | None) -> float | None:
        return self._interval if returned is None else returned

    def _end_round(self, pause: float | None) -> None:
        with self._state:
            self._ended = self._begun
            if pause is not None:
                self._due = min(self._due, time.monotonic() + pause)
            elif self._finishing and self._due == math.inf:
                self._stopped = True
            self._state.notify_all()
