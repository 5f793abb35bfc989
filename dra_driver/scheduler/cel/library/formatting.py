# SPDX-License-Identifier: Apache-2.0
"""Values as text: string(), strings.quote() and format(), such as `'%s has %d'.format([a, b])`.

string() and quoting follow Go's `strconv` and `fmt`. format() follows cel-go's `ext/formatting.go`. There,
golang.org/x/text writes doubles for the locale en_US: `%f` groups digits and writes '∞'. `%e` writes powers of ten with
superscripts, and its precision is the width of the text.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import CelIssue, ErrorValue
from ..tree import Call, Expression, ListNode, Literal, MapNode
from ..types import INT_MAX, Type, TypeKind, Uint
from .time import SECOND, Duration, Timestamp
from .values import MapValue, no_such_overload, spend, type_name

_PLAIN_DIGITS: Final = 6
_NAMED: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}

_DEFAULT_PRECISION: Final = 6
_MOST_DIGITS: Final = 1100
"""No double has more digits after the decimal point."""
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_CLAUSE: Final = re.compile(r"(?:\.([0-9]*))?(.)?", re.DOTALL | re.ASCII)

_INTEGERS: Final = frozenset((TypeKind.INT, TypeKind.UINT))
_DOUBLES: Final = frozenset((TypeKind.DOUBLE, TypeKind.STRING))
_HEX: Final = _INTEGERS | {TypeKind.STRING, TypeKind.BYTES}
_STRINGS: Final = frozenset(
    (
        *(TypeKind.LIST, TypeKind.MAP, TypeKind.INT, TypeKind.UINT, TypeKind.DOUBLE, TypeKind.BOOL, TypeKind.STRING),
        *(TypeKind.TIMESTAMP, TypeKind.BYTES, TypeKind.DURATION, TypeKind.TYPE, TypeKind.NULL),
    )
)


def double_text(value: float) -> str:
    """The shortest text that is parsed as the same double, such as `0.1`, `1e+06` or `+Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = _shortest(value)
    if -4 <= exponent < _PLAIN_DIGITS:
        return _without_exponent(value)
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _shortest(value: float) -> tuple[str, str, int]:
    """The sign, the significant digits, and the power of ten of the first digit."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    exponent = int(power or "0") + len(whole) - 1
    digits = whole + fraction
    leading = len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return (sign, digits, exponent - leading) if digits else (sign, "0", 0)


def seconds(value: Duration) -> str:
    """A duration in seconds, such as `90s` or `1.5s`."""
    return _without_exponent(value.in_units(SECOND)) + "s"


def _without_exponent(value: float) -> str:
    """The shortest text of a double without an exponent."""
    sign, digits, exponent = _shortest(value)
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return sign + whole + ("." + fraction if fraction else "")


def text(value: object) -> str:
    """string(value). Raises ErrorValue for values that cannot be converted."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Uint() | int():
            return str(int(value))
        case float():
            return double_text(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise ErrorValue("conversion", "invalid UTF-8 in bytes, cannot convert to string") from None
        case Duration():
            return seconds(value)
        case Timestamp():
            return str(value)
        case Type():
            return value.name
    raise no_such_overload("string", value)


def escaped(value: str) -> str:
    """The string in double quotes. Only the characters in _NAMED are escaped."""
    return '"' + "".join(_NAMED.get(character, character) for character in value) + '"'


def quoted(value: str) -> str:
    """The string in double quotes. All characters that are not printable are escaped."""
    return '"' + "".join(map(_escape, value)) + '"'


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# The function format


class FormatError(Exception):
    """The format string is invalid."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause such as `%.3f`: the types that it accepts, their names in errors, and how it formats a value."""

    letter: str
    precision: int
    kinds: frozenset[TypeKind]
    accepted: str
    show: Callable[["Clause", object], str]

    def refusal(self, given: str) -> str:
        """The error for a value of the type `given`."""
        return f"%{self.letter} accepts {self.accepted}, not {given}"


def _pieces(template: str) -> Iterator[str | Clause | FormatError]:
    """The texts and clauses of a format string. It ends with the first error."""
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


def format_values(template: str, arguments: list[object]) -> str:
    """The format string with the arguments in place of its clauses. Raises ErrorValue."""
    parts: list[str] = []
    used = 0
    for piece in _pieces(template):
        if not isinstance(piece, str):
            if used >= len(arguments):
                raise ErrorValue("out_of_range", f"format() has {len(arguments)} arguments, but more clauses")
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
    # A million integers reach the limit of costs: they are not compared with all types that have a literal.
    return f"[{', '.join([str(value) if value.__class__ is int else _literal(value) for value in values])}]"


def _map(value: MapValue) -> str:
    spend(len(value))
    entries = sorted(((_key(key), _literal(item)) for key, item in value.items()), key=lambda entry: entry[0])
    return f"{{{', '.join(f'{key}:{item}' for key, item in entries)}}}"


def _key(value: object) -> str:
    if isinstance(value, str | bool | int):
        return _literal(value)
    raise ErrorValue("format", f"map keys of type {type_name(value)} cannot be formatted")


def _literal(value: object) -> str:
    """A value inside of a list or map, in the form of a literal."""
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
        return value + 0.0  # golang.org/x/text writes zero without a sign
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value))
    raise _refused(clause, value)


def _fixed(clause: Clause, value: object) -> str:
    number = _double(clause, value)
    if not math.isfinite(number):
        return _not_finite(number)
    written = f"{number:,.{min(clause.precision, _MOST_DIGITS)}f}"
    whole, point, fraction = written.partition(".")
    least = clause.precision % 256  # golang.org/x/text stores the number of trailing zeros in 8 bits
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
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _binary(clause: Clause, value: object) -> str:
    if isinstance(value, int):
        return format(int(value), "b")
    raise _refused(clause, value)


def _in_base(clause: Clause, value: object) -> str:
    """%o, %x and %X. Python's format() has the same letters."""
    if isinstance(value, int) and not isinstance(value, bool):
        return format(int(value), clause.letter)
    if clause.letter != "o" and isinstance(value, str | bytes):
        digits = (value.encode() if isinstance(value, str) else value).hex()
        return digits.upper() if clause.letter == "X" else digits
    raise _refused(clause, value)


_Known = tuple[frozenset[TypeKind], str, Callable[[Clause, object], str]]
_CLAUSES: Final[dict[str, _Known]] = {
    "s": (_STRINGS, "strings, bools, bytes, numbers, lists, maps, types, durations and timestamps", _string),
    "d": (_INTEGERS, "integers", _decimal),
    "f": (_DOUBLES, "doubles", _fixed),
    "e": (_DOUBLES, "doubles", _scientific),
    "b": (_INTEGERS | {TypeKind.BOOL}, "integers and bools", _binary),
    "x": (_HEX, "integers, strings and bytes", _in_base),
    "X": (_HEX, "integers, strings and bytes", _in_base),
    "o": (_INTEGERS, "integers", _in_base),
}


def check_format(call: Call) -> Iterator[CelIssue]:
    """Errors in a literal format string and in the literal list of its arguments."""
    template, arguments = call.target, call.arguments[0]
    if not isinstance(template, Literal) or not isinstance(template.value, str) or not isinstance(arguments, ListNode):
        return
    elements = arguments.elements
    used = 0
    try:
        clauses = [piece for piece in _pieces(template.value) if not isinstance(piece, str)]
        for used, clause in enumerate(clauses, start=1):
            if isinstance(clause, FormatError):
                raise clause
            wrong = _misfit(clause, elements[used - 1]) if used <= len(elements) else None
            if wrong is not None:
                yield CelIssue("format", clause.refusal(wrong.type.name), wrong.offset)
                return
    except FormatError as error:
        yield CelIssue("format", str(error), call.offset)
        return
    if len(elements) != used:
        message = f"format() has {used} clauses but {len(elements)} arguments"
        yield CelIssue("format", message, call.offset)


def _misfit(clause: Clause, argument: Expression) -> Expression | None:
    """The argument, or the part of it, that the clause does not accept."""
    if argument.type.kind is not TypeKind.DYN and argument.type.kind not in clause.kinds:
        return argument
    if clause.letter != "s":
        return None
    parts: Iterator[Expression] = iter(())
    if isinstance(argument, ListNode | MapNode):
        parts = argument.children()
    return next((misfit for part in parts if (misfit := _misfit(clause, part))), None)
