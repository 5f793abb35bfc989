# SPDX-License-Identifier: Apache-2.0
"""The HTTPS server of the webhook, with one path for reviews and two for kubelet's probes.

Each connection has one request and a thread of its own, on which also the TLS handshake runs, so that a slow client
does not delay others. The certificate and its key are two files, which may be replaced while the process runs.
"""

import json
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from dra_driver.process.command import UserError
from dra_driver.process.endpoints import PROBES, REQUEST_SECONDS, ProbeHandler, Server

from ..errors import ReviewError, TlsError
from .review import answer

log = logging.getLogger(__name__)

_Version = tuple[tuple[int, int, int], ...]

REVIEW_PATH: Final = "/validate-resource-claim-parameters"

_LONGEST_BODY: Final = 8 << 20  # bytes: an object before and after an update, of at most 3 MiB each


class TlsFiles:
    """A TLS context for servers, which is loaded again when the files have changed. May be used by several threads.

    The files may be invalid, or belong to two certificates because only one of them was replaced yet. That is reported
    once, and the last valid certificate stays in use.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises TlsError."""
        self._certificate = certificate
        self._key = key
        self._lock = threading.Lock()
        self._version = self._look()
        self._context = self._load()
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the current files cannot be used, or None."""
        return self._problem

    def context(self) -> ssl.SSLContext:
        """The context for the next client."""
        with self._lock:
            version = self._look()
            if version != self._version:
                self._version = version
                try:
                    self._context, self._problem = self._load(), None
                    log.info("the certificate was replaced", extra={"file": str(self._certificate)})
                except TlsError as error:
                    self._problem = str(error)
                    log.error("%s; the old certificate stays in use", error)
            return self._context

    def _look(self) -> _Version:
        """A value that changes with the files."""
        found = []
        for path in (self._certificate, self._key):
            try:
                stat = path.stat()
            except OSError:
                continue
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
        except OSError as error:  # including ssl.SSLError
            files = f"certificate {self._certificate} with key {self._key}"
            raise TlsError(f"{files} cannot be used: {error.strerror or error}") from None
        return context


@contextmanager
def serving(port: int, tls: TlsFiles) -> Iterator[int]:
    """Serve on all addresses during the context, then answer the remaining requests. Yields the port (for 0: a free
    one). Raises UserError if the port cannot be used.
    """
    with _Server(port, tls) as server, server.running("webhook"):
        yield int(server.server_address[1])


class _Server(Server):
    request_queue_size = 64
    daemon_threads = False  # so that closing waits for the remaining answers

    def __init__(self, port: int, tls: TlsFiles) -> None:
        self.tls = tls
        try:
            super().__init__("", port, _Handler)
        except OSError as error:
            raise UserError(
                f"--port {port} cannot be served: {error.strerror or error}; give one that is free"
            ) from None

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(REQUEST_SECONDS)
        with self.tls.context().wrap_socket(request, server_side=True) as wrapped:
            _Handler(wrapped, client_address, self)


class _Handler(ProbeHandler):
    server: _Server
    server_version = "dra-webhook"

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        path = self.path.partition("?")[0]
        if path not in PROBES:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {path} here, only {REVIEW_PATH}, {', '.join(PROBES)}")
            return
        problem = self.server.tls.problem if path == "/readyz" else None
        self._send(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, "text/plain", problem or "ok")

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a review needs a Content-Length")
        elif int(length) > _LONGEST_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a review may have {_LONGEST_BODY} bytes, not {length}")
        else:
            body = self.rfile.read(int(length))  # always, because a client that still writes does not read the answer
            if self.path.partition("?")[0] == REVIEW_PATH:
                self._review(body)
            else:
                self._refuse(HTTPStatus.NOT_FOUND, f"reviews are answered at {REVIEW_PATH}")

    def _review(self, body: bytes) -> None:
        try:
            given = answer(json.loads(body))
        except (ReviewError, ValueError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"this is not a review: {error}")
            return
        except Exception:
            log.exception("a review cannot be answered")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", "failed, see the log of the webhook")
            return
        if not given["response"]["allowed"]:
            log.info("refused: %s", given["response"]["status"]["message"], extra={"uid": given["response"]["uid"]})
        self._send(HTTPStatus.OK, "application/json", json.dumps(given, separators=(",", ":")))

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        log.warning("%s %s: %s", self.command, self.path, text)
        self._send(status, "text/plain", text)

    def _send(self, status: HTTPStatus, content_type: str, text: str) -> None:
        self.send(status, content_type, f"{text}\n".encode())
