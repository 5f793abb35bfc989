# SPDX-License-Identifier: Apache-2.0
"""The tree of an expression.

The parser makes it, macros rewrite it, the type checker notes types and overloads in it. `offset` is
the place in the source (code points) that an error about the node points at: the operator, the dot,
the opening bracket, or where a name or literal begins.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

from ..types import ERROR, Type

ACCUMULATOR = "@result"
"""The accumulator's name in comprehensions; no expression can spell it."""
TRADITIONAL_ACCUMULATOR = "__result__"
"""Its name in older releases of cel-go, which expressions can spell."""
UNUSED = "#unused"
"""The iteration variable of cel.bind and its like."""


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """Any expression. `type` is what the type checker found."""

    offset: int
    type: Type = dataclasses.field(default=ERROR, init=False)

    def children(self) -> Iterator["Node"]:
        """The direct parts."""
        return iter(())

    def copy(self) -> Self:
        """A separate tree with the same contents."""
        twin: Self = _copied(self)
        return twin


@dataclasses.dataclass(slots=True, eq=False)
class Literal(Node):
    """A constant."""

    value: object


@dataclasses.dataclass(slots=True, eq=False)
class Invalid(Node):
    """A place where the parser or a macro found an error. `parts` may hold more of them."""

    kind: str
    message: str
    parts: tuple[Node, ...] = ()

    def children(self) -> Iterator[Node]:
        return iter(self.parts)


@dataclasses.dataclass(slots=True, eq=False)
class Ident(Node):
    """A name. `.name` (with the dot) is `absolute`: never that of a local variable.

    The checker sets `constant` for names of types, `shadowed` where a local variable has the same name.
    """

    name: str
    absolute: bool = dataclasses.field(default=False, kw_only=True)
    constant: object = dataclasses.field(default=None, init=False)
    shadowed: bool = dataclasses.field(default=False, init=False)


@dataclasses.dataclass(slots=True, eq=False)
class Select(Node):
    """operand.field; with `test`, has(operand.field). The checker sets `constant` for qualified type names."""

    operand: Node
    field: str
    test: bool = dataclasses.field(default=False, kw_only=True)
    constant: object = dataclasses.field(default=None, init=False)

    def children(self) -> Iterator[Node]:
        yield self.operand


@dataclasses.dataclass(slots=True, eq=False)
class Call(Node):
    """A function or operator. The checker sets `overloads`, and moves a namespace from the target to the name."""

    function: str
    arguments: list[Node]
    target: Node | None = None
    overloads: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def children(self) -> Iterator[Node]:
        if self.target is not None:
            yield self.target
        yield from self.arguments


@dataclasses.dataclass(slots=True, eq=False)
class ListNode(Node):
    """[a, ?b]: `optional` has the indices of elements that may be missing."""

    elements: list[Node]
    optional: frozenset[int] = frozenset()

    def children(self) -> Iterator[Node]:
        return iter(self.elements)


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """key: value of a map literal, or field: value of a message (its key is the field's name)."""

    offset: int
    key: Node
    value: Node
    optional: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(slots=True, eq=False)
class MapNode(Node):
    """{a: b, ?c: d}"""

    entries: list[Entry]

    def children(self) -> Iterator[Node]:
        for entry in self.entries:
            yield entry.key
            yield entry.value


@dataclasses.dataclass(slots=True, eq=False)
class MessageNode(Node):
    """some.Message{field: value}"""

    name: str
    entries: list[Entry]

    def children(self) -> Iterator[Node]:
        return (entry.value for entry in self.entries)


@dataclasses.dataclass(slots=True, eq=False)
class Comprehension(Node):
    """A loop over `range` that folds `step` into the accumulator while `condition` holds, and gives `result`.

    With `second`, the variables are key (or index) and value. cel.bind is one that loops over nothing.
    """

    range: Node
    variable: str
    accumulator: str
    initial: Node
    condition: Node
    step: Node
    result: Node
    second: str = ""

    def children(self) -> Iterator[Node]:
        yield self.range
        yield self.initial
        yield self.condition
        yield self.step
        yield self.result

    @property
    def is_binding(self) -> bool:
        """Whether it only names a value, as cel.bind does."""
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
    if not isinstance(part, Node | Entry):
        return part
    twin = part.__class__.__new__(part.__class__)
    for owner in part.__class__.__mro__:
        for name in getattr(owner, "__slots__", ()):
            setattr(twin, name, _copied(getattr(part, name)))
    return twin


def walk(root: Node) -> Iterator[Node]:
    """The node and all below it, parents first, in source order."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(list(node.children())))


def depth(root: Node) -> int:
    """The number of levels of the tree."""
    deepest, level = 0, [root]
    while level:
        deepest += 1
        level = [child for node in level for child in node.children()]
    return deepest


def qualified_name(node: Node) -> str | None:
    """`a.b.c` if the node is nothing but that."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test:
        parts.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    parts.append("." + node.name if node.absolute else node.name)
    return ".".join(reversed(parts))
