# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities: parsing, canonical text and exact arithmetic.

Follows the grammar and the rounding of k8s.io/apimachinery `resource.Quantity`. Suffixes are decimal SI, binary SI or a
decimal exponent. The finest amount is 10**-9, and values are rounded to it away from zero. A quantity is immutable.
Go's type also stores an internal form (integer or decimal). Only CEL needs this form, see
`scheduler.cel.library.quantity`.
"""

import enum
import functools
import re
from dataclasses import dataclass

from ...errors import QuantityError

NANO = 10**9
"""Amounts are stored in units of 10**-9: `Quantity.nanos == value * NANO`."""

_MAX_BINARY = (1 << 63) - 1  # the largest value with a binary suffix
_MAX_EXPONENT = 1024  # the API accepts larger exponents, but no real amount needs them

_TEXT = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>.*)", re.ASCII | re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)

_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_BY_EXPONENT = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_BY_EXPONENT = {exponent: suffix for suffix, exponent in _BINARY_SUFFIXES.items()}


class Format(enum.Enum):
    """The style of the suffix in the text of a quantity. It is kept when the quantity is written."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount. Two quantities are equal if their values are equal, whatever their styles are."""

    nanos: int
    format: Format = Format.DECIMAL_SI

    @staticmethod
    def parse(text: str) -> "Quantity":
        """Parse a quantity such as `40Gi`, `1500m` or `2e3`. Raises QuantityError."""
        return _parse(text)

    @staticmethod
    def of(value: int, style: Format = Format.DECIMAL_SI) -> "Quantity":
        """The quantity of a whole number."""
        return Quantity(value * NANO, style)

    @property
    def value(self) -> int:
        """The amount as a whole number, rounded away from zero."""
        whole, rest = divmod(abs(self.nanos), NANO)
        whole += rest > 0
        return whole if self.nanos >= 0 else -whole

    @property
    def is_whole(self) -> bool:
        """Whether the amount has no fraction."""
        return self.nanos % NANO == 0

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos + other.nanos, (self if self.nanos else other).format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos - other.nanos, (self if self.nanos else other).format)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: "Quantity") -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: "Quantity") -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: "Quantity") -> bool:
        return self.nanos >= other.nanos

    def __str__(self) -> str:
        """The canonical text, which the API server stores and returns."""
        return _canonical(self.nanos, self.format)


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    if not text:
        raise QuantityError("a quantity must not be empty")
    match = _TEXT.fullmatch(text)
    assert match is not None  # because every part of the pattern may be empty
    whole, fraction, suffix = match["whole"], match["fraction"], match["suffix"]
    digits = whole + (fraction or "")  # without digits the amount is 0 as in Go: the API accepts "Gi", "." and "-"
    unscaled = int(digits) if digits else 0
    places = len(fraction or "")

    if suffix in _BINARY_SUFFIXES:
        style, numerator, exponent = Format.BINARY_SI, unscaled << _BINARY_SUFFIXES[suffix], -places
    elif suffix in _DECIMAL_SUFFIXES:
        style, numerator, exponent = Format.DECIMAL_SI, unscaled, _DECIMAL_SUFFIXES[suffix] - places
    elif scientific := _EXPONENT.fullmatch(suffix):
        style, numerator, exponent = Format.DECIMAL_EXPONENT, unscaled, int(scientific[1]) - places
        if abs(exponent) > _MAX_EXPONENT:
            raise QuantityError(f"{text!r} has an exponent outside of ±{_MAX_EXPONENT}")
    else:
        units = ", ".join(unit for unit in (*_DECIMAL_SUFFIXES, *_BINARY_SUFFIXES) if unit)
        raise QuantityError(f"{text!r} is not a quantity: {suffix!r} is not a unit (use {units} or an exponent)")

    nanos = _scale_up(numerator, exponent + 9)
    if style is Format.BINARY_SI:
        nanos = min(nanos, _MAX_BINARY * NANO)
        if 0 < nanos < NANO:
            style = Format.DECIMAL_SI
    return Quantity(-nanos if match["sign"] == "-" else nanos, style)


def _scale_up(number: int, exponent: int) -> int:
    """number * 10**exponent for a number >= 0, rounded up to a whole number."""
    power: int = 10 ** abs(exponent)
    return number * power if exponent >= 0 else -(-number // power)


def _canonical(nanos: int, style: Format) -> str:
    if nanos == 0:
        return "0"
    sign, magnitude = ("-", -nanos) if nanos < 0 else ("", nanos)
    if style is Format.BINARY_SI and magnitude >= 1024 * NANO and magnitude % NANO == 0:
        number, exponent = magnitude // NANO, 0
        while number % 1024 == 0 and exponent < 60:
            number, exponent = number // 1024, exponent + 10
        return f"{sign}{number}{_BINARY_BY_EXPONENT.get(exponent, '')}"
    number, exponent = magnitude, -9
    while number % 1000 == 0:
        number, exponent = number // 1000, exponent + 3
    if style is Format.DECIMAL_EXPONENT or exponent > 18:
        return f"{sign}{number}" + (f"e{exponent}" if exponent else "")
    return f"{sign}{number}{_DECIMAL_BY_EXPONENT[exponent]}"
