# SPDX-License-Identifier: Apache-2.0
"""Empty lists and maps, which do not survive being stored.

A real server stores built-in kinds as protobuf, where an empty list is no list. Validation still
sees it (`devices: []` beside `sharedCounters` is an error), whoever reads the object does not.
"""

from typing import Any

from .types import Shape, Type

_GONE = object()


def without_empties(value: dict[str, Any], node: Type, *, required: bool = True) -> dict[str, Any]:
    """The object without its empty lists and maps; itself when it has none. `required`: without those that have to be.

    Stored objects lose all, Go's JSON has the required ones.
    """
    result: dict[str, Any] = _struct(value, node, required)
    return result


def _struct(value: dict[str, Any], node: Type, required: bool) -> Any:
    changed: dict[str, Any] = {}
    for name, item in value.items():
        if type(item) is dict or type(item) is list:
            field = node.fields.get(name)
            if field is not None:
                kept = _value(item, field, required)
                if kept is _GONE and not required and name in node.required:
                    continue
                if kept is not item:
                    changed[name] = kept
    if not changed:
        return value
    merged = {**value, **changed}
    return {name: item for name, item in merged.items() if item is not _GONE}


def _value(value: Any, node: Type, required: bool) -> Any:
    shape = node.shape
    if shape is Shape.STRUCT:
        return _struct(value, node, required) if type(value) is dict else value
    if shape is not Shape.LIST and shape is not Shape.MAP:
        return value
    if not value:
        return _GONE
    element = node.item
    if element.shape not in (Shape.STRUCT, Shape.LIST, Shape.MAP):
        return value
    if shape is Shape.LIST:
        items = [_inside(item, element, required) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    pairs = {key: _inside(item, element, required) for key, item in value.items()}
    return value if all(pairs[key] is item for key, item in value.items()) else pairs


def _inside(item: Any, node: Type, required: bool) -> Any:
    """An item of a list or map stays, empty or not."""
    kept = _value(item, node, required)
    return item if kept is _GONE else kept
