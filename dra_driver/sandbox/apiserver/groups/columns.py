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


_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60))


def _duration(seconds: float) -> str:
    """Return a duration in the largest unit of which there are at least two: `95s`, `3m`, `47h`, `400d`."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def since(text: str | None, now: datetime) -> str:
    """Return the age of an RFC 3339 time."""
    if not text:
        return UNKNOWN
    return _duration((now - parse_timestamp(text)).total_seconds())


def _name(obj: Object, now: datetime) -> Any:
    return obj["metadata"].get("name", "")


def _age(obj: Object, now: datetime) -> Any:
    return since(obj["metadata"].get("creationTimestamp"), now)


def _created(obj: Object, now: datetime) -> Any:
    return obj["metadata"].get("creationTimestamp")


NAME: Final = Column("Name", _name, format="name")
AGE: Final = Column("Age", _age)
CREATED: Final = Column("Created At", _created, type="date")
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
