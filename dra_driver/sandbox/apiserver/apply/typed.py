# SPDX-License-Identifier: Apache-2.0
"""Values with their types: the set of their fields, comparison, merge, and removal of fields.

These are the four walks of the package typed of structured-merge-diff. By its type, every node of a value is a leaf (a
scalar, or an atomic map or list), a map, or an associative list.
"""

import enum
from dataclasses import dataclass, field
from typing import Any, Final

from ..objects import canonical
from ..schema import ListKind, Shape, Type
from .managers import ITSELF, Path, Tree


class TypedError(Exception):
    """The value cannot be merged by its type. For example, an item of a keyed list lacks its keys."""


class _Absent(enum.Enum):
    ABSENT = 0


_ABSENT: Final = _Absent.ABSENT

# Structs that Go holds by value. They are never absent if their parent is there. The published schemas do not
# distinguish them from pointers, so this table lists the optional ones.
_BY_VALUE: Final = {
    "v1.ResourceClaimSpec": {"devices"},
    "v1beta1.ResourceClaimSpec": {"devices"},
    "v1beta2.ResourceClaimSpec": {"devices"},
    "v1.AllocationResult": {"devices"},
    "v1beta1.AllocationResult": {"devices"},
    "v1beta2.AllocationResult": {"devices"},
    "v1.ResourceClaimTemplateSpec": {"metadata"},
    "v1beta1.ResourceClaimTemplateSpec": {"metadata"},
    "v1beta2.ResourceClaimTemplateSpec": {"metadata"},
    "v1.PodTemplateSpec": {"metadata", "spec"},
    "v1.JobTemplateSpec": {"metadata", "spec"},
    "v1.DeploymentSpec": {"strategy"},
    "v1.ReplicaSetSpec": {"template"},
    "v1.DaemonSetSpec": {"updateStrategy"},
    "v1.StatefulSetSpec": {"updateStrategy"},
    "v1.Container": {"resources"},
    "v1.ServiceStatus": {"loadBalancer"},
    "v1.Event": {"source", "deprecatedSource", "regarding"},
    "v1.NodeStatus": {"daemonEndpoints", "nodeInfo"},
}
_TOP_LEVEL: Final = {"metadata", "spec", "status"}
# The JSON of Go structs has required fields also if they are unset.
_ZEROES: Final[dict[Shape, Any]] = {
    Shape.LIST: None,
    Shape.MAP: None,
    Shape.STRING: "",
    Shape.INTEGER: 0,
    Shape.BOOLEAN: False,
}


@dataclass(slots=True)
class Comparison:
    """The fields that differ between two values."""

    added: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)


class _Form(enum.Enum):
    LEAF = enum.auto()
    MAP = enum.auto()
    LIST = enum.auto()


def _form(node: Type, value: Any) -> _Form:
    """Return the form of `value` by its type. Raises TypedError if the value has another type."""
    shape = node.shape
    if shape is Shape.STRUCT or shape is Shape.MAP:
        _check(value, dict, "map")
        return _Form.LEAF if node.atomic else _Form.MAP
    if shape is Shape.LIST:
        _check(value, list, "list")
        return _Form.LEAF if node.list_kind is ListKind.ATOMIC else _Form.LIST
    if shape is Shape.ANY and not node.atomic and isinstance(value, dict):
        return _Form.MAP
    return _Form.LEAF


def _check(value: Any, kind: type, name: str) -> None:
    if value is not None and value is not _ABSENT and not isinstance(value, kind):
        raise TypedError(f"expected {name}, got {canonical(value)}")


def element_of(item: Any, node: Type) -> str:
    """Return the path element that identifies an item of an associative list."""
    if node.list_kind is ListKind.SET:
        if isinstance(item, dict | list) or item is None:
            raise TypedError("an item of a set must be a scalar")
        return f"v:{canonical(item)}"
    if not isinstance(item, dict):
        raise TypedError("associative list with keys may not have non-map elements")
    defaults = node.item.key_defaults
    keys = {key: item.get(key, defaults.get(key)) for key in node.list_keys}
    present = {key: value for key, value in keys.items() if value is not None}
    if not present:
        raise TypedError(
            f"associative list with keys has an element that omits all key fields {list(node.list_keys)} "
            "(and doesn't have default values for any key fields)"
        )
    return f"k:{canonical(present)}"


def field_set(value: Any, node: Type) -> set[Path]:
    """Return every leaf field and list item in `value`. An applier of `value` owns these."""
    found: set[Path] = set()
    _collect(value, node, (), found)
    return found


def _collect(value: Any, node: Type, path: Path, found: set[Path]) -> None:
    match _form(node, value):
        case _Form.LEAF:
            found.add(path)
        case _Form.MAP:
            for name, item in (value or {}).items():
                here = (*path, f"f:{name}")
                _collect(item, node.child(name), here, found)
                if item is None or item == {} or name not in node.fields:
                    found.add(here)
        case _Form.LIST:
            for item in value or ():
                here = (*path, element_of(item, node))
                _collect(item, node.item, here, found)
                found.add(here)


def compare(old: Any, new: Any, node: Type) -> Comparison:
    """Return the changes from `old` to `new`."""
    result = Comparison()
    _compare(old, new, node, (), result)
    return result


def _compare(old: Any, new: Any, node: Type, path: Path, result: Comparison) -> None:
    form = _form(node, old if new is _ABSENT else new)
    old_empty, new_empty = _is_empty(old), _is_empty(new)
    if form is _Form.LEAF or (old_empty and new_empty):
        if old is _ABSENT:
            result.added.add(path)
        elif new is _ABSENT:
            result.removed.add(path)
        elif old != new or type(old) is not type(new):
            result.modified.add(path)
        return
    if form is _Form.MAP:
        _compare_maps(old, new, node, path, result)
    else:
        _compare_lists(old, new, node, path, result)
    if old is _ABSENT:
        result.added.add(path)
    elif new is _ABSENT:
        result.removed.add(path)


def _is_empty(value: Any) -> bool:
    return value is _ABSENT or value is None or value == {} or value == []


def _compare_maps(old: Any, new: Any, node: Type, path: Path, result: Comparison) -> None:
    lefts = old if isinstance(old, dict) else {}
    rights = new if isinstance(new, dict) else {}
    for name in dict.fromkeys((*lefts, *rights)):
        left, right = _field(old, name, node, path), _field(new, name, node, path)
        if left is not right:
            _compare(left, right, node.child(name), (*path, f"f:{name}"), result)


def _field(parent: Any, name: str, node: Type, path: Path) -> Any:
    if not isinstance(parent, dict):
        return _ABSENT
    return parent[name] if name in parent else _unset(name, node, path)


def _unset(name: str, node: Type, path: Path) -> Any:
    """Return the value of an unset field in the JSON of a Go struct. Most unset fields are absent."""
    child = node.fields.get(name)
    if child is None or not node.definition:
        return _ABSENT
    required = name in node.required
    if child.shape is Shape.STRUCT:
        by_value = required or name in _BY_VALUE.get(node.go_name, ()) or (not path and name in _TOP_LEVEL)
        return {} if by_value else _ABSENT
    return _ZEROES.get(child.shape, _ABSENT) if required else _ABSENT


def _compare_lists(old: Any, new: Any, node: Type, path: Path, result: Comparison) -> None:
    lefts, rights = _grouped(old, node), _grouped(new, node)
    for element in dict.fromkeys((*lefts, *rights)):
        here = (*path, element)
        left, right = lefts.get(element, []), rights.get(element, [])
        if len(left) > 1 or len(right) > 1:  # duplicates, which updates may create, are compared as a whole
            changes = result.modified if left and right else result.added if right else result.removed
            if left != right:
                changes.add(here)
        else:
            _compare(left[0] if left else _ABSENT, right[0] if right else _ABSENT, node.item, here, result)


def _grouped(items: Any, node: Type) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for item in items if isinstance(items, list) else ():
        groups.setdefault(element_of(item, node), []).append(item)
    return groups


def merge(live: Any, applied: Any, node: Type) -> Any:
    """Return `live` merged with `applied`: nothing is removed, and `applied` decides values and order."""
    merged = _merge(live, applied, node)
    return None if merged is _ABSENT else merged


def _merge(live: Any, applied: Any, node: Type) -> Any:
    form = _form(node, live if applied is _ABSENT else applied)
    if form is _Form.LEAF or (_is_empty(live) and _is_empty(applied)):
        return live if applied is _ABSENT else applied
    if form is _Form.MAP:
        lefts = live if isinstance(live, dict) else {}
        rights = applied if isinstance(applied, dict) else {}
        merged = {}
        for name in dict.fromkeys((*lefts, *rights)):
            value = _merge(lefts.get(name, _ABSENT), rights.get(name, _ABSENT), node.child(name))
            if value is not _ABSENT:
                merged[name] = value
        return merged or _ABSENT
    return _merge_lists(live, applied, node) or _ABSENT


def _merge_lists(live: Any, applied: Any, node: Type) -> list[Any]:
    lefts = live if isinstance(live, list) else []
    rights = applied if isinstance(applied, list) else []
    left_elements = [element_of(item, node) for item in lefts]
    right_elements = [element_of(item, node) for item in rights]
    by_right = dict(zip(right_elements, rights, strict=True))
    if len(by_right) != len(rights):
        twice = next(element for element in right_elements if right_elements.count(element) > 1)
        raise TypedError(f"duplicate entries for key {twice.partition(':')[2]}")
    by_left: dict[str, Any] = {}
    for element, item in zip(left_elements, lefts, strict=True):
        by_left[element] = _ABSENT if element in by_left else item  # duplicates are not merged
    shared = [element for element in right_elements if element in by_left]
    merged: list[Any] = []
    done: set[str] = set()
    left = right = 0

    def take_right(element: str) -> None:
        nonlocal right
        done.add(element)
        merged.append(_merge(by_left.get(element, _ABSENT), by_right[element], node.item))
        right += 1
        if shared and shared[0] == element:
            shared.pop(0)

    while left < len(lefts) or right < len(rights):
        if left < len(lefts) and right < len(rights):
            element = left_elements[left]
            if element == right_elements[right]:
                left += 1
                take_right(element)
                continue
            if element in by_right and shared and shared[0] != element:
                left += 1  # a shared item is added in the applied order
                continue
        if left < len(lefts):
            element = left_elements[left]
            if element not in by_right:
                merged.append(lefts[left])
                left += 1
                continue
            if element in done:
                left += 1
        if right < len(rights):
            take_right(right_elements[right])
    return merged


def remove(value: Any, tree: Tree, node: Type) -> Any:
    """Return `value` without the fields and items in `tree`, or None if nothing is left."""
    if not value or _form(node, value) is _Form.LEAF:
        return value if not isinstance(value, dict | list) else None
    if isinstance(value, dict):
        return _remove_fields(value, tree, node)
    kept = []
    matched = False
    for item in value:
        child = tree.get(element_of(item, node))
        if child is not None and ITSELF in child:
            continue
        if child:
            matched = True
            kept.append(_remove_inside(item, child, node.item))
        else:
            kept.append(item)
    return kept if kept or matched else None


def _remove_fields(value: dict[str, Any], tree: Tree, node: Type) -> Any:
    kept = {}
    matched = False
    for name, item in value.items():
        child = tree.get(f"f:{name}")
        if child is not None and ITSELF in child:
            continue
        if child:
            matched = True
            kept[name] = _remove_inside(item, child, node.child(name))
        else:
            kept[name] = item
    return kept if kept or matched else None


def _remove_inside(item: Any, tree: Tree, node: Type) -> Any:
    """Remove parts of a container, and return at least the empty container."""
    left = remove(item, tree, node)
    return type(item)() if left is None and isinstance(item, dict | list) else left
