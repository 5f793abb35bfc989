# SPDX-License-Identifier: Apache-2.0
"""The domains that wait to be reconciled."""

import threading
import time
from collections.abc import Iterable

from dra_driver.process.backoff import Backoff


class Queue:
    """Keys with the time at which they are due. A key is given to one worker at a time. Thread-safe.

    A change makes a key due after `settle` seconds, because more changes may follow. A key that failed waits for its
    own growing pause, even if it changes during the pause, and does not delay other keys.
    """

    def __init__(self, settle: float, first_retry: float, longest_retry: float) -> None:
        self._settle = settle
        self._retries = (first_retry, longest_retry)
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()
        self._failed: dict[str, tuple[Backoff, float]] = {}
        self._closed = False

    @property
    def failing(self) -> int:
        """The number of keys whose last attempt failed."""
        return len(self._failed)

    def add(self, keys: Iterable[str]) -> None:
        """Keys that changed."""
        now = time.monotonic()
        with self._changed:
            for key in keys:
                self._add(key, now + self._settle)
            self._changed.notify_all()

    def later(self, key: str, seconds: float) -> None:
        """A key that is to be looked at again."""
        with self._changed:
            self._add(key, time.monotonic() + seconds)
            self._changed.notify_all()

    def _add(self, key: str, due: float) -> None:
        earliest = self._failed[key][1] if key in self._failed else 0.0
        self._due[key] = max(min(due, self._due.get(key, due)), earliest)

    def take(self) -> str | None:
        """Wait for the next key that is due. None if the queue is closed. `done` or `failed` must follow."""
        with self._changed:
            while not self._closed:
                free = [(due, key) for key, due in self._due.items() if key not in self._busy]
                due, key = min(free, default=(None, ""))
                left = None if due is None else due - time.monotonic()
                if left is not None and left <= 0:
                    del self._due[key]
                    self._busy.add(key)
                    return key
                self._changed.wait(left)
            return None

    def done(self, key: str) -> None:
        """The work on a key was successful."""
        with self._changed:
            self._busy.discard(key)
            self._failed.pop(key, None)
            self._changed.notify_all()

    def failed(self, key: str) -> None:
        """The work on a key failed. It is tried again after a pause."""
        with self._changed:
            backoff = self._failed[key][0] if key in self._failed else Backoff(*self._retries)
            due = time.monotonic() + backoff.pause()
            self._failed[key] = (backoff, due)
            self._due[key] = due
            self._busy.discard(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Let all workers end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
