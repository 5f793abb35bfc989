# SPDX-License-Identifier: Apache-2.0
"""The errors in the text in front of a syntax error.

cel-go's parser continues after a syntax error, and its visitor reads what was recognized. It finds names that are
reserved, literals without a value and wrong uses of macros. Kubernetes reports the first error in the text, so these
come before the syntax error. Text after the syntax error is ignored here.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

from ..errors import CelIssue
from ..tree import Invalid, depth, walk
from .builder import RESERVED, Piece
from .grammar import OPERAND_ENDS
from .literals import LITERALS, LiteralError
from .macros import Macros, TooLargeError, expand

_CLOSING: Final = {"LPAR": ")", "LSQB": "]", "LBRACE": "}"}
_CLOSED: Final = frozenset(("RPAR", "RSQB", "RBRACE"))
_MOST_LEVELS: Final = 50
"""Macros whose arguments are nested deeper are not examined, because that would need much recursion."""
_MOST_CHARACTERS: Final = 10_000
"""The length of all calls of macros that are examined. Nested calls would take the square of the text's length."""


def first_invalid(text: str, tokens: list[Any], parser: Any, macros: Macros) -> CelIssue | None:
    """The first error in the text in front of a syntax error, whose tokens these are."""
    issues = [*_invalid_tokens(tokens), *_wrong_macros(text, tokens, parser, macros)]
    return min(issues, key=lambda issue: issue.offset, default=None)


def _invalid_tokens(tokens: list[Any]) -> Iterator[CelIssue]:
    """Reserved words that are used as names, such as `let` in `let x = 1`, and literals without a value."""
    for index, token in enumerate(tokens):
        if token.type == "IDENT" and token in RESERVED:
            if not _is_field(tokens, index) and not _is_message(tokens, index):
                yield CelIssue("reserved", f"reserved identifier: {token}", token.start_pos)
        elif token.type in LITERALS:
            try:
                LITERALS[token.type](str(token))
            except LiteralError as error:
                yield CelIssue("literal", str(error), token.start_pos)


def _is_field(tokens: list[Any], index: int) -> bool:
    """Whether the name at this index is a field: `a.let` and `a.?let`, but not `.let` at the start of an operand."""
    if index and tokens[index - 1].type == "QMARK":
        index -= 1
    return index > 1 and tokens[index - 1].type == "DOT" and tokens[index - 2].type in OPERAND_ENDS


def _is_message(tokens: list[Any], index: int) -> bool:
    """Whether the name at this index is the start of the name of a message, such as `let.b{`."""
    kinds = iter([token.type for token in tokens[index + 1 :]])
    for kind in kinds:
        if kind != "DOT" or next(kinds, None) != "IDENT":
            return bool(kind == "LBRACE")
    return False


def _wrong_macros(text: str, tokens: list[Any], parser: Any, macros: Macros) -> Iterator[CelIssue]:
    """The wrong arguments of macros. The last call may be incomplete: an operand and brackets are added."""
    names = {name for name, _, _ in macros}
    left = _MOST_CHARACTERS
    for index, token in enumerate(tokens[:-1]):
        if token.type != "IDENT" or token not in names or tokens[index + 1].type != "LPAR":
            continue
        target = _target(tokens, index)
        if target is None:
            continue
        end, closing = _end_of_call(text, tokens, index + 1)
        call = text[token.start_pos : end]
        for ending in (closing, f" x{closing}") if closing else ("",):
            left -= len(call)
            if left < 0:
                return
            found = _wrong_arguments(f"{target}{call}{ending}", parser, macros)
            if found is not None:
                shift = token.start_pos - len(target)
                yield from (CelIssue(issue.kind, issue.message, issue.offset + shift) for issue in found)
                break


def _end_of_call(text: str, tokens: list[Any], opening: int) -> tuple[int, str]:
    """The end of the call with this bracket, and the brackets that the text lacks."""
    missing: list[str] = []
    for token in tokens[opening:]:
        if token.type in _CLOSING:
            missing.append(_CLOSING[token.type])
        elif token.type in _CLOSED:
            missing.pop()
            if not missing:
                return token.start_pos + len(token), ""
    end = tokens[-1].start_pos if tokens[-1].type == "DOT" else len(text)  # a dot without a name is ignored
    return end, "".join(reversed(missing))


def _target(tokens: list[Any], index: int) -> str | None:
    """A target for the call of the name at this index, as far as macros look at it. None for `.has(`."""
    if not _is_field(tokens, index):
        return None if index and tokens[index - 1].type == "DOT" else ""
    target = tokens[index - 2]
    return f"{target}." if target.type == "IDENT" else "x."


def _wrong_arguments(call: str, parser: Any, macros: Macros) -> list[Invalid] | None:
    """The wrong uses of macros in a call, None if the text is no call."""
    from lark.exceptions import UnexpectedInput

    try:
        node = cast(Piece, parser.parse(call)).node
        if depth(node) > _MOST_LEVELS:
            return []
        tree = expand(node, macros)
    except (UnexpectedInput, TooLargeError):
        return None
    return [part for part in walk(tree) if isinstance(part, Invalid) and part.kind == "macro"]
