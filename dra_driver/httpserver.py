# SPDX-License-Identifier: Apache-2.0
"""What the HTTP servers of the processes have in common: a thread a request, both families of addresses, few log lines.

One request a connection: those who ask come every few seconds, and an idle connection would hold a thread. A server is
not http.server's own class, which asks the DNS for the host's name when it starts.
"""

import logging
import socket
import socketserver
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final

log = logging.getLogger(__name__)

PROBES: Final = ("/healthz", "/readyz")
"""The paths that kubelet asks: whether a restart would help, and whether the process does its work."""

REQUEST_SECONDS: Final = 10.0
"""For a client to say what it wants."""

STOP_SECONDS: Final = 0.2
"""How often a server looks whether it is to end."""


class Server(socketserver.ThreadingTCPServer):
    """Remembers what each probe was answered last, as its handlers do not live longer than a request."""

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, handler: type["Handler"]) -> None:
        """Raises OSError when the address cannot be had. ("::", port) takes IPv4 too."""
        self.answered: dict[str, int] = {}
        self.address_family = family
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Only the connection is left to fail here, and a client that went away is no concern of ours."""
        log.debug("request of %s ended early", client_address, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers one request. Of probes, which come every few seconds, it logs those that fail or change."""

    server: Server
    timeout = REQUEST_SECONDS
    sys_version = ""
    path = ""  # of a request that was not understood

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        path, status = self.path.partition("?")[0], int(code)
        if path in PROBES:
            before = self.server.answered.get(path)
            self.server.answered[path] = status
            if before == status == HTTPStatus.OK:
                return
        super().log_request(status, size)

    def log_message(self, format: str, *args: object) -> None:
        log.debug("%s " + format, self.address_string(), *args)
