# SPDX-License-Identifier: Apache-2.0
"""JSON Patch (RFC 6902), JSON Merge Patch (RFC 7386) and strategic merge patch, as pure functions.

`apply` has server-side apply, which also needs the owners of fields.

JSON Patch has the extensions of the API server: a replaced field need not exist, an absent value is null, and an absent
field is equal to null. Strategic merge patch reads merge keys and strategies from the type, and the directives
`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD` from the patch. It follows
k8s.io/apimachinery/pkg/util/strategicpatch.
"""

from collections.abc import Callable
from typing import Any, Final

from .objects import canonical, clone
from .schema import Shape, Type
from .schema.decode import json_name


class PatchError(Exception):
    """The patch cannot be applied to the object."""


class MalformedPatchError(PatchError):
    """The patch is malformed."""


_GO_ITEM: Final = "handlers.jsonPatchOp"
_GO_TYPE: Final = f"[]{_GO_ITEM}"


def apply_json_patch(target: Any, operations: Any) -> Any:
    """Return `target` after all operations, without changing it. Raises PatchError."""
    if not isinstance(operations, list):
        raise MalformedPatchError(f"json: cannot unmarshal {json_name(operations)} into Go value of type {_GO_TYPE}")
    document = clone(target)
    for operation in operations:
        if not isinstance(operation, dict):
            raise MalformedPatchError(f"json: cannot unmarshal {json_name(operation)} into Go value of type {_GO_ITEM}")
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path, value = _tokens(operation.get("path")), operation.get("value")
    match operation.get("op"):
        case "add":
            return _add(document, path, clone(value))
        case "remove":
            return _remove(document, path)
        case "replace":
            return _set(document, path, clone(value)) if path else clone(value)
        case "test":
            if not _same(_tested(document, path), value):
                raise PatchError(f"testing value {operation['path']} failed")
            return document
        case "move":
            source = _tokens(operation.get("from"))
            moved = _get(document, source)
            return _add(_remove(document, source), path, moved)
        case "copy":
            return _add(document, path, clone(_get(document, _tokens(operation.get("from")))))
    raise PatchError(f"{operation.get('op')!r} is not a JSON patch operation")


def _tested(document: Any, path: list[str]) -> Any:
    parent = _get(document, path[:-1])
    return parent.get(path[-1]) if path and isinstance(parent, dict) else _get(document, path)


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _tokens(path: Any) -> list[str]:
    if path == "":
        return []
    if not isinstance(path, str) or not path.startswith("/"):
        raise PatchError(f"{path!r} is not a JSON pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in path[1:].split("/")]


def _index(container: list[Any], part: str, *, end: int) -> int:
    if part == "-" and end > len(container) - 1:
        return len(container)
    try:
        index = int(part)
    except ValueError:
        raise PatchError(f"{part!r} is not an index") from None
    if index < 0:
        index += len(container)
    if not 0 <= index <= end:
        raise PatchError(f"index {part} is out of bounds")
    return index


def _get(document: Any, path: list[str]) -> Any:
    for token in path:
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list):
            document = document[_index(document, token, end=len(document) - 1)]
        else:
            raise PatchError(f"{token!r} does not exist")
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], end=len(parent)), value)
        return document
    return _set(document, path, value)


def _set(document: Any, path: list[str], value: Any) -> Any:
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(parent, path[-1], end=len(parent) - 1)] = value
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchError(f"{path[-1]!r} has no container")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise PatchError("the whole document cannot be removed")
    _get(document, path)
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(parent, path[-1], end=len(parent) - 1)]
    else:
        del parent[path[-1]]
    return document


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` merged with `patch`: null removes a field, objects merge, and any other value replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


DIRECTIVE: Final = "$patch"
RETAIN: Final = "$retainKeys"
DELETE_FROM: Final = "$deleteFromPrimitiveList/"
ORDER: Final = "$setElementOrder/"


def apply_strategic_patch(target: Any, patch: Any, node: Type) -> Any:
    """Return `target`, an object of type `node`, merged with `patch`. Raises PatchError."""
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
            raise PatchError(f"unknown patch type: {other} in map: {canonical(patch)}")
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
    """Return a new or replacing value, without directives and nulls."""
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
            raise PatchError(f"map: {canonical(item)} does not contain declared merge key: {node.merge_key}")
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


def _identity(merge_key: str) -> Callable[[Any], Any]:
    if not merge_key:
        return lambda item: item
    return lambda item: item.get(merge_key) if isinstance(item, dict) else None


def _ordered(merged: list[Any], server: list[Any], order: Any, merge_key: str) -> list[Any]:
    """Return `merged` in the order that the patch requests. Items that the patch does not name keep their positions."""
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
