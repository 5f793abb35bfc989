# SPDX-License-Identifier: Apache-2.0
"""Conversions between types: int(), string(), duration() and similar functions, and protobuf messages.

The messages that expressions can write, such as `google.protobuf.BoolValue{value: true}`, become plain CEL values
immediately. Only Any does not, because Kubernetes' evaluator cannot convert it. Follows cel-go's `common`.
"""

import base64
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..declarations import (
    CEL_GO_29,
    CelLibrary,
    Cost,
    Function,
    Overload,
    Row,
    function,
    literal_argument,
)
from ..errors import ErrorValue
from ..sizes import UNBOUNDED, CallEstimate, Operand, Size, traversal
from ..types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    EMPTY,
    INT,
    INT_MAX,
    INT_MIN,
    STRING,
    TIMESTAMP,
    UINT,
    UINT_MAX,
    Uint,
    parameter,
    type_of,
)
from .formatting import text
from .time import MAX_SECONDS, MIN_SECONDS, SECOND, Duration, Timestamp, parse_duration, parse_timestamp
from .values import Extension, MapValue, TextMap, checked_int, checked_uint, read_core
from .values import type_of as value_type

_A = parameter("A")
_INTEGER: Final = re.compile(r"([+-]?)([0-9]+)", re.ASCII)
_NATURAL: Final = re.compile(r"[0-9]+", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9_]+\.?[0-9_]*|\.[0-9_]+)(?:[eE][+-]?[0-9_]+)?", re.ASCII)
_HEXADECIMAL: Final = re.compile(r"[+-]?0[xX][0-9a-fA-F_]*\.?[0-9a-fA-F_]*[pP][+-]?[0-9_]+", re.ASCII)
_INFINITY: Final = re.compile(r"([+-]?)inf(?:inity)?", re.ASCII | re.IGNORECASE)
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_LONGEST: Final = 4000

Fields = Mapping[str, object]


def _failed(value: str, wanted: str) -> ErrorValue:
    shown = value if len(value) <= 40 else value[:40] + "…"
    return ErrorValue("conversion", f"type conversion error: {shown!r} is not a valid {wanted}")


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
    # cel-go declares this conversion, but does not implement it
    raise ErrorValue("conversion", "type conversion error from 'int' to 'google.protobuf.Duration'")


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
    return CallEstimate(traversal(text), Size(text.size.low, text.size.high * 4 % (UNBOUNDED + 1)))


def _decoded(octets: Operand) -> CallEstimate:
    return CallEstimate(traversal(octets), Size(octets.size.low // 4, octets.size.high))


def _same(value: object) -> object:
    return value


def _is_duration(value: object) -> bool:
    """Whether duration() accepts a literal."""
    return parse_duration(value) is not None if isinstance(value, str) else not isinstance(value, int)


def _is_timestamp(value: object) -> bool:
    """Whether timestamp() accepts a literal."""
    if isinstance(value, str):
        timestamp = parse_timestamp(value)
        return timestamp is not None and timestamp.in_range
    return not isinstance(value, int) or Timestamp(value).in_range


INT_DURATIONS = CelLibrary(
    function("duration", ("int64_to_duration", (INT,), DURATION, _int_to_duration)),
    until=CEL_GO_29,
)


def _conversion(name: str, *rows: Row | Overload, **options: Any) -> Function:
    """A function that converts a value. A conversion of a constant is a constant."""
    return replace(function(name, *rows, **options), folds=True)


CONVERSIONS = CelLibrary(
    _conversion("type", ("type", (_A,), type_of(_A)), dispatch=value_type),
    _conversion("dyn", ("to_dyn", (_A,), DYN), dispatch=_same),
    _conversion("bool", ("bool_to_bool", (BOOL,), BOOL, _same), ("string_to_bool", (STRING,), BOOL, _string_to_bool)),
    _conversion(
        "bytes",
        ("bytes_to_bytes", (BYTES,), BYTES, _same),
        Overload("string_to_bytes", (STRING,), BYTES, _string_to_bytes, cost=Cost(read_core, _encoded)),
    ),
    _conversion(
        "double",
        ("double_to_double", (DOUBLE,), DOUBLE, _same),
        ("int64_to_double", (INT,), DOUBLE, float),
        ("string_to_double", (STRING,), DOUBLE, _string_to_double),
        ("uint64_to_double", (UINT,), DOUBLE, float),
    ),
    _conversion(
        "duration",
        ("duration_to_duration", (DURATION,), DURATION, _same),
        ("string_to_duration", (STRING,), DURATION, _string_to_duration),
        constants=literal_argument(_is_duration),
    ),
    _conversion(
        "int",
        ("int64_to_int64", (INT,), INT, _same),
        ("double_to_int64", (DOUBLE,), INT, _double_to_int),
        ("duration_to_int64", (DURATION,), INT, lambda value: value.nanos),
        ("string_to_int64", (STRING,), INT, _string_to_int),
        ("timestamp_to_int64", (TIMESTAMP,), INT, lambda value: value.seconds),
        ("uint64_to_int64", (UINT,), INT, lambda value: checked_int(int(value))),
    ),
    _conversion(
        "string",
        ("string_to_string", (STRING,), STRING, _same),
        ("bool_to_string", (BOOL,), STRING, text),
        Overload("bytes_to_string", (BYTES,), STRING, text, cost=Cost(read_core, _decoded)),
        ("double_to_string", (DOUBLE,), STRING, text),
        ("duration_to_string", (DURATION,), STRING, text),
        ("int64_to_string", (INT,), STRING, text),
        ("timestamp_to_string", (TIMESTAMP,), STRING, text),
        ("uint64_to_string", (UINT,), STRING, text),
    ),
    _conversion(
        "timestamp",
        ("timestamp_to_timestamp", (TIMESTAMP,), TIMESTAMP, _same),
        ("int64_to_timestamp", (INT,), TIMESTAMP, _int_to_timestamp),
        ("string_to_timestamp", (STRING,), TIMESTAMP, _string_to_timestamp),
        constants=literal_argument(_is_timestamp),
    ),
    _conversion(
        "uint",
        ("uint64_to_uint64", (UINT,), UINT, _same),
        ("double_to_uint64", (DOUBLE,), UINT, _double_to_uint),
        ("int64_to_uint64", (INT,), UINT, checked_uint),
        ("string_to_uint64", (STRING,), UINT, _string_to_uint),
    ),
)


# Messages


class EmptyMessage(Extension):
    """google.protobuf.Empty{}"""

    __slots__ = ()
    cel_type = EMPTY

    def equals(self, other: object) -> bool:
        return isinstance(other, EmptyMessage)


def _wrapped(default: object) -> Callable[[Fields], object]:
    """Builds a wrapper message whose value is the field `value`."""
    return lambda fields: fields.get("value", default)


def _int32(fields: Fields) -> object:
    value = fields.get("value", 0)
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        raise ErrorValue("overflow", "integer overflow: an Int32Value has 32 bits")
    return value


def _uint32(fields: Fields) -> object:
    value = fields.get("value", Uint(0))
    if isinstance(value, int) and value >= 1 << 32:
        raise ErrorValue("overflow", "unsigned integer overflow: a UInt32Value has 32 bits")
    return value


def _float32(fields: Fields) -> object:
    value = fields.get("value", 0.0)
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _whole(fields: Fields, name: str) -> int:
    value = fields.get(name, 0)
    return value if isinstance(value, int) else 0


def _duration(fields: Fields) -> object:
    nanos = _whole(fields, "seconds") * SECOND + _whole(fields, "nanos")
    return Duration(max(INT_MIN, min(nanos, INT_MAX)))


def _timestamp(fields: Fields) -> object:
    return Timestamp(_whole(fields, "seconds")).plus(_whole(fields, "nanos"))


def _any(_: Fields) -> object:
    raise ErrorValue("unsupported_value", "a google.protobuf.Any cannot be turned into a CEL value")


def _json_value(fields: Fields) -> object:
    for name, value in fields.items():
        return None if name == "null_value" else _json(value)
    return None


def _json(value: object) -> object:
    """The value after a conversion to JSON and back. Numbers become doubles, bytes and timestamps become strings."""
    if isinstance(value, bool | str | float | None):
        return value
    if isinstance(value, int):
        return float(value) if abs(value) < 1 << 53 else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Timestamp):
        return str(value)
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, MapValue):
        return TextMap({str(key): _json(item) for key, item in value.items()})
    raise ErrorValue("conversion", "the value cannot be converted to JSON")


MESSAGE_BUILDERS: Final[Mapping[str, Callable[[Fields], object]]] = {
    "google.protobuf.BoolValue": _wrapped(False),
    "google.protobuf.BytesValue": _wrapped(b""),
    "google.protobuf.DoubleValue": _wrapped(0.0),
    "google.protobuf.FloatValue": _float32,
    "google.protobuf.Int32Value": _int32,
    "google.protobuf.Int64Value": _wrapped(0),
    "google.protobuf.UInt32Value": _uint32,
    "google.protobuf.UInt64Value": _wrapped(Uint(0)),
    "google.protobuf.StringValue": _wrapped(""),
    "google.protobuf.Duration": _duration,
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Any": _any,
    "google.protobuf.Struct": lambda fields: _json(fields.get("fields", TextMap({}))),
    "google.protobuf.ListValue": lambda fields: _json(fields.get("values", [])),
    "google.protobuf.Empty": lambda _: EmptyMessage(),
    "google.protobuf.Value": _json_value,
}
"""Functions that make the value of a message from its fields. They raise ErrorValue."""
