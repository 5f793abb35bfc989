# SPDX-License-Identifier: Apache-2.0
"""Semantic versions and the functions on them (k8s.io/apiserver `pkg/cel/library/semverlib.go`, version 1).

Parsing follows github.com/blang/semver, and comparing follows semver.org 2.0.0.
"""

import functools
import re
from typing import Final

from ..declarations import CelLibrary, Overload, function, method
from ..errors import ErrorValue
from ..types import BOOL, INT, INT_MAX, SEMVER, STRING, UINT_MAX
from .values import PARSE, Extension, comparisons, succeeds

_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)

Identifier = tuple[int, int, str]
"""One pre-release identifier: (0, number, "") or (1, 0, text). Tuples have the right order: numbers before texts."""

_NORMALIZING = 33
"""The release that added the second argument."""


class Semver(Extension):
    """A version. Its build metadata is checked when it is parsed, but not stored, because comparisons ignore it."""

    __slots__ = ("key", "major", "minor", "patch")
    cel_type = SEMVER
    hashable = False

    def __init__(self, numbers: tuple[int, int, int], prerelease: tuple[Identifier, ...]) -> None:
        self.major, self.minor, self.patch = (_signed(number) for number in numbers)
        self.key = (numbers, not prerelease, prerelease)  # pre-releases come before their release
        """Has the order of versions."""

    @property
    def identity(self) -> object:
        return self.key

    def __str__(self) -> str:
        release = f"{self.major}.{self.minor}.{self.patch}"
        prerelease = ".".join(text if is_text else str(number) for is_text, number, text in self.key[2])
        return f"{release}-{prerelease}" if prerelease else release

    def compare(self, other: "Semver") -> int:
        """-1, 0 or 1."""
        return (self.key > other.key) - (self.key < other.key)


def _signed(number: int) -> int:
    return number if number <= INT_MAX else number - UINT_MAX - 1


@functools.lru_cache(maxsize=4096)
def parse_semver(text: str) -> Semver:
    """Parse a version. Raises ErrorValue."""
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise _invalid(text, "it must have the form major.minor.patch")
    rest, plus, build = parts[2].partition("+")
    patch, minus, prerelease = rest.partition("-")
    numbers = (_number("major", parts[0], text), _number("minor", parts[1], text), _number("patch", patch, text))
    identifiers = tuple(_identifier(part, text) for part in prerelease.split(".")) if minus else ()
    if plus and not all(_IDENTIFIER.fullmatch(part) for part in build.split(".")):
        raise _invalid(text, f"invalid build metadata {build!r}")
    return Semver(numbers, identifiers)


def parse_semver_loosely(text: str) -> Semver:
    """Parse a version that may start with `v`, have leading zeros, and lack the minor or patch number.

    Raises ErrorValue.
    """
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        raise ErrorValue("parse", f"{text!r}: a short version cannot have a pre-release or build part")
    return parse_semver(".".join([*parts, "0", "0"][: max(3, len(parts))]))


def _invalid(text: str, reason: str) -> ErrorValue:
    return ErrorValue("parse", f"{text!r} is not a semantic version: {reason}")


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isascii() and stripped[:1].isdigit() else "0" + stripped


def _number(name: str, digits: str, text: str) -> int:
    if not _NUMBER.fullmatch(digits):
        raise _invalid(text, f"its {name} number is {digits!r}")
    if len(digits) > 1 and digits[0] == "0":
        raise _invalid(text, f"its {name} number {digits!r} starts with a zero")
    if len(digits) > len(str(UINT_MAX)) or int(digits) > UINT_MAX:
        raise _invalid(text, f"its {name} number is out of range")
    return int(digits)


def _identifier(part: str, text: str) -> Identifier:
    if _NUMBER.fullmatch(part):
        return 0, _number("pre-release", part, text), ""
    if _IDENTIFIER.fullmatch(part):
        return 1, 0, part
    raise _invalid(text, f"invalid pre-release identifier {part!r}")


def _semver(text: str, normalize: bool = False) -> Semver:
    return parse_semver_loosely(text) if normalize else parse_semver(text)


SEMVERS = CelLibrary(
    function(
        "semver",
        ("string_to_semver", (STRING,), SEMVER, _semver),
        Overload("string_bool_to_semver", (STRING, BOOL), SEMVER, _semver, since=_NORMALIZING),
        cost=PARSE,
    ),
    function(
        "isSemver",
        ("is_semver_string", (STRING,), BOOL, succeeds(_semver)),
        Overload("is_semver_string_bool", (STRING, BOOL), BOOL, succeeds(_semver), since=_NORMALIZING),
        cost=PARSE,
    ),
    *comparisons("semver", SEMVER, Semver.compare),
    method("major", ("semver_major", (SEMVER,), INT, lambda version: version.major)),
    method("minor", ("semver_minor", (SEMVER,), INT, lambda version: version.minor)),
    method("patch", ("semver_patch", (SEMVER,), INT, lambda version: version.patch)),
)
