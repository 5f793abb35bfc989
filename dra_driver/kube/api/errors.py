# SPDX-License-Identifier: Apache-2.0
"""Errors of requests to the API server."""

import re
from collections.abc import Mapping
from typing import Any, Final

from ...errors import DriverError
from .answers import decode_answer

_LONGEST: Final = 4000
"""The number of characters of a message. The API server repeats invalid values, which can have megabytes."""

_CONNECTION = re.compile(r"HTTPS?Connection(Pool)?\(.*?\): ")  # with which urllib3 begins many texts


class ConnectionConfigError(DriverError):
    """The API server cannot be reached with this configuration. The text tells what to change."""


class ApiError(DriverError):
    """A request failed."""


class UnreachableError(ApiError):
    """No answer: the connection was refused, timed out, was closed, or is not trusted."""


class StatusError(ApiError):
    """The server answered with an error. `status` is the HTTP code, and `reason` the API's name of the error.
    `retry_after` is the pause in seconds that the server requests, or 0.
    """

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}" if reason else f"{request}: {status}: {message}")
        self.request = request
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = 0.0

    @property
    def action(self) -> str:
        """The requested action, in terms of RBAC: `list resourceslices.resource.k8s.io`."""
        method, _, url = self.request.rpartition(" ")
        path, _, query = url.partition("?")
        group, *parts = path.strip("/").split("/")[1:]
        if path.startswith("/apis/"):
            parts = parts[1:]
        else:
            group = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            parts = parts[2:]
        if not parts:
            return f"{method.lower()} {path}"
        verb = "get" if len(parts) > 1 else "watch" if method == "watch" or "watch=1" in query else "list"
        return f"{verb if method in ('GET', 'watch') else method.lower()} {'.'.join(filter(None, (parts[0], group)))}"


class NotFoundError(StatusError):
    """404: there is no such object or API."""


class ConflictError(StatusError):
    """409: the object has changed since it was read, or exists already."""


class GoneError(StatusError):
    """410: the resource version is too old to watch from."""


_CLASSES: Mapping[int, type[StatusError]] = {404: NotFoundError, 409: ConflictError, 410: GoneError}


def text_of(error: BaseException) -> str:
    """The text of an error of urllib3, without the objects that it also has: the inner cause, if there is one."""
    last = error.args[-1] if error.args else None
    return _CONNECTION.sub("", str(last if isinstance(last, str | BaseException) else error))


def status_error(request: str, status: int, body: bytes, retry_after: str = "") -> StatusError:
    """The error of an answer. `body` is a Status object, or any text from a proxy. `retry_after` is the header with
    this name.
    """
    error = _status_error(request, status, body)
    if retry_after.isdecimal():
        error.retry_after = float(retry_after)
    return error


def _status_error(request: str, status: int, body: bytes) -> StatusError:
    try:
        value = decode_answer(body)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.get("kind") == "Status":
        return error_of_status(request, value, status)
    text = body.decode(errors="replace").strip() or "no message"
    return _CLASSES.get(status, StatusError)(request, status, "", text[:500])


def error_of_status(request: str, value: Mapping[str, Any], fallback: int = 500) -> StatusError:
    """The error in a Status object."""
    code = int(value.get("code") or fallback)
    reason, message = str(value.get("reason") or ""), str(value.get("message") or "no message")
    message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…"
    return _CLASSES.get(code, StatusError)(request, code, reason, message)
