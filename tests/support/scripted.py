# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers request after request from a script, and may hang or cut the line."""

import json
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class End(Enum):
    """What happens to the connection after an answer's body."""

    KEEP = auto()
    CLOSE = auto()
    CUT = auto()  # closed before all of the promised body was sent
    DROP = auto()  # closed without any answer
    HANG = auto()  # no answer for as long as the server lives


@dataclass(frozen=True)
class Reply:
    """One answer. A mapping as body becomes JSON; a list is sent in pieces, mappings in it as JSON lines."""

    body: Mapping[str, Any] | Sequence[Mapping[str, Any] | bytes] | bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = End.KEEP

    @property
    def pieces(self) -> list[bytes]:
        """The body's bytes."""
        pieces = [self.body] if isinstance(self.body, bytes | Mapping) else self.body
        return [one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in pieces]

    @property
    def streamed(self) -> bool:
        """Whether its length is not told in advance."""
        return not isinstance(self.body, bytes | Mapping)


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedServer:
    """Where it is, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []

    @property
    def calls(self) -> list[str]:
        """`GET /path` of each request."""
        return [f"{one.method} {one.path}" for one in self.asked]


@contextmanager
def scripted(replies: Iterable[Reply], tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """A server that gives these replies in order, whoever asks for what, and 501 after the last."""
    script = iter(replies)
    ended = threading.Event()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                server.asked.append(Asked(self.command, self.path, dict(self.headers), body))
                reply = next(script, Reply(b"nothing more is scripted", 501))
            if reply.end is End.HANG:
                ended.wait()
            if reply.end in (End.HANG, End.DROP):
                self.close_connection = True
                return
            pieces = reply.pieces
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.streamed:
                self.send_header("Transfer-Encoding", "chunked")
                pieces = [b"%x\r\n%b\r\n" % (len(one), one) for one in pieces]
                if reply.end is not End.CUT:
                    pieces.append(b"0\r\n\r\n")
            else:
                self.send_header("Content-Length", str(sum(map(len, pieces)) + (reply.end is End.CUT)))
            self.end_headers()
            self.wfile.write(b"".join(pieces))
            self.close_connection = reply.end is not End.KEEP

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - names of http.server

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        server = ScriptedServer(f"{'https' if tls else 'http'}://127.0.0.1:{http.server_address[1]}")
        thread = threading.Thread(target=lambda: http.serve_forever(poll_interval=0.02), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            ended.set()
            http.shutdown()
            thread.join()
