# SPDX-License-Identifier: Apache-2.0
"""Lists and watches: selectors, the pages of a list, and the events of a watch.

The grammars of selectors follow the packages labels and fields of k8s.io/apimachinery.

A continue token has the revision of the first page, and the key after which the list continues. Unlike in etcd, later
pages show the objects at the time when they are read.

If an object starts or stops to match a watcher's selectors, the watcher gets an ADDED or DELETED event.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.kube.resource.names import is_label_key, is_label_value

from . import status
from .kinds import ServedKind
from .objects import Object
from .store import ChangeType, EventQueue, ObjectEvent, Store, StoredObject

Test = Callable[[Object], bool]

_WORD = r"[^\s=!(),<>]+"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<gone>{_WORD})"
    rf"|(?P<key>{_WORD})\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[^\s=!(),<>]*)"
    rf"|\b(?P<set>in|notin)\s*\((?P<values>[^()=!<>]*)\))?)\s*(?:,(?=\s*[^\s,])|$)"
)
"""One requirement of a label selector, up to the comma before the next requirement."""

FieldReaders = Mapping[str, Callable[[Object], str]]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class SelectorError(ValueError):
    """The text is not a selector, or names a field that the kind cannot be selected by."""


def label_test(text: str) -> Test | None:
    """Return the test of a labelSelector, or None if it selects everything. Raises SelectorError."""
    requirements = list(_requirements(text))
    if not requirements:
        return None

    def test(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement(labels) for requirement in requirements)

    return test


def _requirements(text: str) -> Iterator[Callable[[Mapping[str, str]], bool]]:
    position = 0
    while position < len(text.rstrip()):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise SelectorError(f"unable to parse requirement: {text[position:]!r} is not understood")
        position = match.end()
        yield _requirement(match)


def _requirement(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    key, operator = match["gone"] or match["key"], match["set"] or match["operator"]
    values = [value.strip() for value in match["values"].split(",")] if match["set"] else [match["value"] or ""]
    if not is_label_key(key) or not all(map(is_label_value, values)):
        raise SelectorError(f"unable to parse requirement: {match[0].strip()!r} is not about a label")
    if match["absent"]:
        return lambda labels: key not in labels
    if operator is None:
        return lambda labels: key in labels
    positive = operator not in ("!=", "notin")
    return lambda labels: (labels.get(key) in values) is positive


def field_test(text: str, readers: FieldReaders) -> Test | None:
    """Return the test of a fieldSelector, or None if it selects everything.

    `readers` are the fields that the kind can be selected by. Raises SelectorError for any other field.
    """
    checks = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([^=!]*)(==|=|!=)(.*)", term, re.DOTALL)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        if match[1] not in readers:
            known = ", ".join(f'"{known}"' for known in readers)
            raise SelectorError(f'"{match[1]}" is not a known field selector: only {known}')
        checks.append((readers[match[1]], match[2] != "!=", match[3]))
    if not checks:
        return None
    return lambda obj: all((read(obj) == value) is equal for read, equal, value in checks)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list."""

    tests: tuple[Test, ...] = ()
    limit: int = 0
    token: str = ""


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list."""

    records: list[StoredObject]
    revision: int
    token: str = ""
    remaining: int | None = None


def list_page(store: Store, kind: ServedKind, namespace: str, query: ListQuery) -> ListPage:
    """Return the matching objects of a namespace, or of all namespaces. Raises 400 and 410."""
    collection = store.collection(kind.stored_in)
    revision, after = store.revision, ""
    records = collection.records
    keys = collection.ordered()
    if query.token:
        revision, after = _read_token(query.token)
        if revision < collection.floor:
            raise status.expired("The provided continue parameter is too old to display a consistent list result.")
    prefix = f"{namespace}/" if namespace else ""
    found: list[StoredObject] = []
    for index, key in enumerate(keys):
        if key <= after or not key.startswith(prefix):
            continue
        record = records[key]
        if not all(test(record.object) for test in query.tests):
            continue
        if query.limit and len(found) == query.limit:
            others = sum(1 for other in keys[index:] if other.startswith(prefix)) if not query.tests else None
            return ListPage(found, revision, _token(revision, found[-1].key), others)
        found.append(record)
    return ListPage(found, revision)


def _token(revision: int, last: str) -> str:
    return base64.urlsafe_b64encode(f"{revision}:{last}".encode()).decode()


def _read_token(token: str) -> tuple[int, str]:
    try:
        revision, _, last = base64.urlsafe_b64decode(token).decode().partition(":")
        return int(revision), last
    except ValueError as error:
        raise status.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


@dataclass(frozen=True, slots=True)
class WatchMessage:
    """One message to a watcher."""

    type: ChangeType
    record: StoredObject


@dataclass(frozen=True, slots=True)
class WatchSelection:
    """The objects that a watcher selects."""

    prefix: str = ""
    """The prefix of their keys: a namespace and a slash."""
    tests: tuple[Test, ...] = ()

    def wants(self, record: StoredObject | None) -> bool:
        """Return whether the record exists and matches."""
        return (
            record is not None
            and record.key.startswith(self.prefix)
            and all(test(record.object) for test in self.tests)
        )

    def message(self, event: ObjectEvent) -> WatchMessage | None:
        """Return the message that an event is for this watcher, or None."""
        if not event.record.key.startswith(self.prefix):
            return None
        if not self.tests:
            return WatchMessage(event.change, event.record)
        before = self.wants(event.previous)
        after = event.change is not ChangeType.DELETED and self.wants(event.record)
        if after:
            return WatchMessage(ChangeType.MODIFIED if before else ChangeType.ADDED, event.record)
        if before:
            return WatchMessage(ChangeType.DELETED, event.gone)
        return None


def begin(
    store: Store, kind: ServedKind, selection: WatchSelection, revision: int | None, *, initial: bool
) -> tuple[EventQueue, list[WatchMessage], int]:
    """Register a watcher. Return it, its first messages, and the revision that it knows then.

    If `revision` is None or 0, or with `initial`, the first messages add all objects. Otherwise they are the events
    after `revision`. Raises 410 if these events are no longer stored.
    """
    collection = store.collection(kind.stored_in)
    if not revision or initial:
        first = [
            WatchMessage(ChangeType.ADDED, collection.records[key])
            for key in collection.ordered()
            if selection.wants(collection.records[key])
        ]
    else:
        if revision < collection.floor:
            raise status.expired(f"too old resource version: {revision} ({collection.floor})")
        first = [message for event in collection.since(revision) if (message := selection.message(event)) is not None]
    watcher = EventQueue()
    collection.watchers.add(watcher)
    return watcher, first, store.revision


def end(store: Store, kind: ServedKind, watcher: EventQueue) -> None:
    """Remove a watcher."""
    store.collection(kind.stored_in).watchers.discard(watcher)


def drain(watcher: EventQueue, selection: WatchSelection) -> Iterator[WatchMessage]:
    """Yield the messages of the watcher's pending events, and remove the events."""
    while watcher.pending:
        message = selection.message(watcher.pending.popleft())
        if message is not None:
            yield message
