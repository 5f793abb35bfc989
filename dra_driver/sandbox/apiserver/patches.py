# SPDX-License-Identifier: Apache-2.0
"""JSON Patch (RFC 6902), JSON Merge Patch (RFC 7386) and strategic merge patch, as pure functions.

`apply` has server-side apply, which also needs the owners of fields.

JSON Patch has the extensions of the API server: a replaced field need not exist, an absent value is null, and an absent
field is equal to null. Strategic merge patch reads merge keys and strategies from the type, and the directives
`$patch`, `$retainKeys`, `$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD` from the patch. It follows
k8s.io/apimachinery/pkg/util/strategicpatch.
"""

from typing import Any, Final

from .objects import canonical, clone, merged_order
from .schema import SchemaType, Shape

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"


class PatchError(Exception):
    """The patch cannot be applied to the object."""


class MalformedPatchError(PatchError):
    """The patch is malformed."""


def apply_json_patch(target: Any, operations: Any) -> Any:
    """Return `target` after all operations, without changing it. Raises PatchError."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise MalformedPatchError("a JSON patch must be a list of objects")
    root = {"": clone(target)}  # so that the whole document has a parent, too
    for operation in operations:
        _apply(root, operation)
    return root.get("")


def _apply(root: Any, operation: dict[str, Any]) -> None:
    path, value = _tokens(operation.get("path")), clone(operation.get("value"))
    parent, last = _find(root, path[:-1]), path[-1]
    match operation.get("op"):
        case "add":
            _add(parent, last, value)
        case "remove":
            _remove(parent, last)
        case "replace":
            if isinstance(parent, list):
                parent[_index(parent, last)] = value
            else:
                _add(parent, last, value)
        case "test":
            if (parent.get(last) if isinstance(parent, dict) else _child(parent, last)) != value:
                raise PatchError(f"testing value {operation['path']} failed")
        case "move":
            *above, name = _tokens(operation.get("from"))
            source = _find(root, above)
            value = _child(source, name)
            _remove(source, name)
            _add(_find(root, path[:-1]), last, value)
        case "copy":
            _add(parent, last, clone(_find(root, _tokens(operation.get("from")))))
        case other:
            raise PatchError(f"{other!r} is not a JSON patch operation")


def _tokens(path: Any) -> list[str]:
    """Return the keys that lead from the root to a JSON pointer. The first one is that of the document."""
    if not isinstance(path, str) or not (path == "" or path.startswith("/")):
        raise PatchError(f"{path!r} is not a JSON pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")]


def _find(value: Any, path: list[str]) -> Any:
    for token in path:
        value = _child(value, token)
    return value


def _child(container: Any, key: str) -> Any:
    if isinstance(container, list):
        return container[_index(container, key)]
    if not isinstance(container, dict) or key not in container:
        raise PatchError(f"{key!r} does not exist")
    return container[key]


def _index(items: list[Any], key: str, *, beyond: int = 0) -> int:
    """Return the index of an item, or with `beyond=1` the index of a new item."""
    if not key.isdecimal() or int(key) >= len(items) + beyond:
        raise PatchError(f"{key!r} is not an index of the list")
    return int(key)


def _add(container: Any, key: str, value: Any) -> None:
    if isinstance(container, list):
        container.insert(len(container) if key == "-" else _index(container, key, beyond=1), value)
    elif isinstance(container, dict):
        container[key] = value
    else:
        raise PatchError(f"{key!r} has no container")


def _remove(container: Any, key: str) -> None:
    _child(container, key)
    del container[int(key) if isinstance(container, list) else key]


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


def apply_strategic_patch(target: Any, patch: Any, node: SchemaType) -> Any:
    """Return `target`, an object of type `node`, merged with `patch`. Raises PatchError."""
    if not isinstance(patch, dict):
        raise MalformedPatchError("a strategic merge patch must be an object")
    return _merge_maps(target, patch, node)


def _merge_maps(target: Any, patch: dict[str, Any], node: SchemaType) -> dict[str, Any]:
    directive = patch.get(_DIRECTIVE)
    if directive not in (None, "merge", "replace", "delete"):
        raise PatchError(f"unknown patch type: {directive}")
    merged = dict(target) if isinstance(target, dict) and directive in (None, "merge") else {}
    if _RETAIN in patch:
        merged = {key: value for key, value in merged.items() if key in _list(patch, _RETAIN)}
    for key, value in patch.items() if directive != "delete" else ():
        field = key.removeprefix(_DELETE_FROM).removeprefix(_ORDER)
        if key.startswith(_DELETE_FROM):
            merged[field] = [item for item in merged.get(field) or () if item not in _list(patch, key)]
        elif key.startswith(_ORDER):
            if field not in patch and isinstance(merged.get(field), list):
                merged[field] = _merge_lists(merged[field], [], node.child(field), _list(patch, key))
        elif key in (_DIRECTIVE, _RETAIN):
            continue
        elif value is None:
            merged.pop(key, None)
        else:
            order = _list(patch, _ORDER + key) if _ORDER + key in patch else None
            merged[key] = _merge_values(merged.get(key), value, node.child(key), order)
    return merged


def _list(patch: dict[str, Any], key: str) -> list[Any]:
    found = patch[key]
    if not isinstance(found, list):
        raise MalformedPatchError(f"{key} must be a list")
    return found


def _merge_values(current: Any, value: Any, node: SchemaType, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        if node.shape is Shape.ANY:
            return value if not isinstance(current, dict) else _merge_maps(current, value, node)
        return _merge_maps({} if "replace" in node.strategies else current, value, node)
    if isinstance(value, list) and "merge" in node.strategies:
        return _merge_lists(current if isinstance(current, list) else [], value, node, order)
    if isinstance(value, list):
        return [_merge_values(None, item, node.item, None) for item in value]
    return value


def _merge_lists(current: list[Any], patch: list[Any], node: SchemaType, order: list[Any] | None) -> list[Any]:
    """Return the merged list, in the order that the patch requests (`order`), or else in that of its items."""

    def key(item: Any) -> Any:
        if not node.merge_key:
            return item
        if not isinstance(item, dict) or node.merge_key not in item:
            raise PatchError(f"map: {canonical(item)} does not contain declared merge key: {node.merge_key}")
        return item[node.merge_key]

    directives = [item.get(_DIRECTIVE) if isinstance(item, dict) else None for item in patch]
    if "replace" in directives:
        current = []
    changes = [item for item, directive in zip(patch, directives, strict=True) if directive != "replace"]
    merged = {canonical(key(item)): item for item in current}
    before = list(merged)
    for item in changes:
        name = canonical(key(item))
        if isinstance(item, dict) and item.get(_DIRECTIVE) == "delete":
            merged.pop(name, None)
        else:
            merged[name] = _merge_values(merged.get(name), item, node.item, None)
    wanted = dict.fromkeys(canonical(key(item)) for item in (*(order or ()), *changes))
    return [merged[name] for name in merged_order(before, list(wanted), new_first=True) if name in merged]
