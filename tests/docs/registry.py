# SPDX-License-Identifier: Apache-2.0
"""A registry on localhost that images can be pushed to, as far as the OCI distribution specification asks of a push.

Contents are checked by their digests; manifests are kept, layers are not.
"""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

JSON = dict[str, Any]


class Registry(ThreadingHTTPServer):
    """What was pushed: `digests` of blobs, `manifests` by `name:tag`, and by path as they are `served`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.uploads: dict[str, bytes] = {}
        self.digests: set[str] = set()
        self.manifests: dict[str, JSON] = {}
        self.served: dict[str, tuple[str, bytes]] = {}

    @property
    def address(self) -> str:
        """`localhost:PORT`, which engines also trust without TLS."""
        return f"localhost:{self.server_port}"


@contextlib.contextmanager
def registry() -> Iterator[Registry]:
    """One that runs inside of the context."""
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_GET(self) -> None:
        if self.path in self.server.served:
            self._manifest(*self.server.served[self.path])
        else:
            self._answer(HTTPStatus.OK if self.path == "/v2/" else HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        if self.path in self.server.served:
            return self._manifest(*self.server.served[self.path])
        known = self.path.rpartition("/")[2] in self.server.digests
        return self._answer(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        place = f"{urlsplit(self.path).path}{len(self.server.uploads)}"
        self.server.uploads[place] = b""
        self._answer(HTTPStatus.ACCEPTED, Location=place)

    def do_PATCH(self) -> None:
        place = urlsplit(self.path).path
        self.server.uploads[place] += self._body()
        self._answer(HTTPStatus.ACCEPTED, Location=place, Range=f"0-{len(self.server.uploads[place]) - 1}")

    def do_PUT(self) -> None:
        place, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if manifest := re.fullmatch(r"/v2/(.+)/manifests/(.+)", place):
            content = self._body()
            self.server.manifests[f"{manifest[1]}:{manifest[2]}"] = json.loads(content)
            self.server.served[place] = self.headers["Content-Type"], content
        else:
            content = self.server.uploads[place] + self._body()
            self.server.uploads[place] = b""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if query.get("digest", [digest]) != [digest]:
            self._answer(HTTPStatus.BAD_REQUEST)
        else:
            self.server.digests.add(digest)
            self._answer(HTTPStatus.CREATED, Location=place, **{"Docker-Content-Digest": digest})

    def _manifest(self, media_type: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", media_type)
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(content).hexdigest()}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what matters is what was received."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, status: HTTPStatus, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
