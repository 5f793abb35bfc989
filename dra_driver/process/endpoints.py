# SPDX-License-Identifier: Apache-2.0
"""HTTP servers of the processes: /metrics for Prometheus, /healthz and /readyz for probes, and the registry of metrics.

The servers use plain HTTP on one address. They are disabled by default, and have the flags of the official driver. A
check has a name and a function that returns None, or the reason of a failure. /healthz fails if a restart would help.
/readyz fails if the process does not do its work, for example because the API server does not answer.

Each process creates one registry and passes it to the code that counts. Therefore two servers in one process, as in
tests, do not share numbers. Names of metrics start with `nvidia_dra_`, like those of the official driver.

Each connection has only one request: probes come every few seconds, and an idle connection would occupy a thread. The
server class of http.server is not used, because it asks the DNS for the name of the host when it starts.
"""

import collections
import contextlib
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, TypeVar

import click
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector

from ..names import DRIVER_NAME
from .command import UserError, flag, flags
from .containment import Count

log = logging.getLogger(__name__)

PROBES: Final = ("/healthz", "/readyz")
"""The paths of kubelet's liveness probe and readiness probe."""

REQUEST_SECONDS: Final = 10.0
"""The time limit for a client to send its request."""

_STOP_SECONDS: Final = 0.2
"""The interval in which a server checks whether it should stop."""

MOST_CONNECTIONS: Final = 64
"""The number of open connections of a server. Each has a thread, and any pod can connect to a server."""

F = TypeVar("F", bound=Callable[..., Any])

Check = Callable[[], str | None]
"""Returns None, or the reason of a failure in one line. It runs on the threads of the server, so it must not wait."""

Checks = Mapping[str, Check]

_NONE: Final[Checks] = {}
_TEXT: Final = "text/plain; charset=utf-8"

PREFIX = "nvidia_dra"
"""The start of the names of all metrics. prometheus_client calls it a namespace."""

HANGING_CALLS = "hanging_calls"
HANGING_CALLS_TEXT = "Calls to the NVIDIA driver that have not returned within their time limit."


class Server(socketserver.ThreadingTCPServer):
    """A server that stores the last answer to each probe, because a handler exists only for one request.

    If too many connections are open, it ends the oldest one of the client that has the most. So a client that opens
    connections without end neither uses up threads and descriptors of the process, nor locks kubelet's probes out.
    """

    allow_reuse_address = True

    def __init__(self, host: str, port: int, handler: type["ProbeHandler"]) -> None:
        """An empty host means all addresses, IPv4 and IPv6. Raises OSError if the address cannot be bound."""
        self.answered: dict[str, int] = {}
        self._guard = threading.Lock()
        self._open: dict[object, tuple[str, socket.socket]] = {}  # the client's address, and a copy of the descriptor
        self.address_family, address = _resolve(host, port)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a thread of its own."""
        copy = request.dup()  # TLS takes the descriptor over
        with self._guard:
            self._open[request] = str(client_address[0]), copy
            if len(self._open) > MOST_CONNECTIONS:
                ((most, _),) = collections.Counter(client for client, _ in self._open.values()).most_common(1)
                oldest = next(other for other, (client, _) in self._open.items() if client == most)
                self._end(oldest)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            with self._guard:
                self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._end(request)

    def _end(self, request: object) -> None:
        """End a connection, unless it was ended before. The caller has the lock."""
        entry = self._open.pop(request, None)
        if entry is not None:
            with entry[1] as copy, contextlib.suppress(OSError):  # the client is gone
                copy.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Called if a connection fails, for example because the client has closed it. This is not an error."""
        log.debug("request of %s ended early", client_address, exc_info=True)

    @contextmanager
    def running(self, thread: str) -> Iterator[None]:
        """A context in which the server answers requests."""
        threading.Thread(target=self.serve_forever, args=(_STOP_SECONDS,), name=thread, daemon=True).start()
        try:
            yield
        finally:
            self.shutdown()


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The first address of `host`. An empty host gives an address for IPv4 and IPv6 if the machine has both."""
    if not host:
        return (socket.AF_INET6, ("::", port)) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("0.0.0.0", port))  # noqa: S104
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), port)


class ProbeHandler(BaseHTTPRequestHandler):
    """Answers one request. Probes come every few seconds, so only failures and changes of probes are logged."""

    server: Server
    timeout = REQUEST_SECONDS
    sys_version = ""
    path = ""  # the path of an invalid request

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

    def send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        """Send the whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the server. An empty `host` stands for all addresses (IPv4 and IPv6), `port` 0 for any free port.

    If `port` is None, the server is disabled.
    """

    host: str = ""
    port: int | None = None
    metrics_path: str = "/metrics"


def _parse_address(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, int | None]:
    if not text:
        return "", None
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not bracketed):
        raise click.BadParameter(f"{text!r} must be HOST:PORT, [IPv6]:PORT or :PORT, such as :8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _parse_path(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if not text.startswith("/") or text in PROBES:
        raise click.BadParameter(f"{text!r} must start with / and must not be {' or '.join(PROBES)}")
    return text


def _endpoint(http_endpoint: tuple[str, int | None], metrics_path: str) -> Endpoint:
    return Endpoint(*http_endpoint, metrics_path)


endpoint_options = flags(
    "endpoint",
    _endpoint,
    flag(
        "--http-endpoint",
        default="",
        metavar="[HOST]:PORT",
        callback=_parse_address,
        help="The address on which to serve metrics, /healthz and /readyz, such as :8080. If empty, they are disabled.",
    ),
    flag("--metrics-path", default="/metrics", callback=_parse_path, help="The HTTP path of the metrics."),
)
"""Adds the flags --http-endpoint and --metrics-path, and passes an Endpoint as `endpoint`."""


@contextmanager
def serving(
    endpoint: Endpoint, registry: CollectorRegistry, *, live: Checks = _NONE, ready: Checks = _NONE
) -> Iterator[tuple[str, int] | None]:
    """A context with a running server. Its value is the address, None if the server is disabled.

    Raises UserError if the address cannot be bound.
    """
    if endpoint.port is None:
        yield None
        return
    pages = _Pages(endpoint.metrics_path, registry, {"/healthz": live, "/readyz": ready})
    with _Server(endpoint.host, endpoint.port, pages) as server, server.running("endpoints"):
        host, port = server.server_address[:2]
        log.info("serving %s, %s", endpoint.metrics_path, ", ".join(PROBES), extra={"host": host, "port": port})
        yield str(host), int(port)


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of the server."""

    metrics_path: str
    registry: CollectorRegistry
    probes: Mapping[str, Checks]

    def answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """The status, the content type and the body for a GET request of `path`."""
        from prometheus_client.exposition import choose_encoder

        path = path.partition("?")[0]
        if path == self.metrics_path:
            encode, content_type = choose_encoder(accept)
            return HTTPStatus.OK, content_type, encode(self.registry)
        if path in self.probes:
            reasons = [f"{name}: {reason}\n" for name, check in self.probes[path].items() if (reason := check())]
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            return status, _TEXT, ("".join(reasons) or "ok\n").encode()
        there = ", ".join([self.metrics_path, *self.probes])
        return HTTPStatus.NOT_FOUND, _TEXT, f"there is no {path} here, only {there}\n".encode()


class _Server(Server):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, pages: _Pages) -> None:
        self.pages = pages
        try:
            super().__init__(host, port, _Handler)
        except OSError as error:
            raise UserError(
                f"--http-endpoint {host}:{port} cannot be served: {error.strerror or error};"
                " use an address of this host and a free port, or leave the flag out to disable the endpoint"
            ) from None


class _Handler(ProbeHandler):
    server: _Server
    server_version = "dra-driver-gpu"

    def do_GET(self) -> None:
        try:
            status, content_type, body = self.server.pages.answer(self.path, self.headers.get("Accept", ""))
        except Exception:
            log.exception("%s cannot be answered", self.path)
            status, content_type, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"failed, see the log\n"
        self.send(status, content_type, body)

    do_HEAD = do_GET  # noqa: N815


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of the process itself: CPU time, memory, open files, and the interpreter."""
    # These are a second series for each counter, which is not needed.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def unexpected_errors(registry: CollectorRegistry) -> Count:
    """A counter for `dra_driver.process.containment`, with one number for each kind of work."""
    text = "Unexpected errors, by the work that failed. Other work continued."
    errors = Counter("unexpected_errors", text, ("driver", "work"), namespace=PREFIX, registry=registry)
    return lambda work: errors.labels(DRIVER_NAME, work).inc()
