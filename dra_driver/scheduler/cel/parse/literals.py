# SPDX-License-Identifier: Apache-2.0
"""The values of literals. Follows cel-go's `parser/unescape.go` for strings."""

import math
import re
from collections.abc import Callable
from typing import Final

from ..types import INT_MAX, INT_MIN, UINT_MAX, Uint

_LONGEST_NUMBER: Final = 4000  # digits; longer numbers exceed 64 bits, and Python refuses to convert them

_ESCAPE: Final = re.compile(r"\\([0-7]{3}|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class LiteralError(ValueError):
    """A token has the form of a literal, but no value."""


def integer(text: str) -> int:
    """The int of `-5` or `0x1F`."""
    value = _number(text)
    if value is None or not INT_MIN <= value <= INT_MAX:
        raise LiteralError("invalid int literal: does not fit into 64 bits")
    return value


def unsigned(text: str) -> Uint:
    """The uint of `5u` or `0x1Fu`."""
    value = _number(text[:-1])
    if value is None or value > UINT_MAX:
        raise LiteralError("invalid uint literal: does not fit into 64 bits")
    return Uint(value)


def _number(text: str) -> int | None:
    if len(text) > _LONGEST_NUMBER:
        text = text.lstrip("-0") or "0"  # a valid number can only be this long because of leading zeros
    if len(text) > _LONGEST_NUMBER:
        return None
    return int(text, 16) if "x" in text else int(text)


def double(text: str) -> float:
    """The double of `1.5e3`."""
    value = float(text)
    if math.isinf(value):
        raise LiteralError("invalid double literal: too large")
    return value


def string(text: str) -> str:
    """The value of a quoted token."""
    body, raw = _unquote(text)
    if raw or "\\" not in body:
        return body
    return _ESCAPE.sub(_character, body)


def octets(text: str) -> bytes:
    """The value of a token such as `b'…'`. Escapes are bytes, and all other characters become UTF-8."""
    body, raw = _unquote(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    parts: list[bytes] = []
    place = 0
    for match in _ESCAPE.finditer(body):
        parts += (body[place : match.start()].encode(), _octet(match[1]))
        place = match.end()
    return b"".join((*parts, body[place:].encode()))


def _unquote(text: str) -> tuple[str, bool]:
    """The text between the quotes with line ends as \\n, and whether escapes in it have no meaning (a raw string)."""
    raw = text[0] in "rR"
    quoted = (text[1:] if raw else text).replace("\r\n", "\n").replace("\r", "\n")
    width = 3 if len(quoted) >= 6 and quoted[:3] in ("'''", '"""') else 1
    return quoted[width:-width], raw


def _code(escape: str) -> int | None:
    """The number in an octal, hexadecimal or Unicode escape, None for other escapes."""
    if escape[0] in "0123":
        return int(escape, 8)
    return int(escape[1:], 16) if escape[0] in "xXuU" else None


def _character(match: re.Match[str]) -> str:
    escape = match[1]
    code = _code(escape)
    if code is None:
        return _SIMPLE.get(escape, escape)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise LiteralError("invalid unicode code point")
    return chr(code)


def _octet(escape: str) -> bytes:
    if escape[0] in "uU":
        raise LiteralError("bytes literals have no Unicode escapes (use \\x or octal escapes)")
    code = _code(escape)
    return bytes((code,)) if code is not None else _SIMPLE.get(escape, escape).encode()


LITERALS: Final[dict[str, Callable[[str], object]]] = {
    "INT_LIT": integer,
    "UINT_LIT": unsigned,
    "FLOAT_LIT": double,
    "STRING_LIT": string,
    "MLSTRING_LIT": string,
    "BYTES_LIT": octets,
    "BOOL_LIT": "true".__eq__,
    "NULL_LIT": lambda _: None,
}
