# SPDX-License-Identifier: Apache-2.0
"""Stage 4: turns a checked tree into Python closures.

Follows cel-go's `interpreter/planner.go` with the optimizations that Kubernetes enables. Conversions of constants and
literals that consist of constants are evaluated here, once. If one of them fails, the expression cannot be used. What
the language itself has (names, fields, indices, `?:`, literals and loops) is in this folder; functions and operators
are in the libraries.

Macros such as all(), map() and cel.bind() have become loops. Loops follow `evalFold` of `interpreter/interpretable.go`.
The initial value of the accumulator is evaluated when it is first read. Therefore a binding that is not used costs
nothing and cannot fail.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..closures import CallSite, Constant, Evaluable, Run, located
from ..declarations import VARIABLE, Declarations, Environment
from ..errors import Abort, ErrorValue
from ..library.conversions import MESSAGE_BUILDERS
from ..library.values import LiteralMap, MapValue, MutableList, OptionalValue, type_name
from ..sizes import LIST_COST, MAP_COST, MESSAGE_COST
from ..tree import (
    Call,
    Comprehension,
    Entry,
    Expression,
    Ident,
    ListNode,
    Literal,
    MapNode,
    MessageNode,
    Select,
    qualified_name,
)
from ..types import TYPE_VALUES, UNUSABLE_TYPES, TypeKind
from . import calls
from .frame import Frame
from .paths import Branches, DevicePath, Index, Key, Path, is_key, relative

_UNSET: Final = object()


@dataclass(eq=False)
class PlanError(Exception):
    """The tree cannot become a program. For Kubernetes this is an internal error, not an invalid expression."""

    message: str
    offset: int


def compile_tree(root: Expression, registry: Declarations, environment: Environment) -> tuple[Run, int]:
    """The closure of a checked tree, and the number of its local variables. Raises PlanError."""
    compiler = _Compiler(registry, environment)
    run = compiler.plan(root).run
    return run, compiler.slots


class _Compiler:
    def __init__(self, registry: Declarations, environment: Environment) -> None:
        self._functions = registry.functions
        self._device = DevicePath(multiple_allocations=environment.has_multiple_allocations)
        self._scopes: list[dict[str, Run]] = []
        self.slots = 0

    def plan(self, node: Expression) -> Evaluable:
        """The closure of a node, as a path or constant if it is one."""
        match node:
            case Literal():
                return Constant(node.value)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListNode():
                return self._list(node)
            case MapNode():
                return self._map(node)
            case MessageNode():
                return self._message(node)
            case Comprehension():
                return self._loop(node)
        raise AssertionError(f"a checked tree has no {type(node).__name__}")

    def _run(self, node: Expression) -> Run:
        return self.plan(node).run

    def _ident(self, node: Ident) -> Evaluable:
        if node.constant is not None:
            return self._named_constant(node)
        if node.type.kind is TypeKind.TYPE:  # Kubernetes assumes that such a name is the name of a type
            if node.name not in TYPE_VALUES:
                raise PlanError(f"reference to undefined type: {node.name}", node.offset)
            return Constant(TYPE_VALUES[node.name])
        for scope in reversed(self._scopes):
            if node.name in scope and not node.absolute:
                return Path(scope[node.name])
        assert node.name == VARIABLE
        return self._device

    @staticmethod
    def _named_constant(node: Ident | Select) -> Evaluable:
        name = (qualified_name(node) or "").removeprefix(".")
        if name in UNUSABLE_TYPES or (isinstance(node, Ident) and node.shadowed):
            raise PlanError(f"the type {name} cannot be used as a value", node.offset)
        return Constant(node.constant)

    def _select(self, node: Select) -> Evaluable:
        if node.constant is not None:
            return self._named_constant(node)
        path = relative(self.plan(node.operand))
        return path.tested(node.field, node.offset) if node.test else path.extended(Key(node.field, node.offset))

    def _call(self, node: Call) -> Evaluable:
        plans = [self.plan(child) for child in node.children()]
        match node.function:
            case "_?_:_":
                condition, then, otherwise = plans
                return Branches(condition.run, relative(then), relative(otherwise))
            case "_[_]":
                return self._index(node, plans, optional=False)
            case "_[?_]" | "_?._":
                return self._index(node, plans, optional=True)
        return self._function(node, plans)

    def _function(self, node: Call, plans: Sequence[Evaluable]) -> Evaluable:
        function, arguments = self._functions[node.function], tuple([plan.run for plan in plans])
        if function.make is not None:
            lazy_call = functools.partial(calls.call, function, node.overloads, arguments, node.offset, lazy=True)
            try:
                made = function.make(CallSite(node.overloads, plans, node.offset, lazy_call))
            except ErrorValue as error:
                raise PlanError(error.message, node.offset) from None
            if made is not None:
                return made
        run = calls.call(function, node.overloads, arguments, node.offset)
        if function.folds and len(plans) == 1 and isinstance(plans[0], Constant):
            value = _evaluated(run, node.offset)
            if isinstance(value, ErrorValue):
                raise PlanError(value.message, node.offset)
            return Constant(value)
        return Evaluable(run)

    def _index(self, node: Call, plans: Sequence[Evaluable], *, optional: bool) -> Evaluable:
        operand, index = plans
        path = relative(operand)
        if isinstance(index, Constant):
            if not is_key(index.value):
                raise PlanError("only strings, numbers and bools can be keys or indices", node.offset)
            return path.extended(Key(index.value, node.offset, optional=optional))
        run = index.resolve if isinstance(index, Path) else index.run
        return path.extended(Index(run, node.offset, optional=optional))

    def _list(self, node: ListNode) -> Evaluable:
        elements = [self.plan(element) for element in node.elements]
        run = _list_of([plan.run for plan in elements], node.optional, node.offset)
        return _folded(run, elements, LIST_COST, node.offset)

    def _map(self, node: MapNode) -> Evaluable:
        entries = [(self.plan(entry.key), self.plan(entry.value)) for entry in node.entries]
        run = _map_of([(key.run, value.run) for key, value in entries], node.entries, node.offset)
        return _folded(run, [plan for entry in entries for plan in entry], MAP_COST, node.offset)

    def _message(self, node: MessageNode) -> Evaluable:
        values = [self._run(entry.value) for entry in node.entries]
        return Evaluable(_charged(_message_of(node.name, values, node.entries, node.offset), MESSAGE_COST))

    def _loop(self, node: Comprehension) -> Evaluable:
        first = self.slots
        self.slots += 3
        accumulator, variable = _accumulator(first, self._run(node.initial)), _variable(first + 1)
        iterated = self._run(node.range)
        self._scopes.append({node.accumulator: accumulator})
        names = {node.variable: variable}
        if node.second:
            names[node.second] = _variable(first + 2)
        self._scopes.append(names)
        condition, step = self._run(node.condition), self._run(node.step)
        self._scopes.pop()
        result = self._run(node.result)
        self._scopes.pop()
        return Evaluable(_loop_of(iterated, condition, step, result, node.offset, first, pairs=bool(node.second)))


def _evaluated(run: Run, offset: int) -> object:
    """The value of a closure that reads no variables. Raises PlanError if the evaluation is aborted."""
    try:
        return run(Frame.without_device())
    except Abort as abort:
        raise PlanError(abort.message, offset) from None


def _folded(run: Run, parts: Sequence[Evaluable], cost: int, offset: int) -> Evaluable:
    """A list or map literal. It is a constant if all of its parts are constants."""
    if all(isinstance(part, Constant) for part in parts):
        return Constant(_evaluated(run, offset))
    return Evaluable(_charged(run, cost))


def _charged(run: Run, cost: int) -> Run:
    def charged(frame: Frame) -> object:
        value = run(frame)
        frame.charge(cost)
        return value

    return charged


# Literals


def _part(run: Run, frame: Frame, offset: int, *, optional: bool) -> object:
    """The value of an element or entry, which may be an ErrorValue. For an optional one, the value is an optional."""
    value = run(frame)
    if optional and not isinstance(value, OptionalValue | ErrorValue):
        return ErrorValue("other", "an optional entry needs an optional value", offset)
    return value


def _list_of(elements: Sequence[Run], optional: frozenset[int], offset: int) -> Run:
    """[a, ?b]"""

    def run(frame: Frame) -> object:
        values: list[object] = []
        for index, element in enumerate(elements):
            value = _part(element, frame, offset, optional=index in optional)
            if value.__class__ is ErrorValue:
                return value
            if index not in optional or not isinstance(value, OptionalValue):
                values.append(value)
            elif value.present:
                values.append(value.value)
        return values

    return run


def _map_of(parts: Sequence[tuple[Run, Run]], entries: Sequence[Entry], offset: int) -> Run:
    """{a: b, ?c: d}"""

    def run(frame: Frame) -> object:
        built = LiteralMap()
        for (key_run, value_run), entry in zip(parts, entries, strict=True):
            key = key_run(frame)
            if key.__class__ is ErrorValue:
                return key
            value = _part(value_run, frame, offset, optional=entry.optional)
            if value.__class__ is ErrorValue:
                return value
            if not entry.optional or not isinstance(value, OptionalValue):
                built.insert(key, value)
            elif value.present:
                built.insert(key, value.value)
            else:
                built.remove(key)
        return built

    return run


def _message_of(name: str, values: Sequence[Run], entries: Sequence[Entry], offset: int) -> Run:
    """some.Message{a: b}"""
    build = MESSAGE_BUILDERS.get(name)
    names = [str(entry.key.value) for entry in entries if isinstance(entry.key, Literal)]

    def run(frame: Frame) -> object:
        fields: dict[str, object] = {}
        for field, value_run, entry in zip(names, values, entries, strict=True):
            value = _part(value_run, frame, offset, optional=entry.optional)
            if value.__class__ is ErrorValue:
                return value
            if not entry.optional or not isinstance(value, OptionalValue):
                fields[field] = value
            elif value.present:
                fields[field] = value.value
            else:
                fields.pop(field, None)
        if build is None:  # the type checker accepts the type, but the evaluator does not
            return ErrorValue("other", f"unknown type '{name}'", offset)
        try:
            return build(fields)
        except ErrorValue as error:
            return located(error, offset)

    return run


# Loops


def _accumulator(slot: int, initial: Run) -> Run:
    """Reads the accumulator. An empty list or map becomes one that grows in place."""

    def read(frame: Frame) -> object:
        value = frame.slots[slot]
        if value is _UNSET:
            value = initial(frame)
            if isinstance(value, list) and not value:
                value = MutableList()
            elif isinstance(value, MapValue) and len(value) == 0:
                value = LiteralMap()
            frame.slots[slot] = value
        return value

    return read


def _variable(slot: int) -> Run:
    """Reads a loop variable."""
    return lambda frame: frame.slots[slot]


def _loop_of(  # noqa: PLR0913  # the five parts of a loop of CEL
    iterated: Run, condition: Run, step: Run, result: Run, offset: int, accumulated: int, *, pairs: bool
) -> Run:
    """Evaluates a loop. `accumulated` is the slot of its accumulator, before those of its variables.

    `pairs`: the loop has two variables.
    """
    first, second = accumulated + 1, accumulated + 2

    def evaluate(frame: Frame) -> object:
        source = iterated(frame)
        if source.__class__ is ErrorValue:
            return source
        if not isinstance(source, list | MapValue):
            message = f"macros cannot loop over a {type_name(source)}, only over lists and maps"
            return ErrorValue("not_iterable", message, offset)
        slots = frame.slots
        slots[accumulated] = _UNSET
        items = list(source) if isinstance(source, MutableList) else source  # the loop may add to the list
        if pairs:
            for slots[first], slots[second] in items.items() if isinstance(items, MapValue) else enumerate(items):
                if condition(frame) is False:
                    break
                slots[accumulated] = step(frame)
        else:
            for slots[first] in items.keys() if isinstance(items, MapValue) else items:
                if condition(frame) is False:
                    break
                slots[accumulated] = step(frame)
        value = result(frame)
        return list(value) if isinstance(value, MutableList) else value

    return evaluate
