# SPDX-License-Identifier: Apache-2.0
"""Text to tree, with macro calls rewritten into the loops and tests that they stand for.

Follows cel-go's `parser/parser.go` and `parser/macro.go`, including the two limits on nesting: on the depth of each
grammar rule, and on the depth of the operators, selections and calls in the tree. Which macros exist depends on the
environment; the libraries declare them.

Checking, compiling and evaluating a tree recurses, in Python code only, which needs no space on the C stack.
Expressions that people write stay far below Python's own limit. For deeper ones the limit of the whole process is
raised. It is not restored, because another thread may be as deep. The deepest expressions that the parser accepts
need about ten thousand frames.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from ..errors import CompileError, Issue
from .builder import Piece
from .grammar import lark_parser
from .recovery import SyntaxProblem, syntax_problem
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
    depth,
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


MAX_CODE_POINTS: Final = 100_000
MAX_DEPTH: Final = 250


def parse(expression: str, macros: Macros) -> Node:
    """The tree of an expression. Raises CompileError."""
    if len(expression) > MAX_CODE_POINTS:
        message = f"the expression has {len(expression)} code points, more than {MAX_CODE_POINTS}"
        raise CompileError("size_limit", message, expression)
    from lark.exceptions import UnexpectedInput  # lark is imported when the first expression comes along

    try:
        piece = cast(Piece, lark_parser().parse(expression))
    except UnexpectedInput as error:
        raise _refused(expression, syntax_problem(expression, error, MAX_DEPTH), macros) from None
    if _is_too_deep(piece):
        raise _too_deep(expression)
    tree = _expanded(expression, piece.node, macros)
    issues = _invalid_places(tree)
    if issues:
        raise refusal(expression, issues)
    return tree


def refusal(expression: str, issues: list[Issue]) -> CompileError:
    """The error for an expression with these issues, of which there is at least one."""
    first = issues[0]
    return CompileError(first.kind, first.message, expression, first.offset, issues=tuple(issues))


def _expanded(expression: str, tree: Node, macros: Macros) -> Node:
    make_room(tree)
    try:
        tree = expand(tree, macros)
    except TooLargeError:
        raise CompileError("size_limit", "its macros expand to too large an expression", expression) from None
    make_room(tree)
    return tree


def _invalid_places(root: Node) -> list[Issue]:
    """Errors inside a well-formed expression, in source order; those in parts of a place come before its own."""
    invalid = reversed([node for node in walk(root) if isinstance(node, Invalid)])
    found = [Issue(node.kind, node.message, node.offset) for node in invalid]
    return sorted(found, key=lambda issue: issue.offset)


def _refused(expression: str, problem: SyntaxProblem, macros: Macros) -> CompileError:
    """The error for text that is no expression, together with what else is wrong in front of that place."""
    if problem.depth >= MAX_DEPTH or (problem.before is not None and _is_too_deep(problem.before)):
        return _too_deep(expression)
    issues = [problem.issue]
    if problem.before is not None:
        found = _invalid_places(_expanded(expression, problem.before.node, macros))
        issues = [issue for issue in found if issue.offset < problem.issue.offset] + issues
    return refusal(expression, issues)


def _is_too_deep(piece: Piece) -> bool:
    return max(piece.exprs, piece.relations, piece.calcs, piece.visits) > MAX_DEPTH


def _too_deep(expression: str) -> CompileError:
    return CompileError("size_limit", f"the expression is nested more than {MAX_DEPTH} levels deep", expression)


_FRAMES_PER_LEVEL: Final = 8
_SPARE: Final = 300
"""Frames for what is below and above the recursion."""


def make_room(root: Node) -> None:
    """Raise Python's recursion limit if the tree, called from here or from similarly deep, may need it."""
    needed = _FRAMES_PER_LEVEL * depth(root) + _SPARE
    if needed > sys.getrecursionlimit() // 2:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed + len(inspect.stack(0))))
