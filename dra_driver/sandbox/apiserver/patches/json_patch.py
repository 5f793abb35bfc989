# SPDX-License-Identifier: Apache-2.0
"""JSON Patch, RFC 6902, with the liberties that the API server takes; and JSON Merge Patch, RFC 7386.

A replaced field need not exist, an absent value is null, and an absent field tests equal to null.
"""

from typing import Any, Final

from ..objects import clone
from ..schema.decode import json_name
from . import MalformedPatchError, PatchError

_GO_ITEM: Final = "handlers.jsonPatchOp"
_GO_TYPE: Final = f"[]{_GO_ITEM}"


def apply_json_patch(target: Any, operations: Any) -> Any:
    """`target` after all operations; it is not changed itself. Raises PatchError."""
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
    """`target` with `patch` merged in: null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result
