# SPDX-License-Identifier: Apache-2.0
"""A forward proxy: HTTP with CONNECT and whole URLs, or SOCKS 5, with a user and password where that is asked for."""

import base64
import contextlib
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_CHUNK = 1 << 16


@dataclass
class ForwardProxy:
    """Where it is, and what it was asked: `CONNECT host:port`, `GET http://…`, `SOCKS host:port`, or `refused`."""

    address: str
    """`host:port`"""
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def forward_proxy(*, tls: ssl.SSLContext | None = None, login: str = "", socks: bool = False) -> Iterator[ForwardProxy]:
    """A proxy on a port of its own. `login` is `user:password`; `socks` makes it one for SOCKS 5."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with contextlib.suppress(OSError, ValueError):
                client.settimeout(30)
                if tls is not None:
                    client = tls.wrap_socket(client, server_side=True)
                server = _socks(client, login, proxy) if socks else _http(client, login, proxy)
                if server is not None:
                    with server:
                        _relay(client, server)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        proxy = ForwardProxy(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def _http(client: socket.socket, login: str, proxy: ForwardProxy) -> socket.socket | None:
    """Answers CONNECT, or sends a request with a whole URL on. Returns the connection to the server."""
    head = b""
    while b"\r\n\r\n" not in head:
        received = client.recv(_CHUNK)
        if not received:
            return None
        head += received
    lines, _, rest = head.partition(b"\r\n\r\n")
    first, *headers = lines.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    given = dict(line.split(": ", 1) for line in headers)
    if login and given.get("Proxy-Authorization") != f"Basic {base64.b64encode(login.encode()).decode()}":
        proxy.asked.append("refused")
        client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        return None
    proxy.asked.append(f"{method} {target}")
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        server = socket.create_connection((host.strip("[]"), int(port)), 30)
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return server
    url = urlsplit(target)
    server = socket.create_connection((url.hostname or "", url.port or 80), 30)
    path = target.partition(url.netloc)[2] or "/"
    kept = [line for line in headers if not line.lower().startswith("proxy-")]
    server.sendall("\r\n".join([f"{method} {path} {version}", *kept, "Connection: close", "", ""]).encode("latin-1"))
    server.sendall(rest)
    return server


def _socks(client: socket.socket, login: str, proxy: ForwardProxy) -> socket.socket | None:
    """Answers the greeting, the login and the request of SOCKS 5 (RFC 1928, RFC 1929)."""
    _, count = _exactly(client, 2)
    methods = _exactly(client, count)
    wanted = 2 if login else 0
    if wanted not in methods:
        proxy.asked.append("refused")
        client.sendall(b"\x05\xff")
        return None
    client.sendall(bytes((5, wanted)))
    if login:
        _exactly(client, 1)
        parts = [_exactly(client, _exactly(client, 1)[0]).decode() for _ in range(2)]
        right = ":".join(parts) == login
        client.sendall(bytes((1, 0 if right else 1)))
        if not right:
            proxy.asked.append("refused")
            return None
    kind = _exactly(client, 4)[3]
    if kind == 1:
        host = socket.inet_ntop(socket.AF_INET, _exactly(client, 4))
    else:
        host = _exactly(client, _exactly(client, 1)[0]).decode()
    port = int.from_bytes(_exactly(client, 2), "big")
    proxy.asked.append(f"SOCKS {host}:{port}")
    server = socket.create_connection((host, port), 30)
    client.sendall(b"\x05\x00\x00\x01" + bytes(6))
    return server


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        received = client.recv(count - len(data))
        if not received:
            raise ValueError("the client is gone")
        data += received
    return data


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Carries bytes both ways until one side ends."""
    while True:
        pending = isinstance(client, ssl.SSLSocket) and client.pending()
        readable = [client] if pending else select.select([client, server], [], [], 60)[0]
        for one in readable:
            data = one.recv(_CHUNK)
            if not data:
                return
            (server if one is client else client).sendall(data)
        if not readable:
            return
