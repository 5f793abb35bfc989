# SPDX-License-Identifier: Apache-2.0
"""watch: from the events of a collection to what one watcher is told.

An object that begins or ceases to match the selectors is added or deleted for the watcher,
whatever happened to it. Bookmarks tell a quiet watcher how far it has come.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .. import status
from ..kinds import Kind
from .selectors import Test
from .store import Change, Event, Record, Store, Watcher

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Told:
    """One thing to tell the watcher. `event` is what it comes from; None for an initial object."""

    type: Change
    record: Record
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects a watcher wants."""

    prefix: str = ""
    """Of their keys: a namespace and a slash."""
    tests: tuple[Test, ...] = ()

    def wants(self, record: Record | None) -> bool:
        """Whether the record exists and matches."""
        return (
            record is not None
            and record.key.startswith(self.prefix)
            and all(test(record.object) for test in self.tests)
        )

    def told(self, event: Event) -> Told | None:
        """What an event means to this watcher; None when it is none of its business."""
        if not event.record.key.startswith(self.prefix):
            return None
        if not self.tests:
            return Told(event.change, event.record, event)
        before = self.wants(event.previous)
        after = event.change is not Change.DELETED and self.wants(event.record)
        if after:
            return Told(Change.MODIFIED if before else Change.ADDED, event.record, event)
        if before:
            return Told(Change.DELETED, event.gone, event)
        return None


def begin(
    store: Store, kind: Kind, selection: Selection, revision: int | None, *, initial: bool
) -> tuple[Watcher, list[Told], int]:
    """A registered watcher, what it is told at once, and the revision that it then knows.

    `revision` None or 0 starts with all objects as added, like `initial`; any other with the
    events after it. Raises 410 when those are forgotten, 504 for an `initial` list of the future.
    """
    collection = store.collection(kind.stored_in)
    if initial and revision is not None and revision > store.revision:
        raise status.too_large_resource_version(revision, store.revision)
    if not revision or initial:
        first = [
            Told(Change.ADDED, collection.records[key])
            for key in collection.ordered()
            if selection.wants(collection.records[key])
        ]
    else:
        if revision < collection.floor:
            raise status.expired(f"too old resource version: {revision} ({collection.floor})")
        first = [told for event in collection.since(revision) if (told := selection.told(event)) is not None]
    watcher = Watcher()
    collection.watchers.add(watcher)
    return watcher, first, store.revision


def end(store: Store, kind: Kind, watcher: Watcher) -> None:
    """Forgets a watcher."""
    store.collection(kind.stored_in).watchers.discard(watcher)


def drain(watcher: Watcher, selection: Selection) -> Iterator[Told]:
    """What the watcher's pending events mean to it; they are pending no longer."""
    while watcher.pending:
        told = selection.told(watcher.pending.popleft())
        if told is not None:
            yield told
