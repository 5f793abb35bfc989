# SPDX-License-Identifier: Apache-2.0
"""gRPC servers on Unix sockets whose files appear and disappear as a whole.

A server binds to a name that kubelet ignores, and the socket is then renamed to its final path. So a stale file is
replaced in one step. When a server ends, gRPC removes the file to which it was bound; because of the rename, it can
never remove the socket of a later process.
"""

import contextlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from dra_driver.errors import DriverError
from dra_driver.files import put_file

from .threads import CallThreads

log = logging.getLogger(__name__)

LONGEST_PATH = 107
"""Bytes in sockaddr_un.sun_path, without its NUL."""

_LOOK_SECONDS = 1.0  # as often as kubelet looks itself
_RETIRE_SECONDS = 60.0  # longer than kubelet waits for any call
_CONNECT_SECONDS = 1.0


class SocketError(DriverError):
    """A socket cannot be served; the text names it."""


class Service(Protocol):
    """Something that answers RPCs."""

    def add_to(self, server: grpc.Server) -> None:
        """Register its methods with `server`."""


class SocketServer:
    """Serves services on the socket `path`, replacing what is there. The folder must exist or be made. Raises
    SocketError for a path that no socket can have. Every call has a thread of its own.

    `start`, `restore` and `stop` are for one thread at a time.
    """

    def __init__(self, path: Path, services: Sequence[Service]) -> None:
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise SocketError(f"socket path {path} is longer than {LONGEST_PATH} bytes: choose a shorter folder")
        self.path = path
        self._services = services
        self._threads = CallThreads(path.name)
        self._server: grpc.Server | None = None
        self._identity: tuple[int, int, int] | None = None

    def start(self) -> None:
        """Listen. Raises SocketError."""
        temporary = self.path.with_name(f".{os.urandom(3).hex()}")  # no longer than any name it stands for
        server = grpc.server(self._threads)  # type: ignore[arg-type]  # gRPC only submits calls to it
        for service in self._services:
            service.add_to(server)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            server.add_insecure_port(f"unix:{temporary}")
            server.start()
            identity = _identity(temporary)
            put_file(temporary, self.path)
        except (OSError, RuntimeError) as error:
            server.stop(grace=None)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise SocketError(f"cannot listen on {self.path}: {error}") from None
        self._server, self._identity = server, identity

    @property
    def is_started(self) -> bool:
        """Whether there is, or should be, a socket."""
        return self._server is not None

    def is_there(self) -> bool:
        """Whether the socket that was made still is at its path."""
        return self._identity is not None and _identity(self.path) == self._identity

    def restore(self) -> None:
        """Listen again at a path that was removed. Calls that run are finished over the connection that they came by.

        Raises SocketError.
        """
        old = self._server
        self.start()
        if old is not None:
            old.stop(grace=_RETIRE_SECONDS)  # not waited for: idle connections last as long

    def stop(self) -> None:
        """Remove the socket, if it is ours, and end every connection, with whatever call is on it."""
        if self.is_there():
            self.path.unlink(missing_ok=True)
        if self._server is not None:
            self._server.stop(grace=None).wait()
        self._threads.shutdown()


class SocketKeeper:
    """Looks every second whether sockets are still there, and restores those that were removed.

    kubelet never removes them, but an administrator may, and a folder may be made anew under kubelet. A socket that
    another process listens on is left alone.
    """

    def __init__(self, servers: Sequence[SocketServer]) -> None:
        self._servers = servers
        self._stopped = threading.Event()
        self._told: dict[Path, str] = {}
        self._thread = threading.Thread(target=self._run, name="sockets", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; nothing is restored after this returns."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            for server in self._servers:
                if not server.is_there():
                    self._restore(server)

    def _restore(self, server: SocketServer) -> None:
        try:
            if is_served(server.path):
                raise SocketError(f"another process took {server.path} over")
            server.restore()
        except SocketError as error:
            if self._told.get(server.path) != str(error):
                log.error("a socket cannot be restored: %s; trying again", error)
            self._told[server.path] = str(error)
            return
        self._told.pop(server.path, None)
        log.warning("a socket was removed and is served again", extra={"socket": str(server.path)})


def is_served(path: Path) -> bool:
    """Whether some process listens on the socket `path`, as far as can be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(os.fsencode(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except OSError as error:  # it is busy, or may not be connected to from here
            log.debug("%s: %s", path, error)
    return True


def sweep(candidates: Iterable[Path]) -> list[Path]:
    """Remove those sockets that nobody listens on, and return them: their processes were killed."""
    removed = []
    for path in candidates:
        try:
            if stat.S_ISSOCK(path.lstat().st_mode) and not is_served(path):
                path.unlink()
                removed.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("the socket of a process that was killed stays: %s", error)
    return removed


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from another that has its name later; renaming does not change it."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
