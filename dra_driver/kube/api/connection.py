# SPDX-License-Identifier: Apache-2.0
"""Keep-alive HTTP connections to one API server, shared by the threads of a process.

Refused connections and overloaded servers are tried again. A request without an answer may have been carried out. It is
repeated once, because a write has a name or a resource version: if the first request did arrive, the second one gets a
conflict. A request without either must not be repeated (`ONCE`), except if the server asks for it.
"""

import logging
import os
import socket
import ssl
from typing import Any, Final, Self, TypedDict, Unpack

import urllib3
from urllib3 import BaseHTTPResponse
from urllib3.util import Retry, Timeout, Url, parse_url

from .errors import ConnectionConfigError, UnreachableError, text_of
from .kubeconfig import Credentials
from .proxy import Proxy, environment_proxy

_LONGEST_WAIT: Final = 5.0

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_READ_SECONDS = 20.0  # two attempts are within the 45 s of a call of kubelet
_KEEP_ALIVE = [  # detect within a minute that the peer is gone, also during an idle watch
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class _Retry(Retry):
    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """The pause that the server requests, up to a limit, because callers try again themselves and hold locks during
        the pause.
        """
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, _LONGEST_WAIT)


def _policy(read: int, statuses: tuple[int, ...]) -> _Retry:
    return _Retry(
        total=4,
        read=read,
        other=1,  # TLS errors: a refused certificate stays refused
        status_forcelist=statuses,
        allowed_methods=None,
        backoff_factor=0.1,
        backoff_jitter=0.2,
        raise_on_status=False,
    )


REPEATABLE: Final = _policy(1, (429, 502, 503, 504))
ONCE: Final = _policy(0, (429,))


class RequestOptions(TypedDict, total=False):
    """The parts of a request that most requests lack.

    `content_type` is that of the `body`, and `accept` requests another form than plain JSON. With `stream_seconds`, the
    body of the answer is read later in pieces, with pauses of at most this time. A request that is not `repeatable` is
    never sent again if the server may have received it; by default, requests are repeatable.
    """

    body: bytes | None
    content_type: str | None
    accept: str | None
    stream_seconds: float | None
    repeatable: bool


class Connection:
    """Requests to one server with one identity. Closed by `close` or as a context manager.

    `read_seconds` is the time limit of an answer. Raises ConnectionConfigError if the credentials or the proxy of
    the kubeconfig or environment cannot be used.
    """

    def __init__(
        self,
        credentials: Credentials,
        user_agent: str,
        *,
        connections: int = 8,
        read_seconds: float = _READ_SECONDS,
    ) -> None:
        url = _url(credentials.server)
        host = (url.host or "").strip("[]")
        self.server = credentials.server.rstrip("/")
        self.identity = credentials.identity
        self._prefix = (url.path or "").rstrip("/")
        self._token = credentials.token
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        self._timeout = Timeout(connect=_CONNECT_SECONDS, read=read_seconds)
        port = url.port or (80 if url.scheme == "http" else 443)
        self.proxy = credentials.proxy or environment_proxy(str(url.scheme), host, port)
        options: dict[str, Any] = {"maxsize": connections, "socket_options": _KEEP_ALIVE}
        if url.scheme == "https":
            options |= {
                "ssl_context": _tls(credentials),
                "assert_hostname": False if credentials.insecure else None,
                "server_hostname": credentials.server_name,
            }
        if self.proxy is None:
            manager = urllib3.PoolManager(**options)
        else:
            log.info("%s is reached through proxy %s", self.server, self.proxy)
            tls = _proxy_tls(credentials) if self.proxy.scheme == "https" else None
            if url.scheme == "http" and self.proxy.scheme != "socks5":
                self._prefix = f"{url.scheme}://{url.netloc}{self._prefix}"  # such a proxy needs the whole URL
                options["ssl_context"] = tls
            manager = self.proxy.manager(tls, options)
        self._pool = manager.connection_from_host(host, port, url.scheme)

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> urllib3.BaseHTTPResponse:
        """Send one request. Any HTTP status is an answer. Raises UnreachableError, also if there is no token at the
        moment.
        """
        headers = dict(self._headers)
        try:
            token = self._token()
        except ConnectionConfigError as error:
            raise UnreachableError(f"{method} {self.server}{path}: {error}") from None
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if accept := options.get("accept"):
            headers["Accept"] = accept
        if content_type := options.get("content_type"):
            headers["Content-Type"] = content_type
        pause = options.get("stream_seconds")
        timeout = self._timeout if pause is None else Timeout(connect=_CONNECT_SECONDS, read=pause)
        try:
            return self._pool.urlopen(
                method,
                self._prefix + path,
                body=options.get("body"),
                headers=headers,
                retries=REPEATABLE if options.get("repeatable", True) else ONCE,
                redirect=False,
                assert_same_host=False,  # the pool may have connections to a proxy
                timeout=timeout,
                preload_content=pause is None,
            )
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{method} {self.server}{path}: {_reason(error, self.proxy)}") from None

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reason(error: BaseException, proxy: Proxy | None) -> str:
    """The innermost cause, because that is what the user can act on."""
    cause: object = getattr(error, "reason", None)
    cause = cause if isinstance(cause, BaseException) else error
    if isinstance(cause, urllib3.exceptions.ProxyError):
        return f"proxy {proxy}: {cause.original_error}"
    text = text_of(cause)
    return text if proxy is None else f"{text} (through proxy {proxy})"


def _url(server: str) -> Url:
    try:
        url = parse_url(server)
    except urllib3.exceptions.LocationParseError:
        url = Url()
    if url.scheme not in ("http", "https") or not url.host or not server.isprintable():
        raise ConnectionConfigError(f"{server!r} is not the URL of a server (https://host:port)")
    return url


def _tls(credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=credentials.ca or None)
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: characters that PEM does not allow
        raise ConnectionConfigError(
            f"the certificate authority of {credentials.server} is not a PEM certificate: {error}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if credentials.insecure:
        log.warning("insecure-skip-tls-verify: the identity of %s is not verified", credentials.server)
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # would repeat this for each connection
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.client_certificate is not None:
        try:
            _load_certificate(context, *credentials.client_certificate)
        except (ssl.SSLError, ValueError) as error:
            raise ConnectionConfigError(
                f"the client certificate for {credentials.server} cannot be used: {error}"
            ) from None
    return context


def _proxy_tls(credentials: Credentials) -> ssl.SSLContext:
    """TLS for the connection to a proxy. It trusts the authorities of the system and, like kubectl, those of the
    cluster.
    """
    context = ssl.create_default_context()
    if credentials.ca:
        context.load_verify_locations(cadata=credentials.ca)
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a client certificate without writing its key to disk: OpenSSL needs a file, so it gets one in memory."""
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(f"{certificate}\n{key}\n".encode())
        # With an empty password, OpenSSL refuses an encrypted key instead of asking for its password on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
