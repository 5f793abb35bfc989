# SPDX-License-Identifier: Apache-2.0
"""Quantities with the internal form of Go's `resource.Quantity`, which shows, and the functions on them.

Go keeps an amount either as an integer (64 bits times a power of ten) or as a big decimal, depending on
how it was written. `isInteger()` answers by form, comparing turns the receiver into a decimal, and
adding to a decimal changes it in place. `dra_driver.resource.Quantity` is the exact, immutable amount.
Follows k8s.io/apimachinery `pkg/api/resource` (quantity.go, amount.go) and k8s.io/apiserver
`pkg/cel/library/quantity.go`."""

import decimal
import functools
import re
from dataclasses import dataclass
from typing import Final

from ...resource import Format, Quantity
from ..check.declarations import Function, Library, Overload, function, method
from ..errors import ErrorValue
from ..types import BOOL, DOUBLE, INT, INT_MAX, INT_MIN, QUANTITY
from . import costs
from .values import Extension, no_such_overload, spend, succeeds

_TEXT: Final = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SCIENTIFIC: Final = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_INTEGER_DIGITS: Final = 18
_NANO: Final = -9
_WIDEST: Final = 100_000
"""Decimal places that adding may need before it is refused, so that `1e999999999` costs no memory."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenQuantity(Quantity):
    """A quantity that remembers its spelling.

    The API server stores canonical text, so this only matters for quantities that never went through it.
    """

    text: str = ""

    @staticmethod
    def of_text(text: str) -> "WrittenQuantity":
        """The quantity that `text` denotes. Raises QuantityError."""
        exact = Quantity.parse(text)
        return WrittenQuantity(exact.nanos, exact.format, text)


@dataclass(slots=True)
class _Decimal:
    """unscaled * 10**-scale, changed in place by additions. Quantities may share one."""

    unscaled: int
    scale: int


Form = tuple[int, int, bool]
"""(digits, exponent, is a decimal): the amount is digits * 10**exponent."""


class QuantityValue(Extension):
    """A quantity in one evaluation. `computed` marks the results of add() and sub()."""

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
        """The amount, if it is held as an integer that is a whole number within 64 bits."""
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
        """The nearest double, give or take the rounding of one multiplication."""
        digits, exponent = self._parts()
        try:
            base = float(digits)
        except OverflowError:
            base = float("inf") if digits > 0 else float("-inf")
        return base * _power_of_ten(exponent) if exponent else base

    def compare(self, other: "QuantityValue") -> int:
        """-1, 0 or 1. Turns this quantity, not the other, into a decimal if either is one."""
        if self._decimal is not None or other._decimal is not None:
            self._to_decimal()
        return _order(self._parts(), other._parts())

    def equals(self, other: object) -> bool:
        if not isinstance(other, QuantityValue) or other.computed:
            raise no_such_overload()
        return _order(self._parts(), other._parts()) == 0  # unlike the functions, `==` leaves the form alone

    def plus(self, other: "QuantityValue") -> "QuantityValue":
        """The sum. A decimal is added to in place and shared with the result."""
        total = self._copy()
        if total._decimal is None and other._decimal is None and total._add_integers(other._value, other._exponent):
            return total
        total._add_decimal(*other._parts())
        return total

    def minus(self, other: "QuantityValue") -> "QuantityValue":
        """The difference, with `plus`'s effect on decimals."""
        total = self._copy()
        negated = other._value if other._value == INT_MIN else -other._value  # 64 bits cannot hold its opposite
        if total._decimal is None and other._decimal is None and total._add_integers(negated, other._exponent):
            return total
        digits, exponent = other._parts()
        total._add_decimal(-digits, exponent)
        return total

    def _copy(self) -> "QuantityValue":
        twin = QuantityValue((self._value, self._exponent, False), computed=True)
        twin._decimal = self._decimal
        return twin

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
        """Add as integers; False, and nothing changed, when 64 bits do not hold the sum."""
        if value == 0:
            return True
        if self._value == 0:
            self._value, self._exponent = value, exponent
            return True
        low = min(self._exponent, exponent)
        if max(self._exponent, exponent) - low > _INTEGER_DIGITS:
            return False
        mine, theirs = self._value * int(10 ** (self._exponent - low)), value * int(10 ** (exponent - low))
        total = mine + theirs
        if not all(INT_MIN <= amount <= INT_MAX for amount in (mine, theirs, total)):
            return False
        self._value, self._exponent = total, low
        return True

    def _add_decimal(self, digits: int, exponent: int) -> None:
        """Add as decimals, in place. The scale is widened if that takes more places."""
        decimal = self._to_decimal()
        scale = max(decimal.scale, -exponent)
        widen, shift = scale - decimal.scale, scale + exponent
        if max(widen if decimal.unscaled else 0, shift if digits else 0) > _WIDEST:
            raise ErrorValue("overflow", "quantities of too different a size to be added")
        amount = decimal.unscaled * int(10**widen) if decimal.unscaled else 0
        decimal.unscaled = amount + (digits * int(10**shift) if digits else 0)
        decimal.scale = scale


def _order(left: tuple[int, int], right: tuple[int, int]) -> int:
    """Compares two (digits, exponent) without writing out huge powers of ten."""
    if left[1] == right[1]:
        return (left[0] > right[0]) - (left[0] < right[0])
    left_sign, right_sign = ((n > 0) - (n < 0) for n in (left[0], right[0]))
    if left_sign != right_sign or left_sign == 0:
        return (left_sign > right_sign) - (left_sign < right_sign)
    sizes = [_places(abs(digits)) + exponent for digits, exponent in (left, right)]
    if sizes[0] != sizes[1]:
        return left_sign if sizes[0] > sizes[1] else -left_sign
    low = min(left[1], right[1])
    mine, other = left[0] * int(10 ** (left[1] - low)), right[0] * int(10 ** (right[1] - low))
    return (mine > other) - (mine < other)


def _places(number: int) -> int:
    """How many decimal digits a positive number has. (Python refuses to write out very long ones.)"""
    places = (number.bit_length() - 1) * 30_103 // 100_000
    while int(10**places) <= number:
        places += 1
    return places


def _whole(digits: str) -> int:
    """A number of any length. (Python's int() refuses more than 4300 digits.)"""
    return int(digits) if len(digits) < 4000 else int(decimal.Decimal(digits))


def _power_of_ten(exponent: int) -> float:
    """10**exponent as Go's math.Pow10 has it: the product or quotient of two table entries."""
    if exponent > 308:
        return float("inf")
    if exponent < -323:
        return 0.0
    high, low = divmod(abs(exponent), 32)
    if exponent >= 0:
        return float(f"1e{32 * high}") * float(f"1e{low}")
    return float(f"1e-{32 * high}") / float(f"1e{low}")


def parse_quantity(text: str) -> Form:
    """The form that Go gives the quantity `text`. Raises ErrorValue when it is none."""
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
    """The form. Without any digit, only integers are taken for 0. Raises ErrorValue for decimals."""
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
    """digits * 10**exponent in billionths, rounded up."""
    shift = exponent - _NANO
    if digits == 0:
        return 0
    if shift < 0:
        return -(-digits // int(10 ** min(-shift, _WIDEST)))
    if shift > _WIDEST:
        raise ErrorValue("parse", "a quantity with too large an exponent")
    return digits * int(10**shift)


def quantity_of(quantity: Quantity) -> QuantityValue:
    """A fresh CEL value for a capacity."""
    if isinstance(quantity, WrittenQuantity):
        return QuantityValue(parsed_quantity(quantity.text))
    nanos, style = quantity.nanos, quantity.format
    known = _FORMS.get(nanos)
    if known is None or known[0] is not style:
        if len(_FORMS) >= _MOST_FORMS:
            _FORMS.clear()
        known = _FORMS[nanos] = style, parse_quantity(str(quantity))  # as the API server writes it
    return QuantityValue(known[1])


_MOST_FORMS: Final = 4096
_FORMS: Final[dict[int, tuple[Format, Form]]] = {}
"""The form of an amount in the style it was last met in. (Hashing styles takes longer than the rest.)"""


@functools.lru_cache(maxsize=4096)
def parsed_quantity(text: str) -> Form:
    """`parse_quantity`, remembering what it has seen."""
    return parse_quantity(text)


def is_decimal(quantity: Quantity) -> bool:
    """Whether Go keeps the amount as a decimal and not as an integer: it does so with `1Pi`, not with `1536Mi`."""
    text = quantity.text if isinstance(quantity, WrittenQuantity) else str(quantity)
    return parsed_quantity(text)[2]


_USUAL: Final = 64
"""The number of characters that a quantity usually has at most."""


def _quantity(text: str) -> QuantityValue:
    if len(text) > _USUAL:
        spend(len(text) ** 2 // 1000)  # converting so many digits
    return QuantityValue(parsed_quantity(text))


def _as_integer(quantity: QuantityValue) -> int:
    amount = quantity.as_integer
    if amount is None:
        raise ErrorValue("conversion", "the quantity cannot be converted to an integer")
    return amount


def _of_int(amount: int) -> QuantityValue:
    return QuantityValue((amount, 0, False))


QUANTITIES = Library(
    functions=(
        costs.parser("quantity", "string_to_quantity", QUANTITY, _quantity),
        costs.parser("isQuantity", "is_quantity_string", BOOL, succeeds(_quantity)),
        function("sign", "quantity_sign", (QUANTITY,), INT, lambda quantity: quantity.sign),
        method("compareTo", "quantity_compare_to", (QUANTITY, QUANTITY), INT, QuantityValue.compare),
        method(
            "isGreaterThan",
            "quantity_is_greater_than",
            (QUANTITY, QUANTITY),
            BOOL,
            lambda one, other: one.compare(other) > 0,
        ),
        method(
            "isLessThan", "quantity_is_less_than", (QUANTITY, QUANTITY), BOOL, lambda one, other: one.compare(other) < 0
        ),
        method("asApproximateFloat", "quantity_get_float", (QUANTITY,), DOUBLE, lambda quantity: quantity.approximate),
        method("asInteger", "quantity_get_int", (QUANTITY,), INT, _as_integer),
        method("isInteger", "quantity_is_integer", (QUANTITY,), BOOL, lambda quantity: quantity.as_integer is not None),
        Function(
            "add",
            (
                Overload("quantity_add", (QUANTITY, QUANTITY), QUANTITY, QuantityValue.plus, member=True),
                Overload(
                    "quantity_add_int",
                    (QUANTITY, INT),
                    QUANTITY,
                    lambda quantity, amount: quantity.plus(_of_int(amount)),
                    member=True,
                ),
            ),
        ),
        Function(
            "sub",
            (
                Overload("quantity_sub", (QUANTITY, QUANTITY), QUANTITY, QuantityValue.minus, member=True),
                Overload(
                    "quantity_sub_int",
                    (QUANTITY, INT),
                    QUANTITY,
                    lambda quantity, amount: quantity.minus(_of_int(amount)),
                    member=True,
                ),
            ),
        ),
    )
)
