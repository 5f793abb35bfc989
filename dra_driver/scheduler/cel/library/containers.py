# SPDX-License-Identifier: Apache-2.0
"""Macros and functions on lists, maps and optional values.

The macros has(), all(), exists(), map(), filter() and similar ones become loops. The functions are size(), `in`,
indexing, includes(), and those of optional values. Functions that only lists have are in `lists`.

Follows cel-go's `parser/macro.go`, `ext/comprehensions.go`, `ext/bindings.go` (version 0), `common/stdlib` and its
optional types. includes(), for attributes that may be lists, follows k8s.io/dynamic-resource-allocation
`cel/compile.go`.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Final

from ..closures import CallSite, Constant, CostCounter, Evaluable
from ..declarations import CEL_GO_29, CelLibrary, Cost, Overload, function, method
from ..errors import ErrorValue
from ..parse.macros import (
    Macro,
    MacroError,
    accumulated,
    binding,
    literal,
    loop,
    loop_variable,
    operation,
    variable_name,
)
from ..sizes import CallEstimate
from ..tree import Call, Expression, Ident, Invalid, ListNode, MapNode, Select
from ..types import (
    BOOL,
    BYTES,
    DYN,
    INT,
    INT_MAX,
    INT_MIN,
    STRING,
    UINT_MAX,
    Uint,
    list_of,
    map_of,
    optional_of,
    parameter,
)
from .operators import same
from .values import (
    NONE,
    LiteralMap,
    MapValue,
    OptionalValue,
    core_cost_size,
    hashable,
    is_zero,
    no_such_overload,
    spend,
    type_name,
)

_A, _B = parameter("A"), parameter("B")
_LIST, _MAP = list_of(_A), map_of(_A, _B)
_K, _V = parameter("K"), parameter("V")
_LIST_OF_V, _MAP_TO_V = list_of(_V), map_of(_K, _V)
_OPTIONAL = optional_of(_V)
_OPTIONALS = list_of(_OPTIONAL)


# Macros


Variables = tuple[str, str]
"""The names of the variables of a loop. The second is empty if the loop has only one."""

_SEARCH: Final = Cost(
    lambda arguments, _: core_cost_size(arguments[1]),
    lambda element, container: CallEstimate(container.size.scaled(1.0)),
)

_IN_SET: Final = frozenset((bool, int, Uint, float, str))
_MOST_ITEMS: Final = 48


def _variables(call: Call, count: int) -> tuple[Variables, list[Expression]]:
    """The variables of a macro with one or two of them, and its other arguments."""
    first = loop_variable(call.arguments[0])
    second = loop_variable(call.arguments[1]) if count == 2 else ""
    if first == second:
        raise MacroError(call.arguments[1].offset, f"duplicate variable name: {first}")
    return (first, second), call.arguments[count:]


def _with_predicate(call: Call) -> tuple[Variables, Expression]:
    """The variables and the predicate of a macro that has no other arguments."""
    variables, (predicate,) = _variables(call, len(call.arguments) - 1)
    return variables, predicate


def _has(call: Call) -> Expression:
    (argument,) = call.arguments
    if not isinstance(argument, Select):
        place = argument.offset
        if isinstance(argument, Invalid) and argument.parts:
            place = argument.parts[0].offset  # for Kubernetes, an invalid selection begins where its operand is
        raise MacroError(place, "has() expects the selection of a field: has(a.b)")
    return Select(call.offset, argument.operand, argument.field, test=True)


def _all(call: Call) -> Expression:
    variables, predicate = _with_predicate(call)
    condition = operation(call, "@not_strictly_false", accumulated(call))
    step = operation(call, "_&&_", accumulated(call), predicate)
    return loop(call, variables, literal(call, True), condition, step)


def _exists(call: Call) -> Expression:
    variables, predicate = _with_predicate(call)
    condition = operation(call, "@not_strictly_false", operation(call, "!_", accumulated(call)))
    step = operation(call, "_||_", accumulated(call), predicate)
    return loop(call, variables, literal(call, False), condition, step)


def _exists_one(call: Call) -> Expression:
    variables, predicate = _with_predicate(call)
    counted = operation(call, "_+_", accumulated(call), literal(call, 1))
    result = operation(call, "_==_", accumulated(call), literal(call, 1))
    return loop(call, variables, literal(call, 0), literal(call, True), _if(call, [predicate], counted), result)


def _if(call: Call, predicate: Sequence[Expression], step: Expression) -> Expression:
    """The step of a loop, which is left out if there is a predicate and it is false."""
    return operation(call, "_?_:_", *predicate, step, accumulated(call)) if predicate else step


def _collected(call: Call, variables: Variables, item: Expression, predicate: Sequence[Expression] = ()) -> Expression:
    appended = operation(call, "_+_", accumulated(call), ListNode(call.offset, [item]))
    return loop(call, variables, ListNode(call.offset, []), literal(call, True), _if(call, predicate, appended))


def map_elements(call: Call) -> Expression:
    """list.map(x, e) and list.map(x, p, e)"""
    variables, (*predicate, item) = _variables(call, 1)
    return _collected(call, variables, item, predicate)


def _filter(call: Call) -> Expression:
    variables, predicate = _with_predicate(call)
    return _collected(call, variables, call.arguments[0], [predicate])


def _transform_list(call: Call) -> Expression:
    variables, (*predicate, item) = _variables(call, 2)
    return _collected(call, variables, item, predicate)


def _transform_map(call: Call) -> Expression:
    variables, (*predicate, value) = _variables(call, 2)
    return _inserted(call, variables, predicate, call.arguments[0].copy(), value)


def _transform_entry(call: Call) -> Expression:
    variables, (*predicate, entries) = _variables(call, 2)
    return _inserted(call, variables, predicate, entries)


def _inserted(call: Call, variables: Variables, predicate: Sequence[Expression], *added: Expression) -> Expression:
    insert = operation(call, "cel.@mapInsert", accumulated(call), *added)
    return loop(call, variables, MapNode(call.offset, []), literal(call, True), _if(call, predicate, insert))


def _bind(call: Call) -> Expression | None:
    if not isinstance(call.target, Ident) or call.target.name != "cel" or call.target.absolute:
        return None
    name, value, result = call.arguments
    return binding(call, variable_name(name, "the first argument of cel.bind() must be a name"), value, result)


def _mapped(call: Call) -> Expression:
    assert call.target is not None
    name = variable_name(call.arguments[0], f"the first argument of {call.function}() must be a name")
    value = Call(call.offset, "value", [], call.target.copy())
    return binding(call, name, value, call.arguments[1])


def _opt_map(call: Call) -> Expression:
    return _if_present(call, operation(call, "optional.of", _mapped(call)))


def _opt_flat_map(call: Call) -> Expression:
    return _if_present(call, _mapped(call))


def _if_present(call: Call, result: Expression) -> Expression:
    present = Call(call.offset, "hasValue", [], call.target)
    return operation(call, "_?_:_", present, result, operation(call, "optional.none"))


def _insert_entry(target: MapValue, key: object, value: object) -> MapValue:
    if target.find(key)[0]:
        raise ErrorValue("other", f"insert failed: key {key!r} already exists")
    assert isinstance(target, LiteralMap)  # the accumulator, which expressions cannot name
    target.insert(key, value)
    return target


def _insert_all(target: MapValue, added: MapValue) -> MapValue:
    for key, value in added.items():
        target = _insert_entry(target, key, value)
    return target


TWO_VARIABLES = CelLibrary(
    function(
        "cel.@mapInsert",
        ("@mapInsert_map_key_value", (_MAP_TO_V, _K, _V), _MAP_TO_V, _insert_entry),
        ("@mapInsert_map_map", (_MAP_TO_V, _MAP_TO_V), _MAP_TO_V, _insert_all),
    ),
    macros=(
        Macro("all", 3, _all),
        Macro("exists", 3, _exists),
        Macro("existsOne", 3, _exists_one),
        Macro("exists_one", 3, _exists_one),
        Macro("transformList", 3, _transform_list),
        Macro("transformList", 4, _transform_list),
        Macro("transformMap", 3, _transform_map),
        Macro("transformMap", 4, _transform_map),
        Macro("transformMapEntry", 3, _transform_entry),
        Macro("transformMapEntry", 4, _transform_entry),
    ),
    since=32,
)

# Lists and maps


def _size(value: object) -> int:
    if isinstance(value, str | bytes | list | MapValue):
        return len(value)
    raise no_such_overload("size", value)


def _in(element: object, container: object) -> bool:
    if isinstance(container, list):
        spend(len(container))
        return any(same(element, item) for item in container)
    if isinstance(container, MapValue):
        return container.contains(element)
    raise no_such_overload("@in", element, container)


def _in_constants(site: CallSite) -> Evaluable | None:
    """`element in [constants]` as a lookup in a set. None if the constants cannot be in a set."""
    element, container = site.operands
    if site.overloads != ("in_list",) or not isinstance(container, Constant):
        return None
    items = container.value
    if not items:
        return Constant(False)
    if not isinstance(items, list) or any(item.__class__ not in _IN_SET for item in items):
        return None
    evaluate = element.run
    members = frozenset(hashable(equal) for item in items for equal in _equal_numbers(item) if equal == equal)

    def run(frame: CostCounter) -> object:
        value = evaluate(frame)
        return value if value.__class__ is ErrorValue else hashable(value) in members

    return Evaluable(run)


def _equal_numbers(item: object) -> Sequence[object]:
    """The item and the equal numbers of other types."""
    equals: list[object] = [item]
    if isinstance(item, float):
        if item.is_integer():
            whole = int(item)
            equals += [whole] * (INT_MIN <= whole <= INT_MAX) + [Uint(whole)] * (0 <= whole <= UINT_MAX)
    elif isinstance(item, int) and item.__class__ is not bool:
        whole = int(item)
        equals.append(float(whole))
        equals += [whole] * (whole <= INT_MAX) + [Uint(whole)] * (whole >= 0)
    return equals


def _includes(target: object, value: object) -> bool:
    if not isinstance(target, list):
        return same(target, value)
    if any(same(item, value) for item in target[:_MOST_ITEMS]):
        return True
    if len(target) > _MOST_ITEMS:
        raise ErrorValue("includes_limit", f"includes() cannot be applied to lists longer than {_MOST_ITEMS} values")
    return False


INCLUDES = CelLibrary(
    method(
        "includes",
        ("dra_includes_dyn_dyn", (DYN, DYN), BOOL, _includes),
        cost=Cost(estimate=lambda *operands: CallEstimate(_MOST_ITEMS)),
    ),
    until=CEL_GO_29,
)
"""includes() of 1.36. That of later releases is in `lists`."""


# Optional values


def _of_non_zero(value: object) -> OptionalValue:
    return NONE if is_zero(value) else OptionalValue(value)


def _value(optional: OptionalValue) -> object:
    if optional.present:
        return optional.value
    raise ErrorValue("optional_none", "optional.none() has no value")


def _or(site: CallSite, *, checks: bool, unwrap: bool = False) -> Evaluable:
    """optional.or(optional) and optional.orValue(value). The second operand is only evaluated if it is needed.

    `checks`: a value that is not optional is an error. Without it, such a value is the result.
    """
    optional, otherwise = (operand.run for operand in site.operands)

    def run(frame: CostCounter) -> object:
        value = optional(frame)
        if not isinstance(value, OptionalValue):
            return value if not checks or isinstance(value, ErrorValue) else no_such_overload()
        if not value.present:
            return otherwise(frame)
        return value.value if unwrap else value

    return Evaluable(run)


def _alternatives(*, checks: bool, release: int = 0, until: int = sys.maxsize) -> CelLibrary:
    make = functools.partial(_or, checks=checks)
    return CelLibrary(
        method("or", ("optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL), make=make),
        method(
            "orValue",
            ("optional_orValue_value", (_OPTIONAL, _V), _V),
            make=functools.partial(make, unwrap=True),
        ),
        release=release,
        until=until,
    )


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


CONTAINERS = CelLibrary(
    function(
        "size",
        ("size_bytes", (BYTES,), INT),
        Overload("bytes_size", (BYTES,), INT, member=True),
        ("size_list", (_LIST,), INT),
        Overload("list_size", (_LIST,), INT, member=True),
        ("size_map", (_MAP,), INT),
        Overload("map_size", (_MAP,), INT, member=True),
        ("size_string", (STRING,), INT),
        Overload("string_size", (STRING,), INT, member=True),
        dispatch=_size,
    ),
    function(
        "@in",
        Overload("in_list", (_A, _LIST), BOOL, cost=_SEARCH),
        ("in_map", (_A, _MAP), BOOL),
        dispatch=_in,
        make=_in_constants,
    ),
    function(
        "_[_]",
        ("index_list", (_LIST, INT), _A),
        ("index_map", (_MAP, _A), _B),
        ("optional_list_index_int", (optional_of(_LIST_OF_V), INT), _OPTIONAL),
        ("optional_map_index_value", (optional_of(_MAP_TO_V), _K), _OPTIONAL),
    ),
    function("optional.of", ("optional_of", (_V,), _OPTIONAL, OptionalValue)),
    function("optional.ofNonZeroValue", ("optional_ofNonZeroValue", (_V,), _OPTIONAL, _of_non_zero)),
    function("optional.none", ("optional_none", (), _OPTIONAL, lambda: NONE)),
    method("value", ("optional_value", (_OPTIONAL,), _V, _value)),
    method("hasValue", ("optional_hasValue", (_OPTIONAL,), BOOL, lambda optional: optional.present)),
    function(
        "_[?_]",
        ("list_optindex_optional_int", (_LIST_OF_V, INT), _OPTIONAL),
        ("optional_list_optindex_optional_int", (optional_of(_LIST_OF_V), INT), _OPTIONAL),
        ("map_optindex_optional_value", (_MAP_TO_V, _K), _OPTIONAL),
        ("optional_map_optindex_optional_value", (optional_of(_MAP_TO_V), _K), _OPTIONAL),
    ),
    macros=(
        Macro("has", 1, _has, member=False),
        Macro("all", 2, _all),
        Macro("exists", 2, _exists),
        Macro("exists_one", 2, _exists_one),
        Macro("map", 2, map_elements),
        Macro("map", 3, map_elements),
        Macro("filter", 2, _filter),
        Macro("bind", 3, _bind),
        Macro("optMap", 2, _opt_map, copies_target=True),
        Macro("optFlatMap", 2, _opt_flat_map, copies_target=True),
    ),
)

ALTERNATIVES = (_alternatives(checks=False, until=CEL_GO_29), _alternatives(checks=True, release=CEL_GO_29))
"""or() and orValue() of optional values. From cel-go 0.29 on, they refuse a value that is not optional."""

OPTIONAL_LISTS = CelLibrary(
    method("first", ("list_first", (_LIST_OF_V,), _OPTIONAL, _first)),
    method("last", ("list_last", (_LIST_OF_V,), _OPTIONAL, _last)),
    function("optional.unwrap", ("optional_unwrap", (_OPTIONALS,), _LIST_OF_V, _unwrap)),
    method("unwrapOpt", ("optional_unwrapOpt", (_OPTIONALS,), _LIST_OF_V, _unwrap)),
    release=33,
)
