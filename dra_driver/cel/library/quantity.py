# SPDX-License-Identifier: Apache-2.0
"""Functions on quantities (k8s.io/apiserver `pkg/cel/library/quantity.go`)."""

from collections.abc import Sequence
from typing import Final

from .. import costs, effort
from ..declarations import Function, Implementation, Library, Overload
from ..errors import Fault
from ..operands import CallEstimate, Operand, traversal
from ..quantities import QuantityValue, parsed
from ..types import BOOL, DOUBLE, INT, QUANTITY, STRING, Type

_USUAL: Final = 64
"""Characters; nobody writes longer quantities."""


def _quantity(text: str) -> QuantityValue:
    if len(text) > _USUAL:
        effort.spend(len(text) ** 2 // 1000)  # converting so many digits
    return QuantityValue(parsed(text))


def _is_quantity(text: str) -> bool:
    try:
        _quantity(text)
    except Fault:
        return False
    return True


def _as_integer(quantity: QuantityValue) -> int:
    amount = quantity.as_integer
    if amount is None:
        raise Fault("conversion", "the quantity cannot be converted to an integer")
    return amount


def _whole(amount: int) -> QuantityValue:
    return QuantityValue((amount, 0, False))


def _parse_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(traversal(arguments[0]))


def _member(name: str, identifier: str, parameters: tuple[Type, ...], result: Type, call: Implementation) -> Function:
    return Function(name, (Overload(identifier, (QUANTITY, *parameters), result, call, member=True),))


QUANTITIES = Library(
    functions=(
        Function(
            "quantity",
            (Overload("string_to_quantity", (STRING,), QUANTITY, _quantity),),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
        Function(
            "isQuantity",
            (Overload("is_quantity_string", (STRING,), BOOL, _is_quantity),),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
        Function("sign", (Overload("quantity_sign", (QUANTITY,), INT, lambda quantity: quantity.sign),)),
        _member("compareTo", "quantity_compare_to", (QUANTITY,), INT, QuantityValue.compare),
        _member(
            "isGreaterThan", "quantity_is_greater_than", (QUANTITY,), BOOL, lambda one, other: one.compare(other) > 0
        ),
        _member("isLessThan", "quantity_is_less_than", (QUANTITY,), BOOL, lambda one, other: one.compare(other) < 0),
        _member("asApproximateFloat", "quantity_get_float", (), DOUBLE, lambda quantity: quantity.approximate),
        _member("asInteger", "quantity_get_int", (), INT, _as_integer),
        _member("isInteger", "quantity_is_integer", (), BOOL, lambda quantity: quantity.as_integer is not None),
        Function(
            "add",
            (
                Overload("quantity_add", (QUANTITY, QUANTITY), QUANTITY, QuantityValue.plus, member=True),
                Overload(
                    "quantity_add_int",
                    (QUANTITY, INT),
                    QUANTITY,
                    lambda quantity, amount: quantity.plus(_whole(amount)),
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
                    lambda quantity, amount: quantity.minus(_whole(amount)),
                    member=True,
                ),
            ),
        ),
    )
)
