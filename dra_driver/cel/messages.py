# SPDX-License-Identifier: Apache-2.0
"""Names of types, and the protobuf messages that expressions can write: `google.protobuf.BoolValue{value: true}`.

Kubernetes' CEL knows protobuf's well-known types. They turn into plain CEL values at once, except
Any, which its evaluator cannot take apart.
"""

import base64
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .errors import Fault
from .maps import MapValue, TextMap
from .scalars import Extension, Uint
from .times import SECOND, Duration, Timestamp
from .types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DEVICE,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    LIST,
    MAP,
    NULL,
    OPTIONAL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    Kind,
    Type,
    list_of,
    map_of,
    wrapper,
)

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Message:
    """A message type: what the type checker makes of it, its fields, and its value."""

    type: Type
    fields: Mapping[str, Type]
    build: Callable[[Fields], object]


class EmptyMessage(Extension):
    """google.protobuf.Empty{}"""

    __slots__ = ()
    cel_type = Type(Kind.STRUCT, "google.protobuf.Empty")

    def equals(self, other: object) -> bool:
        return isinstance(other, EmptyMessage)


def _plain(default: object) -> Callable[[Fields], object]:
    return lambda fields: fields.get("value", default)


def _int32(fields: Fields) -> object:
    value = fields.get("value", 0)
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        raise Fault("overflow", "integer overflow: an Int32Value has 32 bits")
    return value


def _uint32(fields: Fields) -> object:
    value = fields.get("value", Uint(0))
    if isinstance(value, int) and value >= 1 << 32:
        raise Fault("overflow", "unsigned integer overflow: a UInt32Value has 32 bits")
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
    return Duration(max(-(1 << 63), min(nanos, (1 << 63) - 1)))


def _timestamp(fields: Fields) -> object:
    return Timestamp(_whole(fields, "seconds")).plus(_whole(fields, "nanos"))


def _any(_: Fields) -> object:
    raise Fault("unsupported_value", "a google.protobuf.Any cannot be turned into a CEL value")


def _value(fields: Fields) -> object:
    for name, value in fields.items():
        return None if name == "null_value" else _json(value)
    return None


def _struct(fields: Fields) -> object:
    return _json(fields.get("fields", TextMap({})))


def _list(fields: Fields) -> object:
    return _json(fields.get("values", []))


def _json(value: object) -> object:
    """A value after a trip through JSON: numbers become doubles, bytes and times become strings."""
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
    raise Fault("conversion", "a value that JSON cannot express")


MESSAGES: Final[Mapping[str, Message]] = {
    "google.protobuf.BoolValue": Message(wrapper(BOOL), {"value": BOOL}, _plain(False)),
    "google.protobuf.BytesValue": Message(wrapper(BYTES), {"value": BYTES}, _plain(b"")),
    "google.protobuf.DoubleValue": Message(wrapper(DOUBLE), {"value": DOUBLE}, _plain(0.0)),
    "google.protobuf.FloatValue": Message(wrapper(DOUBLE), {"value": DOUBLE}, _float32),
    "google.protobuf.Int32Value": Message(wrapper(INT), {"value": INT}, _int32),
    "google.protobuf.Int64Value": Message(wrapper(INT), {"value": INT}, _plain(0)),
    "google.protobuf.UInt32Value": Message(wrapper(UINT), {"value": UINT}, _uint32),
    "google.protobuf.UInt64Value": Message(wrapper(UINT), {"value": UINT}, _plain(Uint(0))),
    "google.protobuf.StringValue": Message(wrapper(STRING), {"value": STRING}, _plain("")),
    "google.protobuf.Duration": Message(DURATION, {"seconds": INT, "nanos": INT}, _duration),
    "google.protobuf.Timestamp": Message(TIMESTAMP, {"seconds": INT, "nanos": INT}, _timestamp),
    "google.protobuf.Any": Message(ANY, {"type_url": STRING, "value": BYTES}, _any),
    "google.protobuf.Value": Message(
        DYN,
        {
            "null_value": INT,
            "number_value": DOUBLE,
            "string_value": STRING,
            "bool_value": BOOL,
            "struct_value": map_of(STRING, DYN),
            "list_value": list_of(DYN),
        },
        _value,
    ),
    "google.protobuf.Struct": Message(map_of(STRING, DYN), {"fields": map_of(STRING, DYN)}, _struct),
    "google.protobuf.ListValue": Message(list_of(DYN), {"values": list_of(DYN)}, _list),
    "google.protobuf.Empty": Message(EmptyMessage.cel_type, {}, lambda _: EmptyMessage()),
}

TYPE_VALUES: Final[Mapping[str, Type]] = {
    known.name: known
    for known in (
        BOOL,
        BYTES,
        DOUBLE,
        DURATION,
        INT,
        LIST,
        MAP,
        NULL,
        STRING,
        TIMESTAMP,
        TYPE,
        UINT,
        OPTIONAL,
        IP,
        CIDR,
    )
} | {EmptyMessage.cel_type.name: EmptyMessage.cel_type}
"""Names of types that an expression can use as values."""

UNUSABLE_TYPES: Final[Mapping[str, Type]] = {
    **{name: message.type for name, message in MESSAGES.items() if name not in TYPE_VALUES},
    "duration": DURATION,
    "timestamp": TIMESTAMP,
    DEVICE.name: DEVICE,
}
"""Names that the type checker takes for types, and planning then cannot find."""

CONSTANTS: Final[Mapping[str, int]] = {"google.protobuf.NullValue.NULL_VALUE": 0}
"""Enumeration values."""
