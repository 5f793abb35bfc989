# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind as a process of the cluster knows them: a watch that keeps only facts.

A large cluster has thousands of objects of tens of kilobytes each, so only the fields that decisions need are kept.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, Unpack

from dra_driver.kube.api import ApiClient, Kind, Selection, Watcher
from dra_driver.kube.api.client import JSON

Key = tuple[str, str]
"""The name of an index, and a value in it."""
_REMEMBERED = 1000  # deleted objects


class Facts(Protocol):
    """The facts of one object, compared by value."""

    @property
    def uid(self) -> str:
        """The UID of the object."""


T = TypeVar("T", bound=Facts)


def _no_keys(_: object) -> Iterable[Key]:
    return ()


class Collection(Generic[T]):
    """The facts of the objects of one kind, without objects that do not matter. Thread-safe.

    `changed` is called with all facts that differ, before and after: once for each list (also if nothing differs), and
    for each event that matters. Most events are heartbeats, or concern objects that do not matter. `keys` are those
    under which `by` finds facts.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: Kind,
        facts: Callable[[JSON], T | None],
        changed: Callable[[list[T]], None],
        *,
        keep: Callable[[JSON], JSON] = lambda value: value,
        keys: Callable[[T], Iterable[Key]] = _no_keys,
        **selection: Unpack[Selection],
    ) -> None:
        self.kind = kind
        self._facts = facts
        self._changed = changed
        self._keep = keep
        self._keys = keys
        self._lock = threading.Lock()
        self._known: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._index: defaultdict[Key, dict[str, T]] = defaultdict(dict)
        self.listed = False
        self.watcher = Watcher(client, kind, keep=keep, on_list=self._replace, on_event=self._event, **selection)

    def all(self) -> list[T]:
        """All known facts."""
        with self._lock:
            return list(self._known.values())

    def get(self, uid: str) -> T | None:
        """The facts of one object."""
        with self._lock:
            return self._known.get(uid)

    def by(self, index: str, value: str) -> list[T]:
        """The facts with a key."""
        with self._lock:
            return list(self._index.get((index, value), {}).values())

    def values(self, index: str) -> set[str]:
        """All values of an index."""
        with self._lock:
            return {value for name, value in self._index if name == index}

    def store(self, value: JSON) -> None:
        """Take over the server's answer to our own write: the watch may lag behind it."""
        self._event("MODIFIED", self._keep(value))

    def forget(self, uid: str) -> None:
        """Remove an object that we deleted."""
        with self._lock:
            before = self._set(uid, None)
        self._changed([] if before is None else [before])

    def _replace(self, values: list[JSON]) -> None:
        found = {facts.uid: facts for value in values if (facts := self._facts(value)) is not None}
        with self._lock:
            differing = [new for uid, new in found.items() if self._known.get(uid) != new]
            differing += [old for uid, old in self._known.items() if found.get(uid) != old]
            for uid in self._known.keys() - found.keys():
                self._set(uid, None)
            for uid, new in found.items():
                self._set(uid, new)
            self._versions = {uid: _version(value) for value in values if (uid := value["metadata"]["uid"]) in found}
            self.listed = True
        self._changed(differing)

    def _event(self, event: str, value: JSON) -> None:
        uid, version = value["metadata"]["uid"], _version(value)
        facts = None if event == "DELETED" else self._facts(value)
        with self._lock:
            if version < max(self._versions.get(uid, 0), self._deleted.get(uid, 0)):
                return  # from before our own write, or our own write of an object that was deleted since then
            before = self._set(uid, facts)
            if facts is not None:
                self._versions[uid] = version
            elif event == "DELETED" and before is not None:
                self._deleted[uid] = version
                if len(self._deleted) > _REMEMBERED:
                    del self._deleted[next(iter(self._deleted))]
        if facts != before:
            self._changed([item for item in (before, facts) if item is not None])

    def _set(self, uid: str, facts: T | None) -> T | None:
        """Replace the facts of an object, and return the previous ones. The lock is held."""
        before = self._known.pop(uid, None)
        if before is not None:
            for key in self._keys(before):
                self._index[key].pop(uid, None)
                if not self._index[key]:
                    del self._index[key]
        if facts is None:
            self._versions.pop(uid, None)
        else:
            self._known[uid] = facts
            for key in self._keys(facts):
                self._index[key][uid] = facts
        return before


def _version(value: JSON) -> int:
    """The resource version as a number. Versions of one collection are ordered (guaranteed since Kubernetes 1.35)."""
    return int(value["metadata"].get("resourceVersion") or 0)
