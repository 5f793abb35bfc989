# SPDX-License-Identifier: Apache-2.0
"""Macros: has(), all(), exists(), map(), filter() and their like with one or two variables, and cel.bind().

Follows cel-go's `parser/macro.go`, `ext/comprehensions.go` and `ext/bindings.go` (version 0)."""

from ..check.declarations import Function, Library, Overload
from ..errors import ErrorValue
from ..syntax.parser import (
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
from ..syntax.tree import Call, Ident, ListNode, MapNode, Node, Select
from ..types import map_of, parameter
from .values import LiteralMap, MapValue

Variables = tuple[str, str]


def _one(call: Call) -> tuple[Variables, list[Node]]:
    return (loop_variable(call.arguments[0]), ""), call.arguments[1:]


def _two(call: Call) -> tuple[Variables, list[Node]]:
    first, second = loop_variable(call.arguments[0]), loop_variable(call.arguments[1])
    if first == second:
        raise MacroError(call.arguments[1].offset, f"duplicate variable name: {first}")
    return (first, second), call.arguments[2:]


def _has(call: Call) -> Node:
    (argument,) = call.arguments
    if not isinstance(argument, Select):
        raise MacroError(argument.offset, "has() takes a field selection: has(a.b)")
    return Select(call.offset, argument.operand, argument.field, test=True)


def _all(call: Call, variables: Variables, predicate: Node) -> Node:
    condition = operation(call, "@not_strictly_false", accumulated(call))
    step = operation(call, "_&&_", accumulated(call), predicate)
    return loop(call, variables, literal(call, True), condition, step)


def _exists(call: Call, variables: Variables, predicate: Node) -> Node:
    condition = operation(call, "@not_strictly_false", operation(call, "!_", accumulated(call)))
    step = operation(call, "_||_", accumulated(call), predicate)
    return loop(call, variables, literal(call, False), condition, step)


def _exists_one(call: Call, variables: Variables, predicate: Node) -> Node:
    counted = operation(call, "_+_", accumulated(call), literal(call, 1))
    step = operation(call, "_?_:_", predicate, counted, accumulated(call))
    result = operation(call, "_==_", accumulated(call), literal(call, 1))
    return loop(call, variables, literal(call, 0), literal(call, True), step, result)


def _collected(call: Call, variables: Variables, item: Node, predicate: Node | None = None) -> Node:
    appended = operation(call, "_+_", accumulated(call), ListNode(call.offset, [item]))
    step = _if(call, predicate, appended)
    return loop(call, variables, ListNode(call.offset, []), literal(call, True), step)


def _if(call: Call, predicate: Node | None, step: Node) -> Node:
    return step if predicate is None else operation(call, "_?_:_", predicate, step, accumulated(call))


def map_elements(call: Call) -> Node:
    """list.map(x, e) and list.map(x, p, e)"""
    variables, (*predicate, item) = _one(call)
    return _collected(call, variables, item, predicate[0] if predicate else None)


def _filter(call: Call) -> Node:
    variables, (predicate,) = _one(call)
    return _collected(call, variables, call.arguments[0], predicate)


def _transform_list(call: Call) -> Node:
    variables, (*predicate, item) = _two(call)
    return _collected(call, variables, item, predicate[0] if predicate else None)


def _transform_map(call: Call) -> Node:
    variables, (*predicate, value) = _two(call)
    key = call.arguments[0].copy()
    return _inserted(call, variables, predicate, key, value)


def _transform_entry(call: Call) -> Node:
    variables, (*predicate, entries) = _two(call)
    return _inserted(call, variables, predicate, entries)


def _inserted(call: Call, variables: Variables, predicate: list[Node], *added: Node) -> Node:
    insert = operation(call, "cel.@mapInsert", accumulated(call), *added)
    step = _if(call, predicate[0] if predicate else None, insert)
    return loop(call, variables, MapNode(call.offset, []), literal(call, True), step)


def _insert_entry(target: MapValue, key: object, value: object) -> MapValue:
    if target.find(key)[0]:
        raise ErrorValue("other", f"insert failed: key {key!r} already exists")
    assert isinstance(target, LiteralMap)  # the accumulator, which no expression can name
    target.insert(key, value)
    return target


def _insert_all(target: MapValue, added: MapValue) -> MapValue:
    for key, value in added.items():
        target = _insert_entry(target, key, value)
    return target


_MAP = map_of(parameter("K"), parameter("V"))

STANDARD = Library(
    macros=(
        Macro("has", 1, _has, member=False),
        Macro("all", 2, lambda call: _all(call, _one(call)[0], call.arguments[1])),
        Macro("exists", 2, lambda call: _exists(call, _one(call)[0], call.arguments[1])),
        Macro("exists_one", 2, lambda call: _exists_one(call, _one(call)[0], call.arguments[1])),
        Macro("map", 2, map_elements),
        Macro("map", 3, map_elements),
        Macro("filter", 2, _filter),
    )
)

TWO_VARIABLES = Library(
    since=32,
    functions=(
        Function(
            "cel.@mapInsert",
            (
                Overload("@mapInsert_map_key_value", (_MAP, parameter("K"), parameter("V")), _MAP, _insert_entry),
                Overload("@mapInsert_map_map", (_MAP, _MAP), _MAP, _insert_all),
            ),
        ),
    ),
    macros=(
        Macro("all", 3, lambda call: _all(call, _two(call)[0], call.arguments[2])),
        Macro("exists", 3, lambda call: _exists(call, _two(call)[0], call.arguments[2])),
        Macro("existsOne", 3, lambda call: _exists_one(call, _two(call)[0], call.arguments[2])),
        Macro("exists_one", 3, lambda call: _exists_one(call, _two(call)[0], call.arguments[2])),
        Macro("transformList", 3, _transform_list),
        Macro("transformList", 4, _transform_list),
        Macro("transformMap", 3, _transform_map),
        Macro("transformMap", 4, _transform_map),
        Macro("transformMapEntry", 3, _transform_entry),
        Macro("transformMapEntry", 4, _transform_entry),
    ),
)


def _bind(call: Call) -> Node | None:
    if not isinstance(call.target, Ident) or call.target.name != "cel" or call.target.absolute:
        return None
    name, value, result = call.arguments
    return binding(call, variable_name(name, "cel.bind() takes a variable name first"), value, result)


BINDINGS = Library(macros=(Macro("bind", 3, _bind),))
