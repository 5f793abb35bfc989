# SPDX-License-Identifier: Apache-2.0
"""Keep-alive HTTP to one API server, shared by the threads of a process."""

import os
import socket
import ssl
from typing import Any

import urllib3
from urllib3.util import Retry, Timeout, parse_url

from .credentials import Credentials
from .errors import UnreachableError

_ORDINARY = Timeout(connect=5.0, read=30.0)
# Refused and overloaded requests are tried again; every write carries a name or a resource version, so that
# one which did arrive after all is answered with a conflict instead of being done twice.
_RETRY = Retry(
    total=4,
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=None,
    backoff_factor=0.1,
    backoff_jitter=0.2,
    raise_on_status=False,
)
_KEEP_ALIVE = [  # a dead peer is noticed within a minute, also on an idle watch
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Connection:
    """Requests to one server with one identity. Closed by `close` or as a context manager."""

    def __init__(self, credentials: Credentials, user_agent: str, connections: int = 8) -> None:
        url = parse_url(credentials.server)
        if url.scheme not in ("http", "https") or not url.host:
            raise UnreachableError(f"{credentials.server!r} is not the URL of a server (https://host:port)")
        self.server = credentials.server
        self._prefix = (url.path or "").rstrip("/")
        self._token = credentials.token
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        common: dict[str, Any] = {"maxsize": connections, "timeout": _ORDINARY, "socket_options": _KEEP_ALIVE}
        host = url.host.strip("[]")
        if url.scheme == "http":
            self._pool = urllib3.HTTPConnectionPool(host, url.port or 80, **common)
        else:
            self._pool = urllib3.HTTPSConnectionPool(
                host,
                url.port or 443,
                ssl_context=_tls(credentials),
                assert_hostname=False if credentials.insecure else None,
                server_hostname=credentials.server_name,
                **common,
            )

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str | None = None,
        stream_seconds: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request; any HTTP status is an answer. With `stream_seconds` the body is left to be read piece by
        piece, with that long a pause at most. Raises UnreachableError, and ConfigError when there is no token.
        """
        headers = dict(self._headers)
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if content_type:
            headers["Content-Type"] = content_type
        streamed = stream_seconds is not None
        try:
            return self._pool.urlopen(
                method,
                self._prefix + path,
                body=body,
                headers=headers,
                retries=_RETRY,
                redirect=False,
                timeout=Timeout(connect=5.0, read=stream_seconds) if streamed else _ORDINARY,
                preload_content=not streamed,
            )
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{method} {self.server}{path}: {_reason(error)}") from None

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reason(error: BaseException) -> str:
    """The innermost cause, which is what a reader can act on."""
    cause: object = getattr(error, "reason", None)
    return str(cause if isinstance(cause, BaseException) else error)


def _tls(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=credentials.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.client_certificate is not None:
        _load_certificate(context, *credentials.client_certificate)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Give the context a key that never touches a disk: OpenSSL wants a file, so it gets one in memory."""
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(f"{certificate}\n{key}\n".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
