# SPDX-License-Identifier: Apache-2.0
"""size(), `in`, indexing, sets and includes().

Follows cel-go's `common/stdlib` and `ext/sets.go`; includes(), for attributes that may be lists, is of
k8s.io/dynamic-resource-allocation `cel/compile.go`."""

from collections.abc import Sequence
from typing import Final

from ..check.declarations import (
    CallEstimate,
    Function,
    Implementation,
    Library,
    Operand,
    Overload,
    RuntimeCost,
    add,
    method,
)
from ..errors import Fault
from ..types import BOOL, BYTES, DYN, INT, STRING, list_of, map_of, parameter
from .values import MapValue, core_cost_size, cost_size, no_such_overload, same, size_of, spend

_A, _B = parameter("A"), parameter("B")
_LIST, _MAP = list_of(_A), map_of(_A, _B)


def _size(value: object) -> int:
    size = size_of(value)
    if size is None:
        raise no_such_overload("size", value)
    return size


def _in(element: object, container: object) -> bool:
    if isinstance(container, list):
        spend(len(container))
        return any(same(element, item) for item in container)
    if isinstance(container, MapValue):
        return container.contains(element)
    raise no_such_overload("@in", element, container)


def _search_cost(arguments: Sequence[object], result: object) -> int:
    return core_cost_size(arguments[1])


def _search(element: Operand, container: Operand) -> CallEstimate:
    return CallEstimate(container.size.scaled(1.0))


CONTAINERS = Library(
    functions=(
        Function(
            "size",
            (
                Overload("size_bytes", (BYTES,), INT),
                Overload("bytes_size", (BYTES,), INT, member=True),
                Overload("size_list", (_LIST,), INT),
                Overload("list_size", (_LIST,), INT, member=True),
                Overload("size_map", (_MAP,), INT),
                Overload("map_size", (_MAP,), INT, member=True),
                Overload("size_string", (STRING,), INT),
                Overload("string_size", (STRING,), INT, member=True),
            ),
            dispatch=_size,
        ),
        Function(
            "@in",
            (
                Overload("in_list", (_A, _LIST), BOOL, cost=_search_cost, estimate=_search),
                Overload("in_map", (_A, _MAP), BOOL),
            ),
            dispatch=_in,
        ),
        Function("_[_]", (Overload("index_list", (_LIST, INT), _A), Overload("index_map", (_MAP, _A), _B))),
    )
)


_SET = list_of(parameter("T"))


def _has(items: list[object], wanted: object) -> bool:
    spend(len(items))
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
    def estimate(one: Operand, other: Operand) -> CallEstimate:
        return CallEstimate(add(one.size.times(other.size).scaled(factor), 1))

    return Overload(identifier, (_SET, _SET), BOOL, call, cost=_cost(factor), estimate=estimate)


SETS = Library(
    functions=(
        Function("sets.contains", (_overload("list_sets_contains_list", _contains, 1),)),
        Function("sets.equivalent", (_overload("list_sets_equivalent_list", _equivalent, 2),)),
        Function("sets.intersects", (_overload("list_sets_intersects_list", _intersects, 1),)),
    )
)


_MOST_ITEMS: Final = 48


def _includes(target: object, value: object) -> bool:
    if not isinstance(target, list):
        return same(target, value)
    if any(same(item, value) for item in target[:_MOST_ITEMS]):
        return True
    if len(target) > _MOST_ITEMS:
        raise Fault("includes_limit", f"includes() cannot be applied to lists longer than {_MOST_ITEMS} values")
    return False


INCLUDES = Library(
    functions=(
        method(
            "includes",
            "dra_includes_dyn_dyn",
            (DYN, DYN),
            BOOL,
            _includes,
            estimate=lambda *_: CallEstimate(_MOST_ITEMS),
        ),
    )
)
