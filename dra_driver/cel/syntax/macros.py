# SPDX-License-Identifier: Apache-2.0
"""Rewriting macro calls into the loops and tests they stand for, and what macros are written with.

Follows cel-go's `parser/macro.go`. Which macros there are depends on the environment; the libraries
declare them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .tree import (
    ACCUMULATOR,
    TRADITIONAL_ACCUMULATOR,
    UNUSED,
    Call,
    Comprehension,
    Entry,
    Ident,
    Invalid,
    ListNode,
    Literal,
    MapNode,
    MessageNode,
    Node,
    Select,
    walk,
)

MAX_COPIED: Final = 50_000
"""Nodes that macros may copy in one expression: nested optMap() calls double the tree each time."""


Expand = Callable[[Call], Node | None]
"""Rewrites a call. None: this is not a use of the macro after all. Raises MacroError."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A call that is rewritten before types are checked: a name, its number of arguments, with or without a target."""

    name: str
    arguments: int
    expand: Expand
    member: bool = True


Macros = Mapping[tuple[str, int, bool], Macro]
"""The macros of an environment by name, number of arguments, and whether there is a target."""


class MacroError(Exception):
    """The macro's arguments are not what it takes."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


class TooLargeError(Exception):
    """The expansion of the macros exceeds MAX_COPIED nodes."""


def expand(root: Node, macros: Macros) -> Node:
    """The tree with its macros expanded, inner ones first. Wrong uses become Invalid nodes. Raises TooLargeError."""
    return _Expansion(macros).of(root)


class _Expansion:
    def __init__(self, macros: Macros) -> None:
        self._macros = macros
        self._copied = 0

    def of(self, node: Node) -> Node:
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Select):
            node.operand = self.of(node.operand)
        elif isinstance(node, ListNode):
            node.elements = [self.of(element) for element in node.elements]
        elif isinstance(node, MapNode | MessageNode):
            for entry in node.entries:
                self._entry(entry)
        elif isinstance(node, Invalid):
            node.parts = tuple([self.of(part) for part in node.parts])
        return node

    def _entry(self, entry: Entry) -> None:
        entry.key = self.of(entry.key)
        entry.value = self.of(entry.value)

    def _call(self, call: Call) -> Node:
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


def variable_name(node: Node, message: str) -> str:
    """The name that a macro gives a value. Raises MacroError with the message when the argument is not just a name."""
    if not isinstance(node, Ident):
        raise MacroError(node.offset, message)
    return f".{node.name}" if node.absolute else node.name  # a name that nothing refers to


def loop_variable(node: Node) -> str:
    """The name of a loop variable. Raises MacroError when the argument is none."""
    name = variable_name(node, "argument must be a simple name")
    if name == TRADITIONAL_ACCUMULATOR:  # names of values may be the same, see cel.bind and optMap
        raise MacroError(node.offset, "iteration variable overwrites accumulator variable")
    return name


def accumulated(call: Call) -> Ident:
    """The accumulator, to be read."""
    return Ident(call.offset, ACCUMULATOR)


def operation(call: Call, function: str, *arguments: Node) -> Call:
    """A call of an operator or global function, placed where the macro is."""
    return Call(call.offset, function, list(arguments))


def literal(call: Call, value: object) -> Literal:
    """A constant."""
    return Literal(call.offset, value)


def loop(
    call: Call, variables: tuple[str, str], initial: Node, condition: Node, step: Node, result: Node | None = None
) -> Comprehension:
    """A loop over the macro's target. Without `result`, it gives what was accumulated."""
    assert call.target is not None
    first, second = variables
    result = result or accumulated(call)
    return Comprehension(call.offset, call.target, first, ACCUMULATOR, initial, condition, step, result, second)


def binding(call: Call, name: str, value: Node, result: Node) -> Comprehension:
    """`result` with `name` standing for `value`, which is evaluated when first needed."""
    return Comprehension(
        call.offset,
        ListNode(call.offset, []),
        UNUSED,
        name,
        value,
        Literal(call.offset, False),
        Ident(call.offset, name.removeprefix("."), absolute=name.startswith(".")),
        result,
    )
