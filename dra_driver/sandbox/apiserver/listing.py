# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors: from the text of a query parameter to a test of an object.

The grammar of labels is that of k8s.io/apimachinery's labels package, that of fields the one of
its fields package (`=`, `==`, `!=`, comma; a backslash quotes).
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from . import status
from .kinds import ServedKind
from .names import label_key_problems, label_value_problems
from .objects import Object
from .store import Change, Event, Record, Store, Watcher

Test = Callable[[Object], bool]

_WORD = r"[^\s=!(),<>]+"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<gone>{_WORD})"
    rf"|(?P<key>{_WORD})\s*(?:(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s=!(),<>]*)"
    rf"|\b(?P<set>in|notin)\s*\((?P<values>[^()=!<>]*)\))?)\s*(?:,(?=\s*[^\s,])|$)"
)
"""One requirement of a label selector, up to the comma before the next one."""


class SelectorError(ValueError):
    """The text is not a selector, or names something that cannot be selected by."""


@dataclass(frozen=True, slots=True)
class _Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        try:
            number, bound = int(value or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.operator == ">" else number < bound


def label_test(text: str) -> Test | None:
    """The test of a labelSelector; None when it selects everything. Raises SelectorError."""
    requirements = list(_requirements(text))
    if not requirements:
        return None

    def test(obj: Object) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement.holds(labels) for requirement in requirements)

    return test


def _requirements(text: str) -> Iterator[_Requirement]:
    position = 0
    while position < len(text.rstrip()):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise SelectorError(f"unable to parse requirement: {text[position:]!r} is not understood")
        position = match.end()
        yield _requirement(match)


def _requirement(match: re.Match[str]) -> _Requirement:
    key, operator = match["gone"] or match["key"], match["set"] or match["operator"]
    values = [one.strip() for one in match["values"].split(",")] if match["set"] else [match["value"] or ""]
    for problem in (*label_key_problems(key), *(each for one in values for each in label_value_problems(one))):
        raise SelectorError(f"unable to parse requirement: {match[0].strip()!r}: {problem}")
    if match["absent"]:
        return _Requirement(key, "!")
    if operator is None:
        return _Requirement(key, "exists")
    if operator in "<>" and not re.fullmatch(r"[+-]?\d+", values[0]):
        raise SelectorError(f"unable to parse requirement: the value of {match[0].strip()!r} must be an integer")
    return _Requirement(key, {"=": "in", "==": "in", "!=": "notin"}.get(operator, operator), tuple(values))


FieldReaders = Mapping[str, Callable[[Object], str]]


def field_terms(text: str) -> list[tuple[str, bool, str]]:
    """The terms of a fieldSelector: (field, whether it must be equal, value). Raises SelectorError."""
    terms = []
    for term in _split_unquoted(text):
        if not term:
            continue
        match = re.match(r"((?:[^\\=!]|\\.)*)(==|=|!=)(.*)", term, re.DOTALL)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        terms.append((match[1], match[2] != "!=", _unquote(match[3])))
    return terms


def field_test(text: str, readers: FieldReaders) -> Test | None:
    """The test of a fieldSelector over the fields that a kind can be selected by.

    None when it selects everything. Raises SelectorError for a field that it cannot.
    """
    terms = field_terms(text)
    for name, _, _ in terms:
        if name not in readers:
            known = ", ".join(f'"{known}"' for known in readers)
            raise SelectorError(f'"{name}" is not a known field selector: only {known}')
    if not terms:
        return None
    checks = [(readers[name], equal, value) for name, equal, value in terms]
    return lambda obj: all((read(obj) == value) is equal for read, equal, value in checks)


def _split_unquoted(text: str) -> list[str]:
    return re.split(r"(?<!\\),", text)


def _unquote(text: str) -> str:
    unknown = re.search(r"(?<!\\)(?:\\\\)*(\\[^\\,=])", text)
    if unknown is not None:
        raise SelectorError(f"invalid field selector: invalid escape sequence: {unknown[1]}")
    return re.sub(r"\\(.)", r"\1", text)


_FORMAT: Final = "meta.k8s.io/v1"


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
        revision, after = _read_token(query.token)
        if revision < collection.floor:
            raise status.expired("The provided continue parameter is too old to display a consistent list result.")
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
