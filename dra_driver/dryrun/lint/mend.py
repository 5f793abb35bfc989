# SPDX-License-Identifier: Apache-2.0
"""All errors of form that an object has, though decoding stops at the first one.

Each error is noted, its place is mended, and decoding starts over: what is not known or of the wrong type is taken
out, what is required gets a stand-in. So the other rules have an object to look at; what they would say about a
mended place is no news, and `Form.is_mended` tells.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ...resource.codec import DecodeError
from ..documents import JSON
from .positions import is_within, resolve

T = TypeVar("T")

_MOST_ERRORS: Final = 100
_REQUIRED: Final = "is required"
_UNKNOWN: Final = "unknown field"
_OTHER_FORM: Final = "is the form of"
_ONE_OF: Final = "exactly one of exactly and firstAvailable"
_OF_REQUEST: Final = ("name", "exactly", "firstAvailable")

STAND_IN: Final = "stand-in"
"""The name of what has none."""
_SELECTOR: Final = {"cel": {"expression": "true"}}
_OPAQUE: Final = {"driver": STAND_IN, "parameters": {}}
FIELDS: Final[Mapping[str, Any]] = {
    "spec": {},
    "name": STAND_IN,
    "deviceClassName": STAND_IN,
    "cel": _SELECTOR["cel"],
    "expression": "true",
    "opaque": _OPAQUE,
    "driver": STAND_IN,
    "parameters": {},
}
"""Stand-ins for required fields of claims and classes."""
_ITEMS: Final[Mapping[str, Any]] = {
    "requests": {"name": STAND_IN},
    "firstAvailable": {"name": STAND_IN, "deviceClassName": STAND_IN},
    "selectors": _SELECTOR,
    "constraints": {},
    "config": {"opaque": _OPAQUE},
    "tolerations": {},
}


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """An object decoded as far as that goes: None when a place could not be mended."""

    decoded: T | None
    errors: tuple[DecodeError, ...]
    mended: frozenset[str]

    def is_mended(self, path: str) -> bool:
        """Whether `path` lies in what was mended: a finding about it would be about a stand-in."""
        return any(is_within(path, place) for place in self.mended)


def is_unknown_field(error: DecodeError) -> bool:
    """Whether the error is about a field that the object may not have."""
    return error.problem.startswith(_UNKNOWN)


def decode_all(value: JSON, decode: Callable[[JSON], T], stand_ins: Mapping[str, Any] = FIELDS) -> Form[T]:
    """Decode `value` with `decode`, which raises DecodeError, and collect all errors."""
    patient = copy.deepcopy(value)
    errors: list[DecodeError] = []
    mended: set[str] = set()
    for _ in range(_MOST_ERRORS):
        try:
            return Form(decode(patient), tuple(errors), frozenset(mended))
        except DecodeError as error:
            if not any(is_within(error.path, place) for place in mended):
                errors.append(error)
            if not _mend(patient, error, stand_ins):
                break
            mended.add(error.path)
    return Form(None, tuple(errors), frozenset(mended))


def _mend(value: JSON, error: DecodeError, stand_ins: Mapping[str, Any]) -> bool:
    """Change `value` so that the error is gone; False when there is no way."""
    steps, whole = resolve(value, error.path)
    if not whole:
        return _insert(value, error, steps, stand_ins)
    if not steps:
        return False
    *outer, last = steps
    parent = _at(value, tuple(outer))
    if error.problem.startswith(_OTHER_FORM):
        _reshape(parent, "basic" if "'basic'" in error.problem else "exactly")
    elif error.problem.startswith(_ONE_OF):
        parent[last].pop("firstAvailable", None)
        parent[last].setdefault("exactly", {"deviceClassName": STAND_IN})
    elif isinstance(parent, list):
        return _replace_item(parent, last, error, outer)
    elif error.problem.startswith(_REQUIRED) and last in stand_ins:  # it is there, and empty
        parent[last] = copy.deepcopy(stand_ins[str(last)])
    else:
        del parent[last]
    return True


def _insert(value: JSON, error: DecodeError, steps: tuple[str | int, ...], stand_ins: Mapping[str, Any]) -> bool:
    parent = _at(value, steps)
    missing = error.path.rpartition(".")[2]
    if missing not in stand_ins or not isinstance(parent, dict):
        return False
    parent[missing] = copy.deepcopy(stand_ins[missing])
    return True


def _replace_item(parent: list[Any], index: str | int, error: DecodeError, outer: list[str | int]) -> bool:
    """Items are replaced, never taken out: the places of the others stay what they are."""
    assert isinstance(index, int)
    stand_in = "" if "must be a string" in error.problem else _ITEMS.get(str(outer[-1]))
    if stand_in is None or parent[index] == stand_in:
        return False
    parent[index] = copy.deepcopy(stand_in)
    return True


def _reshape(value: JSON, level: str) -> None:
    """A request or device in the form of another version of the API, in its own: with or without a `level` more."""
    if level in value:
        inner = value.pop(level)
        value.update(inner if isinstance(inner, dict) else {})
    else:
        value[level] = {key: value.pop(key) for key in list(value) if key not in _OF_REQUEST}


def _at(value: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        value = value[step]
    return value
