# SPDX-License-Identifier: Apache-2.0
"""size(), `in` and indexing of strings, bytes, lists and maps (cel-go's `common/stdlib`)."""

from collections.abc import Sequence

from .. import effort
from ..declarations import Function, Library, Overload
from ..maps import MapValue
from ..operands import CallEstimate, Operand
from ..types import BOOL, BYTES, INT, STRING, list_of, map_of, parameter
from ..values import core_cost_size, no_such_overload, same, size_of

_A, _B = parameter("A"), parameter("B")
_LIST, _MAP = list_of(_A), map_of(_A, _B)


def _size(value: object) -> int:
    size = size_of(value)
    if size is None:
        raise no_such_overload("size", value)
    return size


def _in(element: object, container: object) -> bool:
    if isinstance(container, list):
        effort.spend(len(container))
        return any(same(element, item) for item in container)
    if isinstance(container, MapValue):
        return container.contains(element)
    raise no_such_overload("@in", element, container)


def _search_cost(arguments: Sequence[object], result: object) -> int:
    return core_cost_size(arguments[1])


def _search(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(arguments[1].size.scaled(1.0))


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
