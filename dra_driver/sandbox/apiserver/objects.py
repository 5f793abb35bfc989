# SPDX-License-Identifier: Apache-2.0
"""API objects as the server stores them: JSON trees, with basic functions.

A stored object is never changed. Code that needs a different object changes a `clone`. Therefore reads, lists and
watches can share one tree and its encoded bytes.
"""

import json
import random
import uuid
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
"""A JSON object with `apiVersion`, `kind`, `metadata` and the fields of its kind."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_GENERATED_BASE = 58


def clone(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if type(value) is dict:
        return {key: clone(item) if type(item) is dict or type(item) is list else item for key, item in value.items()}
    if type(value) is list:
        return [clone(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


def fill(obj: Object, **defaults: Any) -> None:
    """Set the fields that are absent, or empty texts."""
    for field, value in defaults.items():
        if obj.get(field) in (None, ""):
            obj[field] = clone(value)


def encode(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def canonical(value: Any) -> str:
    """Return compact JSON with sorted keys, so that equal values have equal texts."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def pick(value: Any, *path: str) -> Any:
    """Return the value at `path` below `value`, or None if it does not exist."""
    for part in path:
        if type(value) is not dict:
            return None
        value = value.get(part)
    return value


def merged_order(current: list[str], wanted: list[str], *, new_first: bool = False) -> list[str]:
    """Return the keys of both lists in the order of `wanted`. The other keys keep their place among the current ones.

    Where a key that is only wanted meets one that is only current, the current key comes first (or the wanted one).
    """
    result: list[str] = []
    rest = list(current)
    for key in wanted:
        while rest and rest[0] != key and (key in rest or not (new_first or rest[0] in wanted)):
            other = rest.pop(0)
            if other not in wanted:
                result.append(other)
        if key in rest:
            rest.pop(0)
        result.append(key)
    return result + [other for other in rest if other not in wanted]


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Return an RFC 3339 time in UTC with whole seconds, like metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Parse an RFC 3339 time. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or "T" not in text.upper():
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    return moment


def new_uid() -> str:
    """Return a random RFC 4122 UID."""
    return str(uuid.uuid4())


def generated_name(base: str) -> str:
    """Return `base`, cut to the maximum length, with five random letters."""
    suffix = "".join(random.choices(_SUFFIX_LETTERS, k=5))  # noqa: S311 - a name, not a secret
    return base[:_LONGEST_GENERATED_BASE] + suffix
