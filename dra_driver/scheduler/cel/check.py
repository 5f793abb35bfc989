# SPDX-License-Identifier: Apache-2.0
"""Stage 2: the type checker. It finds the overload of each call, and stores the type of each node in the tree.

If several overloads fit, which is the case for arguments of type `dyn`, all of them are stored, and the evaluation
selects one by its arguments. Follows cel-go's `checker/checker.go`.

`validate` has the checks that Kubernetes makes if the types are right: lists and maps of mixed types, and literal
arguments that cannot work (durations, timestamps, regular expressions, format strings). The functions themselves check
their literal arguments. Follows cel-go's `cel/validator.go`.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from . import types
from .declarations import VARIABLE, Declarations, Environment, Function, Overload
from .errors import CelIssue
from .tree import (
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
    walk,
)
from .types import (
    BOOL,
    CONSTANTS,
    DEVICE,
    DURATION,
    DYN,
    ERROR,
    INT,
    LIST,
    LITERAL_TYPES,
    MESSAGES,
    NULL,
    TIMESTAMP,
    TYPE_VALUES,
    UNUSABLE_TYPES,
    Type,
    TypeKind,
    list_of,
    map_of,
    optional_of,
    parameter,
    type_of,
    unwrap_optional,
)

_ALIASES: Final[Mapping[Type, str]] = {
    DURATION: "google.protobuf.Duration",
    TIMESTAMP: "google.protobuf.Timestamp",
    LIST: "google.protobuf.ListValue",
}


def check(root: Expression, registry: Declarations, environment: Environment) -> list[CelIssue]:
    """Store types and overloads in the tree. Returns the errors in source order."""
    checker = _Checker(registry, environment)
    checker.check(root)
    for node in walk(root):
        node.type = types.substitute(checker.bindings, node.type, final=True)
    return sorted(checker.issues, key=lambda issue: issue.offset)


class _Checker:
    def __init__(self, registry: Declarations, environment: Environment) -> None:
        self._functions = registry.functions
        self._fields = environment.device_fields
        self._scopes: list[dict[str, Type]] = []
        self._variables = 0
        self.bindings: types.Bindings = {}
        self.issues: list[CelIssue] = []

    def check(self, node: Expression) -> Type:
        """Find the type of a node, and store it."""
        match node:
            case Literal():
                node.type = LITERAL_TYPES[node.value.__class__]
            case Ident():
                node.type = self._ident(node)
            case Select():
                node.type = self._select(node)
            case Call():
                node.type = self._call(node)
            case ListNode():
                node.type = self._list(node)
            case MapNode():
                node.type = self._map(node)
            case MessageNode():
                node.type = self._message(node)
            case Comprehension():
                node.type = self._comprehension(node)
        return node.type

    def _report(self, kind: str, message: str, node: Expression | Entry) -> None:
        self.issues.append(CelIssue(kind, message, node.offset))

    def _mismatch(self, node: Expression, expected: Type, found: Type) -> None:
        self._report("type_mismatch", f"expected type '{expected}' but found '{found}'", node)

    def _new_variable(self) -> Type:
        self._variables += 1
        return parameter(f"_var{self._variables}")

    def _substituted(self, candidate: Type) -> Type:
        return types.substitute(self.bindings, candidate)

    def _assignable(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        bindings = types.assignable(self.bindings, tuple(given), tuple(wanted))
        if bindings is None:
            return False
        self.bindings = bindings
        return True

    # names and fields

    def _ident(self, node: Ident) -> Type:
        local = self._is_local(node.name)
        if local and not node.absolute:
            return next(scope[node.name] for scope in reversed(self._scopes) if node.name in scope)
        node.shadowed = local
        if node.name == VARIABLE:
            return DEVICE
        resolved = self._constant(node, node.name)
        if resolved is None:
            self._report("undeclared", f"undeclared reference to '{node.name}'", node)
            return ERROR
        return resolved

    @staticmethod
    def _constant(node: Ident | Select, name: str) -> Type | None:
        """The type of a name that refers to a type or to a value of an enumeration, None for other names."""
        if name in CONSTANTS:
            node.constant = CONSTANTS[name]
            return INT
        named = TYPE_VALUES.get(name) or UNUSABLE_TYPES.get(name)
        if named is None:
            return None
        node.constant = named
        return type_of(named)

    def _select(self, node: Select) -> Type:
        name = qualified_name(node)
        if name is not None and not self._is_local(name.partition(".")[0]):
            resolved = self._constant(node, name.removeprefix("."))
            if resolved is not None:
                return resolved
        result = self._field(node, node.operand, node.field)
        return BOOL if node.test else self._substituted(result)

    def _is_local(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes)

    def _field(self, node: Expression, operand: Expression, field: str, *, optional: bool = False) -> Type:
        operand_type = self._substituted(self.check(operand))
        target, was_optional = unwrap_optional(operand_type)
        result = DYN
        match target.kind:
            case TypeKind.MAP:
                result = target.parameters[1]
            case TypeKind.STRUCT:
                result = self._struct_field(node, target, field)
            case TypeKind.PARAMETER:
                self._assignable((DYN,), (target,))
            case TypeKind.DYN | TypeKind.ANY | TypeKind.ERROR:
                pass
            case _:
                self._report("bad_select", f"type '{target}' does not support field selection", node)
        return optional_of(result) if was_optional or optional else result

    def _struct_field(self, node: Expression, struct: Type, field: str) -> Type:
        if struct == DEVICE:
            fields = self._fields
        elif struct.name in MESSAGES:
            fields = MESSAGES[struct.name].fields
        else:
            self._report("bad_select", f"a value of type '{struct}' has no fields", node)
            return ERROR
        if field not in fields:
            self._report("undefined_field", f"undefined field '{field}'" + _has_fields(fields), node)
            return ERROR
        return fields[field]

    # calls

    def _call(self, node: Call) -> Type:
        if node.function == "_?._":
            operand, field = node.arguments
            assert isinstance(field, Literal)
            self.check(field)
            node.overloads = ("select_optional_field",)
            return self._substituted(self._field(node, operand, str(field.value), optional=True))
        for argument in node.arguments:
            self.check(argument)
        function = self._function(node)
        if function is None:
            name = node.function.removeprefix(".")
            known = [known for known in self._functions if known[0].isalpha()]
            self._report("undeclared", f"undeclared reference to '{name}'" + _nearest(name, known), node)
            return ERROR
        if function.name in ("_&&_", "_||_"):
            return self._logic(node, function)
        return self._overloads(node, function)

    def _function(self, node: Call) -> Function | None:
        """The function that is called. A namespace moves from the target to the name. Other targets are checked."""
        if node.target is None:
            node.function = node.function.removeprefix(".")
            return self._functions.get(node.function)
        namespace = qualified_name(node.target)
        if namespace is not None:
            function = self._functions.get(f"{namespace}.{node.function}".removeprefix("."))
            if function is not None:
                node.function, node.target = function.name, None
                return function
        self.check(node.target)
        return self._functions.get(node.function)

    def _logic(self, node: Call, function: Function) -> Type:
        wrong = [argument for argument in node.arguments if not self._assignable((argument.type,), (BOOL,))]
        for argument in wrong:
            self._mismatch(argument, BOOL, argument.type)
        if not wrong:
            node.overloads = (function.overloads[0].id,)
        # Kubernetes makes calls with two operands of a chain; an error inside of one does not change the type of the
        # chain
        outermost = node.arguments[-1:] if len(node.arguments) == 3 else node.arguments
        spreads = len(node.arguments) <= 3 and any(argument in outermost for argument in wrong)
        return ERROR if spreads else BOOL

    def _overloads(self, node: Call, function: Function) -> Type:
        given = [part.type for part in node.children()]
        result: Type | None = None
        matching: list[str] = []
        for overload in function.overloads:
            if overload.member is (node.target is None):
                continue
            wanted, declared = self._instantiated(overload)
            if not self._assignable(given, wanted):
                continue
            matching.append(overload.id)
            declared = self._substituted(declared)
            if result is None:
                result = declared
            elif result != DYN and declared != result:
                result = DYN
        if result is None:
            shown = [str(types.substitute(self.bindings, part, final=True)) for part in given]
            signature = f"{shown.pop(0)}." if node.target is not None else ""
            applied = f"'{signature}({', '.join(shown)})'"
            message = f"found no matching overload for '{function.name.strip('_@')}' applied to {applied}"
            self._report("no_matching_overload", message, node)
            return ERROR
        node.overloads = tuple(matching)
        return result

    def _instantiated(self, overload: Overload) -> tuple[Sequence[Type], Type]:
        """The types of the parameters and of the result, with type parameters of their own."""
        names = overload.type_parameters
        if not names:
            return overload.parameters, overload.result
        fresh = {name: self._new_variable() for name in names}
        return [types.substitute(fresh, part) for part in overload.parameters], types.substitute(fresh, overload.result)

    # literals

    def _list(self, node: ListNode) -> Type:
        joined: Type | None = None
        for index, element in enumerate(node.elements):
            found = self.check(element)
            if index in node.optional:
                found = self._optional_value(element, found)
            joined = self._joined(joined, found)
        return list_of(joined or self._new_variable())

    def _map(self, node: MapNode) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            keys = self._joined(keys, self.check(entry.key))
            found = self.check(entry.value)
            if entry.optional:
                found = self._optional_value(entry.value, found)
            values = self._joined(values, found)
        return map_of(keys or self._new_variable(), values or self._new_variable())

    def _optional_value(self, node: Expression, found: Type) -> Type:
        value, is_optional = unwrap_optional(found)
        if not is_optional and not value.is_dynamic:
            self._mismatch(node, optional_of(value), value)
        return value

    def _joined(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if self._assignable((previous,), (current,)):
            return types.most_general(previous, current)
        return DYN  # `validate` allows this only in arguments of format()

    def _message(self, node: MessageNode) -> Type:
        name = node.name.removeprefix(".")
        message = MESSAGES.get(name)
        named = message.type if message else TYPE_VALUES.get(name) or UNUSABLE_TYPES.get(name)
        if named is None:
            self._report("undeclared", f"undeclared reference to '{name}'", node)
            return ERROR
        node.name = name
        if message is None and named not in (*_ALIASES, NULL, DEVICE):
            self._report("other", f"'{named}' is not a message type", node)
            named = ERROR
        fields = {} if named is ERROR else self._message_fields(name, named)
        for entry in node.entries:
            self._message_field(entry, named, fields)
        return named

    def _message_fields(self, name: str, named: Type) -> Mapping[str, Type]:
        if named == DEVICE:
            return self._fields
        known = MESSAGES.get(name) or MESSAGES.get(_ALIASES.get(named, ""))
        return known.fields if known else {}

    def _message_field(self, entry: Entry, named: Type, fields: Mapping[str, Type]) -> None:
        assert isinstance(entry.key, Literal)
        found = self.check(entry.value)
        field = str(entry.key.value)
        wanted = fields.get(field, ERROR)
        if field not in fields and named is not ERROR:
            self._report("undefined_field", f"undefined field '{field}'" + _has_fields(fields), entry)
        if entry.optional:
            found = self._optional_value(entry.value, found)
        if not self._assignable((wanted,), (found,)):
            message = f"expected type of field '{field}' is '{wanted}' but provided type is '{found}'"
            self._report("type_mismatch", message, entry)

    # loops

    def _comprehension(self, node: Comprehension) -> Type:
        range_type = self._substituted(self.check(node.range))
        accumulated = self.check(node.initial)
        self._scopes.append({node.accumulator: accumulated})
        self._scopes.append(self._loop_variables(node, self._substituted(range_type)))
        self._expect(node.condition, BOOL)
        self._expect(node.step, accumulated)
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return self._substituted(result)

    def _loop_variables(self, node: Comprehension, range_type: Type) -> dict[str, Type]:
        match range_type.kind:
            case TypeKind.LIST:
                first, second = (INT, range_type.element) if node.second else (range_type.element, ERROR)
            case TypeKind.MAP:
                first, second = range_type.parameters
            case TypeKind.DYN | TypeKind.ERROR | TypeKind.PARAMETER:
                self._assignable((DYN,), (range_type,))
                first = second = DYN
            case _:
                message = f"macros cannot loop over a value of type '{range_type}', only over lists, maps and dyn"
                self._report("bad_range", message, node.range)
                first = second = ERROR
        return {node.variable: first, node.second: second} if node.second else {node.variable: first}

    def _expect(self, node: Expression, expected: Type) -> None:
        found = self.check(node)
        if not self._assignable((expected,), (found,)):
            self._mismatch(node, expected, found)


def _has_fields(fields: Mapping[str, Type]) -> str:
    return f" (there are {', '.join(sorted(fields))})" if fields else ""


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def validate(root: Expression, registry: Declarations) -> list[CelIssue]:
    """The errors that remain if the types are right, in source order."""
    try:
        found = list(_mixed(root))  # at the same place, before errors of format()
    except _PanicError as panic:  # Kubernetes reports nothing else then
        return [panic.issue]
    for node in walk(root):
        if isinstance(node, Call) and node.arguments and node.function in registry.functions:
            constants = registry.functions[node.function].constants
            found += constants(node) if constants else ()
    return sorted(found, key=lambda issue: issue.offset)


def _mixed(root: Expression) -> Iterator[CelIssue]:
    """Errors for lists and maps whose parts have different types, except in arguments of format()."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Call) and node.function == "format":
            continue
        pending.extend(node.children())
        if isinstance(node, ListNode):
            yield from _different(_parts(node.elements, node.optional))
        elif isinstance(node, MapNode):
            optional = frozenset(index for index, entry in enumerate(node.entries) if entry.optional)
            yield from _different(_parts([entry.key for entry in node.entries], frozenset()))
            yield from _different(_parts([entry.value for entry in node.entries], optional))


class _PanicError(Exception):
    """An optional element has the type dyn. The same check of Kubernetes expects an optional type, and panics.

    No release has a correction (cel-go's `cel/validator.go`, homogeneousAggregateLiteralValidator).
    """

    def __init__(self, node: Expression) -> None:
        super().__init__(node)
        message = (
            "an optional element must have an optional type, but this one has type dyn: do not use it, because "
            "kube-apiserver and kube-scheduler panic on it; write optional.of(…), or read a field with .?NAME"
        )
        self.issue = CelIssue("other", message, node.offset)


def _parts(nodes: Sequence[Expression], optional: frozenset[int]) -> Iterator[tuple[Expression, Type]]:
    for index, node in enumerate(nodes):
        found, is_optional = unwrap_optional(node.type)
        if index in optional and not is_optional:
            raise _PanicError(node)
        yield node, found if index in optional else node.type


def _different(parts: Iterator[tuple[Expression, Type]]) -> Iterator[CelIssue]:
    first: Type | None = None
    for node, found in parts:
        if first is None:
            first = found
        elif found != first:
            message = f"expected type '{first}' but found '{found}': use dyn() for mixed types"
            yield CelIssue("type_mismatch", message, node.offset)
            return
