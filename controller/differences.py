# SPDX-License-Identifier: Apache-2.0
"""Which fields of a stored slice differ from what was sent, so that an administrator can find out what changed them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.resource import ResourceSlice
from dra_driver.resource.codec import Dialect, encode_slice

_KEYS = ("uid", "name", "counterSet", "key")
"""Fields that tell the items of a list apart: of owners, devices and counter sets, consumptions, taints."""
_LONGEST_VALUE = 80
_ABSENT = object()


def describe_difference(sent: ResourceSlice, stored: ResourceSlice, dialect: Dialect) -> str:
    """The first field that differs, as a JSON path with both values, and how many more do; "" when none does.

    Fields that this driver does not know are not compared.
    """
    found = list(_differences(_compared(sent, dialect), _compared(stored, dialect), ""))
    if not found:
        return ""
    path, before, after = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{path} (sent {_shown(before)}, stored {_shown(after)}){more}"


def _compared(one: ResourceSlice, dialect: Dialect) -> dict[str, Any]:
    value = encode_slice(one, dialect)
    owners = value["metadata"].get("ownerReferences", [])
    return {"metadata": {"ownerReferences": owners}, "spec": value["spec"]}


def _differences(sent: Any, stored: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if sent == stored:
        return
    left, right = _by_key(sent), _by_key(stored)
    if left is None or right is None:
        yield path, sent, stored
        return
    named = isinstance(sent, Mapping) and not path.endswith(("attributes", "capacity", "counters"))
    for key in dict.fromkeys((*left, *right)):
        inner = f"{path}.{key}".lstrip(".") if named else f"{path}[{key}]"
        yield from _differences(left.get(key, _ABSENT), right.get(key, _ABSENT), inner)


def _by_key(value: Any) -> Mapping[Any, Any] | None:
    """The parts of an object or a list by what they are called; None for what has no parts."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list):
        return None
    field = next((key for key in _KEYS if all(isinstance(one, Mapping) and key in one for one in value)), None)
    named = {one[field]: one for one in value} if field else {}
    return named if len(named) == len(value) else dict(enumerate(value))


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
