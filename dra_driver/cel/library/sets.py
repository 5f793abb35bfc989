# SPDX-License-Identifier: Apache-2.0
"""sets.contains(), sets.equivalent() and sets.intersects() (cel-go's `ext/sets.go`)."""

from collections.abc import Sequence

from .. import effort
from ..declarations import Function, Implementation, Library, Overload, RuntimeCost
from ..operands import CallEstimate, Operand
from ..sizes import add
from ..types import BOOL, list_of, parameter
from ..values import cost_size, same

_LIST = list_of(parameter("T"))


def _has(items: list[object], wanted: object) -> bool:
    effort.spend(len(items))
    return any(same(wanted, item) for item in items)


def _contains(items: list[object], part: list[object]) -> bool:
    return all(_has(items, wanted) for wanted in part)


def _equivalent(one: list[object], other: list[object]) -> bool:
    return _contains(one, other) and _contains(other, one)


def _intersects(one: list[object], other: list[object]) -> bool:
    return any(_has(other, item) for item in one)


def _cost(factor: int) -> RuntimeCost:
    def cost(arguments: Sequence[object], result: object) -> int:
        return 1 + cost_size(arguments[0]) * cost_size(arguments[1]) * factor

    return cost


def _overload(identifier: str, call: Implementation, factor: int) -> Overload:
    def estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
        return CallEstimate(add(arguments[0].size.times(arguments[1].size).scaled(factor), 1))

    return Overload(identifier, (_LIST, _LIST), BOOL, call, cost=_cost(factor), estimate=estimate)


SETS = Library(
    functions=(
        Function("sets.contains", (_overload("list_sets_contains_list", _contains, 1),)),
        Function("sets.equivalent", (_overload("list_sets_equivalent_list", _equivalent, 2),)),
        Function("sets.intersects", (_overload("list_sets_intersects_list", _intersects, 1),)),
    )
)
