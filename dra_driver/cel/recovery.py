# SPDX-License-Identifier: Apache-2.0
"""What to say about text that is no expression.

What stands in front of the place where parsing failed is completed to an expression, since Kubernetes reports
what is wrong in there first: a reserved word, or an argument that a macro cannot take.
"""

from dataclasses import dataclass
from typing import Any, Final

from .ast import MapNode, walk
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
_HALVES: Final = "&|="
"""Characters that begin an operator of two; Kubernetes leaves out both when the second is another."""


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """Where parsing failed and why, how deep in brackets that is, and what comes before (None: nothing is known)."""

    issue: Issue
    depth: int
    before: Piece | None


def syntax_problem(expression: str, error: Any, deepest: int) -> SyntaxProblem:
    """What a lark UnexpectedInput error is about. Nothing is completed that is nested `deepest` levels or more."""
    from lark.exceptions import UnexpectedToken

    offset = len(expression)
    if not isinstance(error, UnexpectedToken):
        offset = error.pos_in_stream
    elif error.token.type != "$END":
        offset = error.token.start_pos
    tokens = _tokens_before(expression, offset)
    depth = _bracket_depth(tokens)
    before = _repaired(expression, error, offset) if depth < deepest else None
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


def _repaired(expression: str, error: Any, offset: int) -> Piece | None:
    """The expression without what was not expected; if that is none either, what it begins with."""
    from lark.exceptions import UnexpectedInput, UnexpectedToken

    tokens = _tokens_before(expression, offset)
    behind_dot = bool(tokens) and tokens[-1].type == "DOT"
    if isinstance(error, UnexpectedToken):
        token = error.token
    else:
        token = expression[offset : offset + (2 if expression[offset] in _HALVES else 1)]
    rest = expression[offset + len(token) :]
    if rest and not (behind_dot and isinstance(error, UnexpectedToken)):
        without = expression[:offset] + " " * len(token) + rest
        try:
            piece = lark_parser().parse(without)
            return piece if isinstance(piece, Piece) else None
        except UnexpectedInput as next_error:
            next_token = getattr(next_error, "token", None)
            place = getattr(next_token, "start_pos", None) or offset
            if getattr(next_token, "type", "") == "$END":
                place = len(expression)
            if place > offset and any(token.start_pos > offset for token in _tokens_before(without, place)):
                return _completed(_tokens_before(without, place), "", place)
    return _completed(tokens, getattr(token, "type", ""), offset)


def _completed(tokens: list[Any], found: str, offset: int) -> Piece | None:
    """The tokens, with the least behind them that makes them an expression. `found` ended them."""
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
                return _without_bare_keys(parser.feed_eof(), offset)
            kind = next((kind for kind in _COMPLETIONS if kind in accepted), None)
            if kind is None:
                return None
            parser.feed_token(Token(kind, _MISSING, offset))
    except UnexpectedInput:
        pass  # the tokens were not fully read: the tokenizer looks ahead of the parser by a sign or two
    return None


def _without_bare_keys(piece: Any, offset: int) -> Piece | None:
    """Without the keys in map literals whose colon had to be added: Kubernetes does not look at these."""
    if not isinstance(piece, Piece):
        return None
    for node in walk(piece.node):
        if isinstance(node, MapNode):
            node.entries = [entry for entry in node.entries if entry.offset != offset]
    return piece
