# SPDX-License-Identifier: Apache-2.0
"""The socket for requests to dra-mps. A request is a line of JSON, and so is the response.

{"settle": SERVER}   applies the share files of a group of devices; the response is {}, or {"error": TEXT} on failure
{"status": true}     the response is {"servers": {SERVER: {"problem", "restarts", "since"}}}

Only root can connect. A request is completed even if the client disconnects.
"""

import json
import logging
import os
import socket
import socketserver
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from dra_driver.errors import MpsError, ProgramError

from .supervisor import MpsSupervisor

log = logging.getLogger(__name__)

SOCKET: Final = "supervisor.sock"
_LONGEST_LINE: Final = 4096
_READ_SECONDS: Final = 5.0
_SHUTDOWN_SECONDS: Final = 0.5  # how often the server looks whether it is to stop


class SupervisorServer:
    """Serves the socket in `folder`, with one thread per connection. Raises OSError."""

    def __init__(self, folder: Path, supervisor: MpsSupervisor) -> None:
        self.path = folder / SOCKET
        self.path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = _Server(str(self.path), _Handler)
        finally:
            os.umask(before)
        self._server.supervisor = supervisor
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_SHUTDOWN_SECONDS,), name="mps-server", daemon=True
        )

    def start(self) -> None:
        """Start serving requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving requests, and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    supervisor: MpsSupervisor

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an unexpected error of a request. Other requests continue."""
        log.exception("a request to dra-mps failed")


class _Handler(socketserver.StreamRequestHandler):
    timeout = _READ_SECONDS
    request: socket.socket
    server: _Server

    def handle(self) -> None:
        """Answer one request."""
        try:
            asked = json.loads(self.rfile.readline(_LONGEST_LINE))
        except (ValueError, OSError) as error:
            log.warning("a request to dra-mps cannot be read: %s", error)
            return
        self.request.settimeout(None)
        try:
            self.wfile.write(json.dumps(self._answer(asked)).encode() + b"\n")
        except OSError as error:
            log.info("who asked dra-mps is gone: %s", error)

    def _answer(self, asked: Any) -> dict[str, Any]:
        match asked:
            case {"settle": str(server)}:
                try:
                    self.server.supervisor.settle(server)
                except (MpsError, ProgramError, OSError) as error:
                    return {"error": str(error)}
                return {}
            case {"status": True}:
                return {"servers": {name: asdict(status) for name, status in self.server.supervisor.statuses().items()}}
        return {"error": f"this version of dra-mps does not know {asked!r}"}
