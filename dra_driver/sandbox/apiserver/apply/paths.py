# SPDX-License-Identifier: Apache-2.0
"""Sets of field paths, and the FieldsV1 form in which `metadata.managedFields` carries them.

A path is a tuple of FieldsV1 elements: `f:name` a field or map key, `k:{...}` an item of a keyed
list, `v:...` an item of a set. A set of paths is a plain Python set, so that union, difference
and intersection are Python's own.
"""

import json
from collections.abc import Iterable, Set
from typing import Any

from ..objects import Object
from ..schema.types import Shape, Type

Path = tuple[str, ...]
Paths = Set[Path]

Tree = dict[str, Any]
"""Paths as nested dictionaries; the key `.` marks a node that is itself in the set."""

ITSELF = "."


def tree_of(paths: Iterable[Path]) -> Tree:
    """The paths as a tree."""
    root: Tree = {}
    for path in paths:
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node[ITSELF] = {}
    return root


def to_fields_v1(paths: Paths) -> Object:
    """The FieldsV1 object of a set."""
    return _collapse(tree_of(sorted(paths)))


def _collapse(tree: Tree) -> Tree:
    if len(tree) == 1 and ITSELF in tree:
        return {}
    return {element: {} if element == ITSELF else _collapse(child) for element, child in sorted(tree.items())}


def from_fields_v1(fields: Object) -> set[Path]:
    """The set that a FieldsV1 object stands for."""
    found: set[Path] = set()
    _expand(fields, (), found)
    return found


def _expand(fields: Any, path: Path, found: set[Path]) -> None:
    if not isinstance(fields, dict):
        return
    if not fields and path:
        found.add(path)
    for element, child in fields.items():
        if element == ITSELF:
            found.add(path)
        else:
            _expand(child, (*path, element), found)


def without_prefixes(paths: Paths, prefixes: Paths) -> set[Path]:
    """The paths that are not at or below one of `prefixes`."""
    if not prefixes:
        return set(paths)
    return {path for path in paths if not any(path[: len(prefix)] == prefix for prefix in prefixes)}


def with_named_fields(paths: Paths, root: Type) -> set[Path]:
    """The paths and, of each, the declared fields on the way to it."""
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
    """`.spec.containers[name="a"].image`, as conflicts name a field."""
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
