# SPDX-License-Identifier: Apache-2.0
"""Values with their types: the paths of their fields, merge, and removal of fields.

By its type, a value is a map, an associative list (its items have keys, or it is a set), or a leaf. Scalars, atomic
maps and lists, and empty maps and lists are leaves.
"""

from typing import Any

from ..objects import canonical, merged_order
from ..schema import ListKind, SchemaType, Shape
from .managers import Path, Paths

_MAPS = (Shape.STRUCT, Shape.MAP, Shape.ANY)


class TypedError(Exception):
    """The value cannot be merged by its type. For example, an item of a keyed list lacks its keys."""


def _is_map(value: Any, node: SchemaType) -> bool:
    return isinstance(value, dict) and node.shape in _MAPS and not node.atomic


def _is_associative(value: Any, node: SchemaType) -> bool:
    return isinstance(value, list) and node.list_kind is not ListKind.ATOMIC


def _keyed(items: list[Any], node: SchemaType) -> dict[str, Any]:
    """Return the items of an associative list by the path elements that identify them. Raises TypedError."""
    found: dict[str, Any] = {}
    for item in items:
        element = _element(item, node)
        if element in found:
            raise TypedError(f"duplicate entries for key {element.partition(':')[2]}")
        found[element] = item
    return found


def _element(item: Any, node: SchemaType) -> str:
    if node.list_kind is ListKind.SET:
        return f"v:{canonical(item)}"
    given = {**node.item.key_defaults, **item} if isinstance(item, dict) else {}
    keys = {key: given[key] for key in node.list_keys if key in given}
    if not keys:
        raise TypedError(f"an item of a list has none of its keys ({', '.join(node.list_keys)}): {canonical(item)}")
    return f"k:{canonical(keys)}"


def leaves(value: Any, node: SchemaType) -> dict[Path, Any]:
    """Return every leaf of `value` by its path, and the path of every item of an associative list."""
    found: dict[Path, Any] = {}
    _collect(value, node, (), found)
    return found


def _collect(value: Any, node: SchemaType, path: Path, found: dict[Path, Any]) -> None:
    if value and _is_map(value, node):
        for name, item in value.items():
            here = (*path, f"f:{name}")
            if item and isinstance(item, (dict, list)):
                _collect(item, node.child(name), here, found)
            else:
                found[here] = item
    elif value and _is_associative(value, node):
        for element, item in _keyed(value, node).items():
            found[*path, element] = None
            if node.list_kind is ListKind.MAP:
                _collect(item, node.item, (*path, element), found)
    else:
        found[path] = value


def merge(live: Any, applied: Any, node: SchemaType) -> Any:
    """Return `live` merged with `applied`: nothing is removed, and `applied` decides values and order."""
    if _is_map(live, node) and _is_map(applied, node):
        return {**live, **{name: merge(live.get(name), item, node.child(name)) for name, item in applied.items()}}
    if _is_associative(live, node) and _is_associative(applied, node):
        theirs, ours = _keyed(live, node), _keyed(applied, node)
        return [
            merge(theirs.get(element), ours[element], node.item) if element in ours else theirs[element]
            for element in merged_order(list(theirs), list(ours))
        ]
    return applied


def without(value: Any, gone: Paths, node: SchemaType, path: Path = ()) -> Any:
    """Return `value` without the fields and items at the paths `gone`."""
    if _is_map(value, node):
        return {
            name: without(item, gone, node.child(name), here)
            for name, item in value.items()
            if (here := (*path, f"f:{name}")) not in gone
        }
    if _is_associative(value, node):
        return [
            without(item, gone, node.item, here)
            for element, item in _keyed(value, node).items()
            if (here := (*path, element)) not in gone
        ]
    return value
