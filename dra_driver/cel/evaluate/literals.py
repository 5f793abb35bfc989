# SPDX-License-Identifier: Apache-2.0
"""Lists, maps and messages that an expression writes, and membership in lists of constants.

Kubernetes' CEL knows protobuf's well-known messages. They turn into plain CEL values at once, except
Any, which its evaluator cannot take apart.
"""

import base64
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..errors import ErrorValue
from ..library.time import SECOND, Duration, Timestamp
from ..library.values import Extension, LiteralMap, MapValue, OptionalValue, TextMap, hashable
from ..syntax.tree import Entry, Literal
from ..types import EMPTY, INT_MAX, INT_MIN, UINT_MAX, Uint
from .calls import located
from .frame import Frame
from .paths import Run

_IN_SET: Final = frozenset((bool, int, Uint, float, str))


def _part(run: Run, frame: Frame, offset: int, *, optional: bool) -> object:
    """The value of an element or entry, which is an optional for an optional one, or a ErrorValue."""
    value = run(frame)
    if optional and not isinstance(value, OptionalValue | ErrorValue):
        return ErrorValue("other", "an optional entry needs an optional value", offset)
    return value


def list_of(elements: Sequence[Run], optional: frozenset[int], offset: int) -> Run:
    """[a, ?b]"""

    def run(frame: Frame) -> object:
        values: list[object] = []
        for index, element in enumerate(elements):
            value = _part(element, frame, offset, optional=index in optional)
            if value.__class__ is ErrorValue:
                return value
            if index not in optional or not isinstance(value, OptionalValue):
                values.append(value)
            elif value.present:
                values.append(value.value)
        return values

    return run


def map_of(parts: Sequence[tuple[Run, Run]], entries: Sequence[Entry], offset: int) -> Run:
    """{a: b, ?c: d}"""

    def run(frame: Frame) -> object:
        built = LiteralMap()
        for (key_run, value_run), entry in zip(parts, entries, strict=True):
            key = key_run(frame)
            if key.__class__ is ErrorValue:
                return key
            value = _part(value_run, frame, offset, optional=entry.optional)
            if value.__class__ is ErrorValue:
                return value
            if not entry.optional or not isinstance(value, OptionalValue):
                built.insert(key, value)
            elif value.present:
                built.insert(key, value.value)
            else:
                built.remove(key)
        return built

    return run


def message_of(name: str, values: Sequence[Run], entries: Sequence[Entry], offset: int) -> Run:
    """some.Message{a: b}"""
    build = _BUILDERS.get(name)
    names = [str(entry.key.value) for entry in entries if isinstance(entry.key, Literal)]

    def run(frame: Frame) -> object:
        fields: dict[str, object] = {}
        for field, value_run, entry in zip(names, values, entries, strict=True):
            value = _part(value_run, frame, offset, optional=entry.optional)
            if value.__class__ is ErrorValue:
                return value
            if not entry.optional or not isinstance(value, OptionalValue):
                fields[field] = value
            elif value.present:
                fields[field] = value.value
            else:
                fields.pop(field, None)
        if build is None:  # the type checker knows the type, the evaluator does not
            return ErrorValue("other", f"unknown type '{name}'", offset)
        try:
            return build(fields)
        except ErrorValue as fault:
            return located(fault, offset)

    return run


def membership(element: Run, elements: list[object]) -> Run | None:
    """`element in [constants]` by a hash look-up, None where that is not possible."""
    if any(item.__class__ not in _IN_SET for item in elements):
        return None
    members = frozenset(hashable(twin) for item in elements for twin in _twins(item) if twin == twin)

    def run(frame: Frame) -> object:
        value = element(frame)
        return value if value.__class__ is ErrorValue else hashable(value) in members

    return run


def _twins(item: object) -> Sequence[object]:
    """The item and the numbers of other types that stand for it in a set."""
    twins: list[object] = [item]
    if isinstance(item, float):
        if item.is_integer():
            whole = int(item)
            twins += [whole] * (INT_MIN <= whole <= INT_MAX) + [Uint(whole)] * (0 <= whole <= UINT_MAX)
    elif isinstance(item, int) and item.__class__ is not bool:
        whole = int(item)
        twins.append(float(whole))
        twins += [whole] * (whole <= INT_MAX) + [Uint(whole)] * (whole >= 0)
    return twins


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
    return Duration(max(-(1 << 63), min(nanos, (1 << 63) - 1)))


def _timestamp(fields: Fields) -> object:
    return Timestamp(_whole(fields, "seconds")).plus(_whole(fields, "nanos"))


def _any(_: Fields) -> object:
    raise ErrorValue("unsupported_value", "a google.protobuf.Any cannot be turned into a CEL value")


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
    raise ErrorValue("conversion", "a value that JSON cannot express")


_BUILDERS: Final[Mapping[str, Callable[[Fields], object]]] = {
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
