# SPDX-License-Identifier: Apache-2.0
"""&&, ||, !, ?:, comparisons and arithmetic (cel-go's `common/stdlib` and `common/types`).

The compiler evaluates &&, || and ?: itself, since they do not always evaluate their operands. Costs have
k8s.io/apiserver's exceptions."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..check.declarations import (
    TRAVERSAL,
    CallEstimate,
    Function,
    Library,
    Operand,
    Overload,
    RuntimeCost,
    function,
    scaled,
)
from ..errors import ErrorValue
from ..types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    INT,
    INT_MAX,
    INT_MIN,
    IP,
    NAMED_FORMAT,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    UINT,
    URL,
    Type,
    Uint,
    list_of,
    parameter,
)
from . import costs
from .time import Duration, Timestamp
from .values import (
    ConcatList,
    Extension,
    MutableList,
    checked_int,
    checked_uint,
    compare,
    equal,
    no_such_overload,
    spend,
)

_A = parameter("A")


def _not(value: object) -> object:
    if value.__class__ is bool:
        return not value
    raise no_such_overload()


LOGIC = Library(
    functions=(
        function("_?_:_", "conditional", (BOOL, _A, _A), _A),
        function("_&&_", "logical_and", (BOOL, BOOL), BOOL),
        function("_||_", "logical_or", (BOOL, BOOL), BOOL),
        Function("!_", (Overload("logical_not", (BOOL,), BOOL),), dispatch=_not),
        function("@not_strictly_false", "not_strictly_false", (BOOL,), BOOL),
    )
)


_ANY = parameter("A")
_ORDERED: Final = frozenset((str, int, bool))
"""Classes whose values Python orders as CEL does."""
_FORMAT_SIZE: Final = 64
_PAIRS: Final = (
    ("bool", BOOL, BOOL),
    ("int64", INT, INT),
    ("int64_double", INT, DOUBLE),
    ("int64_uint64", INT, UINT),
    ("uint64", UINT, UINT),
    ("uint64_double", UINT, DOUBLE),
    ("uint64_int64", UINT, INT),
    ("double", DOUBLE, DOUBLE),
    ("double_int64", DOUBLE, INT),
    ("double_uint64", DOUBLE, UINT),
    ("string", STRING, STRING),
    ("bytes", BYTES, BYTES),
    ("timestamp", TIMESTAMP, TIMESTAMP),
    ("duration", DURATION, DURATION),
)


def _differ(left: object, right: object) -> bool:
    try:
        return not equal(left, right)
    except ErrorValue:  # what cannot be compared is not equal
        return True


def _equality_cost(arguments: Sequence[object], result: object) -> int:
    return 1 if isinstance(arguments[0], Extension) else costs.shorter(arguments, result)


def _shorter(left: Operand, right: Operand) -> CallEstimate:
    return CallEstimate(scaled(min(left.size.high, right.size.high), TRAVERSAL))


def _equality(left: Operand, right: Operand) -> CallEstimate:
    if left.type == right.type:
        if left.type in (IP, CIDR, QUANTITY, SEMVER):
            return CallEstimate(1)
        if left.type == NAMED_FORMAT:
            return CallEstimate(scaled(_FORMAT_SIZE, TRAVERSAL))
        if left.type == URL:
            return CallEstimate(scaled(right.known.high if right.known else 1, TRAVERSAL))
    return _shorter(left, right)


def _overloads(name: str) -> Iterator[Overload]:
    for suffix, left, right in _PAIRS:
        sized = left in (STRING, BYTES)
        yield Overload(
            f"{name}_{suffix}",
            (left, right),
            BOOL,
            cost=costs.shorter if sized else None,
            estimate=_shorter if sized else None,
        )


def _less(left: object, right: object) -> bool:
    if left.__class__ is right.__class__ and left.__class__ in _ORDERED:
        return left < right  # type: ignore[operator, no-any-return]
    return compare(left, right) < 0


def _less_equals(left: object, right: object) -> bool:
    if left.__class__ is right.__class__ and left.__class__ in _ORDERED:
        return left <= right  # type: ignore[operator, no-any-return]
    return compare(left, right) <= 0


def _ordering(operator: str, name: str, holds: Callable[[object, object], bool]) -> Function:
    return Function(operator, tuple(_overloads(name)), dispatch=holds)


def _test(name: str, holds: Callable[[object, object], bool], cost: RuntimeCost) -> Function:
    operator = "_==_" if name == "equals" else "_!=_"
    estimate = _equality if name == "equals" else _shorter
    return Function(operator, (Overload(name, (_ANY, _ANY), BOOL),), cost=cost, estimate=estimate, dispatch=holds)


COMPARISON = Library(
    functions=(
        _test("equals", equal, _equality_cost),
        _test("not_equals", _differ, costs.shorter),
        _ordering("_<_", "less", _less),
        _ordering("_<=_", "less_equals", _less_equals),
        _ordering("_>_", "greater", lambda left, right: _less(right, left)),
        _ordering("_>=_", "greater_equals", lambda left, right: _less_equals(right, left)),
    )
)


_LIST = list_of(parameter("A"))


def _span(nanos: int) -> Duration:
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise ErrorValue("overflow", "duration overflow")


def _moment(at: Timestamp, nanos: int) -> Timestamp:
    moved = at.plus(nanos)
    if moved.in_range:
        return moved
    raise ErrorValue("overflow", "timestamp overflow")


def add_values(left: object, right: object) -> object:
    """left + right. Raises ErrorValue."""
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
    spend(len(right))
    if isinstance(left, MutableList):
        left += right
        return left
    if not left:
        return right
    if not right:
        return left
    spend(len(left))
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
            raise ErrorValue("div_by_zero", "division by zero")
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
            raise ErrorValue("div_by_zero", "modulus by zero")
        rest = abs(one) % abs(other)
        if left.__class__ is Uint:
            return Uint(rest)
        if one == INT_MIN and other == -1:
            raise ErrorValue("overflow", "integer overflow")
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


def _joined(left: Operand, right: Operand) -> CallEstimate:
    size = left.size.plus(right.size)
    return CallEstimate(size.scaled(TRAVERSAL), size)


def _linked(left: Operand, right: Operand) -> CallEstimate:
    return CallEstimate(1, left.size.plus(right.size))


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
            dispatch=add_values,
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
