# SPDX-License-Identifier: Apache-2.0
"""The domains that wait to be reconciled."""

import math
import threading
import time
from collections.abc import Callable, Iterable

from dra_driver.process.backoff import Backoff


class Queue:
    """Keys with the time at which they are due. A key is given to one worker at a time. Thread-safe. `wake`
    is called with the seconds until a key is due that no worker had, or that a worker has returned.

    A change makes a key due after `settle` seconds, because more changes may follow. A key that failed waits for its
    own growing pause, whatever changes meanwhile, and does not delay other keys.
    """

    def __init__(self, settle: float, first_retry: float, longest_retry: float, wake: Callable[[float], None]) -> None:
        self._settle = settle
        self._retries = (first_retry, longest_retry)
        self._wake = wake
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()
        self._failed: dict[str, tuple[Backoff, float]] = {}

    @property
    def failing(self) -> int:
        """The number of keys whose last attempt failed."""
        return len(self._failed)

    def add(self, keys: Iterable[str]) -> None:
        """Keys that changed."""
        now = time.monotonic()
        with self._lock:
            for key in keys:
                self._add(key, now + self._settle)
        self._wake(self._settle)

    def later(self, key: str, seconds: float) -> None:
        """A key that is to be looked at again."""
        with self._lock:
            self._add(key, time.monotonic() + seconds)
        self._wake(seconds)

    def _add(self, key: str, due: float) -> None:
        earliest = self._failed[key][1] if key in self._failed else 0.0
        self._due[key] = max(min(due, self._due.get(key, due)), earliest)

    def take(self) -> str | None:
        """The next key that is due, or None. `done` or `failed` must follow."""
        with self._lock:
            due, key = self._next()
            if due > time.monotonic():
                return None
            del self._due[key]
            self._busy.add(key)
            return key

    def seconds_until_due(self) -> float | None:
        """The time until a key is due. None if there is no key that no worker has."""
        with self._lock:
            due, _ = self._next()
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _next(self) -> tuple[float, str]:
        free = ((due, key) for key, due in self._due.items() if key not in self._busy)
        return min(free, default=(math.inf, ""))

    def done(self, key: str) -> None:
        """The work on a key was successful."""
        with self._lock:
            self._busy.discard(key)
            self._failed.pop(key, None)
            due = self._due.get(key)
        if due is not None:  # it was added meanwhile
            self._wake(max(0.0, due - time.monotonic()))

    def failed(self, key: str) -> None:
        """The work on a key failed. It is tried again after a pause."""
        with self._lock:
            backoff = self._failed[key][0] if key in self._failed else Backoff(*self._retries)
            pause = backoff.pause()
            due = time.monotonic() + pause
            self._failed[key] = (backoff, due)
            self._due[key] = due
            self._busy.discard(key)
        self._wake(pause)
