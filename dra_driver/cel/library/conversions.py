# SPDX-License-Identifier: Apache-2.0
"""int(), uint(), double(), string(), bool(), bytes(), duration(), timestamp(), type() and dyn() (cel-go's `common`).

Values become text as `string()` and quoting in Go's `strconv` and `fmt` write them."""

import math
import re
from typing import Final

from ..check.declarations import (
    TRAVERSAL,
    UNBOUNDED,
    CallEstimate,
    CheckConstants,
    Function,
    Implementation,
    Library,
    Operand,
    Overload,
    Size,
    literal_argument,
)
from ..errors import ErrorValue
from ..types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    INT_MAX,
    INT_MIN,
    STRING,
    TIMESTAMP,
    UINT,
    UINT_MAX,
    Type,
    Uint,
    parameter,
    type_of,
)
from . import costs
from .time import MAX_SECONDS, MIN_SECONDS, SECOND, Duration, Timestamp, parse_duration, parse_timestamp
from .values import checked_int, checked_uint, no_such_overload
from .values import type_of as value_type

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


def double_text(value: float) -> str:
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
    """string(value). Raises ErrorValue for values that have no text."""
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


_A = parameter("A")
_INTEGER: Final = re.compile(r"([+-]?)([0-9]+)", re.ASCII)
_NATURAL: Final = re.compile(r"[0-9]+", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9_]+\.?[0-9_]*|\.[0-9_]+)(?:[eE][+-]?[0-9_]+)?", re.ASCII)
_HEXADECIMAL: Final = re.compile(r"[+-]?0[xX][0-9a-fA-F_]*\.?[0-9a-fA-F_]*[pP][+-]?[0-9_]+", re.ASCII)
_INFINITY: Final = re.compile(r"([+-]?)inf(?:inity)?", re.ASCII | re.IGNORECASE)
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_LONGEST: Final = 4000


def _failed(value: str, wanted: str) -> ErrorValue:
    shown = value if len(value) <= 40 else value[:40] + "…"
    return ErrorValue("conversion", f"type conversion error: {shown!r} is no {wanted}")


def _double_to_int(value: float) -> int:
    if not math.isfinite(value) or not INT_MIN < value < INT_MAX:
        raise ErrorValue("overflow", "integer overflow")
    return int(value)


def _string_to_int(value: str) -> int:
    match = _INTEGER.fullmatch(value)
    digits = match[2].lstrip("0") or "0" if match else ""
    if match is None or len(digits) > _LONGEST:
        raise _failed(value, "int")
    number = int(match[1] + digits)
    if not INT_MIN <= number <= INT_MAX:
        raise _failed(value, "int")
    return number


def _double_to_uint(value: float) -> Uint:
    if not math.isfinite(value) or not 0 <= value < UINT_MAX:
        raise ErrorValue("overflow", "unsigned integer overflow")
    return Uint(value)


def _string_to_uint(value: str) -> Uint:
    digits = value.lstrip("0") or "0"
    if not _NATURAL.fullmatch(value) or len(digits) > _LONGEST or int(digits) > UINT_MAX:
        raise _failed(value, "uint")
    return Uint(digits)


def _string_to_double(value: str) -> float:
    infinity = _INFINITY.fullmatch(value)
    if infinity:
        return -math.inf if infinity[1] == "-" else math.inf
    if value.lower() == "nan":
        return math.nan
    try:
        if _HEXADECIMAL.fullmatch(value):
            number = float.fromhex(value.replace("_", ""))
        elif _DECIMAL.fullmatch(value):
            number = float(value)
        else:
            raise _failed(value, "double")
    except (ValueError, OverflowError):
        raise _failed(value, "double") from None
    if math.isinf(number):
        raise _failed(value, "double")
    return number


def _string_to_bool(value: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise _failed(value, "bool")


def _string_to_bytes(value: str) -> bytes:
    return value.encode(errors="surrogatepass")


def _string_to_duration(value: str) -> Duration:
    duration = parse_duration(value)
    if duration is None:
        raise _failed(value, "duration (such as 1h30m or 1.5s)")
    return duration


def _int_to_duration(value: int) -> Duration:
    raise ErrorValue(
        "conversion", "type conversion error from 'int' to 'google.protobuf.Duration'"
    )  # declared, never works


def _int_to_timestamp(value: int) -> Timestamp:
    if not MIN_SECONDS <= value <= MAX_SECONDS:
        raise ErrorValue("overflow", "timestamp overflow")
    return Timestamp(value)


def _string_to_timestamp(value: str) -> Timestamp:
    timestamp = parse_timestamp(value)
    if timestamp is None:
        raise _failed(value, "timestamp (such as 2026-01-31T12:00:00Z)")
    if not timestamp.in_range:
        raise ErrorValue("overflow", "timestamp overflow")
    return timestamp


def _encoded(text: Operand) -> CallEstimate:
    size = text.size
    return CallEstimate(size.scaled(TRAVERSAL), Size(size.low, size.high * 4 % (UNBOUNDED + 1)))


def _decoded(octets: Operand) -> CallEstimate:
    size = octets.size
    return CallEstimate(size.scaled(TRAVERSAL), Size(size.low // 4, size.high))


def _same(value: object) -> object:
    return value


def _is_duration(value: object) -> bool:
    """Whether a literal can be an argument of duration()."""
    return parse_duration(value) is not None if isinstance(value, str) else not isinstance(value, int)


def _is_timestamp(value: object) -> bool:
    """Whether a literal can be an argument of timestamp()."""
    if isinstance(value, str):
        timestamp = parse_timestamp(value)
        return timestamp is not None and timestamp.in_range
    return not isinstance(value, int) or Timestamp(value).in_range


def _conversion(
    name: str, result: Type, *sources: tuple[str, Type, Implementation], constants: CheckConstants | None = None
) -> Function:
    overloads = [Overload(identifier, (given,), result, call) for identifier, given, call in sources]
    return Function(name, tuple(overloads), constants=constants)


CONVERSIONS = Library(
    functions=(
        Function("type", (Overload("type", (_A,), type_of(_A)),), dispatch=value_type),
        Function("dyn", (Overload("to_dyn", (_A,), DYN),), dispatch=_same),
        _conversion("bool", BOOL, ("bool_to_bool", BOOL, _same), ("string_to_bool", STRING, _string_to_bool)),
        Function(
            "bytes",
            (
                Overload("bytes_to_bytes", (BYTES,), BYTES, _same),
                Overload(
                    "string_to_bytes", (STRING,), BYTES, _string_to_bytes, cost=costs.read_core, estimate=_encoded
                ),
            ),
        ),
        _conversion(
            "double",
            DOUBLE,
            ("double_to_double", DOUBLE, _same),
            ("int64_to_double", INT, float),
            ("string_to_double", STRING, _string_to_double),
            ("uint64_to_double", UINT, float),
        ),
        _conversion(
            "duration",
            DURATION,
            ("duration_to_duration", DURATION, _same),
            ("int64_to_duration", INT, _int_to_duration),
            ("string_to_duration", STRING, _string_to_duration),
            constants=literal_argument(_is_duration),
        ),
        _conversion(
            "int",
            INT,
            ("int64_to_int64", INT, _same),
            ("double_to_int64", DOUBLE, _double_to_int),
            ("duration_to_int64", DURATION, lambda value: value.nanos),
            ("string_to_int64", STRING, _string_to_int),
            ("timestamp_to_int64", TIMESTAMP, lambda value: value.seconds),
            ("uint64_to_int64", UINT, lambda value: checked_int(int(value))),
        ),
        Function(
            "string",
            (
                Overload("string_to_string", (STRING,), STRING, _same),
                Overload("bool_to_string", (BOOL,), STRING, text),
                Overload("bytes_to_string", (BYTES,), STRING, text, cost=costs.read_core, estimate=_decoded),
                Overload("double_to_string", (DOUBLE,), STRING, text),
                Overload("duration_to_string", (DURATION,), STRING, text),
                Overload("int64_to_string", (INT,), STRING, text),
                Overload("timestamp_to_string", (TIMESTAMP,), STRING, text),
                Overload("uint64_to_string", (UINT,), STRING, text),
            ),
        ),
        _conversion(
            "timestamp",
            TIMESTAMP,
            ("timestamp_to_timestamp", TIMESTAMP, _same),
            ("int64_to_timestamp", INT, _int_to_timestamp),
            ("string_to_timestamp", STRING, _string_to_timestamp),
            constants=literal_argument(_is_timestamp),
        ),
        _conversion(
            "uint",
            UINT,
            ("uint64_to_uint64", UINT, _same),
            ("double_to_uint64", DOUBLE, _double_to_uint),
            ("int64_to_uint64", INT, checked_uint),
            ("string_to_uint64", STRING, _string_to_uint),
        ),
    )
)
