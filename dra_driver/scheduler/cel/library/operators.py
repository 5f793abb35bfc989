# SPDX-License-Identifier: Apache-2.0
"""Equality, order, logic and arithmetic (cel-go's `common/stdlib` and `common/types`).

&& and || do not always evaluate their operands. `?:` belongs to the language (`evaluate.paths`), and is only declared
here. Costs have the exceptions of k8s.io/apiserver.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ..closures import CallSite, Constant, CostCounter, Evaluable, located
from ..declarations import CelLibrary, Cost, Overload, Row, function
from ..errors import ErrorValue
from ..sizes import TRAVERSAL, CallEstimate, Operand, scaled
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
from .time import Duration, Timestamp
from .values import (
    NUMBERS,
    ConcatList,
    Extension,
    MapValue,
    MutableList,
    OptionalValue,
    checked_int,
    checked_uint,
    core_cost_size,
    no_such_overload,
    read_both,
    read_shorter,
    spend,
    traversal_cost,
)

_A = parameter("A")
_LIST = list_of(_A)


# Equality and order

_PLAIN: Final = frozenset((bool, str, bytes, type(None), Duration, Timestamp))

COMPARABLE: Final = frozenset((bool, int, Uint, float, str, bytes, Duration, Timestamp))

_ORDERED: Final = frozenset((str, int, bool))
"""Classes whose values have the same order in Python as in CEL."""
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

_LINK: Final = Cost(estimate=lambda left, right: CallEstimate(1, left.size.plus(right.size)))


def equal(left: object, right: object) -> bool:
    """CEL's `left == right`. Raises ErrorValue if the values cannot be compared."""
    if left is None or right is None:
        return left is right
    return equal_values(left, right)


def equal_values(left: object, right: object) -> bool:  # noqa: C901  # one branch for each pair of types
    """`equal` without its rule for null. Containers compare their elements with a given value like this."""
    kind = left.__class__
    if kind in NUMBERS:
        if right.__class__ not in NUMBERS:
            return False
        if kind is not right.__class__ and (kind is float or right.__class__ is float):
            return float(left) == float(right)  # type: ignore[arg-type]
        return left == right
    if kind in _PLAIN:
        return right.__class__ is kind and left == right
    if isinstance(left, list):
        return isinstance(right, list) and _equal_lists(left, right)
    if isinstance(left, MapValue):
        return isinstance(right, MapValue) and _equal_maps(left, right)
    if isinstance(left, Extension):
        if isinstance(right, ErrorValue):
            raise right
        return left.equals(right)
    if isinstance(left, ErrorValue):
        raise left
    if isinstance(left, Type):
        return isinstance(right, Type) and left.name == right.name
    if isinstance(left, OptionalValue):
        if not isinstance(right, OptionalValue):
            return False
        if left.present and right.present:
            return equal_values(left.value, right.value)
        return left.present == right.present
    return False


def _equal_lists(left: list[object], right: list[object]) -> bool:
    if len(left) != len(right):
        return False
    spend(len(left))
    first_error: ErrorValue | None = None
    for left_item, right_item in zip(left, right, strict=True):
        try:
            if not equal(left_item, right_item):
                return False
        except ErrorValue as error:  # counts as equal, except in a concatenation
            first_error = first_error or error
    if first_error is not None and isinstance(left, ConcatList):
        raise first_error
    return True


def _equal_maps(left: MapValue, right: MapValue) -> bool:
    if len(left) != len(right):
        return False
    spend(len(left))
    for key, left_value in left.items():
        found, right_value = right.find(key)
        if not found:
            return False
        try:
            if not equal(left_value, right_value):
                return False
        except ErrorValue:  # counts as equal
            continue
    return True


def same(left: object, right: object) -> bool:
    """Whether two values are equal, where an error counts as false. Searches in lists compare like this."""
    try:
        return equal_values(left, right)
    except ErrorValue:
        return False


def compare(left: object, right: object) -> int:
    """-1, 0 or 1. Raises ErrorValue for NaN and for values that cannot be ordered."""
    kind = left.__class__
    if kind in NUMBERS:
        if right.__class__ not in NUMBERS:
            raise no_such_overload()
        if left != left or right != right:
            raise ErrorValue("nan_order", "NaN values cannot be ordered")
        if kind is float or right.__class__ is float:
            left, right = float(left), float(right)  # type: ignore[arg-type]
    elif kind not in COMPARABLE or right.__class__ is not kind:
        raise no_such_overload()
    return int(left > right) - int(left < right)  # type: ignore[operator]


def _differ(left: object, right: object) -> bool:
    try:
        return not equal(left, right)
    except ErrorValue:  # values that cannot be compared are not equal
        return True


def _compare_with_text(site: CallSite, *, negated: bool) -> Evaluable | None:
    """`operand == 'text'` or `operand != 'text'`, which most expressions have, with the usual result and cost."""
    left, right = site.operands
    if not isinstance(right, Constant) or not isinstance(right.value, str):
        return None
    text, evaluate, offset = right.value, left.run, site.offset
    length = len(text)
    whole_cost = traversal_cost(length)

    def run(frame: CostCounter) -> object:
        value = evaluate(frame)
        if value.__class__ is str:
            size = len(value)
            frame.cost = cost = frame.cost + (whole_cost if size >= length else traversal_cost(size))
            if cost > frame.limit:
                frame.charge(0)
            return (value == text) is not negated
        return _compared(frame, value, text, offset, negated=negated)

    return Evaluable(run)


def _compared(frame: CostCounter, value: object, text: str, offset: int, *, negated: bool) -> object:
    result: object
    if value.__class__ is ErrorValue:
        result = value
    else:
        try:
            result = equal(value, text) is not negated
        except ErrorValue as error:  # values that cannot be compared are not equal
            result = True if negated else located(error, offset)
    if isinstance(value, Extension) and not negated:
        frame.charge(1)
    else:
        frame.charge(traversal_cost(min(core_cost_size(value), len(text))))
    return result


def _equality_cost(arguments: Sequence[object], result: object) -> int:
    return 1 if isinstance(arguments[0], Extension) else read_shorter(arguments, result)


def _shorter(left: Operand, right: Operand) -> CallEstimate:
    return CallEstimate(scaled(min(left.size.high, right.size.high), TRAVERSAL))


_COMPARE: Final = Cost(read_shorter, _shorter)


def _equality(left: Operand, right: Operand) -> CallEstimate:
    if left.type == right.type:
        if left.type in (IP, CIDR, QUANTITY, SEMVER):
            return CallEstimate(1)
        if left.type == NAMED_FORMAT:
            return CallEstimate(scaled(_FORMAT_SIZE, TRAVERSAL))
        if left.type == URL:
            return CallEstimate(scaled(right.known.high if right.known else 1, TRAVERSAL))
    return _shorter(left, right)


def _less(left: object, right: object) -> bool:
    if left.__class__ is right.__class__ and left.__class__ in _ORDERED:
        return left < right  # type: ignore[operator, no-any-return]
    return compare(left, right) < 0


def _less_equals(left: object, right: object) -> bool:
    if left.__class__ is right.__class__ and left.__class__ in _ORDERED:
        return left <= right  # type: ignore[operator, no-any-return]
    return compare(left, right) <= 0


def _ordering(name: str) -> Iterator[Overload]:
    for suffix, left, right in _PAIRS:
        cost = _COMPARE if left in (STRING, BYTES) else None
        yield Overload(f"{name}_{suffix}", (left, right), BOOL, cost=cost)


# Logic


_FREE: Final = Cost(estimate=lambda *operands: CallEstimate(0))


def _logic(site: CallSite, *, decisive: bool) -> Evaluable:
    """&& (`decisive` is False) and || (True): a decisive term, otherwise the first error, otherwise the opposite."""
    neutral, terms, offset = not decisive, [operand.run for operand in site.operands], site.offset

    def run(frame: CostCounter) -> object:
        result: object = neutral
        for term in terms:
            value = term(frame)
            if value is decisive:
                return value
            if value is not neutral and result is neutral:
                result = value if value.__class__ is ErrorValue else located(no_such_overload(), offset)
        return result

    return Evaluable(run)


def _not_strictly_false(site: CallSite) -> Evaluable:
    """Whether a loop of all() or exists() continues. An error counts as true."""
    term = site.operands[0].run

    def run(frame: CostCounter) -> object:
        value = term(frame)
        frame.charge(1)
        return value if value.__class__ is bool else True

    return Evaluable(run)


def _not(value: object) -> object:
    if value.__class__ is bool:
        return not value
    raise no_such_overload()


# Arithmetic


def _of_numbers(left: object, right: object, operate: Callable[[Any, Any], Any]) -> object:
    """The result of an operation on two numbers of the same type, None for other values. Raises ErrorValue."""
    kind = left.__class__
    if kind is right.__class__:
        if kind is int:
            return checked_int(operate(left, right))
        if kind is Uint:
            return checked_uint(operate(left, right))
        if kind is float:
            return operate(left, right)
    return None


def _duration(nanos: int) -> Duration:
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise ErrorValue("overflow", "duration overflow")


def _moved(at: Timestamp, nanos: int) -> Timestamp:
    moved = at.plus(nanos)
    if moved.in_range:
        return moved
    raise ErrorValue("overflow", "timestamp overflow")


def add_values(left: object, right: object) -> object:
    """left + right. Raises ErrorValue."""
    number = _of_numbers(left, right, operator.add)
    if number is not None:
        return number
    match left, right:
        case (str(), str()) | (bytes(), bytes()):
            return left + right  # type: ignore[operator]
        case list(), list():
            return _concatenation(left, right)
        case Duration(), Duration():
            return _duration(left.nanos + right.nanos)
        case Duration(), Timestamp():
            return _moved(right, left.nanos)
        case Timestamp(), Duration():
            return _moved(left, right.nanos)
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
    number = _of_numbers(left, right, operator.sub)
    if number is not None:
        return number
    match left, right:
        case Duration(), Duration():
            return _duration(left.nanos - right.nanos)
        case Timestamp(), Timestamp():
            return _duration(left.minus(right))
        case Timestamp(), Duration():
            return _moved(left, _duration(-right.nanos).nanos)
    raise no_such_overload("_-_", left, right)


def _multiply(left: object, right: object) -> object:
    number = _of_numbers(left, right, operator.mul)
    if number is None:
        raise no_such_overload("_*_", left, right)
    return number


def _divide(left: object, right: object) -> object:
    if isinstance(left, float) and isinstance(right, float):
        if right != 0.0:
            return left / right
        if left == 0.0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    dividend, divisor = _integers("_/_", left, right, "division by zero")
    whole = abs(dividend) // abs(divisor)
    return Uint(whole) if left.__class__ is Uint else checked_int(whole if (dividend < 0) == (divisor < 0) else -whole)


def _modulo(left: object, right: object) -> object:
    dividend, divisor = _integers("_%_", left, right, "modulus by zero")
    if dividend == INT_MIN and divisor == -1:
        raise ErrorValue("overflow", "integer overflow")
    rest = abs(dividend) % abs(divisor)
    return Uint(rest) if left.__class__ is Uint else rest if dividend >= 0 else -rest


def _integers(function: str, left: object, right: object, by_zero: str) -> tuple[int, int]:
    """Two ints or two uints as plain ints. Raises ErrorValue for other values, and if the second one is zero."""
    if left.__class__ is not right.__class__ or left.__class__ not in (int, Uint):
        raise no_such_overload(function, left, right)
    dividend, divisor = int(left), int(right)  # type: ignore[call-overload]
    if divisor == 0:
        raise ErrorValue("div_by_zero", by_zero)
    return dividend, divisor


def _negate(value: object) -> object:
    if value.__class__ is int:
        return checked_int(-value)
    if isinstance(value, float):
        return -value
    if isinstance(value, Duration):
        return _duration(-value.nanos)
    raise no_such_overload("-_", value)


def _joined(left: Operand, right: Operand) -> CallEstimate:
    size = left.size.plus(right.size)
    return CallEstimate(size.scaled(TRAVERSAL), size)


_JOIN: Final = Cost(read_both, _joined)


def _same(identifier: str, operand: Type) -> Row:
    return identifier, (operand, operand), operand


OPERATORS = CelLibrary(
    function(
        "_==_",
        ("equals", (_A, _A), BOOL),
        cost=Cost(_equality_cost, _equality),
        dispatch=equal,
        make=functools.partial(_compare_with_text, negated=False),
    ),
    function(
        "_!=_",
        ("not_equals", (_A, _A), BOOL),
        cost=_COMPARE,
        dispatch=_differ,
        make=functools.partial(_compare_with_text, negated=True),
    ),
    function("_<_", *_ordering("less"), dispatch=_less),
    function("_<=_", *_ordering("less_equals"), dispatch=_less_equals),
    function("_>_", *_ordering("greater"), dispatch=lambda left, right: _less(right, left)),
    function("_>=_", *_ordering("greater_equals"), dispatch=lambda left, right: _less_equals(right, left)),
    function("_?_:_", ("conditional", (BOOL, _A, _A), _A)),
    function("_&&_", ("logical_and", (BOOL, BOOL), BOOL), cost=_FREE, make=functools.partial(_logic, decisive=False)),
    function("_||_", ("logical_or", (BOOL, BOOL), BOOL), cost=_FREE, make=functools.partial(_logic, decisive=True)),
    function("!_", ("logical_not", (BOOL,), BOOL), dispatch=_not),
    function("@not_strictly_false", ("not_strictly_false", (BOOL,), BOOL), make=_not_strictly_false),
    function(
        "_+_",
        Overload("add_bytes", (BYTES, BYTES), BYTES, cost=_JOIN),
        _same("add_double", DOUBLE),
        _same("add_duration_duration", DURATION),
        ("add_duration_timestamp", (DURATION, TIMESTAMP), TIMESTAMP),
        ("add_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP),
        _same("add_int64", INT),
        Overload("add_list", (_LIST, _LIST), _LIST, cost=_LINK),
        Overload("add_string", (STRING, STRING), STRING, cost=_JOIN),
        _same("add_uint64", UINT),
        dispatch=add_values,
    ),
    function(
        "_-_",
        _same("subtract_double", DOUBLE),
        _same("subtract_duration_duration", DURATION),
        _same("subtract_int64", INT),
        ("subtract_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP),
        ("subtract_timestamp_timestamp", (TIMESTAMP, TIMESTAMP), DURATION),
        _same("subtract_uint64", UINT),
        dispatch=_subtract,
    ),
    function(
        "_*_",
        *(_same("multiply_double", DOUBLE), _same("multiply_int64", INT), _same("multiply_uint64", UINT)),
        dispatch=_multiply,
    ),
    function(
        "_/_",
        *(_same("divide_double", DOUBLE), _same("divide_int64", INT), _same("divide_uint64", UINT)),
        dispatch=_divide,
    ),
    function("_%_", _same("modulo_int64", INT), _same("modulo_uint64", UINT), dispatch=_modulo),
    function("-_", ("negate_double", (DOUBLE,), DOUBLE), ("negate_int64", (INT,), INT), dispatch=_negate),
)
