# SPDX-License-Identifier: Apache-2.0
"""An API server that answers what a test tells it to, over HTTP."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class ScriptedApi:
    """Answers by method and path; a watch gets its events from a queue, None ends it."""

    port: int = 0
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    events: "queue.Queue[Any]" = field(default_factory=queue.Queue)
    requests: list[tuple[str, str, dict[str, str], str, Any]] = field(default_factory=list)
    """Method, path, query, content type, body."""

    def body_of(self, method: str, path: str) -> Any:
        (body,) = [request[4] for request in self.requests if request[:2] == (method, path)]
        return body


def _handler_of(api: ScriptedApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = dict(parse_qsl(url.query))
            kind = self.headers.get("Content-Type") or ""
            api.requests.append((self.command, url.path, query, kind, json.loads(body) if body else None))
            if "watch" in query:
                self.stream()
                return
            missing = 404, {"kind": "Status", "message": f"{url.path} not found", "code": 404}
            status, value = api.answers.get((self.command, url.path), missing)
            payload = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

        def stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (event := api.events.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    """Serve until the end of the block."""
    scripted = ScriptedApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(scripted))
    server.daemon_threads = True
    scripted.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield scripted
    finally:
        scripted.events.put(None)
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(path: Path, port: int) -> Path:
    """A kubeconfig of the server on that port."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(kubeconfig))
    return path
