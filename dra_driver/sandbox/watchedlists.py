# SPDX-License-Identifier: Apache-2.0
"""Lists of objects that are read again only after a change, for the stand-in controllers.

Each controller lists what it needs at every step, so one change of one object would cause a dozen requests.
"""

import threading
from collections.abc import Callable
from typing import Unpack

import urllib3

from ..kube.api import RequestOptions, Transport
from ..kube.kinds import Kind


class WatchedLists:
    """Sends requests over a connection, and answers a list of all objects of a watched kind with the last answer.

    The last answer is forgotten when the caller reports a change of the kind, and with every write to it. What the
    server changes because of a write, in objects of other kinds, is reported soon, as are changes of others. A kind
    whose watch has a problem is always read.
    """

    def __init__(self, connection: Transport) -> None:
        self.server = connection.server
        self.identity = connection.identity
        self._connection = connection
        self._guard = threading.Lock()
        self._problems: dict[str, Callable[[], str | None]] = {}
        self._answers: dict[str, dict[str, urllib3.BaseHTTPResponse]] = {}
        """By the path of the kind, and by the path with the parameters of the request."""
        self._changes = 0

    def add(self, kind: Kind, problem: Callable[[], str | None]) -> None:
        """Remember lists of this kind while its watch has no problem."""
        self._problems[kind.path()] = problem

    def forget(self, kind: Kind) -> None:
        """Read this kind again."""
        self._forget(kind.path())

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> urllib3.BaseHTTPResponse:
        """Send one request, like `Connection.request`, or return the last answer."""
        if method != "GET":
            try:
                return self._connection.request(method, path, **options)
            finally:
                self._forget(_collection(path))
        kind = path.partition("?")[0]
        problem = self._problems.get(kind)
        is_plain = options.get("stream_seconds") is None and options.get("accept") is None
        if problem is None or problem() is not None or not is_plain:
            return self._connection.request(method, path, **options)
        with self._guard:
            known = self._answers.setdefault(kind, {}).get(path)
            changes = self._changes
        if known is not None:
            return known
        answer = self._connection.request(method, path, **options)
        with self._guard:
            if answer.status == 200 and changes == self._changes:  # otherwise, it may be older than the change
                self._answers.setdefault(kind, {})[path] = answer
        return answer

    def _forget(self, kind: str) -> None:
        with self._guard:
            self._changes += 1
            self._answers.pop(kind, None)


def _collection(path: str) -> str:
    """The path of all objects of the kind to which the path of a namespace, an object or a subresource belongs."""
    parts = path.partition("?")[0].split("/")
    version = 3 if parts[1] == "api" else 4
    rest = parts[version:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return "/".join([*parts[:version], rest[0]])
