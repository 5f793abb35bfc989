# SPDX-License-Identifier: Apache-2.0
"""What to say about text that is no expression.

What stands in front of the place where parsing failed is completed to an expression, since Kubernetes reports
what is wrong in there first: a reserved word, or an argument that a macro cannot take.
"""

from dataclasses import dataclass
from typing import Any, Final

from .ast import Node
from .errors import Issue
from .grammar import lark_parser
from .tree_builder import LOST_FIELD, NO_FIELD, Piece

_BRACKETS: Final = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}
_SHOWN: Final = {
    "RPAR": "')'",
    "RSQB": "']'",
    "RBRACE": "'}'",
    "COMMA": "','",
    "COLON": "':'",
    "$END": "the end",
}
_WORDS: Final = ("BOOL_LIT", "NULL_LIT")
"""Tokens that look like a name and are none."""
_COMPLETIONS: Final = ("RPAR", "RSQB", "RBRACE", "COLON", "IDENT")
"""What may complete an expression, the first that fits first."""
_MISSING: Final = "missing"


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """Where parsing failed and why, how deep in brackets that is, and a tree of what comes before (None: nothing)."""

    issue: Issue
    depth: int
    before: Node | None


def syntax_problem(expression: str, error: Any, deepest: int) -> SyntaxProblem:
    """What a lark UnexpectedInput error is about. Nothing is completed that is nested `deepest` levels or more."""
    from lark.exceptions import UnexpectedToken

    offset = len(expression)
    if not isinstance(error, UnexpectedToken):
        offset = error.pos_in_stream
    elif error.token.type != "$END":
        offset = error.token.start_pos
    tokens = _tokens_before(expression, offset)
    found = getattr(getattr(error, "token", None), "type", "")
    depth = _bracket_depth(tokens)
    before = _completed(tokens, found, offset) if depth < deepest else None
    return SyntaxProblem(Issue("syntax", _describe(error), offset), depth, before)


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


def _tokens_before(expression: str, offset: int) -> list[Any]:
    from lark.exceptions import UnexpectedInput

    tokens: list[Any] = []
    try:
        for token in lark_parser().lex(expression):
            if token.start_pos >= offset:
                break
            tokens.append(token)
    except UnexpectedInput:
        pass  # the characters that end the token stream are what is being reported
    return tokens


def _bracket_depth(tokens: list[Any]) -> int:
    deepest = depth = 0
    for token in tokens:
        depth += (token.type in _BRACKETS.values()) - (token.type in _BRACKETS)
        deepest = max(deepest, depth)
    return deepest


def _completed(tokens: list[Any], found: str, offset: int) -> Node | None:
    """A tree of the tokens, with the least behind them that makes them an expression. `found` ended them."""
    from lark import Token
    from lark.exceptions import UnexpectedInput

    parser = lark_parser().parse_interactive()
    try:
        for token in tokens:
            parser.feed_token(token)
        if tokens and tokens[-1].type == "DOT" and "IDENT" in parser.accepts():
            parser.feed_token(Token("IDENT", LOST_FIELD if found in _WORDS else NO_FIELD, offset))
        for _ in range(2 * len(tokens) + 2):
            accepted = parser.accepts()
            if "$END" in accepted:
                piece = parser.feed_eof()
                return piece.node if isinstance(piece, Piece) else None
            kind = next((kind for kind in _COMPLETIONS if kind in accepted), None)
            if kind is None:
                return None
            parser.feed_token(Token(kind, _MISSING, offset))
    except UnexpectedInput:
        pass  # the tokens were not fully read: the tokenizer looks ahead of the parser by a sign or two
    return None
