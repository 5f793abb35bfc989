# SPDX-License-Identifier: Apache-2.0
"""Strategic merge patch: a merge patch that knows which lists are keyed.

Merge keys and strategies come from the type; the directives are `$patch`, `$retainKeys`,
`$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD`. Follows
k8s.io/apimachinery/pkg/util/strategicpatch.
"""

from collections.abc import Callable
from typing import Any, Final

from ..schema.types import Shape, Type
from . import MalformedPatchError, PatchError

DIRECTIVE: Final = "$patch"
RETAIN: Final = "$retainKeys"
DELETE_FROM: Final = "$deleteFromPrimitiveList/"
ORDER: Final = "$setElementOrder/"


def apply_strategic_patch(target: Any, patch: Any, node: Type) -> Any:
    """`target`, an object of type `node`, with `patch` merged in. Raises PatchError."""
    if not isinstance(patch, dict):
        raise MalformedPatchError("a strategic merge patch must be an object")
    return _merge_maps(target, patch, node)


def _merge_maps(target: dict[str, Any], patch: dict[str, Any], node: Type) -> dict[str, Any]:
    match patch.get(DIRECTIVE):
        case None | "merge":
            pass
        case "replace":
            return {key: value for key, value in patch.items() if key != DIRECTIVE}
        case "delete":
            return {}
        case other:
            raise PatchError(f"unknown patch type: {other} in map: {_shown(patch)}")
    for key, value in patch.items():
        if key.startswith((DELETE_FROM, ORDER)) and not isinstance(value, list):
            raise MalformedPatchError(f"{key} must be a list")
    result = _retained(target, patch)
    for key, value in patch.items():
        if key.startswith(DELETE_FROM):
            field = key.removeprefix(DELETE_FROM)
            if isinstance(result.get(field), list):
                result[field] = [item for item in result[field] if item not in value]
        elif key.startswith(ORDER):
            field = key.removeprefix(ORDER)
            if field not in patch and isinstance(result.get(field), list):
                child = node.child(field)
                result[field] = _ordered(result[field], result[field], value, child.merge_key)
        elif key in (DIRECTIVE, RETAIN):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            order = patch.get(ORDER + key)
            result[key] = _merge_value(result.get(key), value, node.child(key), order)
    return result


def _retained(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    keep = patch.get(RETAIN)
    if keep is None:
        return dict(target)
    if not isinstance(keep, list):
        raise MalformedPatchError("invalid patch format of retainKeys")
    stray = [key for key in patch if not key.startswith("$") and key not in keep and patch[key] is not None]
    if stray:
        raise MalformedPatchError("invalid patch format of retainKeys")
    return {key: value for key, value in target.items() if key in keep}


def _merge_value(current: Any, value: Any, node: Type, order: Any) -> Any:
    if isinstance(value, dict):
        if "replace" in node.strategies or (not isinstance(current, dict) and DIRECTIVE not in value):
            return _clean(value, node)
        return _merge_maps(current if isinstance(current, dict) else {}, value, node)
    if isinstance(value, list) and "merge" in node.strategies:
        existing = current if isinstance(current, list) else []
        merged = _merge_lists(existing, value, node)
        named = [item for item in value if not (isinstance(item, dict) and DIRECTIVE in item)]
        return _ordered(merged, existing, named if order is None else order, node.merge_key)
    return _clean(value, node)


def _clean(value: Any, node: Type) -> Any:
    """A value that replaces or is new: without directives and nulls."""
    if isinstance(value, dict):
        if node.shape is Shape.ANY:
            return value
        return {
            key: _clean(item, node.child(key))
            for key, item in value.items()
            if item is not None and key not in (DIRECTIVE, RETAIN) and not key.startswith((DELETE_FROM, ORDER))
        }
    if isinstance(value, list):
        return [
            _clean(item, node.item)
            for item in value
            if not (isinstance(item, dict) and item.get(DIRECTIVE) in ("delete", "replace"))
        ]
    return value


def _merge_lists(existing: list[Any], patch: list[Any], node: Type) -> list[Any]:
    if not node.merge_key:
        return existing + [item for index, item in enumerate(patch) if item not in existing + patch[:index]]
    for item in patch:
        if not isinstance(item, dict) or (node.merge_key not in item and item.get(DIRECTIVE) != "replace"):
            raise PatchError(f"map: {_shown(item)} does not contain declared merge key: {node.merge_key}")
    if any(item.get(DIRECTIVE) == "replace" for item in patch):
        return [_clean(item, node.item) for item in patch if item.get(DIRECTIVE) != "replace"]
    result = list(existing)
    identity = _identity(node.merge_key)
    for item in patch:
        found = [index for index, other in enumerate(result) if identity(other) == item[node.merge_key]]
        if item.get(DIRECTIVE) == "delete":
            result = [other for index, other in enumerate(result) if index not in found]
        elif found:
            result[found[0]] = _merge_maps(result[found[0]], item, node.item)
        else:
            result.append(_clean(item, node.item))
    return result


def _shown(value: Any) -> str:
    """A JSON value as Go prints it."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{_shown(item)}' for key, item in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(_shown(item) for item in value)}]"
    names = {None: "<nil>", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else str(value)


def _identity(merge_key: str) -> Callable[[Any], Any]:
    if not merge_key:
        return lambda item: item
    return lambda item: item.get(merge_key) if isinstance(item, dict) else None


def _ordered(merged: list[Any], server: list[Any], order: Any, merge_key: str) -> list[Any]:
    """`merged` in the order the patch asks for; items that it does not name keep their place in the server's list."""
    identity = _identity(merge_key)
    wanted = [identity(item) for item in order]
    listed = sorted(
        (item for item in merged if identity(item) in wanted), key=lambda item: wanted.index(identity(item))
    )
    others = [item for item in merged if identity(item) not in wanted]
    places = [identity(item) for item in server]
    result: list[Any] = []
    while listed and others:
        other, named = identity(others[0]), identity(listed[0])
        both_known = other in places and named in places
        first = both_known and places.index(other) < places.index(named)
        result.append(others.pop(0) if first else listed.pop(0))
    return result + listed + others
