# SPDX-License-Identifier: Apache-2.0
"""Text to tree, with macros expanded.

Follows cel-go's `parser/parser.go`, including its two limits on nesting: on the depth of each grammar
rule, and on the depth of the operators, selections and calls in the tree.

Checking, compiling and evaluating a tree recurses, in Python code only, which takes no room on the C stack.
Expressions that people write stay far below Python's own limit. For deeper ones the limit of the whole process is
raised; it is not put back, since another thread may be as deep. The deepest expressions that the parser accepts need
about ten thousand frames."""

import inspect
import sys
from typing import Final, cast

from ..errors import CompileError, Issue
from .builder import Piece
from .grammar import lark_parser
from .macros import Macros, TooLargeError, expand
from .recovery import SyntaxProblem, syntax_problem
from .tree import Invalid, Node, depth, walk

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
