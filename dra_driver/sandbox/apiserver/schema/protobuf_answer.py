# SPDX-License-Identifier: Apache-2.0
"""Encoding of single objects in Kubernetes' protobuf, for clients that need the bytes of opaque objects.

Fields that are unset in JSON are absent from the message. Go clients read both in the same way.
"""

import base64
import struct
from typing import Any, Final

from ..objects import Object, encode, parse_timestamp
from ..opaque import Opaque
from . import SchemaType, Shape
from .protobuf import MAGIC, wire_fields

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2


def encode_object(value: Object, node: SchemaType) -> bytes:
    """Return the body with an object of type `node` that has `apiVersion` and `kind`. Raises WireError."""
    head = _text(1, value["apiVersion"]) + _text(2, value["kind"])
    return MAGIC + _field(1, head) + _field(2, _message(value, node, node.definition))


def _message(value: Object, node: SchemaType, definition: str) -> bytes:
    parts = []
    for number, field in wire_fields(definition).items():
        if field.inlined:
            parts.append(_field(number, _message(value, node, field.inlined)))
        elif value.get(field.name) is not None and field.name in node.fields:
            parts.append(_put(number, value[field.name], node.fields[field.name]))
    return b"".join(parts)


def _put(number: int, value: Any, node: SchemaType) -> bytes:
    if node.shape is Shape.LIST:
        return b"".join(_single(number, item, node.item) for item in value)
    if node.shape is Shape.MAP:
        entries = (_text(1, key) + _single(2, item, node.item) for key, item in value.items())
        return b"".join(_field(number, entry) for entry in entries)
    return _single(number, value, node)


def _single(number: int, value: Any, node: SchemaType) -> bytes:
    match node.shape:
        case Shape.STRING:
            return _text(number, value)
        case Shape.INTEGER | Shape.BOOLEAN:
            return _integer(number, int(value))
        case Shape.NUMBER:
            return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)
        case Shape.BYTES:
            return _field(number, base64.b64decode(value))
        case _:
            return _field(number, _submessage(value, node))


def _submessage(value: Any, node: SchemaType) -> bytes:
    match node.shape:
        case Shape.STRUCT:
            return _message(value, node, node.definition)
        case Shape.QUANTITY:
            return _text(1, value)
        case Shape.TIME | Shape.MICRO_TIME:
            moment = parse_timestamp(value)
            return _integer(1, int(moment.timestamp())) + _integer(2, moment.microsecond * 1000)
        case Shape.INT_OR_STRING:
            return _integer(2, value) if isinstance(value, int) else _integer(1, 1) + _text(3, value)
        case Shape.LIST:
            return b"".join(_text(1, item) for item in value)
        case _:
            return _field(1, value.text.encode() if type(value) is Opaque else encode(value))


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
