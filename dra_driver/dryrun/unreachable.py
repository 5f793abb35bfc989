# SPDX-License-Identifier: Apache-2.0
"""Why an API server cannot be reached, in the words of kubectl (client-go, and Go's net and crypto/x509).

The exceptions of urllib3 cannot be told apart by their base classes: a refused connection (NewConnectionError) and an
unknown host (NameResolutionError) are TimeoutErrors, too. So the cause decides.
"""

import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Final

from urllib3 import exceptions
from urllib3.util import parse_url

from ..kube.api.errors import text_of

_UNABLE: Final = "Unable to connect to the server"
_EXPIRED: Final = (9, 10)
_OTHER_NAME: Final = (62, 64)
"""Codes of OpenSSL (x509_vfy.h): not yet valid and expired; another host name and another IP address."""
_WORDS: Final[Mapping[int, str]] = {
    errno.EHOSTUNREACH: "connect: no route to host",
    errno.ENETUNREACH: "connect: network is unreachable",
    errno.ECONNRESET: "read: connection reset by peer",
    errno.ETIMEDOUT: "i/o timeout",
}


def unreachable(error: exceptions.HTTPError, server: str, seconds: float) -> str:
    """The text for an error of urllib3. `server` is the URL, and `seconds` the time limit of an answer."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, exceptions.ProxyError):
        return f"{_UNABLE}: proxyconnect tcp: {text_of(reason.original_error)}"
    url = parse_url(server)
    host = url.host or server
    cause = _cause_of(reason)
    if isinstance(reason, exceptions.NameResolutionError) or isinstance(cause, socket.gaierror):
        return f"{_UNABLE}: dial tcp: lookup {host}: no such host (server {server})"
    if isinstance(cause, ConnectionRefusedError):
        return f"The connection to the server {url.netloc} was refused - did you specify the right host or port?"
    if isinstance(cause, ssl.SSLError):
        return f"{_UNABLE}: {_tls(cause)} (server {server})"
    if isinstance(cause, OSError) and (words := _WORDS.get(cause.errno or 0)):
        return f"{_UNABLE}: dial tcp {url.netloc}: {words}"
    if isinstance(reason, exceptions.TimeoutError) and not isinstance(reason, exceptions.NewConnectionError):
        connecting = isinstance(reason, exceptions.ConnectTimeoutError)
        how = "dial tcp: i/o timeout" if connecting else "timeout exceeded while awaiting headers"
        return f"{_UNABLE}: {how}: {server} does not answer within {seconds:g} s (see --request-timeout)"
    return f"{_UNABLE}: {server}: {text_of(reason)}"


def _cause_of(reason: BaseException) -> BaseException | None:
    """The exception of the socket or of TLS that urllib3 has wrapped."""
    if isinstance(reason, exceptions.SSLError | exceptions.ProtocolError):
        return next((arg for arg in reversed(reason.args) if isinstance(arg, BaseException)), None)
    return reason.__cause__


def _tls(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return "http: server gave HTTP response to HTTPS client"
        return f"remote error: tls: {error.reason or error}"
    failed = "tls: failed to verify certificate: x509"
    if error.verify_code in _EXPIRED:
        return f"{failed}: certificate has expired or is not yet valid"
    if error.verify_code in _OTHER_NAME:
        return f"{failed}: certificate is valid for other names: {error.verify_message.rstrip('.')}"
    return f"{failed}: certificate signed by unknown authority ({error.verify_message})"
