# SPDX-License-Identifier: Apache-2.0
"""+, -, *, / and % on numbers, times, strings, bytes and lists (cel-go's `common/stdlib` and `common/types`)."""

import math
from collections.abc import Sequence

from .. import costs, effort
from ..declarations import Function, Library, Overload
from ..errors import Fault
from ..operands import TRAVERSAL, CallEstimate, Operand
from ..scalars import INT_MAX, INT_MIN, Uint, checked_int, checked_uint
from ..times import Duration, Timestamp
from ..types import BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT, Type, list_of, parameter
from ..values import ConcatList, MutableList, no_such_overload

_LIST = list_of(parameter("A"))


def _span(nanos: int) -> Duration:
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise Fault("overflow", "duration overflow")


def _moment(at: Timestamp, nanos: int) -> Timestamp:
    moved = at.plus(nanos)
    if moved.in_range:
        return moved
    raise Fault("overflow", "timestamp overflow")


def add(left: object, right: object) -> object:
    """left + right. Raises Fault."""
    kind = left.__class__
    if kind is right.__class__:
        if kind is int:
            return checked_int(left + right)  # type: ignore[operator]
        if kind is Uint:
            return checked_uint(left + right)  # type: ignore[operator]
        if kind is float or kind is str or kind is bytes:
            return left + right  # type: ignore[operator]
    match left, right:
        case list(), list():
            return _concatenation(left, right)
        case Duration(), Duration():
            return _span(left.nanos + right.nanos)
        case Duration(), Timestamp():
            return _moment(right, left.nanos)
        case Timestamp(), Duration():
            return _moment(left, right.nanos)
    raise no_such_overload("_+_", left, right)


def _concatenation(left: list[object], right: list[object]) -> list[object]:
    effort.spend(len(right))
    if isinstance(left, MutableList):
        left += right
        return left
    if not left:
        return right
    if not right:
        return left
    effort.spend(len(left))
    joined = ConcatList(left)
    joined += right
    return joined


def _subtract(left: object, right: object) -> object:
    kind = left.__class__
    if kind is right.__class__:
        if kind is int:
            return checked_int(left - right)  # type: ignore[operator]
        if kind is Uint:
            return checked_uint(left - right)  # type: ignore[operator]
        if kind is float:
            return left - right  # type: ignore[operator]
    match left, right:
        case Duration(), Duration():
            return _span(left.nanos - right.nanos)
        case Timestamp(), Timestamp():
            return _span(left.minus(right))
        case Timestamp(), Duration():
            return _moment(left, _span(-right.nanos).nanos)
    raise no_such_overload("_-_", left, right)


def _multiply(left: object, right: object) -> object:
    kind = left.__class__
    if kind is right.__class__:
        if kind is int:
            return checked_int(left * right)  # type: ignore[operator]
        if kind is Uint:
            return checked_uint(left * right)  # type: ignore[operator]
        if kind is float:
            return left * right  # type: ignore[operator]
    raise no_such_overload("_*_", left, right)


def _divide(left: object, right: object) -> object:
    if isinstance(left, float) and isinstance(right, float):
        return _quotient(left, right)
    if left.__class__ is right.__class__ and left.__class__ in (int, Uint):
        one, other = int(left), int(right)  # type: ignore[call-overload]
        if other == 0:
            raise Fault("div_by_zero", "division by zero")
        whole = abs(one) // abs(other)
        if left.__class__ is Uint:
            return Uint(whole)
        return checked_int(whole if (one < 0) == (other < 0) else -whole)
    raise no_such_overload("_/_", left, right)


def _quotient(left: float, right: float) -> float:
    if right != 0.0:
        return left / right
    if left == 0.0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _modulo(left: object, right: object) -> object:
    if left.__class__ is right.__class__ and left.__class__ in (int, Uint):
        one, other = int(left), int(right)  # type: ignore[call-overload]
        if other == 0:
            raise Fault("div_by_zero", "modulus by zero")
        rest = abs(one) % abs(other)
        if left.__class__ is Uint:
            return Uint(rest)
        if one == INT_MIN and other == -1:
            raise Fault("overflow", "integer overflow")
        return rest if one >= 0 else -rest
    raise no_such_overload("_%_", left, right)


def _negate(value: object) -> object:
    if value.__class__ is int:
        return checked_int(-value)
    if isinstance(value, float):
        return -value
    if isinstance(value, Duration):
        return _span(-value.nanos)
    raise no_such_overload("-_", value)


def _joined(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    size = arguments[0].size.plus(arguments[1].size)
    return CallEstimate(size.scaled(TRAVERSAL), size)


def _linked(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(1, arguments[0].size.plus(arguments[1].size))


def _same(name: str, operand: Type) -> Overload:
    return Overload(name, (operand, operand), operand)


ARITHMETIC = Library(
    functions=(
        Function(
            "_+_",
            (
                Overload("add_bytes", (BYTES, BYTES), BYTES, cost=costs.both, estimate=_joined),
                _same("add_double", DOUBLE),
                _same("add_duration_duration", DURATION),
                Overload("add_duration_timestamp", (DURATION, TIMESTAMP), TIMESTAMP),
                Overload("add_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP),
                _same("add_int64", INT),
                Overload("add_list", (_LIST, _LIST), _LIST, estimate=_linked),
                Overload("add_string", (STRING, STRING), STRING, cost=costs.both, estimate=_joined),
                _same("add_uint64", UINT),
            ),
            dispatch=add,
        ),
        Function(
            "_-_",
            (
                _same("subtract_double", DOUBLE),
                _same("subtract_duration_duration", DURATION),
                _same("subtract_int64", INT),
                Overload("subtract_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP),
                Overload("subtract_timestamp_timestamp", (TIMESTAMP, TIMESTAMP), DURATION),
                _same("subtract_uint64", UINT),
            ),
            dispatch=_subtract,
        ),
        Function(
            "_*_",
            (_same("multiply_double", DOUBLE), _same("multiply_int64", INT), _same("multiply_uint64", UINT)),
            dispatch=_multiply,
        ),
        Function(
            "_/_",
            (_same("divide_double", DOUBLE), _same("divide_int64", INT), _same("divide_uint64", UINT)),
            dispatch=_divide,
        ),
        Function("_%_", (_same("modulo_int64", INT), _same("modulo_uint64", UINT)), dispatch=_modulo),
        Function(
            "-_",
            (Overload("negate_double", (DOUBLE,), DOUBLE), Overload("negate_int64", (INT,), INT)),
            dispatch=_negate,
        ),
    )
)
