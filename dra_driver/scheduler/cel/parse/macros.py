# SPDX-License-Identifier: Apache-2.0
"""Macros: calls such as `list.all(x, …)` become loops before types are checked.

`expand` rewrites a tree. The other functions here are tools for macros. The macros themselves belong to the libraries
of functions, because they depend on the environment. Follows cel-go's `parser/macro.go`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from ..tree import (
    TRADITIONAL_ACCUMULATOR,
    Call,
    Comprehension,
    Expression,
    Ident,
    Invalid,
    ListNode,
    Literal,
    MapNode,
    MessageNode,
    Select,
    walk,
)

ACCUMULATOR: Final = "@result"
"""The name of the accumulator in loops. No expression can contain this name."""
UNUSED: Final = "#unused"
"""The loop variable of cel.bind and similar macros, which do not loop."""
MAX_COPIED: Final = 50_000
"""The number of nodes that macros may copy in one expression. Each nested optMap() call doubles the tree."""


Expand = Callable[[Call], Expression | None]
"""Rewrites a call. None means that the call does not use the macro. Raises MacroError."""


@dataclasses.dataclass(frozen=True, slots=True)
class Macro:
    """A call that is rewritten before types are checked, selected by its name, its number of arguments and its form.

    A `member` macro has a target, such as `list.all(x, …)`. Others are called like functions, such as `has(…)`.
    `copies_target`: the target is in the tree twice afterwards.
    """

    name: str
    arguments: int
    expand: Expand
    member: bool = True
    copies_target: bool = False


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
        if macro.copies_target and call.target is not None:
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
