# SPDX-License-Identifier: Apache-2.0
"""Functions on lists.

isSorted(), sum(), min(), max(), indexOf(), lastIndexOf() and includes() follow k8s.io/apiserver
`pkg/cel/library/lists.go`.
slice(), flatten(), sort(), sortBy(), distinct(), reverse() and lists.range() follow cel-go's `ext/lists.go` (version
3), and the functions sets.* its `ext/sets.go`.
"""

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from ..declarations import CEL_GO_29, CelLibrary, Cost, Implementation, Overload, RuntimeCost, function, method
from ..errors import Abort, ErrorValue
from ..parse.macros import Macro, MacroError, binding
from ..sizes import UNBOUNDED, CallEstimate, Operand, Size, add, exactly, scaled, times, traversal
from ..tree import Call, Comprehension, Expression, Ident, ListNode, Select
from ..types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    INT_MIN,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    Uint,
    list_of,
    parameter,
)
from .containers import map_elements
from .operators import COMPARABLE, add_values, compare, same
from .time import Duration
from .values import BUDGET, VISIT, allocation_cost, cost_size, no_such_overload, spend, type_of, visit_first

_COMPARABLE_TYPES: Final = {
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
_A, _T = parameter("A"), parameter("T")
_LIST, _TS = list_of(_A), list_of(_T)

_SORTED: Final = "@__sortBy_input__"
_COMPARISON: Final = 2.0
_COMPARISON_OF_TEXT: Final = _COMPARISON + 0.1


def _order(left: object, right: object) -> int:
    """-1, 0 or 1. An error counts as 0, so isSorted(), min() and max() ignore it."""
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


def _includes(target: object, value: object) -> bool:
    if isinstance(target, list):
        spend(len(target))
        return any(same(item, value) for item in target)
    return same(target, value)


def _including(target: Operand, value: Operand) -> CallEstimate:
    element = target.element
    each = 1
    if element is not None and element.type in (STRING, BYTES):
        each = add(each, traversal(element))
    return CallEstimate(times(target.size.high, each))


def _of_each(template: str, call: Implementation, result: Type | None = None) -> tuple[Overload, ...]:
    """One overload for lists of each comparable type. In the template of its id, {0} is the name of the type."""
    return tuple(
        Overload(template.format(name), (list_of(item),), result or item, call, member=True)
        for name, item in _COMPARABLE_TYPES.items()
    )


def _sums() -> Iterable[Overload]:
    for name, zero in _ZEROS.items():
        item = _COMPARABLE_TYPES[name]
        yield Overload(f"list_{name}_sum_{name}", (list_of(item),), item, _sum_from(zero), member=True)


# Sets


def _contains(items: list[object], part: list[object]) -> bool:
    return all(_has(items, wanted) for wanted in part)


def _has(items: list[object], wanted: object) -> bool:
    spend(len(items))
    return any(same(wanted, item) for item in items)


def _equivalent(left: list[object], right: list[object]) -> bool:
    return _contains(left, right) and _contains(right, left)


def _intersects(left: list[object], right: list[object]) -> bool:
    return any(_has(right, item) for item in left)


def _on_sets(identifier: str, call: Implementation, factor: int) -> Overload:
    cost = Cost(
        lambda arguments, _: 1 + cost_size(arguments[0]) * cost_size(arguments[1]) * factor,
        lambda left, right: CallEstimate(add(left.size.times(right.size).scaled(factor), 1)),
    )
    return Overload(identifier, (_TS, _TS), BOOL, call, cost=cost)


# Lists made of lists


def _slice(items: list[object], start: int, end: int) -> list[object]:
    shown = f"slice({start}, {end})"
    if start < 0 or end < 0:
        raise ErrorValue("out_of_range", f"{shown}: negative indices are not supported")
    if start > end:
        raise ErrorValue("out_of_range", f"{shown}: the start is after the end")
    if end > len(items):
        raise ErrorValue("out_of_range", f"{shown}: the list has {len(items)} elements")
    return list(items[start:end])


def _flatten(items: object, depth: object = 1) -> list[object]:
    if not isinstance(items, list) or depth.__class__ is not int:
        raise no_such_overload("flatten", items, depth)
    assert isinstance(depth, int)
    if depth < 0:
        raise ErrorValue("other", "the depth of flatten() must not be negative")
    flat: list[object] = []
    spend(len(items))
    pending = [(iter(items), depth)]
    while pending:
        source, left = pending[-1]
        for item in source:
            if left > 0 and isinstance(item, list):
                spend(len(item))
                pending.append((iter(item), left - 1))
                break
            flat.append(item)
        else:
            pending.pop()
    return flat


def _sort(*lists: object) -> object:
    """Sorts the first list by the keys in the last one, which may be the same list."""
    items, keys = lists[0], lists[-1]
    if not isinstance(items, list) or not isinstance(keys, list):
        raise no_such_overload("sort", *lists)
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

    def by_key(left: int, right: int) -> int:
        return _order(ordered[left], ordered[right])

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


def _range(count: int) -> list[object]:
    if count > BUDGET:
        raise Abort("cost_limit", f"lists.range({count}) costs more than any limit", cost=allocation_cost(count))
    return list(range(count))


def _checked_range(count: int) -> list[object]:
    if count < 0:
        raise ErrorValue("other", f"lists.range: size must be non-negative, got {count}")
    return _range(count)


def _sort_by_macro(call: Call) -> Expression:
    """list.sortBy(e, key) sorts a list by the keys of its elements.

    A binding ensures that the list is evaluated once.
    """
    target = call.target
    if not isinstance(target, ListNode | Select | Ident | Comprehension | Call):
        raise MacroError(target.offset if target else call.offset, "sortBy() expects a list")
    source = Ident(call.offset, _SORTED)
    keys = map_elements(Call(call.offset, "map", call.arguments, source))
    ordered = Call(call.offset, "@sortByAssociatedKeys", [keys], Ident(call.offset, _SORTED))
    return binding(call, _SORTED, target, ordered)


def _result_cost(arguments: Sequence[object], result: object) -> int:
    return allocation_cost(cost_size(result))


def _flatten_cost(arguments: Sequence[object], result: object) -> int:
    depth = arguments[1] if len(arguments) == 2 else 1
    if not isinstance(depth, int) or depth.__class__ is not int:
        raise Abort("internal", "the depth of flatten() is not an int")
    product = int(cost_size(arguments[0]) * float(depth))
    if not INT_MIN <= product <= UNBOUNDED:
        product = -INT_MIN  # the uint64 that Go makes of a float beyond the range of 64 bits
    return allocation_cost(product)


def _saturating_flatten_cost(arguments: Sequence[object], result: object) -> int:
    cost = _flatten_cost(arguments, result)
    return cost if cost >= allocation_cost(0) else UNBOUNDED  # the product with a negative depth, as unsigned number


def _sort_cost(arguments: Sequence[object], result: object) -> int:
    """The cost of comparing the elements of the last argument with each other."""
    items = arguments[-1]
    if not isinstance(items, list):
        raise Abort("internal", "an error cannot be sorted or searched for duplicates")
    is_text = bool(items) and type_of(items[0]) in (STRING, BYTES)
    return allocation_cost(len(items) ** 2, _COMPARISON_OF_TEXT if is_text else _COMPARISON)


def _allocated(size: Size, factor: float = 1.0) -> CallEstimate:
    return CallEstimate(add(scaled(size.high, factor), allocation_cost(0)), size)


def _slice_estimate(items: Operand, start: Operand, end: Operand) -> CallEstimate:
    count = end.integer(items.size.high) - start.integer(0)
    return _allocated(exactly(count % (UNBOUNDED + 1)))


def _flatten_estimate(items: Operand, depth: Operand | None = None) -> CallEstimate:
    return _allocated(items.size, float(depth.integer(UNBOUNDED) if depth else 1))


def _sorting_cost(item: Type) -> Cost:
    factor = _COMPARISON_OF_TEXT if item in (STRING, BYTES) else _COMPARISON
    return Cost(_sort_cost, lambda *lists: _allocated(lists[-1].size.times(lists[-1].size), factor))


def _sorting(template: str, *parameters: Type) -> Iterable[Overload]:
    """The overloads of a function that sorts by its last parameter, a list of any comparable type."""
    for item in _COMPARABLE_TYPES.values():
        given, result = (*parameters, list_of(item)), parameters[0] if parameters else list_of(item)
        identifier = f"list_{item.name}_{template}"
        yield Overload(identifier, given, result, member=True, cost=_sorting_cost(item))


def _transforms_with_counts(
    flatten_cost: RuntimeCost, make_range: Implementation, *, release: int = 0, until: int = sys.maxsize
) -> CelLibrary:
    """flatten() and lists.range(), which treat negative numbers differently in different releases."""
    return CelLibrary(
        method(
            "flatten",
            ("list_flatten", (list_of(_TS),), _TS),
            ("list_flatten_int", (list_of(DYN), INT), list_of(DYN)),
            cost=Cost(flatten_cost, _flatten_estimate),
            dispatch=_flatten,
        ),
        function(
            "lists.range",
            ("lists_range", (INT,), list_of(INT), make_range),
            cost=Cost(_result_cost, lambda count: _allocated(exactly(count.integer(UNBOUNDED)))),
        ),
        since=34,
        release=release,
        until=until,
    )


LISTS = CelLibrary(
    function("isSorted", *_of_each("list_{0}_is_sorted_bool", _is_sorted, BOOL), cost=VISIT),
    function("sum", *_sums(), cost=VISIT),
    function("max", *_of_each("list_{0}_max_{0}", lambda items: _extreme(items, "max", 1)), cost=VISIT),
    function("min", *_of_each("list_{0}_min_{0}", lambda items: _extreme(items, "min", -1)), cost=VISIT),
    method("indexOf", ("list_a_index_of_int", (_LIST, _A), INT, _index_of), cost=VISIT),
    method("lastIndexOf", ("list_a_last_index_of_int", (_LIST, _A), INT, _last_index_of), cost=VISIT),
    function("sets.contains", _on_sets("list_sets_contains_list", _contains, 1)),
    function("sets.equivalent", _on_sets("list_sets_equivalent_list", _equivalent, 2)),
    function("sets.intersects", _on_sets("list_sets_intersects_list", _intersects, 1)),
)

LIST_TRANSFORMS = CelLibrary(
    method("slice", ("list_slice", (_TS, INT, INT), _TS, _slice), cost=Cost(_result_cost, _slice_estimate)),
    function("sort", *_sorting("sort"), dispatch=_sort),
    function("@sortByAssociatedKeys", *_sorting("sortByAssociatedKeys", _TS), dispatch=_sort),
    method(
        "reverse",
        ("list_reverse", (_TS,), _TS, lambda items: items[::-1]),
        cost=Cost(_result_cost, lambda items: _allocated(items.size)),
    ),
    method("distinct", ("list_distinct", (_TS,), _TS, _distinct), cost=_sorting_cost(_T)),
    macros=(Macro("sortBy", 2, _sort_by_macro),),
    since=34,
)

COUNTED_TRANSFORMS = (
    _transforms_with_counts(_flatten_cost, _range, until=CEL_GO_29),
    _transforms_with_counts(_saturating_flatten_cost, _checked_range, release=CEL_GO_29),
)

INCLUDES_IN_LISTS = CelLibrary(
    method(
        "includes",
        ("list_includes_dyn_dyn", (DYN, DYN), BOOL, _includes),
        cost=Cost(visit_first, _including),
    ),
    release=CEL_GO_29,
)
