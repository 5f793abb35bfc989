# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON of API servers, whose objects contain values of users.

The API accepts an opaque configuration of 10 KiB, which can have thousands of nested levels. Python's parser raises
RecursionError for about a thousand, and so one claim would make a list of all claims unreadable.
"""

import json
import re
from typing import Any, Final

from ...process.parsing import DEEPEST

_DIGITS: Final = 100
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def decode_answer(data: bytes) -> Any:
    """The value of a JSON text. A value below more than `DEEPEST` levels is replaced by null, because nothing that this
    program reads is nested so deeply. A very long whole number is a float. Raises ValueError.
    """
    text = _cut(data) if _may_be_deep(data) else data
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=_number)  # Python refuses whole numbers of thousands of digits


def _number(text: str) -> int | float:
    return int(text) if len(text) <= _DIGITS else float(text)


def _may_be_deep(data: bytes) -> bool:
    """Whether a text may have more than `DEEPEST` levels. This is also true if strings contain single brackets."""
    if data.count(b"[") + data.count(b"{") <= DEEPEST:
        return False
    brackets = data.translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            return False
        # One round removes one or two levels, of all values at once.
        shorter = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(shorter) == len(brackets):
            return True
        brackets = shorter
    return bool(brackets)


def _cut(data: bytes) -> bytes:
    """The text with null instead of each value below more than `DEEPEST` levels."""
    kept: list[bytes] = []
    level = end = 0
    for token in _TOKEN.finditer(data):
        first = token[0][:1]
        if first in b"[{":
            level += 1
            if level == DEEPEST + 1:
                kept += data[end : token.start()], b"null"
        elif first in b"]}":
            level -= 1
            if level == DEEPEST:
                end = token.end()
    return b"".join((*kept, data[end:])) if level == 0 else data[:0]
