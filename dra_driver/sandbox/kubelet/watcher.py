# SPDX-License-Identifier: Apache-2.0
"""The plugin watcher: keeps registrations in line with the sockets in the registration directory.

kubelet is told of files by inotify; this one looks often, which sees the same appearances,
disappearances and replacements. A socket that was replaced counts as a new one, and is told from the
old by inode and birth (a socket's mtime does not change once it is bound).
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .journal import Journal
from .options import Backoff
from .plugin import Registration
from .registration import RegistrationError

_log = logging.getLogger(__name__)

SocketId = tuple[int, int]
"""Inode and birth: another value is another socket, under whatever name."""


def scan(directory: Path) -> Mapping[str, SocketId]:
    """All sockets below `directory`, by path. Names that begin with a dot are ignored."""
    return dict(_scan(directory))


def _scan(directory: Path) -> Iterator[tuple[str, SocketId]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue  # gone between the two looks
        if stat.S_ISDIR(status.st_mode):
            yield from _scan(Path(entry.path))
        elif stat.S_ISSOCK(status.st_mode):
            yield entry.path, (status.st_ino, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration and the socket it came from."""

    socket: SocketId
    registration: Registration


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a socket's registration failed in a row, and until when it is left alone (monotonic seconds)."""

    count: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class SocketChanges:
    """Paths whose registration has to go, and paths to register now."""

    deregister: tuple[str, ...]
    register: tuple[str, ...]


def plan(
    sockets: Mapping[str, SocketId],
    registered: Mapping[str, Registered],
    busy: frozenset[str],
    failures: Mapping[str, Failures],
    now: float,
) -> SocketChanges:
    """What to do about the `sockets` that are there; `busy` paths have a registration under way."""
    gone = tuple(path for path, known in registered.items() if path not in busy and sockets.get(path) != known.socket)
    new = tuple(
        path
        for path in sockets
        if path not in busy
        and (path not in registered or path in gone)
        and (path not in failures or failures[path].retry_at <= now)
    )
    return SocketChanges(gone, new)


class PluginWatcher:
    """Carries out the plan again and again, each registration in a thread of its own."""

    def __init__(
        self,
        directory: Path,
        period: float,
        retry: Backoff,
        register: Callable[[str], Registration],
        deregister: Callable[[Registration], None],
        journal: Journal,
    ) -> None:
        """`register(path)` carries out a registration or raises RegistrationError."""
        self._directory = directory
        self._period = period
        self._retry = retry
        self._register = register
        self._deregister = deregister
        self._journal = journal
        self._lock = threading.Lock()
        self._registered: dict[str, Registered] = {}
        self._failures: dict[str, Failures] = {}
        self._operations: dict[str, threading.Thread] = {}

    def run(self, stop: threading.Event) -> None:
        """Watch until told to stop, then wait for registrations under way."""
        while not stop.is_set():
            self._reconcile(scan(self._directory))
            stop.wait(self._period)
        for operation in list(self._operations.values()):
            operation.join()

    def _reconcile(self, sockets: Mapping[str, SocketId]) -> None:
        with self._lock:
            todo = plan(sockets, self._registered, frozenset(self._operations), self._failures, time.monotonic())
            gone = [self._registered.pop(path) for path in todo.deregister]
        for known in gone:
            self._deregister(known.registration)
        for path in todo.register:
            operation = threading.Thread(target=self._attempt, args=(path, sockets[path]), daemon=True)
            self._operations[path] = operation
            operation.start()

    def _attempt(self, path: str, socket: SocketId) -> None:
        registration = None
        try:
            registration = self._register(path)
        except RegistrationError as error:
            self._failed(path, str(error))
        with self._lock:
            if registration is not None:
                self._registered[path] = Registered(socket, registration)
                self._failures.pop(path, None)
            self._operations.pop(path, None)

    def _failed(self, path: str, error: str) -> None:
        with self._lock:
            known = self._failures.get(path)
            count = known.count + 1 if known else 1
            self._failures[path] = Failures(count, time.monotonic() + self._retry.delay(count))
        self._journal.record("PluginRegistrationFailed", path, error)
