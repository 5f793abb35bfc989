# SPDX-License-Identifier: Apache-2.0
"""Decoding of protobuf request bodies: from Kubernetes' wire format to JSON objects.

Typed Go clients (`kubectl create`, `kubectl auth`, the scheduler) send protobuf by default. The published schemas
define the fields, and `wire.json` their numbers, which no Python package has (tests/sandbox/apiserver/wire_table.py
writes it). Kinds of apiextensions.k8s.io are not in the table. Single objects are also answered in protobuf
(`protobuf_answer`). All other answers are JSON, which these clients accept.
"""

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ..objects import Object, timestamp
from ..opaque import Opaque
from . import SchemaType, Shape

WIRE_FILE: Final = Path(__file__).with_name("wire.json")
MAGIC: Final = b"k8s\x00"
_FIXED64: Final = 1


class WireError(Exception):
    """The bytes are not a message of the kind."""


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a message."""

    name: str
    pointer: bool
    inlined: str
    """The message whose fields belong to the parent message. Empty if there is none."""


@lru_cache(maxsize=1)
def _table() -> dict[str, str]:
    table: dict[str, str] = json.loads(WIRE_FILE.read_text(encoding="utf-8"))
    return table


@lru_cache(maxsize=1024)
def wire_fields(definition: str) -> dict[int, WireField]:
    """Return the fields of a message by their numbers. Raises WireError."""
    text = _table().get(definition)
    if text is None:
        raise WireError(f"{definition} is not read from protobuf here; send JSON")
    found = {}
    for entry in text.split():
        name, _, rest = entry.partition("=")
        number, _, inlined = rest.partition("@")
        found[int(number.rstrip("*"))] = WireField(name, number.endswith("*"), inlined)
    return found


def read_envelope(body: bytes) -> tuple[Object, bytes]:
    """Return the kind and apiVersion of a body, and the message in it. Raises WireError."""
    if not body.startswith(MAGIC):
        raise WireError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    head: Object = {}
    raw = b""
    for number, value in _entries(body[len(MAGIC) :]):
        if number == 1:
            for inner, text in _entries(_bytes(value)):
                head[{1: "apiVersion", 2: "kind"}.get(inner, "")] = _bytes(text).decode()
        elif number == 2:
            raw = _bytes(value)
    head.pop("", None)
    return head, raw


def decode_message(data: bytes, node: SchemaType) -> Object:
    """Return the JSON object that a message of type `node` stands for. Raises WireError."""
    return _message(data, node, node.definition)


def _message(data: bytes, node: SchemaType, definition: str) -> Object:
    result: Object = {}
    fields = wire_fields(definition)
    for number, value in _entries(data):
        field = fields.get(number)
        if field is None:
            continue  # a field of a newer client
        if field.inlined:
            result.update(_message(_bytes(value), node, field.inlined))
            continue
        child = node.fields.get(field.name)
        if child is None:
            continue
        _put(result, field, child, value, required=field.name in node.required)
    return result


def _put(result: Object, field: WireField, node: SchemaType, value: "int | bytes", *, required: bool) -> None:
    name = field.name
    if node.shape is Shape.LIST:
        result.setdefault(name, []).append(_value(value, node.item))
    elif node.shape is Shape.MAP:
        entry = dict(_entries(_bytes(value)))
        key = _bytes(entry.get(1, b"")).decode()
        result.setdefault(name, {})[key] = _value(entry.get(2, b""), node.item)
    else:
        decoded = _value(value, node)
        # Fields that are not pointers are on the wire even when they are unset. JSON leaves them out.
        if decoded is not None and (field.pointer or required or decoded not in ("", 0, {})):
            result[name] = decoded


def _value(value: "int | bytes", node: SchemaType) -> Any:  # noqa: C901  # one branch for each type of a field
    match node.shape:
        case Shape.STRUCT:
            return _message(_bytes(value), node, node.definition)
        case Shape.STRING:
            return _bytes(value).decode()
        case Shape.INTEGER:
            return _signed(_integer(value))
        case Shape.BOOLEAN:
            return bool(_integer(value))
        case Shape.NUMBER:
            return struct.unpack("<d", _bytes(value))[0]
        case Shape.BYTES:
            return base64.b64encode(_bytes(value)).decode()
        case Shape.QUANTITY:
            return _text(value) or "0"
        case Shape.TIME:
            moment = _moment(value)
            return None if moment is None else timestamp(moment)
        case Shape.MICRO_TIME:
            moment = _moment(value)
            return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case Shape.INT_OR_STRING:
            parts = dict(_entries(_bytes(value)))
            return _bytes(parts.get(3, b"")).decode() if parts.get(1) else _signed(_integer(parts.get(2, 0)))
        case Shape.MAP:
            return _raw(value)
        case Shape.LIST:
            return [_bytes(item).decode() for _, item in _entries(_bytes(value))]
        case Shape.ANY:
            return _raw(value)


def _text(value: "int | bytes") -> str:
    """Return the text of a message that has only one text field."""
    return _bytes(dict(_entries(_bytes(value))).get(1, b"")).decode()


def _raw(value: "int | bytes") -> Any:
    """Return the JSON inside a RawExtension or FieldsV1."""
    text = _text(value)
    try:
        found = json.loads(text) if text else None
        return Opaque(found, text) if isinstance(found, dict) else found
    except ValueError as error:
        raise WireError(f"raw JSON in the message cannot be read: {error}") from error


def _moment(value: "int | bytes") -> datetime | None:
    parts = dict(_entries(_bytes(value)))
    seconds, nanos = _signed(_integer(parts.get(1, 0))), _integer(parts.get(2, 0))
    if not seconds and not nanos:
        return None
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)


def _bytes(value: "int | bytes") -> bytes:
    if isinstance(value, int):
        raise WireError("a number is where bytes are expected")
    return value


def _integer(value: "int | bytes") -> int:
    if isinstance(value, bytes):
        raise WireError("bytes are where a number is expected")
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _entries(encoded: bytes) -> "Iterator[tuple[int, int | bytes]]":
    """Yield the fields of a message: their numbers and raw values."""
    message = Empty()
    try:
        message.ParseFromString(encoded)
    except DecodeError as error:
        raise WireError(f"the message cannot be read: {error}") from error
    fields: Any = UnknownFieldSet(message)
    for field in fields:
        data: Any = field.data
        if type(data) not in (int, bytes):
            raise WireError(f"wire type {field.wire_type} is not used by Kubernetes")
        yield field.field_number, data.to_bytes(8, "little") if field.wire_type == _FIXED64 else data
