# SPDX-License-Identifier: Apache-2.0
"""The tree of an expression.

The parser makes the tree, macros rewrite it, and the type checker stores types and overloads in it. The `offset` of a
node is its place in the source in code points: the place of an operator, of a dot, of an opening bracket, or of the
first character of a name or literal. Error messages point to it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, Self

from .types import ERROR, Type

TRADITIONAL_ACCUMULATOR: Final = "__result__"
"""The name of the accumulator in older releases of cel-go. Expressions can contain this name."""


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
        copied: Self = _copied(self)
        return copied


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
    copied = part.__class__.__new__(part.__class__)
    for owner in part.__class__.__mro__:
        for name in getattr(owner, "__slots__", ()):
            setattr(copied, name, _copied(getattr(part, name)))
    return copied


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
