# SPDX-License-Identifier: Apache-2.0
"""Quantities, against the rules of Kubernetes' resource.Quantity (values as apimachinery 1.36 computes them)."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.errors import QuantityError
from dra_driver.kube.resource.quantity import NANO, Format, Quantity

CANONICAL = {
    # decimal: the largest suffix without a fraction
    "0": "0",
    "-0": "0",
    "0.0": "0",
    "512": "512",
    "00012": "12",
    "+5": "5",
    "5.": "5",
    ".5": "500m",
    "-.5": "-500m",
    "0.1": "100m",
    "1.5": "1500m",
    "2.0": "2",
    "1000m": "1",
    "1500m": "1500m",
    "0.0015": "1500u",
    "1000u": "1m",
    "1000000n": "1m",
    "999999999n": "999999999n",
    "1.000000001": "1000000001n",
    "2000": "2k",
    "12345": "12345",
    "3000000": "3M",
    "1000k": "1M",
    "10E": "10E",
    # binary: the largest suffix without a fraction, plain below 1024
    "0Gi": "0",
    "1024": "1024",
    "1023Ki": "1023Ki",
    "1024Mi": "1Gi",
    "1536Mi": "1536Mi",
    "1.5Gi": "1536Mi",
    "1.25Gi": "1280Mi",
    "+.5Mi": "512Ki",
    "0.5Ki": "512",
    "-0.5Ki": "-512",
    "-1Ki": "-1Ki",
    "80384Mi": "80384Mi",
    "7Ei": "7Ei",
    # binary with a fraction left over: written as decimal
    "1.1Mi": "1153433600m",
    "0.9Gi": "966367641600m",
    "0.1Ki": "102400m",
    # binary amounts end at 2^63-1
    "8Ei": "9223372036854775807",
    "9Ei": "9223372036854775807",
    "-9Ei": "-9223372036854775807",
    # exponents in steps of three
    "1e3": "1e3",
    "1E3": "1e3",
    "1e+3": "1e3",
    "1000e3": "1e6",
    "12e2": "1200",
    "1.2e3": "1200",
    "100e-3": "100e-3",
    "5e-9": "5e-9",
    "1e21": "1e21",
    # nothing is finer than a billionth; what is rounds away from zero
    "1n": "1n",
    "0.1n": "1n",
    "1.5n": "2n",
    "-0.1n": "-1n",
    "0.0000000001": "1n",
    "1.0000000001": "1000000001n",
    "-1.0000000001": "-1000000001n",
    # no digit at all is zero
    "Gi": "0",
    "-Gi": "0",
    ".": "0",
    "-": "0",
    "+": "0",
    "e3": "0",
}

NO_NUMBER = ["", " ", " 1", "1 ", "1\n", "abc", "Gi5", "0x1", "1_000", "1,5", "1.5.5", "..", "+-5", "--1", "\u0663"]
NO_UNIT = ["1K", "1ki", "1gi", "1mi", "1Kb", "1B", "1Ki ", "1h", "1Gi3", "i", "e", "1e", "1e+", "1e1.5", "1e3k", "nan"]
TOO_LARGE = ["1e9999", "1e-9999"]

FORMATS = {
    "1": Format.DECIMAL_SI,
    "1m": Format.DECIMAL_SI,
    "1E": Format.DECIMAL_SI,
    "1Ei": Format.BINARY_SI,
    "0Gi": Format.BINARY_SI,
    "0.1Ki": Format.BINARY_SI,
    "0.0001Ki": Format.DECIMAL_SI,  # below one: binary cannot say it
    "1e0": Format.DECIMAL_EXPONENT,
    "1E1": Format.DECIMAL_EXPONENT,
}

WHOLE = {"1500m": 2, "-1500m": -2, "1n": 1, "-1n": -1, "2.0": 2, "0": 0, "0.1Ki": 103, "40Gi": 40 << 30, "1e3": 1000}

# left, right, sum, difference: the style is the left one's, unless it is zero
SUMS = [
    ("1Gi", "512Mi", "1536Mi", "512Mi"),
    ("1Gi", "1G", "2073741824", "73741824"),
    ("1k", "1Ki", "2024", "-24"),
    ("1500m", "500m", "2", "1"),
    ("1e3", "1", "1001", "999"),
    ("0", "1Gi", "1Gi", "-1Gi"),
    ("0Gi", "1e3", "1e3", "-1e3"),
    ("0e3", "1500m", "1500m", "-1500m"),
    ("1Gi", "0", "1Gi", "1Gi"),
    ("-1Gi", "1Gi", "0", "-2Gi"),
]

LARGEST_BINARY = ((1 << 63) - 1) * NANO

quantities = st.builds(Quantity, st.integers(-(10**30), 10**30), st.sampled_from(Format))
numbers = st.from_regex(r"[+-]?[0-9]{1,12}(\.[0-9]{1,12})?", fullmatch=True)
suffixes = ["", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "e3", "E-2", "e0"]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL.items())
def test_quantities_are_written_in_their_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize("text", [*NO_NUMBER, *NO_UNIT, *TOO_LARGE])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        Quantity.parse(text)


def test_a_wrong_unit_is_named_with_those_there_are() -> None:
    with pytest.raises(QuantityError, match=r"'40GB' is not a quantity: 'GB' is not a unit \(use n, u, m, .*Gi"):
        Quantity.parse("40GB")


@pytest.mark.parametrize(("text", "style"), FORMATS.items())
def test_the_suffix_tells_the_style(text: str, style: Format) -> None:
    assert Quantity.parse(text).format is style


@pytest.mark.parametrize(("text", "value"), WHOLE.items())
def test_fractions_round_away_from_zero_in_whole_numbers(text: str, value: int) -> None:
    quantity = Quantity.parse(text)
    assert quantity.value == value


@pytest.mark.parametrize(("left", "right", "total", "difference"), SUMS)
def test_sums_keep_the_style_of_the_first_that_is_not_zero(left: str, right: str, total: str, difference: str) -> None:
    a, b = Quantity.parse(left), Quantity.parse(right)
    assert (str(a + b), str(a - b)) == (total, difference)


def test_equal_amounts_are_equal_however_written() -> None:
    same = [Quantity.parse(text) for text in ("1Ki", "1024", "1.024k", "1024e0", "1024000m")]
    assert len(set(same)) == 1
    assert Quantity.parse("1Ki") != 1024


@given(quantities)
def test_the_canonical_form_means_the_same_amount(quantity: Quantity) -> None:
    capped = quantity.format is Format.BINARY_SI and abs(quantity.nanos) > LARGEST_BINARY
    again = Quantity.parse(str(quantity))
    assert again == quantity or capped
    assert str(Quantity.parse(str(again))) == str(again)


@given(numbers, st.sampled_from(suffixes))
def test_an_amount_is_the_number_times_its_unit_rounded_to_a_billionth(number: str, suffix: str) -> None:
    units = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "e3": 3, "E-2": -2, "e0": 0}
    powers = {"Ki": 10, "Mi": 20, "Gi": 30}
    unit = Decimal(2) ** powers[suffix] if suffix in powers else Decimal(10) ** units[suffix]
    with localcontext(prec=100):
        exact = Decimal(number) * unit * NANO
        if suffix in powers:
            exact = max(Decimal(-LARGEST_BINARY), min(exact, Decimal(LARGEST_BINARY)))
        nanos = Quantity.parse(number + suffix).nanos
        assert 0 <= abs(nanos) - abs(exact) < 1
        assert nanos * exact >= 0


@given(quantities, quantities)
def test_order_and_sums_are_those_of_the_amounts(a: Quantity, b: Quantity) -> None:
    assert (a < b, a <= b, a > b, a >= b, a == b) == (
        a.nanos < b.nanos,
        a.nanos <= b.nanos,
        a.nanos > b.nanos,
        a.nanos >= b.nanos,
        a.nanos == b.nanos,
    )
    assert (a + b).nanos == a.nanos + b.nanos
    assert (a + b) - b == a
    assert a + b == b + a
    assert (hash(a) == hash(b)) or a != b
