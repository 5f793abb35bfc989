# SPDX-License-Identifier: Apache-2.0
"""Quantities, and the functions on them.

A quantity in an expression has the internal form of Go's `resource.Quantity`, because expressions can observe it. Go
stores an amount either as an integer (64 bits times a power of ten) or as a big decimal. The text of the quantity
decides which. The result of isInteger() depends on the form, and a comparison converts the receiver to a decimal.
Before 1.37, an addition changes a decimal in place. In contrast, `dra_driver.kube.resource.Quantity` is an exact and
immutable amount.

Follows k8s.io/apimachinery `pkg/api/resource` (quantity.go, amount.go) and k8s.io/apiserver
`pkg/cel/library/quantity.go`.
"""

import decimal
import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ....kube.releases import RULES, minor_of
from ....kube.resource import Format, Quantity
from ..declarations import CelLibrary, function, method
from ..errors import ErrorValue
from ..types import BOOL, DOUBLE, INT, INT_MAX, INT_MIN, QUANTITY
from .values import Extension, comparisons, no_such_overload, parser, spend, succeeds

_TEXT: Final = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SCIENTIFIC: Final = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_INTEGER_DIGITS: Final = 18
_NANO: Final = -9
_COPIES: Final = minor_of(RULES["quantities_change_in_sums"].until[0])
"""The minor version of the first release in which sums do not change their operands (kubernetes commit aada2b1f1)."""
_WIDEST: Final = 100_000
"""The number of decimal places that an addition may use. The limit avoids that `1e999999999` needs much memory."""

Form = tuple[int, int, bool]
"""(digits, exponent, whether Go stores a decimal). The amount is digits * 10**exponent."""

_MOST_FORMS: Final = 4096
_FORMS: Final[dict[int, tuple[Format, Form]]] = {}
"""The form of an amount and the style of its text. (The style is not part of the key, because hashing it is slow.)"""

_USUAL: Final = 64
"""Quantities that people write have at most this number of characters."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenQuantity(Quantity):
    """A quantity with the text from which it was parsed.

    The API server stores quantities in canonical text. The original text only matters for quantities that have not been
    stored by an API server.
    """

    text: str = ""

    @staticmethod
    def of_text(text: str) -> "WrittenQuantity":
        """Parse a quantity. Raises QuantityError."""
        exact = Quantity.parse(text)
        return WrittenQuantity(exact.nanos, exact.format, text)


@dataclass(slots=True)
class _Decimal:
    """The amount unscaled * 10**-scale. Additions change it in place, and several quantities may share it."""

    unscaled: int
    scale: int


class QuantityValue(Extension):
    """A quantity during one evaluation. `computed` marks the results of add() and sub()."""

    __slots__ = ("_decimal", "_exponent", "_value", "computed")
    cel_type = QUANTITY

    def __init__(self, form: Form, *, computed: bool = False) -> None:
        digits, exponent, decimal = form
        self._value = digits
        self._exponent = exponent
        self._decimal = _Decimal(digits, -exponent) if decimal else None
        self.computed = computed

    @property
    def as_integer(self) -> int | None:
        """The amount if it is stored as an integer and is a whole number that fits into 64 bits, otherwise None."""
        if self._decimal is not None or self._exponent < 0:
            return None
        if self._value and self._exponent > _INTEGER_DIGITS:
            return None
        amount = self._value * int(10**self._exponent) if self._value else 0
        return amount if INT_MIN <= amount <= INT_MAX else None

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        amount = self._value if self._decimal is None else self._decimal.unscaled
        return (amount > 0) - (amount < 0)

    @property
    def approximate(self) -> float:
        """The amount as a double, with the rounding error of one multiplication."""
        digits, exponent = self._parts()
        try:
            base = float(digits)
        except OverflowError:
            base = float("inf") if digits > 0 else float("-inf")
        return base * _power_of_ten(exponent) if exponent else base

    def compare(self, other: "QuantityValue") -> int:
        """-1, 0 or 1. Converts this quantity to a decimal if one of the two is a decimal."""
        if self._decimal is not None or other._decimal is not None:
            self._to_decimal()
        return _order(self._parts(), other._parts())

    def equals(self, other: object) -> bool:
        if not isinstance(other, QuantityValue) or other.computed:
            raise no_such_overload()
        return _order(self._parts(), other._parts()) == 0  # unlike the functions, `==` does not change the form

    def copied(self) -> "QuantityValue":
        """The same amount in the same form. Additions to one of the two do not change the other."""
        copy = QuantityValue((self._value, self._exponent, False))
        if self._decimal is not None:
            copy._decimal = _Decimal(self._decimal.unscaled, self._decimal.scale)
        return copy

    def plus(self, other: "QuantityValue") -> "QuantityValue":
        """The sum. If this quantity is a decimal, it changes in place, and the result shares the decimal."""
        return self._sum(other, other._value, 1)

    def minus(self, other: "QuantityValue") -> "QuantityValue":
        """The difference. A decimal changes in place as in `plus`."""
        negated = other._value if other._value == INT_MIN else -other._value  # -INT_MIN does not fit into 64 bits
        return self._sum(other, negated, -1)

    def _sum(self, other: "QuantityValue", value: int, sign: int) -> "QuantityValue":
        """The sum with `value` if `other` is an integer, too, otherwise with the decimal `other` times `sign`."""
        total = QuantityValue((self._value, self._exponent, False), computed=True)
        total._decimal = self._decimal
        both_integers = total._decimal is None and other._decimal is None
        if not (both_integers and total._add_integers(value, other._exponent)):
            digits, exponent = other._parts()
            total._add_decimal(sign * digits, exponent)
        return total

    def _parts(self) -> tuple[int, int]:
        if self._decimal is None:
            return self._value, self._exponent
        return self._decimal.unscaled, -self._decimal.scale

    def _to_decimal(self) -> _Decimal:
        if self._decimal is None:
            self._decimal = _Decimal(self._value, -self._exponent)
            self._value = self._exponent = 0
        return self._decimal

    def _add_integers(self, value: int, exponent: int) -> bool:
        """Add as integers. Returns False, and changes nothing, if the sum does not fit into 64 bits."""
        if value == 0:
            return True
        if self._value == 0:
            self._value, self._exponent = value, exponent
            return True
        low = min(self._exponent, exponent)
        if max(self._exponent, exponent) - low > _INTEGER_DIGITS:
            return False
        left, right = self._value * int(10 ** (self._exponent - low)), value * int(10 ** (exponent - low))
        total = left + right
        if not all(INT_MIN <= amount <= INT_MAX for amount in (left, right, total)):
            return False
        self._value, self._exponent = total, low
        return True

    def _add_decimal(self, digits: int, exponent: int) -> None:
        """Add as decimals, in place. The scale grows if the sum has more decimal places."""
        decimal = self._to_decimal()
        scale = max(decimal.scale, -exponent)
        widen, shift = scale - decimal.scale, scale + exponent
        if max(widen if decimal.unscaled else 0, shift if digits else 0) > _WIDEST:
            raise ErrorValue("overflow", "the sizes of the quantities differ too much for an addition")
        amount = decimal.unscaled * int(10**widen) if decimal.unscaled else 0
        decimal.unscaled = amount + (digits * int(10**shift) if digits else 0)
        decimal.scale = scale


def _order(left: tuple[int, int], right: tuple[int, int]) -> int:
    """-1, 0 or 1 for two (digits, exponent). Does not compute huge powers of ten."""
    if left[1] == right[1]:
        return (left[0] > right[0]) - (left[0] < right[0])
    left_sign, right_sign = ((n > 0) - (n < 0) for n in (left[0], right[0]))
    if left_sign != right_sign or left_sign == 0:
        return (left_sign > right_sign) - (left_sign < right_sign)
    sizes = [_places(abs(digits)) + exponent for digits, exponent in (left, right)]
    if sizes[0] != sizes[1]:
        return left_sign if sizes[0] > sizes[1] else -left_sign
    low = min(left[1], right[1])
    scaled_left, scaled_right = (number * int(10 ** (exponent - low)) for number, exponent in (left, right))
    return (scaled_left > scaled_right) - (scaled_left < scaled_right)


def _places(number: int) -> int:
    """The number of decimal digits of a positive number. (Python refuses to convert very long numbers to text.)"""
    places = (number.bit_length() - 1) * 30_103 // 100_000
    while int(10**places) <= number:
        places += 1
    return places


def _whole(digits: str) -> int:
    """The number with these digits. (Python's int() refuses more than 4300 digits.)"""
    return int(digits) if len(digits) < 4000 else int(decimal.Decimal(digits))


def _power_of_ten(exponent: int) -> float:
    """10**exponent with the rounding of Go's math.Pow10, the product or quotient of two entries of a table."""
    if exponent > 308:
        return float("inf")
    if exponent < -323:
        return 0.0
    high, low = divmod(abs(exponent), 32)
    if exponent >= 0:
        return float(f"1e{32 * high}") * float(f"1e{low}")
    return float(f"1e-{32 * high}") / float(f"1e{low}")


@functools.lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Form:
    """The form in which Go stores the quantity `text`. Raises ErrorValue if it is invalid."""
    match = _TEXT.fullmatch(text) if text else None
    if match is None:
        raise ErrorValue("parse", f"{text!r} is not a quantity: a number with a suffix such as 40Gi, 1500m or 2e3")
    sign, whole, fraction, suffix = -1 if match[1] == "-" else 1, match[2] or "0", match[3] or "", match[4]
    has_digits = any(map(str.isdigit, text[: len(text) - len(suffix)]))
    if suffix in _BINARY:
        form = _parse_binary(sign, whole, fraction, _BINARY[suffix])
        return _checked(form, text, has_digits=has_digits)
    if suffix in _DECIMAL:
        exponent = _DECIMAL[suffix]
    elif scientific := _SCIENTIFIC.fullmatch(suffix):
        exponent = _as_int32(_whole(scientific[1]), text)
    else:
        raise ErrorValue("parse", f"{text!r} is not a quantity: unknown suffix {suffix!r}")
    exponent -= len(fraction)
    digits = _whole(whole + fraction)
    if len(whole) + len(fraction) <= _INTEGER_DIGITS and exponent >= _NANO:
        return sign * digits, exponent, False
    return _checked((sign * _nanos(digits, exponent), _NANO, True), text, has_digits=has_digits)


def _checked(form: Form, text: str, *, has_digits: bool) -> Form:
    """The form. A text without digits is 0 if Go stores an integer. Raises ErrorValue if Go stores a decimal."""
    if form[2] and not has_digits:
        raise ErrorValue("parse", f"{text!r} is not a quantity: it has no digits")
    return form


def _parse_binary(sign: int, whole: str, fraction: str, power: int) -> Form:
    precision = 15 - len(whole) - power * 3 // 10 - 1
    if not fraction and precision >= 0:
        return sign * (_whole(whole) << power), 0, False
    nanos = _nanos(_whole(whole + fraction) << power, -len(fraction))
    if nanos > INT_MAX * 10**9:
        return sign * INT_MAX, 0, True
    return sign * nanos, _NANO, True


def _as_int32(exponent: int, text: str) -> int:
    if not INT_MIN <= exponent <= INT_MAX:
        raise ErrorValue("parse", f"{text!r} is not a quantity: its exponent is out of range")
    return (exponent + (1 << 31)) % (1 << 32) - (1 << 31)  # Go cuts it to 32 bits


def _nanos(digits: int, exponent: int) -> int:
    """digits * 10**exponent in units of 10**-9, rounded up."""
    shift = exponent - _NANO
    if digits == 0:
        return 0
    if shift < 0:
        return -(-digits // int(10 ** min(-shift, _WIDEST)))
    if shift > _WIDEST:
        raise ErrorValue("parse", "the exponent of the quantity is too large")
    return digits * int(10**shift)


def quantity_of(quantity: Quantity) -> QuantityValue:
    """A new CEL value for a capacity."""
    if isinstance(quantity, WrittenQuantity):
        return QuantityValue(parse_quantity(quantity.text))
    nanos, style = quantity.nanos, quantity.format
    known = _FORMS.get(nanos)
    if known is None or known[0] is not style:
        if len(_FORMS) >= _MOST_FORMS:
            _FORMS.clear()
        known = _FORMS[nanos] = style, parse_quantity(str(quantity))  # as the API server writes it
    return QuantityValue(known[1])


def is_decimal(quantity: Quantity) -> bool:
    """Whether Go stores the amount as a decimal. For example, it does so for `1Pi`, but not for `1536Mi`."""
    text = quantity.text if isinstance(quantity, WrittenQuantity) else str(quantity)
    return parse_quantity(text)[2]


def _quantity(text: str) -> QuantityValue:
    if len(text) > _USUAL:
        spend(len(text) ** 2 // 1000)  # the time of converting the digits
    return QuantityValue(parse_quantity(text))


def _as_integer(quantity: QuantityValue) -> int:
    amount = quantity.as_integer
    if amount is None:
        raise ErrorValue("conversion", "the quantity cannot be converted to an integer")
    return amount


def _of_int(amount: int) -> QuantityValue:
    return QuantityValue((amount, 0, False))


QUANTITIES = CelLibrary(
    parser("quantity", "string_to_quantity", QUANTITY, _quantity),
    parser("isQuantity", "is_quantity_string", BOOL, succeeds(_quantity)),
    function("sign", ("quantity_sign", (QUANTITY,), INT, lambda quantity: quantity.sign)),
    *comparisons("quantity", QUANTITY, QuantityValue.compare),
    method("asApproximateFloat", ("quantity_get_float", (QUANTITY,), DOUBLE, lambda quantity: quantity.approximate)),
    method("asInteger", ("quantity_get_int", (QUANTITY,), INT, _as_integer)),
    method(
        "isInteger",
        ("quantity_is_integer", (QUANTITY,), BOOL, lambda quantity: quantity.as_integer is not None),
    ),
)


def _sums(
    receiver: Callable[[QuantityValue], QuantityValue], *, release: int = 0, until: int = sys.maxsize
) -> CelLibrary:
    """add() and sub(). `receiver` returns the quantity to which they add."""

    def add(quantity: QuantityValue, other: QuantityValue) -> QuantityValue:
        return receiver(quantity).plus(other)

    def subtract(quantity: QuantityValue, other: QuantityValue) -> QuantityValue:
        return receiver(quantity).minus(other)

    return CelLibrary(
        method(
            "add",
            ("quantity_add", (QUANTITY, QUANTITY), QUANTITY, add),
            ("quantity_add_int", (QUANTITY, INT), QUANTITY, lambda quantity, amount: add(quantity, _of_int(amount))),
        ),
        method(
            "sub",
            ("quantity_sub", (QUANTITY, QUANTITY), QUANTITY, subtract),
            (
                "quantity_sub_int",
                (QUANTITY, INT),
                QUANTITY,
                lambda quantity, amount: subtract(quantity, _of_int(amount)),
            ),
        ),
        release=release,
        until=until,
    )


QUANTITY_SUMS = (_sums(lambda quantity: quantity, until=_COPIES), _sums(QuantityValue.copied, release=_COPIES))
