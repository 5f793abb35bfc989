# SPDX-License-Identifier: Apache-2.0
"""Stage 1: from text to a tree whose macros are expanded.

`grammar` has the parser, `builder` makes the tree, `literals` has the values of literals, and `macros` rewrites calls
of macros. `prefix` finds the errors in front of a syntax error.

`parse` follows cel-go's `parser/parser.go`, including its two limits of nesting: the depth of each rule of the grammar,
and the depth of operators, selections and calls in the tree. Which macros exist depends on the environment.

Checking, compiling and evaluating a tree recurses in Python code only, which needs no space on the C stack. Python's
own limit of recursion is enough for the expressions that people write. For deeper expressions `make_room` raises the
limit of the process. The limit is not lowered again, because another thread may need it. The deepest expressions that
the parser accepts need about ten thousand frames.
"""

import functools
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any, Final, cast

from ..errors import CelIssue, CompileError
from ..tree import Expression, Invalid, depth, walk
from .builder import Piece
from .grammar import lark_parser
from .macros import Macros, TooLargeError, expand
from .prefix import first_invalid

MAX_CODE_POINTS: Final = 100_000
MAX_DEPTH: Final = 250
_FRAMES_PER_LEVEL: Final = 8
_SPARE_FRAMES: Final = 300
"""Frames for the code before and after the recursion."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_OPENING: Final = frozenset(("LPAR", "LSQB", "LBRACE"))
_CLOSING: Final = frozenset(("RPAR", "RSQB", "RBRACE"))
_SHOWN: Final = {"RPAR": "')'", "RSQB": "']'", "RBRACE": "'}'", "COMMA": "','", "COLON": "':'", "$END": "the end"}


def parse(expression: str, macros: Macros, *, quoted_names: bool = False) -> Expression:
    """The tree of an expression. `quoted_names` allows fields in backquotes. Raises CompileError."""
    if len(expression) > MAX_CODE_POINTS:
        message = f"the expression has {len(expression)} code points, more than {MAX_CODE_POINTS}"
        raise CompileError("size_limit", message, expression)
    surrogate = None if expression.isascii() else _SURROGATE.search(expression)
    if surrogate:  # Python's JSON reader accepts it, but no text that reaches Kubernetes can have it
        message = f"syntax error: unexpected character {surrogate[0]!r}: one half of a surrogate pair is no character"
        raise refusal(expression, [CelIssue("syntax", message, surrogate.start())])
    from lark.exceptions import UnexpectedInput  # lark is imported only for the first expression

    parser = lark_parser()
    try:
        piece = _read(expression)
    except UnexpectedInput as error:
        raise _syntax_error(expression, error, parser, macros, quoted_names=quoted_names) from None
    if "`" in expression and not quoted_names:
        quoted = _first_quoted_name(parser.lex(expression))
        if quoted is not None:
            raise refusal(expression, [quoted])
    if _is_too_deep(piece):
        raise _too_deep(expression)
    make_room(piece.node)
    tree = _expanded(expression, piece.node.copy(), macros)
    issues = _invalid_places(tree)
    if issues:
        raise refusal(expression, issues)
    return tree


def refusal(expression: str, issues: list[CelIssue]) -> CompileError:
    """The error for an expression with these issues. There must be at least one."""
    first = issues[0]
    return CompileError(first.kind, first.message, expression, first.offset, issues=tuple(issues))


@functools.lru_cache(maxsize=8)
def _read(expression: str) -> Piece:
    """The tree before macros are expanded, which must be copied before it is changed. Raises UnexpectedInput of lark.

    An expression is often compiled for several environments, one after the other, and the text has one tree in all.
    """
    return cast(Piece, lark_parser().parse(expression))


def _expanded(expression: str, tree: Expression, macros: Macros) -> Expression:
    try:
        tree = expand(tree, macros)
    except TooLargeError:
        raise CompileError(
            "size_limit", "the expression is too large after its macros are expanded", expression
        ) from None
    make_room(tree)
    return tree


def _invalid_places(root: Expression) -> list[CelIssue]:
    """The errors in a tree, in source order. Errors in the parts of an invalid place come before its own error."""
    invalid = reversed([node for node in walk(root) if isinstance(node, Invalid)])
    found = [CelIssue(node.kind, node.message, node.offset) for node in invalid]
    return sorted(found, key=lambda issue: issue.offset)


def _syntax_error(expression: str, error: Any, parser: Any, macros: Macros, *, quoted_names: bool) -> CompileError:
    """The error for text that is not an expression. `error` is lark's UnexpectedInput."""
    from lark.exceptions import UnexpectedToken

    offset: int = error.pos_in_stream
    if isinstance(error, UnexpectedToken):
        offset = len(expression) if error.token.type == "$END" else error.token.start_pos
    before = list(parser.lex(expression[:offset]))
    if _deepest_bracket(before) >= MAX_DEPTH:
        return _too_deep(expression)
    issue = None if quoted_names else _first_quoted_name(before)
    issue = (
        issue
        or first_invalid(expression[:offset], before, parser, macros)
        or CelIssue("syntax", _describe(error), offset)
    )
    return refusal(expression, [issue])


def _first_quoted_name(tokens: Iterable[Any]) -> CelIssue | None:
    """The first name in backquotes, which Kubernetes 1.36 and earlier do not know."""
    quoted = next((token for token in tokens if token.type == "ESC_IDENT"), None)
    if quoted is None:
        return None
    return CelIssue("syntax", "syntax error: names in backquotes are supported from 1.37 on", quoted.start_pos)


def _describe(error: Any) -> str:
    from lark.exceptions import UnexpectedToken

    if not isinstance(error, UnexpectedToken):
        return f"syntax error: unexpected character {error.char!r}"
    found = "end" if error.token.type == "$END" else f"'{error.token}'"
    expected = error.accepts or error.expected
    wanted = [shown for kind, shown in _SHOWN.items() if kind in expected]
    if "INT_LIT" in expected:
        wanted.insert(0, "a value")
    elif "PLUS" in expected:
        wanted.insert(0, "an operator")
    elif "IDENT" in expected:
        wanted.insert(0, "a name")
    return f"syntax error: unexpected {found}" + (f", expected {' or '.join(wanted)}" if wanted else "")


def _deepest_bracket(tokens: list[Any]) -> int:
    deepest = depth = 0
    for token in tokens:
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
        deepest = max(deepest, depth)
    return deepest


def _is_too_deep(piece: Piece) -> bool:
    return max(piece.exprs, piece.relations, piece.calcs, piece.visits) > MAX_DEPTH


def _too_deep(expression: str) -> CompileError:
    return CompileError("size_limit", f"the expression is nested more than {MAX_DEPTH} levels deep", expression)


def make_room(root: Expression) -> None:
    """Raise Python's limit of recursion if this tree may need it."""
    needed = _FRAMES_PER_LEVEL * depth(root) + _SPARE_FRAMES
    if needed > sys.getrecursionlimit() // 2:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed + len(inspect.stack(0))))
