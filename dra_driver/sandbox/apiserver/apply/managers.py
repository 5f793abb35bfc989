# SPDX-License-Identifier: Apache-2.0
"""The field `metadata.managedFields`: which client owns which fields of an object.

A manager has a name, an operation (Apply or Update), a subresource and, for updates, an API version. Each manager has a
set of field paths and the time of its last change.

A path is a tuple of FieldsV1 elements: `f:name` is a field or map key, `k:{...}` an item of a keyed list, `v:...` an
item of a set. A set of paths is a Python set.
"""

import json
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

from ..objects import Object
from ..schema import SchemaType, Shape

Path = tuple[str, ...]
Paths = Set[Path]

ITSELF = "."
"""The key in a FieldsV1 object for the path itself, beside those below it."""

APPLY: Final = "Apply"
UPDATE: Final = "Update"

_IDENTITY: Final = ("name", "namespace", "creationTimestamp", "uid", "generation", "managedFields", "resourceVersion")
"""The fields of metadata that no manager can own."""
_UNOWNED: Final[frozenset[Path]] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _IDENTITY)}
)


def to_fields_v1(paths: Paths) -> Object:
    """Return the FieldsV1 object of a set."""
    root: Object = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node[ITSELF] = {}
    return _collapsed(root)


def _collapsed(fields: Object) -> Object:
    """Return the fields without the mark `.` where nothing else is beside it."""
    if fields.keys() == {ITSELF}:
        return {}
    return {element: _collapsed(child) for element, child in fields.items()}


def from_fields_v1(fields: Object, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of a FieldsV1 object."""
    if not fields and path:
        yield path
    for element, child in fields.items():
        if element == ITSELF:
            yield path
        elif isinstance(child, dict):
            yield from from_fields_v1(child, (*path, element))


def with_named_fields(paths: Paths, root: SchemaType) -> set[Path]:
    """Return the paths, and the declared fields above each path."""
    result = set(paths)
    for path in paths:
        node = root
        for depth, element in enumerate(path[:-1]):
            field = element[2:]
            if element.startswith("f:") and node.shape is Shape.STRUCT and field in node.fields:
                result.add(path[: depth + 1])
            node = node.child(field) if element.startswith("f:") else node.item
    return result


def readable(path: Path) -> str:
    """Return the path as conflicts show it: `.spec.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, _, content = element.partition(":")
        if kind == "f":
            text += f".{content}"
        elif kind == "k":
            keys = json.loads(content)
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(keys.items())) + "]"
        else:
            text += f"[={content}]"
    return text


@dataclass(frozen=True, slots=True, order=True)
class ManagerId:
    """The identity of a manager. `api_version` is empty for an applier, which is the same in every version."""

    name: str
    operation: str
    api_version: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


@dataclass(frozen=True, slots=True)
class Owned:
    """The fields of a manager, the API version of their names, and the time of their last change."""

    paths: frozenset[Path]
    api_version: str
    time: str = ""


Managers = dict[ManagerId, Owned]


def decode(entries: Iterable[Any]) -> Managers:
    """Return the managers in an object's managedFields. Empty if the field is malformed."""
    managers: Managers = {}
    for entry in entries:
        operation = entry.get("operation")
        api_version = entry.get("apiVersion", "")
        if operation not in (APPLY, UPDATE) or not api_version or entry.get("fieldsType") != "FieldsV1":
            return {}
        who = ManagerId(
            entry.get("manager", ""),
            operation,
            "" if operation == APPLY else api_version,
            entry.get("subresource", ""),
        )
        paths = frozenset(from_fields_v1(entry.get("fieldsV1") or {}))
        managers[who] = Owned(paths, api_version, entry.get("time", ""))
    return managers


def encode(managers: Managers) -> list[Object]:
    """Return the managedFields of an object, in the order in which the API server lists them."""
    entries = []
    for who, owned in managers.items():
        entry: Object = {"manager": who.name, "operation": who.operation, "apiVersion": owned.api_version}
        if owned.time:
            entry["time"] = owned.time
        entry["fieldsType"] = "FieldsV1"
        entry["fieldsV1"] = to_fields_v1(owned.paths)
        if who.subresource:
            entry["subresource"] = who.subresource
        entries.append(entry)
    entries.sort(
        key=lambda entry: (
            entry["operation"],
            entry.get("time", ""),
            entry["manager"],
            entry["apiVersion"],
            entry.get("subresource", ""),
        )
    )
    return entries


def stripped(paths: Paths) -> frozenset[Path]:
    """Return the paths that can be owned."""
    return frozenset(paths - _UNOWNED)
