# SPDX-License-Identifier: Apache-2.0
"""list and watch: the objects of a collection in pages, and its events as one watcher gets them.

A continue token names the revision of the first page and the key to continue after. Unlike etcd's, later pages show
the objects that exist when they are read.

For a watcher, an object that begins or ceases to match the selectors is added or deleted, whatever happened to it.
Bookmarks tell a quiet watcher how far it has come.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .. import status
from ..kinds import ServedKind
from .selectors import Test
from .store import Change, Event, Record, Store, Watcher

_FORMAT: Final = "meta.k8s.io/v1"
_INCONSISTENT: Final = -1
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list."""

    tests: tuple[Test, ...] = ()
    name: str = ""
    """The only name wanted (a metadata.name selector); it is tested as well."""
    limit: int = 0
    token: str = ""
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A list's result."""

    records: list[Record]
    revision: int
    token: str = ""
    remaining: int | None = None


def list_page(store: Store, kind: ServedKind, namespace: str, query: ListQuery) -> Page:
    """The matching objects of a namespace (empty: of all). Raises 400, 410 and 504."""
    collection = store.collection(kind.stored_in)
    revision, after = store.revision, ""
    records = collection.records
    keys = collection.ordered()
    if query.token:
        asked, after = _read_token(query.token)
        if asked != _INCONSISTENT:
            revision = asked
            if asked < collection.floor:
                raise _too_old(after)
    elif query.revision and query.revision > store.revision:
        raise status.too_large_resource_version(query.revision, store.revision)
    prefix = f"{namespace}/" if namespace else ""
    if query.name and (namespace or not kind.namespaced):
        only = prefix + query.name
        keys = [only] if only in records else []
    found: list[Record] = []
    for index, key in enumerate(keys):
        if key <= after or not key.startswith(prefix):
            continue
        record = records[key]
        if not all(test(record.object) for test in query.tests):
            continue
        if query.limit and len(found) == query.limit:
            last = found[-1].key
            remaining = None
            if not query.tests:
                remaining = sum(1 for other in keys[index:] if other.startswith(prefix))
            return Page(found, revision, _token(revision, last), remaining)
        found.append(record)
    return Page(found, revision)


def _token(revision: int, last: str) -> str:
    text = json.dumps({"v": _FORMAT, "rv": revision, "start": f"{last}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        padded = token + "=" * (-len(token) % 4)
        content = json.loads(base64.urlsafe_b64decode(padded))
        if content["v"] != _FORMAT:
            raise ValueError("unknown version")
        return int(content["rv"]), str(content["start"]).rstrip("\0")
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise status.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def _too_old(after: str) -> status.RequestError:
    error = status.expired(_TOO_OLD)
    return GoneWithToken(error, _token(_INCONSISTENT, after))


class GoneWithToken(status.RequestError):
    """410 that offers a token for going on without consistency."""

    def __init__(self, error: status.RequestError, token: str) -> None:
        super().__init__(error.code, error.reason, str(error), error.details)
        self.token = token

    @property
    def status(self) -> dict[str, object]:
        """The Status, with the token where a list has it."""
        return {**super().status, "metadata": {"continue": self.token}}


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
    store: Store, kind: ServedKind, selection: Selection, revision: int | None, *, initial: bool
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


def end(store: Store, kind: ServedKind, watcher: Watcher) -> None:
    """Forgets a watcher."""
    store.collection(kind.stored_in).watchers.discard(watcher)


def drain(watcher: Watcher, selection: Selection) -> Iterator[Told]:
    """What the watcher's pending events mean to it; they are pending no longer."""
    while watcher.pending:
        told = selection.told(watcher.pending.popleft())
        if told is not None:
            yield told
