# SPDX-License-Identifier: Apache-2.0
"""API objects as the server holds them: plain JSON trees, and the few things done to any of them.

An object that has been stored is never changed again; whoever wants a different one works on
a `clone`. That rule is what lets reads, lists and watches share one tree and its encoded bytes.
"""

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
"""A JSON object with `apiVersion`, `kind`, `metadata` and whatever its kind has."""

Clock = Callable[[], datetime]
"""Tells the time, with a time zone."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_GENERATED_BASE = 58


def clone(value: Any) -> Any:
    """A copy of a JSON value that shares nothing that can change."""
    if type(value) is dict:
        return {key: clone(item) if type(item) is dict or type(item) is list else item for key, item in value.items()}
    if type(value) is list:
        return [clone(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def canonical(value: Any) -> str:
    """Compact JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def pick(value: Any, *path: str) -> Any:
    """The value at `path` below `value`; None where it does not exist."""
    for part in path:
        if type(value) is not dict:
            return None
        value = value.get(part)
    return value


def metadata(obj: Object) -> Object:
    """The object's metadata, made if it has none."""
    found: Object = obj.setdefault("metadata", {})
    return found


def now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time is written."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """The moment that an RFC 3339 text names; ValueError if it names none."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or "T" not in text.upper():
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    return moment


def new_uid() -> str:
    """A random RFC 4122 UID."""
    return str(uuid.uuid4())


def generated_name(base: str) -> str:
    """`base`, cut to what leaves room, and five random letters."""
    suffix = "".join(random.choices(_SUFFIX_LETTERS, k=5))  # noqa: S311 - a name, not a secret
    return base[:_LONGEST_GENERATED_BASE] + suffix
