# SPDX-License-Identifier: Apache-2.0
"""gRPC servers on unix sockets."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import grpc

_LONGEST_PATH = 107  # bytes in sockaddr_un.sun_path, without its NUL


class SocketError(Exception):
    """A socket cannot be served; the text names it."""


class Service(Protocol):
    """Something that answers RPCs."""

    def add_to(self, server: grpc.Server) -> None:
        """Register its methods with `server`."""


class SocketServer:
    """Serves one service on the socket `path`. A stale socket there is replaced; the folder must exist or be made."""

    def __init__(self, path: Path, service: Service, threads: int) -> None:
        self.path = path
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=path.name)
        self._server = grpc.server(self._pool)
        service.add_to(self._server)

    def start(self) -> None:
        """Listen. Raises SocketError."""
        if len(str(self.path).encode()) > _LONGEST_PATH:
            raise SocketError(f"socket path {self.path} is longer than {_LONGEST_PATH} bytes: choose a shorter folder")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{self.path}")
        except (OSError, RuntimeError) as error:
            raise SocketError(f"cannot listen on {self.path}: {error}") from None
        self._server.start()

    def stop(self) -> None:
        """Remove the socket and end every connection, with whatever call is on it."""
        self.path.unlink(missing_ok=True)
        self._server.stop(grace=None).wait()
        self._pool.shutdown(wait=False)
