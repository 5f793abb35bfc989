# SPDX-License-Identifier: Apache-2.0
"""Semantic versions and the functions on them (k8s.io/apiserver `pkg/cel/library/semverlib.go`, version 1).

They are parsed as github.com/blang/semver does, and compared as semver.org 2.0.0 says."""

import functools
import re
from typing import Final

from ..check.declarations import Function, Library, Overload, method
from ..errors import ErrorValue
from ..types import BOOL, INT, INT_MAX, SEMVER, STRING, UINT_MAX
from . import costs
from .values import Extension, no_such_overload, succeeds

_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)

Identifier = tuple[int, int, str]
"""One pre-release identifier, in order: (0, number, "") or, after all numbers, (1, 0, text)."""


class Semver(Extension):
    """A version. Build metadata is checked and forgotten: it counts for nothing."""

    __slots__ = ("key", "major", "minor", "patch")
    cel_type = SEMVER
    hashable = False

    def __init__(self, numbers: tuple[int, int, int], prerelease: tuple[Identifier, ...]) -> None:
        self.major, self.minor, self.patch = (_signed(number) for number in numbers)
        self.key = (numbers, not prerelease, prerelease)  # a release comes after its pre-releases
        """Orders versions."""

    def equals(self, other: object) -> bool:
        if not isinstance(other, Semver):
            raise no_such_overload()
        return self.key == other.key

    def compare(self, other: "Semver") -> int:
        """-1, 0 or 1."""
        return (self.key > other.key) - (self.key < other.key)


def _signed(number: int) -> int:
    return number if number <= INT_MAX else number - UINT_MAX - 1


@functools.lru_cache(maxsize=4096)
def parse_semver(text: str) -> Semver:
    """The version that `text` is. Raises ErrorValue when it is none."""
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise ErrorValue("parse", f"{text!r} is not a semantic version: it needs major.minor.patch")
    rest, plus, build = parts[2].partition("+")
    patch, minus, prerelease = rest.partition("-")
    numbers = (_number("major", parts[0], text), _number("minor", parts[1], text), _number("patch", patch, text))
    identifiers = tuple(_identifier(part, text) for part in prerelease.split(".")) if minus else ()
    if plus and not all(_IDENTIFIER.fullmatch(part) for part in build.split(".")):
        raise ErrorValue("parse", f"{text!r} is not a semantic version: invalid build metadata {build!r}")
    return Semver(numbers, identifiers)


def parse_semver_loosely(text: str) -> Semver:
    """The version that `text` is after taking away one `v` and leading zeros, and filling up missing numbers.

    Raises ErrorValue when it is none even then.
    """
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        raise ErrorValue("parse", f"{text!r}: a short version cannot have a pre-release or build part")
    return parse_semver(".".join([*parts, "0", "0"][: max(3, len(parts))]))


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isascii() and stripped[:1].isdigit() else "0" + stripped


def _number(name: str, digits: str, text: str) -> int:
    if not _NUMBER.fullmatch(digits):
        raise ErrorValue("parse", f"{text!r} is not a semantic version: its {name} number is {digits!r}")
    if len(digits) > 1 and digits[0] == "0":
        raise ErrorValue(
            "parse", f"{text!r} is not a semantic version: its {name} number {digits!r} begins with a zero"
        )
    if len(digits) > len(str(UINT_MAX)) or int(digits) > UINT_MAX:
        raise ErrorValue("parse", f"{text!r} is not a semantic version: its {name} number is out of range")
    return int(digits)


def _identifier(part: str, text: str) -> Identifier:
    if _NUMBER.fullmatch(part):
        return 0, _number("pre-release", part, text), ""
    if _IDENTIFIER.fullmatch(part):
        return 1, 0, part
    raise ErrorValue("parse", f"{text!r} is not a semantic version: invalid pre-release identifier {part!r}")


_NORMALIZING = 33
"""The release that brought the second argument."""


def _semver(text: str, normalize: bool = False) -> Semver:
    return parse_semver_loosely(text) if normalize else parse_semver(text)


SEMVERS = Library(
    functions=(
        Function(
            "semver",
            (
                Overload("string_to_semver", (STRING,), SEMVER, _semver),
                Overload("string_bool_to_semver", (STRING, BOOL), SEMVER, _semver, since=_NORMALIZING),
            ),
            cost=costs.read_first,
            estimate=costs.parse_estimate,
        ),
        Function(
            "isSemver",
            (
                Overload("is_semver_string", (STRING,), BOOL, succeeds(_semver)),
                Overload("is_semver_string_bool", (STRING, BOOL), BOOL, succeeds(_semver), since=_NORMALIZING),
            ),
            cost=costs.read_first,
            estimate=costs.parse_estimate,
        ),
        method("compareTo", "semver_compare_to", (SEMVER, SEMVER), INT, Semver.compare),
        method(
            "isGreaterThan", "semver_is_greater_than", (SEMVER, SEMVER), BOOL, lambda one, other: one.compare(other) > 0
        ),
        method("isLessThan", "semver_is_less_than", (SEMVER, SEMVER), BOOL, lambda one, other: one.compare(other) < 0),
        method("major", "semver_major", (SEMVER,), INT, lambda version: version.major),
        method("minor", "semver_minor", (SEMVER,), INT, lambda version: version.minor),
        method("patch", "semver_patch", (SEMVER,), INT, lambda version: version.patch),
    )
)
