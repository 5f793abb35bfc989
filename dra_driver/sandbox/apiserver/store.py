# SPDX-License-Identifier: Apache-2.0
"""The objects, their revisions, and the recent past of every collection.

It keeps etcd's contract: one counter of revisions for everything, every write takes the next, and
what happened since a revision can be had until it is compacted. All of it runs on the server's event loop, so
a write is never seen half done. A stored object is never changed; its encoded JSON is kept with
it, so that a read costs a look-up and a watch event is encoded once for all watchers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from .kinds import Served
from .objects import Object, encode

HISTORY: Final = 10_000
"""Events that a collection remembers; a watch from before them gets 410 Gone."""
BACKLOG: Final = 10_000
"""Events that a watcher may lag behind before it is cut off."""


class Change(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Record:
    """An object as of one revision."""

    __slots__ = ("_bodies", "key", "object", "revision")

    def __init__(self, key: str, obj: Object, revision: int) -> None:
        self.key = key
        self.object = obj
        self.revision = revision
        self._bodies: dict[bytes, bytes] = {}

    def body(self, served: Served) -> bytes:
        """The object's JSON in a served version, from after its `kind` and `apiVersion` on."""
        found = self._bodies.get(served.prefix)
        if found is None:
            converted = served.kind.from_stored(self.object, served.version)
            found = self._bodies[served.prefix] = encode(converted)[1:]
        return found

    def encoded(self, served: Served) -> bytes:
        """The object's JSON in a served version."""
        return served.prefix + self.body(served)

    @property
    def namespace(self) -> str:
        """The object's namespace; empty for a cluster-scoped one."""
        namespace: str = self.object["metadata"].get("namespace", "")
        return namespace


class Event:
    """A change of one object. `record` is its state after, or its last one when it was deleted."""

    __slots__ = ("_gone", "change", "frames", "previous", "record", "revision")

    def __init__(self, change: Change, record: Record, previous: Record | None, revision: int) -> None:
        self.change = change
        self.record = record
        self.previous = previous
        self.revision = revision
        self.frames: dict[tuple[str, bytes], bytes] = {}
        """Encoded watch frames, by type and version."""
        self._gone: Record | None = None

    @property
    def gone(self) -> Record:
        """The state before, as of this revision: what a watcher is told whose selector it left."""
        if self._gone is None:
            assert self.previous is not None, "an added object has not left anything"
            self._gone = _stamped(self.previous.key, self.previous.object, self.revision)
        return self._gone


class Watcher:
    """Receives a collection's events from some moment on. Read `pending`, then wait for `wake`."""

    __slots__ = ("cut_off", "pending", "wake")

    def __init__(self) -> None:
        self.pending: deque[Event] = deque()
        self.wake = asyncio.Event()
        self.cut_off = False
        """Set when the server ends the watch: it lagged, was dropped, or its kind is gone."""

    def offer(self, event: Event) -> None:
        """Adds an event, or cuts the watcher off when it has not kept up."""
        if len(self.pending) >= BACKLOG:
            self.end()
        else:
            self.pending.append(event)
            self.wake.set()

    def end(self) -> None:
        """Ends the watch without an error, as a closed connection does."""
        self.cut_off = True
        self.wake.set()


class Collection:
    """The objects of one resource, by key: `namespace/name`, or `name` when cluster scoped."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.history: deque[Event] = deque()
        self.watchers: set[Watcher] = set()
        self.floor = 0
        """No change up to this revision is remembered."""
        self._sorted: list[str] | None = None

    def ordered(self) -> list[str]:
        """All keys in order. Do not change the list."""
        if self._sorted is None:
            self._sorted = sorted(self.records)
        return self._sorted

    def add(self, event: Event) -> None:
        """Applies a change and tells the watchers."""
        key = event.record.key
        if event.change is Change.DELETED:
            del self.records[key]
            self._sorted = None
        else:
            if event.change is Change.ADDED:
                self._sorted = None
            self.records[key] = event.record
        if len(self.history) >= HISTORY:
            self.floor = self.history.popleft().revision
        self.history.append(event)
        for watcher in self.watchers:
            watcher.offer(event)

    def since(self, revision: int) -> Iterator[Event]:
        """Events after `revision`, oldest first."""
        found = []
        for event in reversed(self.history):
            if event.revision <= revision:
                break
            found.append(event)
        return reversed(found)


class Store:
    """All collections. `listeners` are called after each change, on the event loop."""

    def __init__(self) -> None:
        self.revision = 1
        self._collections: dict[str, Collection] = {}
        self.listeners: list[Callable[[str, Event], None]] = []

    def collection(self, name: str) -> Collection:
        """The collection of that name; it begins to exist when it is asked for."""
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = Collection()
        return found

    def names(self) -> list[str]:
        """The names of all collections."""
        return list(self._collections)

    def get(self, collection: str, key: str) -> Record | None:
        """The record, or None."""
        return self.collection(collection).records.get(key)

    def put(self, collection: str, key: str, obj: Object) -> Record:
        """Stores `obj`, which gets the next resourceVersion and must not be changed afterwards."""
        previous = self.get(collection, key)
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        record = Record(key, obj, self.revision)
        change = Change.ADDED if previous is None else Change.MODIFIED
        self._publish(collection, Event(change, record, previous, self.revision))
        return record

    def delete(self, collection: str, key: str, last: Object | None = None) -> Record:
        """Removes an object; answers with its last state (`last`, when the delete changes it) at the new revision."""
        previous = self.collection(collection).records[key]
        self.revision += 1
        record = _stamped(key, last or previous.object, self.revision)
        self._publish(collection, Event(Change.DELETED, record, previous, self.revision))
        return record

    def _publish(self, collection: str, event: Event) -> None:
        self.collection(collection).add(event)
        for listener in self.listeners:
            listener(collection, event)

    def drop(self, collection: str) -> None:
        """Forgets a collection and ends its watches."""
        gone = self._collections.pop(collection, None)
        if gone is not None:
            for watcher in gone.watchers:
                watcher.end()

    def compact(self) -> None:
        """Forgets all history up to now, as etcd does every few minutes."""
        for collection in self._collections.values():
            collection.history.clear()
            collection.floor = self.revision


def _stamped(key: str, obj: Object, revision: int) -> Record:
    changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
    return Record(key, changed, revision)
