# SPDX-License-Identifier: Apache-2.0
"""gRPC servers on Unix sockets whose files appear and disappear as a whole, with a thread for each call.

A server binds to a name that kubelet ignores, and the socket is then renamed to its final path. So a stale file is
replaced in one step. When a server ends, gRPC removes the file to which it was bound; because of the rename, it can
never remove the socket of a later process.

Calls for claims wait for the lock of their GPU, for the NVIDIA driver, or for the API server. They could use up a pool
of threads of fixed size, and then calls that do not need this GPU would wait too, including the liveness check. So
every running call has its own thread. kubelet bounds the number of threads: it has one call for each pod at a time, and
gives up after 45 s. Idle threads serve the next call, and end after a while.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc

from dra_driver.process.call_threads import CallThreads
from dra_driver.process.files import put_file
from dra_driver.process.worker import Worker

from ..errors import SocketError

log = logging.getLogger(__name__)

_Identity = tuple[int, int, int] | None

LONGEST_PATH = 107
"""The length of sockaddr_un.sun_path in bytes, without its NUL."""

_LOOK_SECONDS = 5.0
_RETIRE_SECONDS = 60.0  # kubelet waits less for any call
_CONNECT_SECONDS = 1.0
_STOP_SECONDS = 5.0

_OPTIONS = (("grpc.http2.bdp_probe", 0),)
"""No measurement of the bandwidth, which costs a ping for a call, and is of no use on a Unix socket."""


class Service(Protocol):
    """A service that answers RPCs."""

    def add_to(self, server: grpc.Server) -> None:
        """Register its methods with `server`."""


def unary(answer: Callable[[Any, grpc.ServicerContext], Any], request: Any, response: Any) -> Any:
    """The handler of a gRPC method with one `request` and one `response` message."""
    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


class SocketServer:
    """Serves services on the socket `path`, and those for kubelet's registration also on the socket `registration`.
    Replaces existing files, and creates the folders if necessary. Raises SocketError for a path that is too long. Every
    call has its own thread.

    Both sockets belong to one gRPC server, because each server has a thread that the library wakes five times a second.

    `start`, `restore`, `unregister` and `stop` may be called by one thread at a time.
    """

    def __init__(self, path: Path, services: Sequence[Service], registration: Path | None = None) -> None:
        self.path = path
        self.registration = registration
        self._services = services
        self._paths = [path] if registration is None else [path, registration]
        for each in self._paths:
            if len(os.fsencode(each)) > LONGEST_PATH:
                raise SocketError(f"socket path {each} is longer than {LONGEST_PATH} bytes: choose a shorter folder")
        self._threads = CallThreads(path.name)
        self._servers: dict[Path, grpc.Server] = {}  # that listens on each path
        self._identities: dict[Path, _Identity] = {}

    def start(self) -> None:
        """Listen. The registration appears last, so that kubelet can call the services that it finds there. Raises
        SocketError.
        """
        self._listen(self._paths)

    @property
    def is_started(self) -> bool:
        """Whether the sockets should exist."""
        return bool(self._servers)

    def missing(self) -> list[Path]:
        """The paths at which there is not our socket."""
        return [path for path in self._paths if not self._is_ours(path)]

    def restore(self, missing: Sequence[Path]) -> None:
        """Listen again after these sockets were removed. Running calls end on their own connection. Sockets that exist
        stay, because kubelet closes its connection when it finds a new registration.

        Raises SocketError.
        """
        replaced = {self._servers[path] for path in missing}
        self._listen(missing)
        for server in replaced.difference(self._servers.values()):
            server.stop(grace=_RETIRE_SECONDS)  # without waiting, because idle connections last as long

    def unregister(self) -> None:
        """Remove the socket of the registration, so that kubelet begins no more calls here."""
        if self.registration is not None:
            self._remove(self.registration)

    def remove(self) -> None:
        """Remove the sockets that are ours. Connections stay."""
        for path in reversed(self._paths):
            self._remove(path)

    def stop(self) -> None:
        """Remove the sockets that are ours, and close all connections, even with running calls."""
        self.remove()
        for server in set(self._servers.values()):
            server.stop(grace=None).wait()
        self._threads.shutdown()

    def _listen(self, paths: Sequence[Path]) -> None:
        """Serve on these paths with a new gRPC server, because a server that was started takes no more sockets."""
        server = grpc.server(self._threads, options=_OPTIONS)  # type: ignore[arg-type]  # gRPC only submits calls to it
        for service in self._services:
            service.add_to(server)
        hidden = {path: path.with_name(f".{os.urandom(3).hex()}") for path in paths}  # never longer than the path
        path = self.path
        try:
            for path, temporary in hidden.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                server.add_insecure_port(f"unix:{temporary}")
            server.start()
            identities = {path: _identity(temporary) for path, temporary in hidden.items()}
            for path, temporary in hidden.items():
                put_file(temporary, path)
        except (OSError, RuntimeError) as error:
            server.stop(grace=None)
            for temporary in hidden.values():
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
            raise SocketError(f"cannot listen on {path}: {error}") from None
        self._identities |= identities
        self._servers |= dict.fromkeys(paths, server)

    def _is_ours(self, path: Path) -> bool:
        identity = self._identities.get(path)
        return identity is not None and _identity(path) == identity

    def _remove(self, path: Path) -> None:
        if self._is_ours(path):
            path.unlink(missing_ok=True)


class SocketKeeper:
    """Checks every `interval` seconds whether the sockets still exist, and restores removed sockets.

    kubelet never removes them, but an administrator may, or may create the folder again. A socket on which another
    process listens is left alone.
    """

    def __init__(self, servers: Sequence[SocketServer], interval: float = _LOOK_SECONDS) -> None:
        self._servers = servers
        self._told: dict[Path, str] = {}
        self._worker = Worker("keep sockets", self._look, interval=interval)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """Stop. Nothing is restored after this returns, unless gRPC hangs."""
        self._worker.stop(_STOP_SECONDS)

    def _look(self) -> None:
        for server in self._servers:
            missing = server.missing()
            if missing:
                self._restore(server, missing)

    def _restore(self, server: SocketServer, missing: Sequence[Path]) -> None:
        try:
            for path in missing:
                if is_served(path):
                    raise SocketError(f"another process took {path} over")
            server.restore(missing)
        except SocketError as error:
            if self._told.get(server.path) != str(error):
                log.error("a socket cannot be restored: %s; trying again", error)
            self._told[server.path] = str(error)
            return
        self._told.pop(server.path, None)
        for path in missing:
            log.warning("a socket was removed and is served again", extra={"socket": str(path)})


def is_served(path: Path) -> bool:
    """Whether a process listens on the socket `path`, as far as this process can find out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(os.fsencode(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except OSError as error:  # the socket is busy, or may not be used by this process
            log.debug("%s: %s", path, error)
    return True


def _identity(path: Path) -> _Identity:
    """A value that differs for another file with the same name later. Renaming the file does not change it."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
