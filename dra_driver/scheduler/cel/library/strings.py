# SPDX-License-Identifier: Apache-2.0
"""Functions on strings: those of cel-go itself, and `ext/strings.go` (version 2) with the costs of k8s.io/apiserver."""

import math
import operator
import sys
from collections.abc import Sequence
from typing import Final

from ..declarations import CEL_GO_29, CelLibrary, Cost, Implementation, RuntimeCost, function, method
from ..errors import ErrorValue
from ..sizes import TRAVERSAL, UNBOUNDED, CallEstimate, Operand, Size, add, times, traversal
from ..tree import Literal
from ..types import BOOL, DYN, INT, STRING, list_of
from .formatting import check_format, escaped, format_values
from .values import (
    READ,
    VISIT,
    construction_cost,
    core_cost_size,
    cost_size,
    read_core,
    rebuild_first,
    spend,
    traversal_cost,
    type_name,
)

_TO_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_TO_UPPER: Final = {code + 32: code for code in _TO_LOWER}
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_STRINGS: Final = list_of(STRING)

_CONTAINS: Final = Cost(
    lambda arguments, _: traversal_cost(core_cost_size(arguments[0])) * traversal_cost(core_cost_size(arguments[1])),
    lambda text, part: CallEstimate(times(traversal(text), traversal(part))),
)


def _read_affix(arguments: Sequence[object], result: object) -> int:
    return traversal_cost(core_cost_size(arguments[1]))


def _out_of_range(index: int) -> ErrorValue:
    return ErrorValue("out_of_range", f"index out of range: {index}")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.find(part, start)


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if not part:
        return len(text) if start is None else start
    if start is None:
        return text.rfind(part)
    if start < 0:
        raise _out_of_range(start)
    if start >= len(text):
        return -1
    return text.rfind(part, 0, start + len(part))


def _checked_index_of(text: str, part: str, start: int = 0) -> int:
    """Like `_index_of`, but an empty part is only found within the text."""
    return _index_of(text, part, start) if part else _clamped(text, start)


def _checked_last_index_of(text: str, part: str, start: int | None = None) -> int:
    """Like `_last_index_of`, but an empty part is only found within the text."""
    return _last_index_of(text, part, start) if part or start is None else _clamped(text, start)


def _clamped(text: str, start: int) -> int:
    if start < 0:
        raise _out_of_range(start)
    return min(start, len(text))


def _lower(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_TO_LOWER)


def _upper(text: str) -> str:
    return text.upper() if text.isascii() else text.translate(_TO_UPPER)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    found = text.count(old) if count < 0 else min(text.count(old), count)
    spend(len(text) + found * len(new))
    return text.replace(old, new, found)


def _split(text: str, separator: str, count: int = -1) -> list[object]:
    spend(len(text))
    if count == 0:
        return []
    if not separator:
        return _characters(text, count)
    return list(text.split(separator, count - 1 if count > 0 else -1))


def _characters(text: str, count: int) -> list[object]:
    if count < 0 or count >= len(text):
        return list(text)
    return [*text[: count - 1], text[count - 1 :]]


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        end = len(text)
        if not 0 <= start <= end:
            raise _out_of_range(start)
    if start > end:
        raise ErrorValue("out_of_range", f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def _join(items: list[object], separator: str = "") -> str:
    strings: list[str] = []
    for item in items:
        if not isinstance(item, str):
            raise ErrorValue("other", f"join() expects strings, not {type_name(item)}")
        spend(len(item) + len(separator))
        strings.append(item)
    return separator.join(strings)


def _quote_estimate(text: Operand) -> CallEstimate:
    return CallEstimate(traversal(text), Size(text.size.low + 2, (text.size.high * 2 + 2) % (UNBOUNDED + 1)))


def _replaced(text: Operand, old: Operand, new: Operand, *count: Operand) -> CallEstimate:
    fewest, most = text.size.low, text.size.high
    if old.size.high == 0 or old.size.high > new.size.low:
        fewest = _replaced_all(fewest, old.size.high, new.size.low)
    if old.size.low == 0 or old.size.low < new.size.high:
        most = _replaced_all(most, old.size.low, new.size.high)
    return CallEstimate(text.size.scaled(2 * TRAVERSAL), Size(fewest, most))


def _replaced_all(size: int, old: int, new: int) -> int:
    """The size of a text in which all parts of the size `old` are replaced by parts of the size `new`."""
    if old == 0:  # an empty text is found before and after every character
        return add(times(add(size, 1), new), size)
    return times(math.ceil(float(size) / float(old)), new)


def _parts(text: Operand, separator: Operand, count: Operand | None = None) -> CallEstimate:
    most = text.size.high
    if count and isinstance(count.node, Literal) and isinstance(count.node.value, int):
        most = count.node.value % (UNBOUNDED + 1)
    return CallEstimate(text.size.scaled(2 * TRAVERSAL), Size(0, most))


def _joined(strings: Operand, separator: Operand | None = None) -> CallEstimate:
    count = strings.size
    element = strings.element
    size = count.times(element.size) if element else Size(0, 0)
    if separator:
        gaps = Size(max(count.low - 1, 0), max(count.high - 1, 0))
        size = size.plus(separator.size.times(gaps))
    return CallEstimate(size.scaled(TRAVERSAL), size)


def _affixes(actual: RuntimeCost, *, release: int = 0, until: int = sys.maxsize) -> CelLibrary:
    cost = Cost(actual, lambda text, affix: CallEstimate(traversal(affix)))
    return CelLibrary(
        method("startsWith", ("starts_with_string", (STRING, STRING), BOOL, str.startswith), cost=cost),
        method("endsWith", ("ends_with_string", (STRING, STRING), BOOL, str.endswith), cost=cost),
        release=release,
        until=until,
    )


def _positions(
    index_of: Implementation, last_index_of: Implementation, *, release: int = 0, until: int = sys.maxsize
) -> CelLibrary:
    return CelLibrary(
        method(
            "indexOf",
            ("string_index_of_string", (STRING, STRING), INT, index_of),
            ("string_index_of_string_int", (STRING, STRING, INT), INT, index_of),
            cost=VISIT,
        ),
        method(
            "lastIndexOf",
            ("string_last_index_of_string", (STRING, STRING), INT, last_index_of),
            ("string_last_index_of_string_int", (STRING, STRING, INT), INT, last_index_of),
            cost=VISIT,
        ),
        release=release,
        until=until,
    )


AFFIXES = (_affixes(read_core, until=CEL_GO_29), _affixes(_read_affix, release=CEL_GO_29))
"""startsWith() and endsWith(). They cost a traversal of the text, and from cel-go 0.29 on one of the affix."""

POSITIONS = (
    _positions(_index_of, _last_index_of, until=CEL_GO_29),
    _positions(_checked_index_of, _checked_last_index_of, release=CEL_GO_29),
)
"""indexOf() and lastIndexOf(). From cel-go 0.29 on, they check the position also if the part is empty."""

STRINGS = CelLibrary(
    method("contains", ("contains_string", (STRING, STRING), BOOL, operator.contains), cost=_CONTAINS),
    method("charAt", ("string_char_at_int", (STRING, INT), STRING, _char_at)),
    method("lowerAscii", ("string_lower_ascii", (STRING,), STRING, _lower), cost=READ),
    method("upperAscii", ("string_upper_ascii", (STRING,), STRING, _upper), cost=READ),
    method(
        "replace",
        ("string_replace_string_string", (STRING, STRING, STRING), STRING, _replace),
        ("string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace),
        cost=Cost(rebuild_first, _replaced),
    ),
    method(
        "split",
        ("string_split_string", (STRING, STRING), _STRINGS, _split),
        ("string_split_string_int", (STRING, STRING, INT), _STRINGS, _split),
        cost=Cost(rebuild_first, _parts),
    ),
    method(
        "substring",
        ("string_substring_int", (STRING, INT), STRING, _substring),
        ("string_substring_int_int", (STRING, INT, INT), STRING, _substring),
        cost=READ,
    ),
    method("trim", ("string_trim", (STRING,), STRING, lambda text: text.strip(_SPACE)), cost=READ),
    method(
        "format",
        ("string_format", (STRING, list_of(DYN)), STRING, format_values),
        lazy=True,
        cost=Cost(read_core, lambda template, _: CallEstimate(traversal(template))),
        constants=check_format,
    ),
    function(
        "strings.quote",
        ("strings_quote", (STRING,), STRING, escaped),
        cost=Cost(read_core, _quote_estimate),
    ),
    method(
        "join",
        ("list_join", (_STRINGS,), STRING, _join),
        ("list_join_string", (_STRINGS, STRING), STRING, _join),
        cost=Cost(lambda _, result: construction_cost(cost_size(result)), _joined),
    ),
)
