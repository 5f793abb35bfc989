# SPDX-License-Identifier: Apache-2.0
"""Lists of objects that follow the watches of their kinds, for the stand-in controllers.

Each controller lists what it needs at every step, so one change of one object would cause a dozen requests.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..kube.api import ApiClient, Transport
from ..kube.api.client import Page
from ..kube.kinds import Kind

JSON = dict[str, Any]


class WatchedLists(ApiClient):
    """A client that answers a list of all objects of a watched kind from the last answer.

    The last answer is brought up to date with each object that a write returns, and with each change that the caller
    reports from the watch of the kind. It is forgotten after other writes to the kind, as the watch reports these only
    later. A kind whose watch has a problem is always read. All callers get the same objects, and must not change them.
    """

    def __init__(self, connection: Transport) -> None:
        super().__init__(connection)
        self._guard = threading.Lock()
        self._problems: dict[str, Callable[[], str | None]] = {}  # these three by the path of the kind
        self._lists: dict[str, Page] = {}
        self._changes: Counter[str] = Counter()

    def add(self, kind: Kind, problem: Callable[[], str | None]) -> None:
        """Remember lists of this kind while its watch has no problem."""
        self._problems[kind.path()] = problem

    def forget(self, kind: Kind) -> None:
        """Read this kind again."""
        self._update(kind.path(), None)

    def change(self, kind: Kind, event: str, value: JSON) -> None:
        """Take over an object of this kind that the watch has reported, with the type of the event."""
        change = _without if event == "DELETED" else _with
        self._update(kind.path(), lambda known: change(known, value))

    def list(self, kind: Kind, **options: Any) -> Page:
        """See `ApiClient.list`. Only a list without options is remembered."""
        path = kind.path()
        problem = self._problems.get(path)
        if problem is None or problem() is not None or options:
            return super().list(kind, **options)
        with self._guard:
            known, changes = self._lists.get(path), self._changes[path]
        if known is None:
            known = super().list(kind)
            with self._guard:
                if changes == self._changes[path]:  # otherwise, it may be older than the change
                    self._lists[path] = known
        return Page([*known.items], known.resource_version)

    def _json(self, method: str, path: str, *rest: Any, **options: Any) -> JSON:
        if method == "GET":
            return super()._json(method, path, *rest, **options)
        kind = _collection(path)
        try:
            answer = super()._json(method, path, *rest, **options)
        except BaseException:
            self._update(kind, None)
            raise
        returned = method != "DELETE" and _is_stored(answer, path, kind)
        self._update(kind, (lambda known: _with(known, answer, is_seen=False)) if returned else None)
        return answer

    def _update(self, path: str, change: Callable[[Page], Page] | None) -> None:
        """Change the list of a kind, or forget it."""
        with self._guard:
            self._changes[path] += 1
            known = self._lists.pop(path, None)
            if known is not None and change is not None:
                self._lists[path] = change(known)


def _with(known: Page, value: JSON, *, is_seen: bool = True) -> Page:
    """A list with this version of an object, unless it has a newer one. With `is_seen`, also what happened before this
    version is in the list.
    """
    version = _version(value)
    if version <= int(known.resource_version):
        return known
    objects = {_key(item): item for item in known.items}
    before = objects.get(_key(value))
    if before is None or _version(before) < version:
        objects[_key(value)] = value
    return Page([objects[key] for key in sorted(objects)], str(version) if is_seen else known.resource_version)


def _without(known: Page, value: JSON) -> Page:
    """A list after an object was deleted."""
    if _version(value) <= int(known.resource_version):
        return known
    uid = value["metadata"]["uid"]
    return Page([item for item in known.items if item["metadata"]["uid"] != uid], str(_version(value)))


def _version(value: JSON) -> int:
    """The version of an object. It grows with every change of the cluster."""
    return int(value["metadata"]["resourceVersion"])


def _key(value: JSON) -> tuple[str, str]:
    """The namespace and the name, by which API servers order lists."""
    return value["metadata"].get("namespace", ""), value["metadata"]["name"]


def _is_stored(answer: JSON, path: str, kind: str) -> bool:
    """Whether the answer to a write is an object as it is stored now: not that of another subresource than the status,
    or of a dry run. An object that is being deleted may have gone with its last finalizer.
    """
    meta = answer.get("metadata") or {}
    ends = (f"/{kind.rpartition('/')[2]}", f"/{meta.get('name')}", "/status")
    return "uid" in meta and "deletionTimestamp" not in meta and path.endswith(ends)


def _collection(path: str) -> str:
    """The path of all objects of the kind to which the path of a namespace, an object or a subresource belongs."""
    parts = path.partition("?")[0].split("/")
    version = 3 if parts[1] == "api" else 4
    rest = parts[version:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return "/".join([*parts[:version], rest[0]])
