# SPDX-License-Identifier: Apache-2.0
"""Values that may be missing (cel-go's optional types): optional.of(), `.?field`, `[?key]`, or(), optMap()."""

from ..check.declarations import Function, Library, Overload, function, method
from ..errors import Fault
from ..syntax.macros import Macro, binding, operation, variable_name
from ..syntax.tree import Call, Node
from ..types import BOOL, INT, list_of, map_of, optional_of, parameter
from .values import NONE, OptionalValue, is_zero, type_name

_K, _V = parameter("K"), parameter("V")
_OPTIONAL = optional_of(_V)
_LIST, _MAP = list_of(_V), map_of(_K, _V)
_OPTIONALS = list_of(_OPTIONAL)


def _of_non_zero(value: object) -> OptionalValue:
    return NONE if is_zero(value) else OptionalValue(value)


def _value(optional: OptionalValue) -> object:
    if optional.present:
        return optional.value
    raise Fault("optional_none", "optional.none() has no value")


def _first(values: list[object]) -> OptionalValue:
    return OptionalValue(values[0]) if values else NONE


def _last(values: list[object]) -> OptionalValue:
    return OptionalValue(values[-1]) if values else NONE


def _unwrap(values: list[object]) -> list[object]:
    present: list[object] = []
    for value in values:
        if not isinstance(value, OptionalValue):
            raise Fault("other", f"a {type_name(value)} is not optional")
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
                Overload("list_optindex_optional_int", (_LIST, INT), _OPTIONAL),
                Overload("optional_list_optindex_optional_int", (optional_of(_LIST), INT), _OPTIONAL),
                Overload("map_optindex_optional_value", (_MAP, _K), _OPTIONAL),
                Overload("optional_map_optindex_optional_value", (optional_of(_MAP), _K), _OPTIONAL),
            ),
        ),
        Function(
            "_[_]",
            (
                Overload("optional_list_index_int", (optional_of(_LIST), INT), _OPTIONAL),
                Overload("optional_map_index_value", (optional_of(_MAP), _K), _OPTIONAL),
            ),
        ),
    ),
    macros=(Macro("optMap", 2, _opt_map), Macro("optFlatMap", 2, _opt_flat_map)),
)

OPTIONAL_LISTS = Library(
    release=33,
    functions=(
        method("first", "list_first", (_LIST,), _OPTIONAL, _first),
        method("last", "list_last", (_LIST,), _OPTIONAL, _last),
        function("optional.unwrap", "optional_unwrap", (_OPTIONALS,), _LIST, _unwrap),
        method("unwrapOpt", "optional_unwrapOpt", (_OPTIONALS,), _LIST, _unwrap),
    ),
)
