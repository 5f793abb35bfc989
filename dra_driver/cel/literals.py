# SPDX-License-Identifier: Apache-2.0
"""The values of literal tokens: numbers, strings and bytes with their escapes.

Follows cel-go's `parser/unescape.go` and the literal visitors of `parser/parser.go`.
"""

import math
import re
from typing import Final

from .scalars import INT_MAX, INT_MIN, UINT_MAX, Uint

_LONGEST_NUMBER: Final = 4000  # digits; beyond it Python refuses to convert, and nothing fits anyway


class LiteralError(ValueError):
    """A token that looks like a literal but denotes no value."""


def integer(text: str) -> int:
    """The int of `-5` or `0x1F`."""
    value = _number(text)
    if value is None or not INT_MIN <= value <= INT_MAX:
        raise LiteralError("invalid int literal: beyond 64 bits")
    return value


def unsigned(text: str) -> Uint:
    """The uint of `5u` or `0x1Fu`."""
    value = _number(text[:-1])
    if value is None or value > UINT_MAX:
        raise LiteralError("invalid uint literal: beyond 64 bits")
    return Uint(value)


def _number(text: str) -> int | None:
    if len(text) > _LONGEST_NUMBER:
        text = text.lstrip("-0") or "0"  # leading zeros are all that can make it so long and still fit
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
    """The string that a quoted token denotes."""
    body, raw = _unquote(text)
    if raw or "\\" not in body:
        return body
    return _ESCAPE.sub(_character, body)


def octets(text: str) -> bytes:
    """The bytes that a token such as `b'…'` denotes: escapes are bytes, everything else is UTF-8."""
    body, raw = _unquote(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    parts: list[bytes] = []
    place = 0
    for match in _ESCAPE.finditer(body):
        parts += (body[place : match.start()].encode(), _octet(match[1]))
        place = match.end()
    return b"".join((*parts, body[place:].encode()))


_ESCAPE: Final = re.compile(r"\\([0-7]{3}|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unquote(text: str) -> tuple[str, bool]:
    """The inside of the quotes, with line ends made \\n, and whether escapes are left alone in it."""
    raw = text[0] in "rR"
    quoted = (text[1:] if raw else text).replace("\r\n", "\n").replace("\r", "\n")
    width = 3 if len(quoted) >= 6 and quoted[:3] in ("'''", '"""') else 1
    return quoted[width:-width], raw


def _code(escape: str) -> int | None:
    """The number in an octal, hexadecimal or Unicode escape; None for the others."""
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
        raise LiteralError("bytes have no Unicode escapes (use \\x or octal ones)")
    code = _code(escape)
    return bytes((code,)) if code is not None else _SIMPLE.get(escape, escape).encode()
