# SPDX-License-Identifier: Apache-2.0
"""Format strings: `'%s has %d'.format([a, b])`.

Follows cel-go's `ext/formatting.go`, where doubles are written for en_US by golang.org/x/text: `%f` groups
digits and knows '∞', `%e` writes powers of ten with superscripts and takes its precision for a width.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import ErrorValue, Issue
from ..syntax.tree import Call, ListNode, Literal, MapNode, Node
from ..types import INT_MAX, Type, TypeKind, Uint
from .conversions import double_text, quoted, seconds, text
from .time import Duration, Timestamp
from .values import MapValue, spend, type_name

_DEFAULT_PRECISION: Final = 6
_MOST_DIGITS: Final = 1100
"""No double has more digits after the point."""
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_CLAUSE: Final = re.compile(r"(?:\.([0-9]*))?(.)?", re.DOTALL | re.ASCII)


class FormatError(Exception):
    """A format string that is none."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One %-clause: the types it can show, what those are called, and how it shows a value."""

    letter: str
    precision: int
    kinds: frozenset[TypeKind]
    accepted: str
    show: Callable[["Clause", object], str]

    def refusal(self, given: str) -> str:
        """The error text for a value of type `given`."""
        return f"%{self.letter} shows {self.accepted}, not {given}"


def _clauses(template: str) -> Iterator[Clause | FormatError]:
    """The clauses of a format string; the last one may be what is wrong with it."""
    return (piece for piece in _pieces(template) if not isinstance(piece, str))


def _pieces(template: str) -> Iterator[str | Clause | FormatError]:
    place = 0
    while place < len(template):
        percent = template.find("%", place)
        if percent < 0:
            yield template[place:]
            return
        yield template[place:percent]
        if template.startswith("%%", percent):
            yield "%"
            place = percent + 2
            continue
        match = _CLAUSE.match(template, percent + 1)
        assert match is not None
        piece = _clause(match[1], match[2])
        yield piece
        if isinstance(piece, FormatError):
            return
        place = match.end()


def _clause(precision: str | None, letter: str | None) -> Clause | FormatError:
    if letter is None:
        return FormatError("a format clause ends with the string")
    if precision is not None and (not precision or len(precision) > 19 or int(precision) > INT_MAX):
        return FormatError(f"invalid precision '.{precision}' in a format clause")
    known = _CLAUSES.get(letter)
    if known is None:
        return FormatError(f"unrecognized format clause '%{letter}'")
    return Clause(letter, _DEFAULT_PRECISION if precision is None else int(precision), *known)


def render(template: str, arguments: list[object]) -> str:
    """The string with its clauses filled in. Raises ErrorValue."""
    parts: list[str] = []
    used = 0
    for piece in _pieces(template):
        if not isinstance(piece, str):
            if used >= len(arguments):
                raise ErrorValue("out_of_range", f"format() has {len(arguments)} arguments, its clauses need more")
            if isinstance(piece, FormatError):
                raise ErrorValue("format", str(piece))
            piece = piece.show(piece, arguments[used])
            used += 1
        spend(len(piece))
        parts.append(piece)
    return "".join(parts)


def _refused(clause: Clause, value: object) -> ErrorValue:
    return ErrorValue("format", clause.refusal(type_name(value)))


def _string(clause: Clause, value: object) -> str:
    match value:
        case list():
            return _list(value)
        case MapValue():
            return _map(value)
        case None:
            return "null"
        case str() | bool() | int() | float() | bytes() | Duration() | Timestamp() | Type():
            return text(value)
    raise _refused(clause, value)


def _list(values: list[object]) -> str:
    spend(len(values))
    return f"[{', '.join(map(_literal, values))}]"


def _map(value: MapValue) -> str:
    spend(len(value))
    entries = sorted(((_key(key), _literal(item)) for key, item in value.items()), key=lambda entry: entry[0])
    return f"{{{', '.join(f'{key}:{item}' for key, item in entries)}}}"


def _key(value: object) -> str:
    if isinstance(value, str | bool | int):
        return _literal(value)
    raise ErrorValue("format", f"map keys of type {type_name(value)} cannot be formatted")


def _literal(value: object) -> str:
    """A value inside a list or map, written as CEL would write it."""
    match value:
        case str():
            return quoted(value)
        case bytes():
            return "b" + quoted(text(value))
        case float():
            return f"{value:.6f}" if math.isfinite(value) else quoted(double_text(value))
        case Timestamp():
            return f'timestamp("{value}")'
        case Duration():
            return f'duration("{seconds(value)}")'
        case list():
            return _list(value)
        case MapValue():
            return _map(value)
        case None:
            return "null"
        case bool() | int() | Type():
            return text(value)
    raise ErrorValue("format", f"values of type {type_name(value)} cannot be formatted")


def _decimal(clause: Clause, value: object) -> str:
    if value.__class__ is int or value.__class__ is Uint:
        return text(value)
    raise _refused(clause, value)


def _double(clause: Clause, value: object) -> float:
    if isinstance(value, float):
        return value + 0.0  # golang.org/x/text writes no sign in front of zero
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value))
    raise _refused(clause, value)


def _fixed(clause: Clause, value: object) -> str:
    number = _double(clause, value)
    if not math.isfinite(number):
        return _not_finite(number)
    written = f"{number:,.{min(clause.precision, _MOST_DIGITS)}f}"
    whole, point, fraction = written.partition(".")
    least = clause.precision % 256  # x/text keeps the number of trailing zeros in 8 bits
    fraction = fraction[:least] + fraction[least:].rstrip("0")
    return whole + point + fraction if fraction else whole


def _scientific(clause: Clause, value: object) -> str:
    number = _double(clause, value)
    if math.isfinite(number):
        mantissa, _, exponent = f"{number:.6e}".partition("e")
        power = f"{'-' if exponent[0] == '-' else ''}{abs(int(exponent)):02d}".translate(_SUPERSCRIPTS)
        written = f"{mantissa}\u00d710{power}"
    else:
        written = _not_finite(number)
    spend(clause.precision)
    return written.rjust(clause.precision)


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "∞" if number > 0 else "-∞"


def _binary(clause: Clause, value: object) -> str:
    if isinstance(value, int):
        return format(int(value), "b")
    raise _refused(clause, value)


def _octal(clause: Clause, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return format(int(value), "o")
    raise _refused(clause, value)


def _hexadecimal(clause: Clause, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return format(int(value), clause.letter)
    if isinstance(value, str | bytes):
        digits = (value.encode() if isinstance(value, str) else value).hex()
        return digits.upper() if clause.letter == "X" else digits
    raise _refused(clause, value)


_Known = tuple[frozenset[TypeKind], str, Callable[[Clause, object], str]]
_INTEGERS: Final = frozenset((TypeKind.INT, TypeKind.UINT))
_DOUBLES: Final = frozenset((TypeKind.DOUBLE, TypeKind.STRING))
_HEX: Final = _INTEGERS | {TypeKind.STRING, TypeKind.BYTES}
_STRINGS: Final = frozenset(
    (
        *(TypeKind.LIST, TypeKind.MAP, TypeKind.INT, TypeKind.UINT, TypeKind.DOUBLE, TypeKind.BOOL, TypeKind.STRING),
        *(TypeKind.TIMESTAMP, TypeKind.BYTES, TypeKind.DURATION, TypeKind.TYPE, TypeKind.NULL),
    )
)
_CLAUSES: Final[dict[str, _Known]] = {
    "s": (_STRINGS, "strings, bools, bytes, numbers, lists, maps, types, durations and timestamps", _string),
    "d": (_INTEGERS, "integers", _decimal),
    "f": (_DOUBLES, "doubles", _fixed),
    "e": (_DOUBLES, "doubles", _scientific),
    "b": (_INTEGERS | {TypeKind.BOOL}, "integers and bools", _binary),
    "x": (_HEX, "integers, strings and bytes", _hexadecimal),
    "X": (_HEX, "integers, strings and bytes", _hexadecimal),
    "o": (_INTEGERS, "integers", _octal),
}


def check_format(call: Call) -> Iterator[Issue]:
    """Errors in a format string that is a literal, and in its arguments if they are a list literal."""
    template, arguments = call.target, call.arguments[0]
    if not isinstance(template, Literal) or not isinstance(template.value, str) or not isinstance(arguments, ListNode):
        return
    elements = arguments.elements
    used = 0
    try:
        for used, clause in enumerate(_clauses(template.value), start=1):
            if isinstance(clause, FormatError):
                raise clause
            wrong = _misfit(clause, elements[used - 1]) if used <= len(elements) else None
            if wrong is not None:
                yield Issue("format", clause.refusal(wrong.type.name), wrong.offset)
                return
    except FormatError as error:
        yield Issue("format", str(error), call.offset)
        return
    if len(elements) != used:
        message = f"format() has {used} clauses but {len(elements)} arguments"
        yield Issue("format", message, call.offset)


def _misfit(clause: Clause, argument: Node) -> Node | None:
    """The argument, or the part of it, that the clause cannot show."""
    if argument.type.kind is not TypeKind.DYN and argument.type.kind not in clause.kinds:
        return argument
    if clause.letter != "s":
        return None
    parts: Iterator[Node] = iter(())
    if isinstance(argument, ListNode | MapNode):
        parts = argument.children()
    return next((misfit for part in parts if (misfit := _misfit(clause, part))), None)
