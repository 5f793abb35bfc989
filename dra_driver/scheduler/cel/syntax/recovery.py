# SPDX-License-Identifier: Apache-2.0
"""Errors in text that is not an expression.

Kubernetes' parser continues after a syntax error. If there is an error before that place, such as a reserved word or an
argument that a macro does not accept, it is reported first. To find such errors, the tokens are repaired here like
ANTLR's `DefaultErrorStrategy` does it with cel-go's grammar:

- A token is left out if the token after it is an expected one.
- A missing bracket or colon is added if the next token fits then.
- Otherwise the construct ends, and tokens are skipped up to one that may follow the construct.
"""

import copy
import re
from dataclasses import dataclass
from typing import Any, Final

from ..errors import CelIssue
from .builder import LOST, Piece
from .tree import MapNode, walk

_BRACKETS: Final = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}
_SHOWN: Final = {"RPAR": "')'", "RSQB": "']'", "RBRACE": "'}'", "COMMA": "','", "COLON": "':'", "$END": "the end"}
_CLOSING: Final = {opening: closing for closing, opening in _BRACKETS.items()}
_OPERATORS: Final = frozenset(("QMARK", "IN", "LESSTHAN", "MORETHAN", "PLUS", "MINUS", "STAR", "SLASH", "PERCENT"))
_OPERAND: Final = "INT_LIT"
"""A token that starts an operand. The parser accepts it wherever it expects an operand."""
_SUFFIXES: Final = frozenset(("DOT", "LSQB"))
_FIELD: Final = frozenset(("IDENT", "ESC_IDENT"))
_MOST_REPAIRS: Final = 30
_MOST_SKIPPED: Final = 256
"""Kubernetes stops after this number of repairs in a text, or of skipped tokens in one repair."""
_BROKEN: Final = re.compile(r"""[&|=].?|(["'])(?:(?!\1)[^\\\r\n]|\\[^\r\n])*.?""", re.DOTALL)
"""A string without its end, or the first half of an operator. Kubernetes also leaves out the next character."""


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A syntax error, and how many brackets are nested before it.

    `before` is the repaired expression. It is None if the text could not be repaired.
    """

    issue: CelIssue
    depth: int
    before: Piece | None


def syntax_problem(parser: Any, expression: str, error: Any, deepest: int) -> SyntaxProblem:
    """The problem that lark reported as `error` (UnexpectedInput).

    Text with `deepest` or more levels of brackets is not repaired.
    """
    from lark.exceptions import UnexpectedToken

    offset = len(expression)
    if not isinstance(error, UnexpectedToken):
        offset = error.pos_in_stream
    elif error.token.type != "$END":
        offset = error.token.start_pos
    tokens = _tokens(parser, expression)
    depth = _bracket_depth([token for token in tokens if token.start_pos < offset])
    issue = CelIssue("syntax", _describe(error), offset)
    try:
        return SyntaxProblem(
            issue, depth, _Repair(parser, tokens, len(expression)).piece() if depth < deepest else None
        )
    except _SkippedTooMuchError:
        return SyntaxProblem(CelIssue("other", issue.message, offset), depth, None)


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


def _tokens(parser: Any, expression: str) -> list[Any]:
    """The tokens of the text. Characters that belong to no token are left out."""
    from lark.exceptions import UnexpectedCharacters

    text = expression
    while True:
        try:
            return list(parser.lex(text))
        except UnexpectedCharacters as error:
            place = error.pos_in_stream or 0
            broken = _BROKEN.match(text, place)
            end = broken.end() if broken else place + 1
            text = text[:place] + " " * (end - place) + text[end:]


def _bracket_depth(tokens: list[Any]) -> int:
    deepest = depth = 0
    for token in tokens:
        depth += (token.type in _CLOSING) - (token.type in _BRACKETS)
        deepest = max(deepest, depth)
    return deepest


class _SkippedTooMuchError(Exception):
    """The repair would skip more tokens than Kubernetes' parser does."""


class _Repair:
    """Makes an expression from tokens. `_done` are the tokens that fit, `_rest` the tokens that remain, in reverse."""

    def __init__(self, parser: Any, tokens: list[Any], end: int) -> None:
        from lark import Token

        self._parser = parser
        self._token = Token
        self._rest: list[Any] = [Token("$END", "", end), *reversed(tokens)]
        self._done: list[Any] = []
        self._brackets: list[tuple[str, bool, bool]] = []
        """The open brackets. The first bool: the bracket belongs to the operand before it (a call, an index, a
        message). The second bool: it neither opens an index, nor belongs to a name after a dot.
        """
        self._dot: object = None
        """The last dot that was not followed by a name."""
        self._bare_keys: set[int] = set()
        self._cursor = self._fresh()

    def piece(self) -> Piece | None:
        """The repaired expression, None if it cannot be repaired. Raises _SkippedTooMuchError."""
        repairs, closing = 0, 0
        most_closing = 2 * len(self._rest)
        while self._rest:
            if self._fits(self._rest[-1]):
                self._done.append(self._rest.pop())
                continue
            if self._rest[-1].type == "$END":
                closing += 1
            else:
                repairs += 1
            if repairs > _MOST_REPAIRS or closing > most_closing:
                return None
            self._repair(self._cursor.accepts())
        return self._built()

    def _fresh(self) -> Any:
        """A parser that has read `_done` and builds no tree."""
        parser = self._parser.parse_interactive()
        parser.parser_state.parse_conf = copy.copy(parser.parser_state.parse_conf)
        parser.parser_state.parse_conf.callbacks = {}
        for token in self._done:
            parser.feed_token(token)
        return parser

    def _fits(self, token: Any) -> bool:
        from lark.exceptions import UnexpectedToken

        after_operand = _OPERAND not in self._cursor.choices()
        cursor = self._cursor.copy(deepcopy_values=False)  # a token that does not fit may change the parser, too
        try:
            cursor.feed_token(token)
        except UnexpectedToken:
            return False
        self._cursor = cursor
        if token.type in _CLOSING:
            is_member = after_operand and (token.type == "LSQB" or self._is_behind_dot())
            self._brackets.append((token.type, after_operand, not is_member))
        elif token.type in _BRACKETS:
            self._brackets.pop()
        return True

    def _repair(self, accepted: set[str]) -> None:
        """Change `_rest` (and `_done`) so that the next token fits."""
        token = self._rest[-1]
        behind = self._rest[-2].type if len(self._rest) > 1 else ""
        last = self._done[-1].type if self._done else ""
        closing = accepted & set(_BRACKETS)
        if last == "DOT":
            self._repair_selection()
        elif last == "QMARK" and accepted == _FIELD and behind not in _FIELD:
            self._skip(_SUFFIXES)
            self._take("IDENT", "", token.start_pos)
        elif _OPERAND in accepted and not (last == "COMMA" and closing):
            if behind in accepted and not self._is_signed():
                self._rest.pop()
            elif closing or (last == "LSQB" and self._brackets[-1][1]):  # the contents of the brackets are ignored
                self._end_construct({_CLOSING[last]}, skips=True)
            else:
                self._lose_operand()
        else:
            expected = closing if _OPERAND in accepted else self._expected(accepted)
            if behind in (expected or accepted):
                self._rest.pop()
            else:
                self._end_construct(expected - {"COMMA"})

    def _is_behind_dot(self) -> bool:
        """Whether `_done` ends with a dot and a name that select from an operand."""
        return len(self._done) > 2 and self._done[-2].type == "DOT" and not self._is_prefix(len(self._done) - 2)

    def _is_signed(self) -> bool:
        """Whether `_done` ends with a minus sign that starts an operand. The grammar joins it with the next token."""
        return bool(self._done) and self._done[-1].type == "MINUS" and self._is_prefix(len(self._done) - 1)

    def _is_prefix(self, place: int) -> bool:
        """Whether an operand starts at this index of `_done`."""
        return (
            place == 0
            or self._done[place - 1].type in (*_CLOSING, "COMMA", "COLON", "BANG")
            or (_is_operator(self._done[place - 1].type))
        )

    def _repair_selection(self) -> None:
        """No name follows a dot: leave out the selection, or the operand that starts with the dot."""
        dot = self._done.pop()
        self._cursor = self._fresh()
        again, self._dot = self._dot is dot, dot
        if self._is_prefix(len(self._done)):
            self._take("IDENT", LOST, -1)
        if not again:
            self._rest.append(dot)
        if again or not self._is_primary_open():
            self._skip()
        if self._rest[-1].type in _SUFFIXES and self._brackets:
            self._end_construct(self._cursor.accepts() & set(_BRACKETS))

    def _is_primary_open(self) -> bool:
        """Whether a bracket is open after which Kubernetes' parser expects a dot or an index."""
        return any(is_primary for _, _, is_primary in self._brackets)

    def _take(self, kind: str, text: str, offset: int) -> None:
        """Add a token that the text does not have."""
        token = self._token(kind, text, offset)
        self._cursor.feed_token(token)
        self._done.append(token)

    def _lose_operand(self) -> None:
        while self._is_signed():
            self._done.pop()
        self._cursor = self._fresh()
        self._skip(_SUFFIXES)
        self._take("IDENT", LOST, -1)

    def _expected(self, accepted: set[str]) -> set[str]:
        """The tokens, except operators, that may follow an operand here."""
        expected = accepted & {*_BRACKETS, "COLON", "$END"}
        opening, is_suffix, _ = self._brackets[-1] if self._brackets else ("", False, False)
        if "COMMA" in accepted and (opening == "LBRACE" or (opening == "LSQB" and not is_suffix)):
            expected.add("COMMA")
        return expected

    def _end_construct(self, expected: set[str], *, skips: bool = False) -> None:
        """Close the innermost bracket or condition. Skip tokens before it, unless only the closing token is missing."""
        kind = next(iter(expected - {"$END"}), None)
        if kind is None:
            self._drop(len(self._rest) - 1)
            return
        token = self._rest[-1]
        opening, is_suffix, is_primary = self._brackets[-1] if self._brackets else ("", False, False)
        is_list = opening == "LBRACE" or (opening == "LSQB" and not is_suffix)
        closing = self._token(kind, "", token.start_pos)
        if not skips:
            cursor = self._cursor.copy(deepcopy_values=False)
            cursor.feed_token(closing)
            skips = token.type not in cursor.accepts() or (is_list and kind != "COLON")
        if skips:
            self._skip(_SUFFIXES if is_primary else frozenset())
            if kind == "COLON" and opening == "LBRACE":
                self._bare_keys.add(token.start_pos)
        lost = self._token("IDENT", LOST, -1)
        if skips and kind == "COLON":
            self._rest.append(lost)
        elif skips and not is_primary and self._rest[-1].type in _SUFFIXES and len(self._brackets) > 1:
            outer = self._brackets[-2][0]  # the construct cannot have a suffix, so the suffix belongs to the outer one
            self._rest.append(self._token(_CLOSING[outer], "", token.start_pos))
        self._rest.append(closing)
        if kind == "RSQB" and is_suffix and self._done[-1].type == "LSQB":
            self._rest.append(lost)

    def _skip(self, more: frozenset[str] = frozenset()) -> None:
        """Leave out tokens up to one that may follow."""
        closing = {_CLOSING[bracket[0]] for bracket in self._brackets}
        stop = {*closing, *more, "$END", *(("COMMA", "COLON") if closing else ())}
        if self._is_primary_open():
            stop |= _SUFFIXES
        behind = enumerate(reversed(self._rest))
        self._drop(next(count for count, token in behind if token.type in stop or _is_operator(token.type)))

    def _drop(self, count: int) -> None:
        """Leave out this number of tokens."""
        if count > _MOST_SKIPPED:
            raise _SkippedTooMuchError
        del self._rest[len(self._rest) - count :]

    def _built(self) -> Piece | None:
        from lark.exceptions import UnexpectedToken

        parser = self._parser.parse_interactive()
        piece: Any = None
        try:
            for token in self._done:
                piece = parser.feed_token(token)
        except UnexpectedToken:
            return None
        if not isinstance(piece, Piece):
            return None
        for node in walk(piece.node):
            if isinstance(node, MapNode):  # Kubernetes ignores keys without a value
                node.entries = [entry for entry in node.entries if entry.offset not in self._bare_keys]
        return piece


def _is_operator(kind: str) -> bool:
    return kind in _OPERATORS or kind.startswith("__ANON")
