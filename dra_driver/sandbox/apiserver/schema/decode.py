# SPDX-License-Identifier: Apache-2.0
"""Decoding of JSON objects by their types, like the API server's decoder.

The decoder checks types, drops nulls, drops and reports unknown fields, and normalizes quantities and times. Error
texts are those of Go's decoder. The decoder keeps no paths: an error collects its path as it propagates, and a second
walk locates unknown fields, which are rare.

For kinds without their own rules, the server checks the fields that the published schemas require. Before it stores an
object, it drops empty lists and maps, because a real server stores built-in kinds as protobuf, which does not
distinguish an empty list from none. Validation runs before that: `devices: []` beside `sharedCounters` is an error.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dra_driver.resource.quantity import Quantity, QuantityError

from .. import field_errors as errors
from ..field_errors import FieldError
from ..objects import Object, parse_timestamp, timestamp
from . import Shape, Type

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=]")
_MICROSECONDS = re.compile(r"\.\d{6}(?!\d)")
_QUANTITY_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"


class DecodeError(Exception):
    """The JSON value does not match the type."""

    def __init__(self, found: str, wanted: str, fixed: str = "") -> None:
        super().__init__(fixed)
        self.found, self.wanted, self.fixed = found, wanted, fixed
        self.struct = ""
        self.path: list[str] = []

    def __str__(self) -> str:
        if self.fixed:
            return self.fixed
        place = f"Go struct field {self.struct}.{'.'.join(reversed(self.path))}" if self.path else "Go value"
        return f"json: cannot unmarshal {self.found} into {place} of type {self.wanted}"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded object and its unknown fields, in the words of warnings and strict errors."""

    value: Object
    unknown: list[str]


def decode(value: Object, node: Type) -> Decoded:
    """Decode `value` as an object of type `node`. Raises DecodeError."""
    walk = _Walk()
    result = walk.struct(value, node)
    found = _unknown_fields(value, node, "") if walk.unknown else ()
    return Decoded(result, [f'unknown field "{path}"' for path in found])


class _Walk:
    def __init__(self) -> None:
        self.unknown = False

    def struct(self, value: Any, node: Type) -> Object:
        if type(value) is not dict:
            raise _mismatch(value, node)
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
                    result[key] = _READERS[field.shape](self, item, field)
                except DecodeError as error:
                    error.struct = error.struct or node.go_name.rpartition(".")[2]
                    error.path.append(key)
                    raise
        return result

    def map(self, value: Any, node: Type) -> Any:
        if type(value) is not dict:
            raise _mismatch(value, node)
        element = node.item
        if element.shape is Shape.ANY:
            return value
        read = _READERS[element.shape]
        result = {}
        for key, item in value.items():
            result[key] = _zero(element) if item is None else read(self, item, element)
        return result

    def list(self, value: Any, node: Type) -> Any:
        if type(value) is not list:
            raise _mismatch(value, node)
        element = node.item
        read = _READERS[element.shape]
        return [_zero(element) if item is None else read(self, item, element) for item in value]

    def integer(self, value: Any, node: Type) -> int:
        if type(value) is not int:
            raise _mismatch(value, node)
        if not -(1 << (node.bits - 1)) <= value < 1 << (node.bits - 1):
            raise DecodeError(f"number {value}", node.go_name)
        return value

    def quantity(self, value: Any, node: Type) -> str:
        if type(value) is bool or not isinstance(value, str | int | float):
            raise _mismatch(value, node)
        text: str = value if type(value) is str else json.dumps(value)
        try:
            return str(Quantity.parse(text))
        except QuantityError as error:
            fixed = f"quantities must match the regular expression '{_QUANTITY_PATTERN}'"
            raise DecodeError("", "", fixed) from error

    def time(self, value: Any, node: Type) -> str:
        return timestamp(_moment(value, node, "2006-01-02T15:04:05Z07:00"))

    def micro_time(self, value: Any, node: Type) -> str:
        layout = "2006-01-02T15:04:05.000000Z07:00"
        moment = _moment(value, node, layout)
        rest = value[len("2006-01-02T15:04:05") :]
        if not _MICROSECONDS.match(rest):
            raise DecodeError("", "", f'parsing time "{value}" as "{layout}": cannot parse "{rest}" as ".000000"')
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def bytes(self, value: Any, node: Type) -> str:
        if type(value) is not str:
            raise _mismatch(value, node)
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            bad = _NOT_BASE64.search(value)
            at = bad.start() if bad else len(value)
            raise DecodeError("", "", f"illegal base64 data at input byte {at}") from error
        return value


def _one_of(*kinds: type) -> Callable[[_Walk, Any, Type], Any]:
    """Return a reader of values of these types, which stay as they are."""

    def read(walk: _Walk, value: Any, node: Type) -> Any:
        if type(value) not in kinds:
            raise _mismatch(value, node)
        return value

    return read


_READERS: dict[Shape, Callable[[_Walk, Any, Type], Any]] = {
    Shape.STRUCT: _Walk.struct,
    Shape.MAP: _Walk.map,
    Shape.LIST: _Walk.list,
    Shape.STRING: _one_of(str),
    Shape.INTEGER: _Walk.integer,
    Shape.NUMBER: _one_of(int, float),
    Shape.BOOLEAN: _one_of(bool),
    Shape.QUANTITY: _Walk.quantity,
    Shape.INT_OR_STRING: _one_of(int, str),
    Shape.TIME: _Walk.time,
    Shape.MICRO_TIME: _Walk.micro_time,
    Shape.BYTES: _Walk.bytes,
    Shape.ANY: lambda walk, value, node: value,
}

_ZEROES: dict[Shape, Callable[[], Any]] = {
    Shape.STRUCT: dict,
    Shape.MAP: dict,
    Shape.LIST: list,
    Shape.INTEGER: int,
    Shape.NUMBER: int,
    Shape.BOOLEAN: bool,
    Shape.QUANTITY: lambda: "0",
    Shape.INT_OR_STRING: int,
    Shape.TIME: lambda: None,
    Shape.MICRO_TIME: lambda: None,
    Shape.ANY: lambda: None,
}


def _zero(node: Type) -> Any:
    """Return the value that Go decodes from a null in a list or map."""
    return _ZEROES.get(node.shape, str)()


def _moment(value: Any, node: Type, layout: str) -> datetime:
    if type(value) is not str:
        raise _mismatch(value, node)
    try:
        return parse_timestamp(value)
    except ValueError as error:
        fixed = f'parsing time {json.dumps(value)} as "{layout}": cannot parse {json.dumps(value)} as "2006"'
        raise DecodeError("", "", fixed) from error


def json_name(value: Any) -> str:
    """Return Go's name of the type of a JSON value: `string`, `number`, `bool`, `array`, `object`."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    names: dict[type, str] = {dict: "object", list: "array", str: "string"}
    return names.get(type(value), "null")


def _mismatch(value: Any, node: Type) -> DecodeError:
    found = json_name(value)
    if found == "number" and node.shape is Shape.INTEGER:
        found = f"number {json.dumps(value)}"
    return DecodeError(found, node.go_name)


def _unknown_fields(value: Any, node: Type, path: str) -> Iterator[str]:
    """Yield the paths of fields that `node` does not declare, such as `spec.requests[0].name`."""
    if node.shape is Shape.STRUCT and type(value) is dict:
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            field = node.fields.get(key)
            if field is not None:
                yield from _unknown_fields(item, field, here)
            elif not node.open:
                yield here
    elif node.shape is Shape.MAP and type(value) is dict:
        for key, item in value.items():
            yield from _unknown_fields(item, node.item, f"{path}.{key}")
    elif node.shape is Shape.LIST and type(value) is list:
        for index, item in enumerate(value):
            yield from _unknown_fields(item, node.item, f"{path}[{index}]")


def missing_fields(value: Any, node: Type, path: str = "") -> Iterator[FieldError]:
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


_GONE = object()


def without_empties(value: dict[str, Any], node: Type, *, required: bool = True) -> dict[str, Any]:
    """Return the object without its empty lists and maps, or the same object if it has none.

    With `required=False`, required lists and maps stay, as in Go's JSON. Stored objects lose all of them.
    """
    result: dict[str, Any] = _struct(value, node, required)
    return result


def _struct(value: dict[str, Any], node: Type, required: bool) -> Any:
    changed: dict[str, Any] = {}
    for name, item in value.items():
        if type(item) is dict or type(item) is list:
            field = node.fields.get(name)
            if field is not None:
                kept = _value(item, field, required)
                if kept is _GONE and not required and name in node.required:
                    continue
                if kept is not item:
                    changed[name] = kept
    if not changed:
        return value
    merged = {**value, **changed}
    return {name: item for name, item in merged.items() if item is not _GONE}


def _value(value: Any, node: Type, required: bool) -> Any:
    shape = node.shape
    if shape is Shape.STRUCT:
        return _struct(value, node, required) if type(value) is dict else value
    if shape is not Shape.LIST and shape is not Shape.MAP:
        return value
    if not value:
        return _GONE
    element = node.item
    if element.shape not in (Shape.STRUCT, Shape.LIST, Shape.MAP):
        return value
    if shape is Shape.LIST:
        items = [_inside(item, element, required) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    pairs = {key: _inside(item, element, required) for key, item in value.items()}
    return value if all(pairs[key] is item for key, item in value.items()) else pairs


def _inside(item: Any, node: Type, required: bool) -> Any:
    """Return the item without its empty lists and maps. An empty item of a list or map stays."""
    kept = _value(item, node, required)
    return item if kept is _GONE else kept
