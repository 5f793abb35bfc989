# SPDX-License-Identifier: Apache-2.0
"""Functions on lists.

isSorted(), sum(), min(), max(), indexOf() and lastIndexOf() are of k8s.io/apiserver `pkg/cel/library/lists.go`;
slice(), flatten(), sort(), sortBy(), distinct(), reverse() and lists.range() of cel-go's `ext/lists.go`, version 3."""

import functools
from collections.abc import Iterable, Sequence
from typing import Final

from ..check.declarations import (
    UNBOUNDED,
    CallEstimate,
    EstimateCall,
    Function,
    Implementation,
    Library,
    Operand,
    Overload,
    Size,
    add,
    exactly,
    function,
    method,
    scaled,
    searching,
)
from ..errors import Abort, ErrorValue
from ..syntax.parser import Macro, MacroError, binding
from ..syntax.tree import Call, Comprehension, Ident, ListNode, Node, Select
from ..types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, UINT, Type, Uint, list_of, parameter
from . import costs
from .macros import map_elements
from .operators import add_values
from .time import Duration
from .values import BUDGET, COMPARABLE, compare, cost_size, no_such_overload, same, spend, type_of

COMPARABLE_TYPES: Final = {
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "bool": BOOL,
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    "string": STRING,
    "bytes": BYTES,
}
_ZEROS: Final = {"int": 0, "uint": Uint(0), "double": 0.0, "duration": Duration(0)}
_A = parameter("A")
_LIST = list_of(_A)


def _order(left: object, right: object) -> int:
    """Compares two values; 0 where that is an error, which isSorted(), min() and max() overlook."""
    try:
        return compare(left, right)
    except ErrorValue:
        return 0


def _comparable(items: Iterable[object]) -> Iterable[object]:
    for item in items:
        if item.__class__ not in COMPARABLE:
            raise no_such_overload()
        yield item


def _is_sorted(items: list[object]) -> bool:
    previous: object = None
    for item in _comparable(items):
        if previous is not None and _order(previous, item) > 0:
            return False
        previous = item
    return True


def _extreme(items: list[object], name: str, sign: int) -> object:
    chosen: object = None
    for item in _comparable(items):
        if chosen is None or _order(item, chosen) == sign:
            chosen = item
    if chosen is None:
        raise ErrorValue("empty_list", f"{name}() called on an empty list")
    return chosen


def _sum_from(zero: object) -> Implementation:
    return lambda items: functools.reduce(add_values, items, zero)


def _index_of(items: list[object], wanted: object) -> int:
    return next((index for index, item in enumerate(items) if same(item, wanted)), -1)


def _last_index_of(items: list[object], wanted: object) -> int:
    return next((index for index in range(len(items) - 1, -1, -1) if same(items[index], wanted)), -1)


def _of_each(template: str, call: Implementation, result: Type | None = None) -> tuple[Overload, ...]:
    return tuple(
        Overload(template.format(name), (list_of(item),), result or item, call, member=True)
        for name, item in COMPARABLE_TYPES.items()
    )


LISTS = Library(
    functions=(
        Function(
            "isSorted", _of_each("list_{0}_is_sorted_bool", _is_sorted, BOOL), cost=costs.visited, estimate=searching
        ),
        Function(
            "sum",
            tuple(
                Overload(
                    f"list_{name}_sum_{name}",
                    (list_of(COMPARABLE_TYPES[name]),),
                    COMPARABLE_TYPES[name],
                    _sum_from(zero),
                    member=True,
                )
                for name, zero in _ZEROS.items()
            ),
            cost=costs.visited,
            estimate=searching,
        ),
        Function(
            "max",
            _of_each("list_{0}_max_{0}", lambda items: _extreme(items, "max", 1)),
            cost=costs.visited,
            estimate=searching,
        ),
        Function(
            "min",
            _of_each("list_{0}_min_{0}", lambda items: _extreme(items, "min", -1)),
            cost=costs.visited,
            estimate=searching,
        ),
        Function(
            "indexOf",
            (Overload("list_a_index_of_int", (_LIST, _A), INT, _index_of, member=True),),
            cost=costs.visited,
            estimate=searching,
        ),
        Function(
            "lastIndexOf",
            (Overload("list_a_last_index_of_int", (_LIST, _A), INT, _last_index_of, member=True),),
            cost=costs.visited,
            estimate=searching,
        ),
    )
)


_T = parameter("T")
_TS = list_of(_T)
_SORTED: Final = "@__sortBy_input__"
_COMPARISON: Final = 2.0
_COMPARISON_OF_TEXT: Final = _COMPARISON + 0.1


def _slice(items: list[object], start: int, end: int) -> list[object]:
    shown = f"slice({start}, {end})"
    if start < 0 or end < 0:
        raise ErrorValue("out_of_range", f"{shown}: negative indices are not supported")
    if start > end:
        raise ErrorValue("out_of_range", f"{shown}: the start is behind the end")
    if end > len(items):
        raise ErrorValue("out_of_range", f"{shown}: the list has {len(items)} elements")
    return list(items[start:end])


def _flatten(items: object, depth: object = 1) -> list[object]:
    if not isinstance(items, list) or depth.__class__ is not int:
        raise no_such_overload("flatten", items, depth)
    assert isinstance(depth, int)
    if depth < 0:
        raise ErrorValue("other", "flatten() takes a depth of at least 0")
    flat: list[object] = []
    pending = [(iter(items), depth)]
    while pending:
        source, left = pending[-1]
        for item in source:
            spend(1)
            if left > 0 and isinstance(item, list):
                pending.append((iter(item), left - 1))
                break
            flat.append(item)
        else:
            pending.pop()
    return flat


def _sort(items: object) -> object:
    if not isinstance(items, list):
        raise no_such_overload("sort", items)
    return _sort_by(items, items)


def _sort_by(items: object, keys: object) -> object:
    if not isinstance(items, list) or not isinstance(keys, list):
        raise no_such_overload("sort", items, keys)
    if len(items) != len(keys):
        raise ErrorValue("other", f"{len(items)} elements cannot be sorted by {len(keys)} keys")
    if not items:
        return items
    ordered: list[object] = keys
    kind = ordered[0].__class__
    if kind not in COMPARABLE:
        raise ErrorValue("other", "list elements must be comparable")
    if len(keys) > 1 and any(key.__class__ is not kind for key in keys):
        raise ErrorValue("mixed_types", "list elements must have the same type")

    def by_key(one: int, other: int) -> int:
        return _order(ordered[one], ordered[other])

    return [items[index] for index in sorted(range(len(ordered)), key=functools.cmp_to_key(by_key))]


def _distinct(items: list[object]) -> list[object]:
    if not items:
        return items
    unique: list[object] = []
    for item in items:
        spend(len(unique))
        if not any(same(item, other) for other in unique):
            unique.append(item)
    return unique


def _reverse(items: list[object]) -> list[object]:
    return items[::-1]


def _range(count: int) -> list[object]:
    if count > BUDGET:
        raise Abort("cost_limit", f"lists.range({count}) costs more than any limit", cost=costs.allocation(count))
    return list(range(count))


def _sort_by_macro(call: Call) -> Node:
    """list.sortBy(e, key) sorts the list by its elements' keys, and names it so that it is evaluated once."""
    target = call.target
    if not isinstance(target, ListNode | Select | Ident | Comprehension | Call):
        raise MacroError(target.offset if target else call.offset, "sortBy() takes a list")
    source = Ident(call.offset, _SORTED)
    keys = map_elements(Call(call.offset, "map", call.arguments, source))
    ordered = Call(call.offset, "@sortByAssociatedKeys", [keys], Ident(call.offset, _SORTED))
    return binding(call, _SORTED, target, ordered)


# costs


def _result_cost(arguments: Sequence[object], result: object) -> int:
    return costs.allocation(cost_size(result))


def _flatten_cost(arguments: Sequence[object], result: object) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    if not isinstance(depth, int) or depth.__class__ is not int:
        raise Abort("internal", "flatten() by what is no int")
    return costs.allocation(cost_size(arguments[0]), float(depth))


def _self_comparison(items: object) -> int:
    if not isinstance(items, list):
        raise Abort("internal", "an error cannot be sorted or searched for duplicates")
    factor = _COMPARISON
    if items and type_of(items[0]) in (STRING, BYTES):
        factor = _COMPARISON_OF_TEXT
    return costs.allocation(len(items) ** 2, factor)


def _sort_cost(arguments: Sequence[object], result: object) -> int:
    return _self_comparison(arguments[0])


def _sort_by_cost(arguments: Sequence[object], result: object) -> int:
    return _self_comparison(arguments[1])


def _allocated(size: Size, factor: float = 1.0) -> CallEstimate:
    return CallEstimate(add(scaled(size.high, factor), costs.allocation(0)), size)


def _slice_estimate(items: Operand, start: Operand, end: Operand) -> CallEstimate:
    count = end.integer(items.size.high) - start.integer(0)
    return _allocated(exactly(count % (UNBOUNDED + 1)))


def _flatten_estimate(items: Operand, depth: Operand | None = None) -> CallEstimate:
    return _allocated(items.size, float(depth.integer(UNBOUNDED) if depth else 1))


def _squared(operand: Operand, factor: float) -> CallEstimate:
    return _allocated(operand.size.times(operand.size), factor)


def _sort_estimate(item: Type) -> EstimateCall:
    factor = _COMPARISON_OF_TEXT if item in (STRING, BYTES) else _COMPARISON
    return lambda *lists: _squared(lists[-1], factor)


LIST_TRANSFORMS = Library(
    since=34,
    functions=(
        method("slice", "list_slice", (_TS, INT, INT), _TS, _slice, cost=_result_cost, estimate=_slice_estimate),
        Function(
            "flatten",
            (
                Overload(
                    "list_flatten",
                    (list_of(_TS),),
                    _TS,
                    _flatten,
                    member=True,
                    guarded=False,
                    cost=_flatten_cost,
                    estimate=_flatten_estimate,
                ),
                Overload(
                    "list_flatten_int",
                    (list_of(DYN), INT),
                    list_of(DYN),
                    _flatten,
                    member=True,
                    guarded=False,
                    cost=_flatten_cost,
                    estimate=_flatten_estimate,
                ),
            ),
        ),
        Function(
            "sort",
            tuple(
                Overload(
                    f"list_{item.name}_sort",
                    (list_of(item),),
                    list_of(item),
                    member=True,
                    cost=_sort_cost,
                    estimate=_sort_estimate(item),
                )
                for item in COMPARABLE_TYPES.values()
            ),
            dispatch=_sort,
        ),
        Function(
            "@sortByAssociatedKeys",
            tuple(
                Overload(
                    f"list_{item.name}_sortByAssociatedKeys",
                    (_TS, list_of(item)),
                    _TS,
                    member=True,
                    cost=_sort_by_cost,
                    estimate=_sort_estimate(item),
                )
                for item in COMPARABLE_TYPES.values()
            ),
            dispatch=_sort_by,
        ),
        function(
            "lists.range",
            "lists_range",
            (INT,),
            list_of(INT),
            _range,
            cost=_result_cost,
            estimate=lambda count: _allocated(exactly(count.integer(UNBOUNDED))),
        ),
        method(
            "reverse",
            "list_reverse",
            (_TS,),
            _TS,
            _reverse,
            cost=_result_cost,
            estimate=lambda items: _allocated(items.size),
        ),
        method(
            "distinct",
            "list_distinct",
            (_TS,),
            _TS,
            _distinct,
            cost=_sort_cost,
            estimate=lambda items: _squared(items, _COMPARISON),
        ),
    ),
    macros=(Macro("sortBy", 2, _sort_by_macro),),
)
