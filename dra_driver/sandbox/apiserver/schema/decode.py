# SPDX-License-Identifier: Apache-2.0
"""Decoding of JSON objects by their types, like the API server's decoder.

The decoder checks types, drops nulls, drops and reports unknown fields, and normalizes quantities and times. It keeps
no paths: an error collects its path as it propagates, and a second walk locates unknown fields, which are rare.

The decoder also drops empty lists and maps of published kinds, because a real server stores these kinds as protobuf,
which does not distinguish an empty list from none. For kinds without their own rules, the server checks the fields that
the published schemas require.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.errors import QuantityError
from dra_driver.kube.resource.codec import json_type
from dra_driver.kube.resource.quantity import Quantity

from .. import field_errors as errors
from ..field_errors import FieldError
from ..objects import Object, parse_timestamp, timestamp
from ..opaque import DEFINITION, Opaque, opaque, plain
from . import SchemaType, Shape

_MICRO_TIME = re.compile(r"[^.]*\.\d{6}(?!\d).*")

_JSON_TYPES: Final[dict[Shape, tuple[type, ...]]] = {
    Shape.STRUCT: (dict, Opaque),
    Shape.MAP: (dict, Opaque),
    Shape.LIST: (list,),
    Shape.INTEGER: (int,),
    Shape.NUMBER: (int, float),
    Shape.BOOLEAN: (bool,),
    Shape.QUANTITY: (str, int, float),
    Shape.INT_OR_STRING: (int, str),
}
"""The JSON types of values. A shape that is not here is a string."""


class TypeMismatchError(Exception):
    """The JSON value does not match the type."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: list[str] = []

    def __str__(self) -> str:
        problem = super().__str__()
        return f"{'.'.join(reversed(self.path))}: {problem}" if self.path else problem


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded object and its unknown fields, in the words of warnings and strict errors."""

    value: Object
    unknown: list[str]


def decode(value: Object, node: SchemaType) -> Decoded:
    """Decode `value` as an object of type `node`. Raises TypeMismatchError."""
    walk = _Walk()
    result = walk.struct(value, node)
    found = _unknown_fields(value, node, "") if walk.unknown else ()
    return Decoded(result, [f'unknown field "{path}"' for path in found])


class _Walk:
    def __init__(self) -> None:
        self.unknown = False

    def struct(self, value: Any, node: SchemaType) -> Object:
        _check(value, node)
        fields = node.fields
        result = {}
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                if node.open:
                    result[key] = item
                else:
                    self.unknown = True
            elif item is not None:
                try:
                    decoded = _READERS[field.shape](self, item, field)
                except TypeMismatchError as error:
                    error.path.append(key)
                    raise
                if decoded or not node.definition or (field.shape is not Shape.LIST and field.shape is not Shape.MAP):
                    result[key] = decoded
        return result

    def map(self, value: Any, node: SchemaType) -> Any:
        _check(value, node)
        element = node.item
        if element.shape is Shape.ANY:
            return value
        read = _READERS[element.shape]
        return {key: read(self, item, element) for key, item in value.items() if item is not None}

    def list(self, value: Any, node: SchemaType) -> Any:
        _check(value, node)
        element = node.item
        read = _READERS[element.shape]
        return [read(self, item, element) for item in value if item is not None]

    def scalar(self, value: Any, node: SchemaType) -> Any:
        _check(value, node)
        return value

    def quantity(self, value: Any, node: SchemaType) -> str:
        _check(value, node)
        try:
            return str(Quantity.parse(value if type(value) is str else json.dumps(value)))
        except QuantityError as error:
            raise TypeMismatchError(str(error)) from error

    def time(self, value: Any, node: SchemaType) -> str:
        return timestamp(_moment(value, node))

    def micro_time(self, value: Any, node: SchemaType) -> str:
        moment = _moment(value, node)
        if not _MICRO_TIME.fullmatch(value):
            raise TypeMismatchError(f"{value!r} must have six digits after the seconds")
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def bytes(self, value: Any, node: SchemaType) -> str:
        _check(value, node)
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise TypeMismatchError(f"is not base64: {error}") from error
        text: str = value
        return text

    def any(self, value: Any, node: SchemaType) -> Any:
        if node.definition == DEFINITION:
            return opaque(value)
        return plain(value) if type(value) is Opaque else value


_READERS: Final[dict[Shape, Callable[[_Walk, Any, SchemaType], Any]]] = {
    Shape.STRUCT: _Walk.struct,
    Shape.MAP: _Walk.map,
    Shape.LIST: _Walk.list,
    Shape.STRING: _Walk.scalar,
    Shape.INTEGER: _Walk.scalar,
    Shape.NUMBER: _Walk.scalar,
    Shape.BOOLEAN: _Walk.scalar,
    Shape.QUANTITY: _Walk.quantity,
    Shape.INT_OR_STRING: _Walk.scalar,
    Shape.TIME: _Walk.time,
    Shape.MICRO_TIME: _Walk.micro_time,
    Shape.BYTES: _Walk.bytes,
    Shape.ANY: _Walk.any,
}


def _check(value: Any, node: SchemaType) -> None:
    if type(value) not in _JSON_TYPES.get(node.shape, (str,)):
        raise TypeMismatchError(f"must be of type {node.shape.value}, not {json_type(value)}")


def _moment(value: Any, node: SchemaType) -> datetime:
    _check(value, node)
    try:
        return parse_timestamp(value)
    except ValueError as error:
        raise TypeMismatchError(str(error)) from error


def _unknown_fields(value: Any, node: SchemaType, path: str) -> Iterator[str]:
    """Yield the paths of fields that `node` does not declare, such as `spec.requests[0].name`."""
    if node.shape is Shape.STRUCT and isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            field = node.fields.get(key)
            if field is not None:
                yield from _unknown_fields(item, field, here)
            elif not node.open:
                yield here
    elif node.shape is Shape.MAP and isinstance(value, dict):
        for key, item in value.items():
            yield from _unknown_fields(item, node.item, f"{path}.{key}")
    elif node.shape is Shape.LIST and type(value) is list:
        for index, item in enumerate(value):
            yield from _unknown_fields(item, node.item, f"{path}[{index}]")


def missing_fields(  # noqa: C901  # one branch for each form of a schema
    value: Any, node: SchemaType, path: str = ""
) -> Iterator[FieldError]:
    """Yield errors for required fields that are absent or empty texts. Metadata and status are not checked."""
    if node.shape is Shape.STRUCT and isinstance(value, dict):
        for name in node.required:
            if not path and name in ("metadata", "status"):
                continue
            if name not in value or (value[name] == "" and node.fields[name].shape is Shape.STRING):
                yield errors.required(f"{path}.{name}" if path else name)
        for name, item in value.items():
            if path or name not in ("metadata", "status"):
                here = f"{path}.{name}" if path else name
                yield from missing_fields(item, node.child(name), here)
    elif node.shape is Shape.LIST and isinstance(value, list):
        for index, item in enumerate(value):
            yield from missing_fields(item, node.item, f"{path}[{index}]")
    elif node.shape is Shape.MAP and isinstance(value, dict) and node.item.shape is not Shape.STRING:
        for key, item in value.items():
            yield from missing_fields(item, node.item, f"{path}[{key}]")
