# SPDX-License-Identifier: Apache-2.0
"""An API server that only lists, in pages as kube-apiserver does: for collections that are large, or that expire."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import yaml

JSON = dict[str, Any]

GROUP: Final = "/apis/resource.k8s.io"
_DOCUMENTS: Final[Mapping[str, JSON]] = {
    "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.2"},
    GROUP: {"versions": [{"version": "v1", "groupVersion": "resource.k8s.io/v1"}]},
}
_EXPIRED: Final = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}


@dataclass(frozen=True, slots=True)
class Collection:
    """`count` objects, of which `make` gives each. With `expires`, pages after the first are too old to be read."""

    count: int
    make: Callable[[int], JSON]
    expires: bool = False


class _Listening(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints an error, unless a client has ended a watch."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


_NOTHING: Final = Collection(0, lambda _: {})


@dataclass(slots=True)
class PagedServer:
    """A running server, the queries that it was asked by path, and how many bytes it has sent."""

    url: str
    asked: dict[str, list[JSON]] = field(default_factory=dict)
    sent: int = 0

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for this server, in which anybody is an administrator."""
        config = {
            "current-context": "paged",
            "contexts": [{"name": "paged", "context": {"cluster": "paged", "user": "anybody"}}],
            "clusters": [{"name": "paged", "cluster": {"server": self.url}}],
            "users": [{"name": "anybody", "user": {}}],
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path


@contextmanager
def paged(
    collections: Mapping[str, Collection], documents: Mapping[str, JSON | str] | None = None
) -> Iterator[PagedServer]:
    """Serves collections by their paths; all others are empty. `documents` are served besides, as JSON or text."""
    server = PagedServer("")
    fixed: Mapping[str, JSON | str] = {**_DOCUMENTS, **(documents or {})}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            server.asked.setdefault(url.path, []).append(query)
            value = fixed.get(url.path)
            if value is None:
                value = _page(query, collections.get(url.path, _NOTHING))
            body = (value if isinstance(value, str) else json.dumps(value)).encode()
            server.sent += len(body)
            self.send_response(200 if isinstance(value, str) else int(value.get("code", 200)))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: requests are in `asked`."""

    with _Listening(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


def _page(query: Mapping[str, str], collection: Collection) -> JSON:
    start = int(query.get("continue", "0"))
    if start and collection.expires:
        return _EXPIRED
    end = min(collection.count, start + int(query.get("limit", collection.count)))
    meta = {"resourceVersion": "1", **({"continue": str(end)} if end < collection.count else {})}
    return {"metadata": meta, "items": [collection.make(number) for number in range(start, end)]}
