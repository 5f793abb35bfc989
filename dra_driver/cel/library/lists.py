# SPDX-License-Identifier: Apache-2.0
"""isSorted(), sum(), min(), max(), indexOf() and lastIndexOf() (k8s.io/apiserver `pkg/cel/library/lists.go`)."""

import functools
from collections.abc import Iterable
from typing import Final

from .. import costs
from ..declarations import Function, Implementation, Library, Overload
from ..errors import Fault
from ..operands import searching
from ..scalars import Uint
from ..times import Duration
from ..types import BOOL, BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT, Type, list_of, parameter
from ..values import COMPARABLE, compare, no_such_overload, same
from .arithmetic import add

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
    except Fault:
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
        raise Fault("empty_list", f"{name}() called on an empty list")
    return chosen


def _sum_from(zero: object) -> Implementation:
    return lambda items: functools.reduce(add, items, zero)


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
