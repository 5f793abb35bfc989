# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between here and the API server."""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import DriverError


class ConfigError(DriverError):
    """There is no usable way to the API server; the text says what to give."""


class ApiError(DriverError):
    """A request did not succeed."""


class UnreachableError(ApiError):
    """No answer: refused, timed out, cut off, or not trusted."""


class StatusError(ApiError):
    """The server answered with an error. `status` is the HTTP code, `reason` the API's word for it, `retry_after` the
    seconds that the server asks to be left alone for, 0 when it does not.
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
        """What was asked for, as rights name it: `list resourceslices.resource.k8s.io`."""
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
    """404: there is no such object, or no such API."""


class ConflictError(StatusError):
    """409: the object changed meanwhile, or exists already."""


class GoneError(StatusError):
    """410: the resource version is too old to watch from."""


_CLASSES: Mapping[int, type[StatusError]] = {404: NotFoundError, 409: ConflictError, 410: GoneError}


def status_error(request: str, status: int, body: bytes, retry_after: str = "") -> StatusError:
    """The error for an answer that is not a success; `body` is a Status object, or whatever a proxy said, and
    `retry_after` the header of that name.
    """
    error = _status_error(request, status, body)
    if retry_after.isdecimal():
        error.retry_after = float(retry_after)
    return error


def _status_error(request: str, status: int, body: bytes) -> StatusError:
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.get("kind") == "Status":
        return error_of_status(request, value, status)
    text = body.decode(errors="replace").strip() or "no message"
    return _CLASSES.get(status, StatusError)(request, status, "", text[:500])


def error_of_status(request: str, value: Mapping[str, Any], fallback: int = 500) -> StatusError:
    """The error that a Status object describes."""
    code = int(value.get("code") or fallback)
    reason, message = str(value.get("reason") or ""), str(value.get("message") or "no message")
    return _CLASSES.get(code, StatusError)(request, code, reason, message)
