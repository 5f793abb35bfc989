# SPDX-License-Identifier: Apache-2.0
"""The stored objects, their revisions, and the recent history of every collection.

The store keeps etcd's contract: one counter of revisions for all objects, which every write increments, and a history
of each collection. All code runs on the server's event loop, so no reader sees a partial write. A stored object is
never changed, and its encoded JSON is kept with it. Therefore a read is a look-up, and an object is encoded once for
all watchers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .kinds import Served
from .objects import Object, encode
from .opaque import encode_with_texts, has_opaque_objects

HISTORY: Final = 10_000
"""The number of events that a collection keeps. A watch that needs older events gets 410 Gone."""


class ChangeType(StrEnum):
    """The type of a change."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class StoredObject:
    """An object at one revision."""

    __slots__ = ("_bodies", "key", "object", "revision")

    def __init__(self, key: str, obj: Object, revision: int) -> None:
        self.key = key
        self.object = obj
        self.revision = revision
        self._bodies: dict[bytes, bytes] = {}

    def body(self, served: Served) -> bytes:
        """Return the object's JSON in a served version, without `kind` and `apiVersion`."""
        found = self._bodies.get(served.prefix)
        if found is None:
            converted = served.kind.from_stored(self.object, served.version)
            is_opaque = has_opaque_objects(served.kind.group, served.kind.name)
            whole = encode_with_texts(converted) if is_opaque else encode(converted)
            found = self._bodies[served.prefix] = whole[1:]
        return found

    def encoded(self, served: Served) -> bytes:
        """Return the object's JSON in a served version."""
        return served.prefix + self.body(served)

    @property
    def namespace(self) -> str:
        """The object's namespace. Empty for cluster-scoped objects."""
        namespace: str = self.object["metadata"].get("namespace", "")
        return namespace


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """A change of one object. `record` is the new state, or the last state of a deleted object."""

    change: ChangeType
    record: StoredObject
    previous: StoredObject | None

    @property
    def gone(self) -> StoredObject:
        """The previous state at this revision. Watchers whose selectors the object no longer matches get it."""
        assert self.previous is not None, "an added object has not left anything"
        return _stamped(self.previous.key, self.previous.object, self.record.revision)


class EventQueue:
    """A queue of a collection's events. Read `pending`, then wait for `wake`."""

    __slots__ = ("cut_off", "pending", "wake")

    def __init__(self) -> None:
        self.pending: deque[ObjectEvent] = deque()
        self.wake = asyncio.Event()
        self.cut_off = False
        """True after the server has ended the watch."""

    def offer(self, event: ObjectEvent) -> None:
        """Add an event."""
        self.pending.append(event)
        self.wake.set()

    def end(self) -> None:
        """End the watch without an error, like a closed connection."""
        self.cut_off = True
        self.wake.set()


class StoredCollection:
    """The objects of one resource by key: `namespace/name`, or `name` for cluster-scoped objects."""

    def __init__(self) -> None:
        self.records: dict[str, StoredObject] = {}
        self.history: deque[ObjectEvent] = deque()
        self.watchers: set[EventQueue] = set()
        self.floor = 0
        """The revision up to which changes are no longer kept."""
        self._sorted: list[str] | None = None

    def ordered(self) -> list[str]:
        """Return all keys in order. Callers must not change the list."""
        if self._sorted is None:
            self._sorted = sorted(self.records)
        return self._sorted

    def add(self, event: ObjectEvent) -> None:
        """Apply a change and notify the watchers."""
        key = event.record.key
        if event.change is ChangeType.DELETED:
            del self.records[key]
            self._sorted = None
        else:
            if event.change is ChangeType.ADDED:
                self._sorted = None
            self.records[key] = event.record
        if len(self.history) >= HISTORY:
            self.floor = self.history.popleft().record.revision
        self.history.append(event)
        for watcher in self.watchers:
            watcher.offer(event)

    def since(self, revision: int) -> Iterator[ObjectEvent]:
        """Return the events after `revision`, oldest first."""
        found = []
        for event in reversed(self.history):
            if event.record.revision <= revision:
                break
            found.append(event)
        return reversed(found)


class Store:
    """All collections. The store calls `listeners` after each change, on the event loop."""

    def __init__(self) -> None:
        self.revision = 1
        self._collections: dict[str, StoredCollection] = {}
        self.listeners: list[Callable[[str, ObjectEvent], None]] = []

    def collection(self, name: str) -> StoredCollection:
        """Return the collection of that name. A new collection is empty."""
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = StoredCollection()
        return found

    def names(self) -> list[str]:
        """Return the names of all collections."""
        return list(self._collections)

    def get(self, collection: str, key: str) -> StoredObject | None:
        """Return the record, or None."""
        return self.collection(collection).records.get(key)

    def put(self, collection: str, key: str, obj: Object) -> StoredObject:
        """Store `obj` with the next resourceVersion. It must not be changed afterwards."""
        previous = self.get(collection, key)
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        record = StoredObject(key, obj, self.revision)
        change = ChangeType.ADDED if previous is None else ChangeType.MODIFIED
        self._publish(collection, ObjectEvent(change, record, previous))
        return record

    def delete(self, collection: str, key: str, last: Object | None = None) -> StoredObject:
        """Remove an object and return its last state (`last`, if the delete changes it) at the new revision."""
        previous = self.collection(collection).records[key]
        self.revision += 1
        record = _stamped(key, last or previous.object, self.revision)
        self._publish(collection, ObjectEvent(ChangeType.DELETED, record, previous))
        return record

    def _publish(self, collection: str, event: ObjectEvent) -> None:
        self.collection(collection).add(event)
        for listener in self.listeners:
            listener(collection, event)

    def drop(self, collection: str) -> None:
        """Remove a collection and end its watches."""
        self.end_watches(collection)
        del self._collections[collection]

    def end_watches(self, collection: str = "") -> None:
        """End the watches of a collection, or of all. Clients reconnect."""
        for name in [collection] if collection else self._collections:
            for watcher in self.collection(name).watchers:
                watcher.end()


def _stamped(key: str, obj: Object, revision: int) -> StoredObject:
    changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
    return StoredObject(key, changed, revision)
