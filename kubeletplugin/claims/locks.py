# SPDX-License-Identifier: Apache-2.0
"""Locks by name, one for each claim and one for each GPU, between threads and between processes.

During an update, an old and a new process run on the node for some seconds. Each key is therefore locked twice: by a
lock between the threads of this process, and by a one-byte range of a file that all processes have open (an open file
description lock, see fcntl(2)). The kernel releases the range if a process dies. Locking creates, writes and syncs no
file.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from dra_driver.process.backoff import Backoff
from dra_driver.process.files import make_folder, open_lock

from .call import OWN_WORK, Call

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_LOOK_SECONDS = 0.1  # the interval at which a waiting caller checks whether it should give up
_PRESENCE = 0  # the byte that every process holds as long as it lives


class FileRanges:
    """Exclusive locks between processes on bytes of the file `path`, which is created when the first lock is taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._file: io.RawIOBase | None = None

    def close(self) -> None:
        """Release all locks."""
        with self._guard:
            if self._file is not None:
                self._file.close()

    def try_lock(self, key: str) -> bool:
        """Take the lock of `key`. False if another process has it."""
        return self._set(fcntl.F_WRLCK, _byte(key))

    def unlock(self, key: str) -> None:
        """Release the lock of `key`."""
        self._set(fcntl.F_UNLCK, _byte(key))

    def join(self) -> bool:
        """Be visible to other processes from now on. Returns whether there was no other process."""
        alone = self._set(fcntl.F_WRLCK, _PRESENCE)
        while not self._set(fcntl.F_RDLCK, _PRESENCE):
            time.sleep(_SHORTEST_PAUSE)  # another process is calling this function
        return alone

    def _set(self, kind: int, start: int) -> bool:
        try:
            fcntl.fcntl(self._opened(), fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, start, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _opened(self) -> io.RawIOBase:
        """The file. All threads use one description of it, because the locks belong to the description."""
        with self._guard:
            if self._file is None:
                make_folder(self._path.parent)
                self._file = os.fdopen(open_lock(self._path), "r+b", buffering=0)
            return self._file


@functools.lru_cache(maxsize=256)
def _byte(key: str) -> int:
    """The byte of a key, which is never that of `join`. The file stays empty."""
    return 1 + int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")


class Held:
    """A context in which a caller holds the locks of `wanted`. They are taken in the order of their names, so that two
    callers cannot block each other. A lock that was handed over stays locked until the returned function is called.
    """

    def __init__(self, locks: "KeyedLocks", wanted: Iterable[str], call: Call) -> None:
        self._locks = locks
        self._wanted = sorted(set(wanted))
        self._call = call
        self._keys: list[str] = []

    def __enter__(self) -> Self:
        try:
            for key in self._wanted:
                self._locks.acquire(key, self._call)
                self._keys.append(key)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def hand_over(self, key: str) -> Callable[[], None]:
        """Keep the lock beyond the context. The returned function releases it and must be called once."""
        self._keys.remove(key)
        return lambda: self._locks.release(key)

    def _release(self) -> None:
        while self._keys:
            self._locks.release(self._keys.pop())


class KeyedLocks:
    """One lock for each key. A lock exists only while a thread holds it or waits for it. Not reentrant. With `files`,
    other processes are excluded too. Two instances with the same file must have a different `prefix`.
    """

    def __init__(self, files: FileRanges | None = None, prefix: str = "") -> None:
        self._files = files
        self._prefix = prefix
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    def hold(self, *keys: str, call: Call = OWN_WORK) -> Held:
        """A context with the locks of all `keys`. An exception of `call.check` ends the waiting for them."""
        return Held(self, keys, call)

    @contextlib.contextmanager
    def try_hold(self, key: str) -> Iterator[bool]:
        """Hold the lock of `key` if it is free. Yields whether it was."""
        lock = self._enter(key)
        held = lock.acquire(blocking=False)
        if held and not self._lock_file(key):
            lock.release()
            held = False
        if not held:
            self._leave(key)
        try:
            yield held
        finally:
            if held:
                self.release(key)

    def acquire(self, key: str, call: Call = OWN_WORK) -> None:
        """Take the lock of `key`. An exception of `call.check` ends the waiting."""
        lock = self._enter(key)
        try:
            while not lock.acquire(timeout=_LOOK_SECONDS):
                call.check()
            try:
                self._wait_for_file(key, call)
            except BaseException:
                lock.release()
                raise
        except BaseException:
            self._leave(key)
            raise

    def release(self, key: str) -> None:
        """Release the lock of `key`, from any thread."""
        with self._guard:
            lock, _ = self._locks[key]
        if self._files is not None:
            self._files.unlock(self._prefix + key)
        lock.release()
        self._leave(key)

    def _lock_file(self, key: str) -> bool:
        return self._files is None or self._files.try_lock(self._prefix + key)

    def _wait_for_file(self, key: str, call: Call) -> None:
        if self._lock_file(key):
            return
        backoff = Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        while True:
            call.check()
            time.sleep(backoff.pause())
            if self._lock_file(key):
                return

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
