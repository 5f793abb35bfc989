# SPDX-License-Identifier: Apache-2.0
"""Locks by name, made when somebody wants one and dropped when nobody does."""

import contextlib
import threading
from collections.abc import Iterator


class KeyedLocks:
    """One lock a key. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`, waiting for it."""
        lock = self._enter(key)
        try:
            with lock:
                yield
        finally:
            self._leave(key)

    @contextlib.contextmanager
    def try_hold(self, key: str) -> Iterator[bool]:
        """Hold the lock of `key` if it is free; gives whether it was."""
        lock = self._enter(key)
        held = lock.acquire(blocking=False)
        try:
            yield held
        finally:
            if held:
                lock.release()
            self._leave(key)

    def _enter(self, key: str) -> threading.Lock:
        with self._guard:
            lock, users = self._locks.get(key, (None, 0))
            if lock is None:
                lock = threading.Lock()
            self._locks[key] = (lock, users + 1)
            return lock

    def _leave(self, key: str) -> None:
        with self._guard:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
