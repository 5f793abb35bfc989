# SPDX-License-Identifier: Apache-2.0
"""The answer to a watch: events, line by line, for as long as the server sends them."""

import json
from collections.abc import Iterator
from typing import Any

import urllib3

from .errors import UnreachableError, error_of_status

JSON = dict[str, Any]

_CHUNK = 1 << 16


class EventStream(Iterator[tuple[str, JSON]]):
    """(type, object) of each change, ADDED, MODIFIED, DELETED or BOOKMARK, until the server ends the stream.

    Every object has a resourceVersion. `next` may raise ApiError, GoneError among them. `end` may be called from
    another thread, while one waits in `next`.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, path: str) -> None:
        self._response = response
        self._path = path
        self._events = self._read()

    def __next__(self) -> tuple[str, JSON]:
        return next(self._events)

    def end(self) -> None:
        """Cut the connection, so that whoever waits for an event gets an UnreachableError."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # it has ended already

    def _read(self) -> Iterator[tuple[str, JSON]]:
        try:
            for line in self._lines():
                yield _event(line, self._path)
        finally:
            self._response.close()

    def _lines(self) -> Iterator[bytes]:
        """The lines of the body, as they come in."""
        rest = b""
        try:
            for chunk in self._response.stream(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, lines)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"watch {self._path}: {error}") from None


def _event(line: bytes, path: str) -> tuple[str, JSON]:
    try:
        event = json.loads(line)
        kind, value = str(event["type"]), event["object"]
        if kind != "ERROR" and not value["metadata"]["resourceVersion"]:
            raise ValueError("an object without a resourceVersion")
    except (ValueError, KeyError, TypeError):
        raise UnreachableError(f"watch {path}: the server sent {line[:200]!r}, which is not an event") from None
    if kind == "ERROR":
        raise error_of_status(f"watch {path}", value)
    return kind, value
