# SPDX-License-Identifier: Apache-2.0
"""slice(), flatten(), sort(), sortBy(), distinct(), reverse(), lists.range() (cel-go's `ext/lists.go`, version 3)."""

import functools
from collections.abc import Sequence
from typing import Final

from .. import costs, effort
from ..ast import Call, Comprehension, Ident, ListNode, Node, Select
from ..declarations import EstimateCall, Function, Library, Macro, Overload
from ..errors import Abort, Fault
from ..macros import MacroError, binding
from ..operands import CallEstimate, Operand
from ..sizes import UNBOUNDED, Size, add, exactly, scaled
from ..types import BYTES, DYN, INT, STRING, Type, list_of, parameter
from ..values import COMPARABLE, compare, cost_size, no_such_overload, same, type_of
from .lists import COMPARABLE_TYPES
from .macros import map_elements

_T = parameter("T")
_LIST = list_of(_T)
_SORTED: Final = "@__sortBy_input__"
_COMPARISON: Final = 2.0
_COMPARISON_OF_TEXT: Final = _COMPARISON + 0.1


def _slice(items: list[object], start: int, end: int) -> list[object]:
    shown = f"slice({start}, {end})"
    if start < 0 or end < 0:
        raise Fault("out_of_range", f"{shown}: negative indices are not supported")
    if start > end:
        raise Fault("out_of_range", f"{shown}: the start is behind the end")
    if end > len(items):
        raise Fault("out_of_range", f"{shown}: the list has {len(items)} elements")
    return list(items[start:end])


def _flatten(items: object, depth: object = 1) -> list[object]:
    if not isinstance(items, list) or depth.__class__ is not int:
        raise no_such_overload("flatten", items, depth)
    assert isinstance(depth, int)
    if depth < 0:
        raise Fault("other", "flatten() takes a depth of at least 0")
    flat: list[object] = []
    pending = [(iter(items), depth)]
    while pending:
        source, left = pending[-1]
        for item in source:
            effort.spend(1)
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
        raise Fault("other", f"{len(items)} elements cannot be sorted by {len(keys)} keys")
    if not items:
        return items
    ordered: list[object] = keys
    kind = ordered[0].__class__
    if kind not in COMPARABLE:
        raise Fault("other", "list elements must be comparable")
    if len(keys) > 1 and any(key.__class__ is not kind for key in keys):
        raise Fault("mixed_types", "list elements must have the same type")

    def by_key(one: int, other: int) -> int:
        return _order(ordered[one], ordered[other])

    return [items[index] for index in sorted(range(len(ordered)), key=functools.cmp_to_key(by_key))]


def _order(left: object, right: object) -> int:
    try:
        return compare(left, right)
    except Fault:  # NaN
        return 0


def _distinct(items: list[object]) -> list[object]:
    if not items:
        return items
    unique: list[object] = []
    for item in items:
        effort.spend(len(unique))
        if not any(same(item, other) for other in unique):
            unique.append(item)
    return unique


def _reverse(items: list[object]) -> list[object]:
    return items[::-1]


def _range(count: int) -> list[object]:
    if count > effort.BUDGET:
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


def _slice_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    if target is None:
        return None
    start, end = arguments[0].integer(0), arguments[1].integer(target.size.high)
    return _allocated(exactly((end - start) % (UNBOUNDED + 1)))


def _range_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    return _allocated(exactly(arguments[0].integer(UNBOUNDED)))


def _reverse_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    return _allocated(target.size) if target else None


def _flatten_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    if target is None:
        return None
    depth = arguments[0].integer(UNBOUNDED) if arguments else 1
    return _allocated(target.size, float(depth))


def _squared(operand: Operand, factor: float) -> CallEstimate:
    return _allocated(operand.size.times(operand.size), factor)


def _distinct_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
    return _squared(target, _COMPARISON) if target else None


def _sort_estimate(item: Type) -> EstimateCall:
    factor = _COMPARISON_OF_TEXT if item in (STRING, BYTES) else _COMPARISON

    def estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate | None:
        listed = arguments[0] if arguments else target
        return _squared(listed, factor) if listed else None

    return estimate


LIST_TRANSFORMS = Library(
    since=34,
    functions=(
        Function(
            "slice",
            (
                Overload(
                    "list_slice",
                    (_LIST, INT, INT),
                    _LIST,
                    _slice,
                    member=True,
                    cost=_result_cost,
                    estimate=_slice_estimate,
                ),
            ),
        ),
        Function(
            "flatten",
            (
                Overload(
                    "list_flatten",
                    (list_of(_LIST),),
                    _LIST,
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
                    (_LIST, list_of(item)),
                    _LIST,
                    member=True,
                    cost=_sort_by_cost,
                    estimate=_sort_estimate(item),
                )
                for item in COMPARABLE_TYPES.values()
            ),
            dispatch=_sort_by,
        ),
        Function(
            "lists.range",
            (Overload("lists_range", (INT,), list_of(INT), _range, cost=_result_cost, estimate=_range_estimate),),
        ),
        Function(
            "reverse",
            (
                Overload(
                    "list_reverse",
                    (_LIST,),
                    _LIST,
                    _reverse,
                    member=True,
                    cost=_result_cost,
                    estimate=_reverse_estimate,
                ),
            ),
        ),
        Function(
            "distinct",
            (
                Overload(
                    "list_distinct",
                    (_LIST,),
                    _LIST,
                    _distinct,
                    member=True,
                    cost=_sort_cost,
                    estimate=_distinct_estimate,
                ),
            ),
        ),
    ),
    macros=(Macro("sortBy", 2, _sort_by_macro),),
)
