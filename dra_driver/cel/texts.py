# SPDX-License-Identifier: Apache-2.0
"""Values as text, the way `string()` and quoting in Go's `strconv` and `fmt` write them."""

import math
from typing import Final

from .errors import Fault
from .scalars import Uint
from .times import SECOND, Duration, Timestamp
from .types import Type
from .values import no_such_overload

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


def double(value: float) -> str:
    """The shortest text that reads back as the same double: `0.1`, `1e+06`, `+Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = _shortest(value)
    if -4 <= exponent < _PLAIN_DIGITS:
        return _fixed(value)
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _shortest(value: float) -> tuple[str, str, int]:
    """Sign, significant digits, and the power of ten of the first one."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    exponent = int(power or "0") + len(whole) - 1
    digits = whole + fraction
    leading = len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return (sign, digits, exponent - leading) if digits else (sign, "0", 0)


def seconds(value: Duration) -> str:
    """A duration as `90s` or `1.5s`."""
    return _fixed(value.in_units(SECOND)) + "s"


def _fixed(value: float) -> str:
    """The shortest text without an exponent."""
    sign, digits, exponent = _shortest(value)
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return sign + whole + ("." + fraction if fraction else "")


def text(value: object) -> str:
    """string(value). Raises Fault for values that have no text."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Uint() | int():
            return str(int(value))
        case float():
            return double(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise Fault("conversion", "invalid UTF-8 in bytes, cannot convert to string") from None
        case Duration():
            return seconds(value)
        case Timestamp():
            return str(value)
        case Type():
            return value.name
    raise no_such_overload("string", value)


def escaped(value: str) -> str:
    """The string in double quotes with the escapes that CEL has names for."""
    return '"' + "".join(_NAMED.get(character, character) for character in value) + '"'


def quoted(value: str) -> str:
    """The string in double quotes with everything escaped that does not print."""
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
