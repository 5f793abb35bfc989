# SPDX-License-Identifier: Apache-2.0
"""The tree of an expression, and the macros that rewrite it.

The parser makes the tree, macros rewrite it, and the type checker stores types and overloads in it. The `offset` of a
node is its place in the source in code points: the place of an operator, of a dot, of an opening bracket, or of the
first character of a name or literal. Error messages point to it.

A macro call such as `list.all(x, …)` becomes a loop before types are checked. This file has the tools for macros. The
macros themselves belong to the libraries of functions, because they depend on the environment. Follows cel-go's
`parser/macro.go`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

from ..types import ERROR, Type

ACCUMULATOR: Final = "@result"
"""The name of the accumulator in loops. No expression can contain this name."""
TRADITIONAL_ACCUMULATOR: Final = "__result__"
"""The name of the accumulator in older releases of cel-go. Expressions can contain this name."""
UNUSED: Final = "#unused"
"""The loop variable of cel.bind and similar macros, which do not loop."""
MAX_COPIED: Final = 50_000
"""The number of nodes that macros may copy in one expression. Each nested optMap() call doubles the tree."""


@dataclasses.dataclass(slots=True, eq=False)
class Expression:
    """Any expression. The type checker sets `type`."""

    offset: int
    type: Type = dataclasses.field(default=ERROR, init=False)

    def children(self) -> Iterator["Expression"]:
        """The nodes directly below this node."""
        return iter(())

    def copy(self) -> Self:
        """A deep copy of this node and all nodes below it."""
        twin: Self = _copied(self)
        return twin


@dataclasses.dataclass(slots=True, eq=False)
class Literal(Expression):
    """A constant."""

    value: object


@dataclasses.dataclass(slots=True, eq=False)
class Invalid(Expression):
    """A place where the parser or a macro found an error. `parts` may contain further errors."""

    kind: str
    message: str
    parts: tuple[Expression, ...] = ()

    def children(self) -> Iterator[Expression]:
        return iter(self.parts)


@dataclasses.dataclass(slots=True, eq=False)
class Ident(Expression):
    """A name. `.name` with a leading dot is `absolute`, and never refers to a local variable.

    The checker sets `constant` for names of types, and `shadowed` if a local variable has the same name.
    """

    name: str
    absolute: bool = dataclasses.field(default=False, kw_only=True)
    constant: object = dataclasses.field(default=None, init=False)
    shadowed: bool = dataclasses.field(default=False, init=False)


@dataclasses.dataclass(slots=True, eq=False)
class Select(Expression):
    """operand.field, or with `test` has(operand.field). The checker sets `constant` for qualified names of types."""

    operand: Expression
    field: str
    test: bool = dataclasses.field(default=False, kw_only=True)
    constant: object = dataclasses.field(default=None, init=False)

    def children(self) -> Iterator[Expression]:
        yield self.operand


@dataclasses.dataclass(slots=True, eq=False)
class Call(Expression):
    """A call of a function or operator.

    The checker sets `overloads`. For functions with a namespace, such as `sets.contains(…)`, it moves the namespace
    from the target to the name.
    """

    function: str
    arguments: list[Expression]
    target: Expression | None = None
    overloads: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def children(self) -> Iterator[Expression]:
        if self.target is not None:
            yield self.target
        yield from self.arguments


@dataclasses.dataclass(slots=True, eq=False)
class ListNode(Expression):
    """[a, ?b]. `optional` has the indices of the elements with a question mark."""

    elements: list[Expression]
    optional: frozenset[int] = frozenset()

    def children(self) -> Iterator[Expression]:
        return iter(self.elements)


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """`key: value` of a map literal, or `field: value` of a message. The key of a field is its name as a literal."""

    offset: int
    key: Expression
    value: Expression
    optional: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(slots=True, eq=False)
class MapNode(Expression):
    """{a: b, ?c: d}"""

    entries: list[Entry]

    def children(self) -> Iterator[Expression]:
        for entry in self.entries:
            yield entry.key
            yield entry.value


@dataclasses.dataclass(slots=True, eq=False)
class MessageNode(Expression):
    """some.Message{field: value}"""

    name: str
    entries: list[Entry]

    def children(self) -> Iterator[Expression]:
        return (entry.value for entry in self.entries)


@dataclasses.dataclass(slots=True, eq=False)
class Comprehension(Expression):
    """A loop over `range`. It sets the accumulator to `step` while `condition` is true, and then returns `result`.

    With `second`, the variables are the key (or index) and the value. cel.bind is a loop over an empty list.
    """

    range: Expression
    variable: str
    accumulator: str
    initial: Expression
    condition: Expression
    step: Expression
    result: Expression
    second: str = ""

    def children(self) -> Iterator[Expression]:
        yield self.range
        yield self.initial
        yield self.condition
        yield self.step
        yield self.result

    @property
    def is_binding(self) -> bool:
        """Whether the loop only gives a name to a value, as cel.bind does."""
        return (
            isinstance(self.range, ListNode)
            and not self.range.elements
            and isinstance(self.condition, Literal)
            and self.condition.value is False
            and self.accumulator != TRADITIONAL_ACCUMULATOR
        )


def _copied(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return part.__class__([_copied(item) for item in part])
    if not isinstance(part, Expression | Entry):
        return part
    twin = part.__class__.__new__(part.__class__)
    for owner in part.__class__.__mro__:
        for name in getattr(owner, "__slots__", ()):
            setattr(twin, name, _copied(getattr(part, name)))
    return twin


def walk(root: Expression) -> Iterator[Expression]:
    """The node and all nodes below it in source order, parents before their children."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(list(node.children())))


def depth(root: Expression) -> int:
    """The number of levels of the tree."""
    deepest, level = 0, [root]
    while level:
        deepest += 1
        level = [child for node in level for child in node.children()]
    return deepest


def qualified_name(node: Expression) -> str | None:
    """The name `a.b.c` if the node consists only of names and dots."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test:
        parts.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    parts.append("." + node.name if node.absolute else node.name)
    return ".".join(reversed(parts))


# Macros


Expand = Callable[[Call], Expression | None]
"""Rewrites a call. None means that the call does not use the macro. Raises MacroError."""


@dataclasses.dataclass(frozen=True, slots=True)
class Macro:
    """A call that is rewritten before types are checked, selected by its name, its number of arguments and its form.

    A `member` macro has a target, such as `list.all(x, …)`. Others are called like functions, such as `has(…)`.
    """

    name: str
    arguments: int
    expand: Expand
    member: bool = True


Macros = Mapping[tuple[str, int, bool], Macro]
"""The macros of an environment by name, number of arguments, and whether there is a target."""


@dataclasses.dataclass(eq=False)
class MacroError(Exception):
    """The macro does not accept these arguments."""

    offset: int
    message: str


class TooLargeError(Exception):
    """The expansion of the macros copies more than MAX_COPIED nodes."""


def expand(root: Expression, macros: Macros) -> Expression:
    """The tree with its macros expanded, inner macros first.

    A wrong use of a macro becomes an Invalid node. Raises TooLargeError.
    """
    return _Expansion(macros).of(root)


class _Expansion:
    def __init__(self, macros: Macros) -> None:
        self._macros = macros
        self._copied = 0

    def of(self, node: Expression) -> Expression:
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Select):
            node.operand = self.of(node.operand)
        elif isinstance(node, ListNode):
            node.elements = [self.of(element) for element in node.elements]
        elif isinstance(node, MapNode | MessageNode):
            for entry in node.entries:
                entry.key, entry.value = self.of(entry.key), self.of(entry.value)
        elif isinstance(node, Invalid):
            node.parts = tuple([self.of(part) for part in node.parts])
        return node

    def _call(self, call: Call) -> Expression:
        if call.target is not None:
            call.target = self.of(call.target)
        call.arguments = [self.of(argument) for argument in call.arguments]
        macro = self._macros.get((call.function, len(call.arguments), call.target is not None))
        if macro is None:
            return call
        if macro.name.startswith("opt") and call.target is not None:
            self._copied += sum(1 for _ in walk(call.target))
            if self._copied > MAX_COPIED:
                raise TooLargeError
        try:
            return macro.expand(call) or call
        except MacroError as error:
            return Invalid(error.offset, "macro", error.message, tuple(call.children()))


def variable_name(node: Expression, message: str) -> str:
    """The name that a macro gives to a value. Raises MacroError with `message` if the argument is not a name."""
    if not isinstance(node, Ident):
        raise MacroError(node.offset, message)
    return f".{node.name}" if node.absolute else node.name  # nothing can refer to a name with a dot


def loop_variable(node: Expression) -> str:
    """The name of a loop variable. Raises MacroError if the argument is not a name."""
    name = variable_name(node, "argument must be a simple name")
    if name == TRADITIONAL_ACCUMULATOR:  # cel.bind and optMap accept this name, see `variable_name`
        raise MacroError(node.offset, "iteration variable overwrites accumulator variable")
    return name


def accumulated(call: Call) -> Ident:
    """The accumulator of the loop that the macro becomes, as a value."""
    return Ident(call.offset, ACCUMULATOR)


def operation(call: Call, function: str, *arguments: Expression) -> Call:
    """A call of an operator or a global function, with the place of the macro."""
    return Call(call.offset, function, list(arguments))


def literal(call: Call, value: object) -> Literal:
    """A constant with the place of the macro."""
    return Literal(call.offset, value)


def loop(
    call: Call,
    variables: tuple[str, str],
    initial: Expression,
    condition: Expression,
    step: Expression,
    result: Expression | None = None,
) -> Comprehension:
    """A loop over the target of the macro. Its result is the accumulator unless `result` is given."""
    assert call.target is not None
    first, second = variables
    result = result or accumulated(call)
    return Comprehension(call.offset, call.target, first, ACCUMULATOR, initial, condition, step, result, second)


def binding(call: Call, name: str, value: Expression, result: Expression) -> Comprehension:
    """`result`, in which `name` stands for `value`. The value is evaluated when it is first needed."""
    unused = Ident(call.offset, name.removeprefix("."), absolute=name.startswith("."))
    empty, never = ListNode(call.offset, []), Literal(call.offset, False)
    return Comprehension(call.offset, empty, UNUSED, name, value, never, unused, result)
