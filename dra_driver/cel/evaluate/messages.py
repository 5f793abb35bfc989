# SPDX-License-Identifier: Apache-2.0
"""The values of protobuf messages.

Kubernetes' CEL knows protobuf's well-known types. They turn into plain CEL values at once, except
Any, which its evaluator cannot take apart.
"""

import base64
import math
import struct
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import Fault
from ..library.time import SECOND, Duration, Timestamp
from ..library.values import Extension, MapValue, TextMap
from ..types import EMPTY, Uint

Fields = Mapping[str, object]


class EmptyMessage(Extension):
    """google.protobuf.Empty{}"""

    __slots__ = ()
    cel_type = EMPTY

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


BUILDERS: Final[Mapping[str, Callable[[Fields], object]]] = {
    "google.protobuf.BoolValue": _plain(False),
    "google.protobuf.BytesValue": _plain(b""),
    "google.protobuf.DoubleValue": _plain(0.0),
    "google.protobuf.FloatValue": _float32,
    "google.protobuf.Int32Value": _int32,
    "google.protobuf.Int64Value": _plain(0),
    "google.protobuf.UInt32Value": _uint32,
    "google.protobuf.UInt64Value": _plain(Uint(0)),
    "google.protobuf.StringValue": _plain(""),
    "google.protobuf.Duration": _duration,
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Any": _any,
    "google.protobuf.Struct": _struct,
    "google.protobuf.ListValue": _list,
    "google.protobuf.Empty": lambda _: EmptyMessage(),
    "google.protobuf.Value": _value,
}
"""How the value of a message is made of its fields. (Any has no value.)"""
