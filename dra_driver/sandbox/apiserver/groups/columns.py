# SPDX-License-Identifier: Apache-2.0
"""Columns of `kubectl get` that several kinds share: names, ages, and the text of small lists.

Follows pkg/printers/internalversion of k8s.io/kubernetes.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from ..kinds import Column
from ..objects import Object, parse_timestamp, pick

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"


_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SPANS: Final = (
    (120, "s", 1, "", 1),
    (10 * _MINUTE, "m", _MINUTE, "s", 1),
    (180 * _MINUTE, "m", _MINUTE, "", 1),
    (8 * _HOUR, "h", _HOUR, "m", _MINUTE),
    (48 * _HOUR, "h", _HOUR, "", 1),
    (8 * _DAY, "d", _DAY, "h", _HOUR),
    (2 * 365 * _DAY, "d", _DAY, "", 1),
)
"""For spans of time below a limit: the unit and its seconds, then the unit of the remainder and its seconds."""


def human_duration(seconds: float) -> str:
    """Return a duration in at most two units: `95s`, `3m20s`, `5h`, `2d4h`, `400d`, `3y`."""
    total = max(int(seconds), 0)
    for limit, unit, size, rest, part in _SPANS:
        if total < limit:
            whole, left = divmod(total, size)
            return f"{whole}{unit}" + (f"{left // part}{rest}" if rest and left // part else "")
    years, left = divmod(total, 365 * _DAY)
    return f"{years}y{left // _DAY}d" if years < 8 and left >= _DAY else f"{years}y"


def since(text: str | None, now: datetime) -> str:
    """Return the age of an RFC 3339 time."""
    if not text:
        return UNKNOWN
    return human_duration((now - parse_timestamp(text)).total_seconds())


def _name(obj: Object, now: datetime) -> Any:
    return obj["metadata"].get("name", "")


def _age(obj: Object, now: datetime) -> Any:
    return since(obj["metadata"].get("creationTimestamp"), now)


def _created(obj: Object, now: datetime) -> Any:
    return obj["metadata"].get("creationTimestamp")


NAME: Final = Column("Name", _name, format="name", description="Name of the object")
AGE: Final = Column("Age", _age, description="Time since the object was created")
CREATED: Final = Column("Created At", _created, type="date", description="When the object was created")
NAME_AND_AGE: Final = (NAME, AGE)


def text(title: str, *path: str, wide: bool = False, absent: str = "") -> Column:
    """Return a column with the text at a path."""
    return Column(title, lambda obj, now: pick(obj, *path) or absent, priority=int(wide))


def number(title: str, *path: str) -> Column:
    """Return a column with the number at a path, or 0."""
    return Column(title, lambda obj, now: pick(obj, *path) or 0, type="integer")


def made(title: str, make: Callable[[Object], Any], *, wide: bool = False, kind: str = "string") -> Column:
    """Return a column whose cell is computed from the object."""
    return Column(title, lambda obj, now: make(obj), type=kind, priority=int(wide))


def count(title: str, *path: str) -> Column:
    """Return a column with the length of a list or map."""
    return Column(title, lambda obj, now: len(pick(obj, *path) or ()), type="integer")


def labels(selector: Any) -> str:
    """Return the text of a map of labels."""
    if not selector:
        return NONE
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def label_selector(selector: Any) -> str:
    """Return the text of a LabelSelector."""
    selector = selector or {}
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        key, values = term.get("key", ""), ",".join(term.get("values") or ())
        match term.get("operator"):
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
            case operator:
                parts.append(f"{key} {str(operator).lower()} ({values})")
    return ",".join(parts) or NONE


def _of_containers(title: str, field: str) -> Column:
    """Return a column with a field of all containers of a pod template."""

    def cell(obj: Object) -> str:
        return ",".join(item.get(field, "") for item in pick(obj, "spec", "template", "spec", "containers") or ())

    return made(title, cell, wide=True)


CONTAINERS: Final = _of_containers("Containers", "name")
IMAGES: Final = _of_containers("Images", "image")
SELECTOR: Final = made("Selector", lambda obj: label_selector(pick(obj, "spec", "selector")), wide=True)
