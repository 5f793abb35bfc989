# SPDX-License-Identifier: Apache-2.0
"""==, !=, <, <=, > and >= (cel-go's `common/stdlib`, costs with k8s.io/apiserver's exceptions)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .. import costs
from ..declarations import Function, Library, Overload, RuntimeCost
from ..errors import Fault
from ..operands import TRAVERSAL, CallEstimate, Operand
from ..scalars import Extension
from ..sizes import scaled
from ..types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    INT,
    IP,
    NAMED_FORMAT,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    UINT,
    URL,
    parameter,
)
from ..values import compare, equal

_A = parameter("A")
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
    except Fault:  # what cannot be compared is not equal
        return True


def _equality_cost(arguments: Sequence[object], result: object) -> int:
    return 1 if isinstance(arguments[0], Extension) else costs.shorter(arguments, result)


def _shorter(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    left, right = arguments
    return CallEstimate(scaled(min(left.size.high, right.size.high), TRAVERSAL))


def _equality(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    left, right = arguments
    if left.type == right.type:
        if left.type in (IP, CIDR, QUANTITY, SEMVER):
            return CallEstimate(1)
        if left.type == NAMED_FORMAT:
            return CallEstimate(scaled(_FORMAT_SIZE, TRAVERSAL))
        if left.type == URL:
            return CallEstimate(scaled(right.known.high if right.known else 1, TRAVERSAL))
    return _shorter(target, arguments)


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
    return Function(operator, (Overload(name, (_A, _A), BOOL),), cost=cost, estimate=estimate, dispatch=holds)


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
