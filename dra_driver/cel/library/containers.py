# SPDX-License-Identifier: Apache-2.0
"""Functions on containers and optional values: size(), `in`, indexing, sets, includes(), optional.of(), optMap().

Follows cel-go's `common/stdlib`, `ext/sets.go` and its optional types. includes(), for attributes that may be lists, is
from k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

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
    function,
    method,
)
from ..errors import ErrorValue
from ..syntax.parser import Macro, binding, operation, variable_name
from ..syntax.tree import Call, Node
from ..types import BOOL, BYTES, DYN, INT, STRING, list_of, map_of, optional_of, parameter
from .values import (
    NONE,
    MapValue,
    OptionalValue,
    core_cost_size,
    cost_size,
    is_zero,
    no_such_overload,
    same,
    size_of,
    spend,
    type_name,
)

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
        raise ErrorValue("includes_limit", f"includes() cannot be applied to lists longer than {_MOST_ITEMS} values")
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


_K, _V = parameter("K"), parameter("V")
_OPTIONAL = optional_of(_V)
_LIST_OF_V, _MAP_TO_V = list_of(_V), map_of(_K, _V)
_OPTIONALS = list_of(_OPTIONAL)


def _of_non_zero(value: object) -> OptionalValue:
    return NONE if is_zero(value) else OptionalValue(value)


def _value(optional: OptionalValue) -> object:
    if optional.present:
        return optional.value
    raise ErrorValue("optional_none", "optional.none() has no value")


def _first(values: list[object]) -> OptionalValue:
    return OptionalValue(values[0]) if values else NONE


def _last(values: list[object]) -> OptionalValue:
    return OptionalValue(values[-1]) if values else NONE


def _unwrap(values: list[object]) -> list[object]:
    present: list[object] = []
    for value in values:
        if not isinstance(value, OptionalValue):
            raise ErrorValue("other", f"a {type_name(value)} is not optional")
        if value.present:
            present.append(value.value)
    return present


def _mapped(call: Call) -> Node:
    assert call.target is not None
    name = variable_name(call.arguments[0], f"{call.function}() takes a variable name first")
    value = Call(call.offset, "value", [], call.target.copy())
    return binding(call, name, value, call.arguments[1])


def _opt_map(call: Call) -> Node:
    return _if_present(call, operation(call, "optional.of", _mapped(call)))


def _opt_flat_map(call: Call) -> Node:
    return _if_present(call, _mapped(call))


def _if_present(call: Call, result: Node) -> Node:
    present = Call(call.offset, "hasValue", [], call.target)
    return operation(call, "_?_:_", present, result, operation(call, "optional.none"))


OPTIONALS = Library(
    functions=(
        function("optional.of", "optional_of", (_V,), _OPTIONAL, OptionalValue),
        function("optional.ofNonZeroValue", "optional_ofNonZeroValue", (_V,), _OPTIONAL, _of_non_zero),
        function("optional.none", "optional_none", (), _OPTIONAL, lambda: NONE),
        method("value", "optional_value", (_OPTIONAL,), _V, _value),
        method("hasValue", "optional_hasValue", (_OPTIONAL,), BOOL, lambda optional: optional.present),
        method("or", "optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL),
        method("orValue", "optional_orValue_value", (_OPTIONAL, _V), _V),
        Function(
            "_[?_]",
            (
                Overload("list_optindex_optional_int", (_LIST_OF_V, INT), _OPTIONAL),
                Overload("optional_list_optindex_optional_int", (optional_of(_LIST_OF_V), INT), _OPTIONAL),
                Overload("map_optindex_optional_value", (_MAP_TO_V, _K), _OPTIONAL),
                Overload("optional_map_optindex_optional_value", (optional_of(_MAP_TO_V), _K), _OPTIONAL),
            ),
        ),
        Function(
            "_[_]",
            (
                Overload("optional_list_index_int", (optional_of(_LIST_OF_V), INT), _OPTIONAL),
                Overload("optional_map_index_value", (optional_of(_MAP_TO_V), _K), _OPTIONAL),
            ),
        ),
    ),
    macros=(Macro("optMap", 2, _opt_map), Macro("optFlatMap", 2, _opt_flat_map)),
)

OPTIONAL_LISTS = Library(
    release=33,
    functions=(
        method("first", "list_first", (_LIST_OF_V,), _OPTIONAL, _first),
        method("last", "list_last", (_LIST_OF_V,), _OPTIONAL, _last),
        function("optional.unwrap", "optional_unwrap", (_OPTIONALS,), _LIST_OF_V, _unwrap),
        method("unwrapOpt", "optional_unwrapOpt", (_OPTIONALS,), _LIST_OF_V, _unwrap),
    ),
)
