# SPDX-License-Identifier: Apache-2.0
"""Conversion between JSON objects and Kubernetes' protobuf messages.

Typed Go clients (`kubectl create`, `kubectl auth`, the scheduler) send protobuf by default. Single objects are also
answered in protobuf, for clients that need the bytes of opaque objects. All other answers are JSON, which these clients
accept.

`dra_driver.sandbox.proto` has the messages. The published schema of a kind tells which fields the release has, and
which of them JSON always has. `json_forms` has the messages that are not objects in JSON, such as quantities. Kinds of
apiextensions.k8s.io have no messages.
"""

import base64
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ...proto import NotCompiledError, message_class
from ..objects import Object
from . import SchemaType
from .json_forms import FORMS, JsonForm

Field = Any
"""A `FieldDescriptor`. In its stubs, the implementations of protobuf have different types."""

MAGIC: Final = b"k8s\x00"
_ENVELOPE: Final = "k8s.io.apimachinery.pkg.runtime.Unknown"
"""The message with the kind and the bytes of an object. It follows `MAGIC` in a body."""


class WireError(Exception):
    """The bytes are not a message of the kind, or the kind has no message."""


def read_envelope(body: bytes) -> tuple[Object, bytes]:
    """Return the kind and apiVersion of a body, as far as it has them, and the message in it. Raises WireError."""
    if not body.startswith(MAGIC):
        raise WireError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    envelope: Any = _parse(_class_of(_ENVELOPE), body[len(MAGIC) :])
    return {field.name: text for field, text in envelope.typeMeta.ListFields()}, envelope.raw


def decode_message(data: bytes, node: SchemaType) -> Object:
    """Return the JSON object that a message of type `node` stands for. Raises WireError."""
    return _json_object(_parse(_class_of(message_name(node.definition)), data), node)


def encode_object(value: Object, node: SchemaType) -> bytes:
    """Return the body with an object of type `node` that has `apiVersion` and `kind`. Raises WireError.

    Fields that are unset in JSON are absent from the message. Go clients read both in the same way.
    """
    head = {field: value[field] for field in ("apiVersion", "kind")}
    try:
        raw = _message(_class_of(message_name(node.definition)).DESCRIPTOR, value, node).SerializeToString()
    except ValueError as error:
        raise WireError(f"the object has no form in protobuf: {error}") from error
    return MAGIC + _class_of(_ENVELOPE)(typeMeta=head, raw=raw).SerializeToString()


def is_pointer(field: Field) -> bool:
    """Return whether a field is `optional` in the definitions. Such a field is a oneof of its own."""
    return field.containing_oneof is not None


def is_inlined(field: Field) -> bool:
    """Return whether JSON has the fields of this message in the parent object."""
    return bool(field.json_name == "inline")


def is_map(field: Field) -> bool:
    """Return whether a field is a map. Its message has the fields `key` and `value`."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def message_name(definition: str) -> str:
    """Return the full name of the message for an OpenAPI definition, such as `io.k8s.api.core.v1.Pod`."""
    return f"k8s.io.{definition.removeprefix('io.k8s.')}"


def _class_of(name: str) -> type[Message]:
    try:
        return message_class(name)
    except KeyError:
        raise WireError(f"{name} is not read from protobuf here; send JSON") from None
    except NotCompiledError as error:
        raise WireError(str(error)) from error


def _parse(kind: type[Message], data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(f"the message cannot be read: {error}") from error


def _json_object(message: Message, node: SchemaType) -> Object:
    _check_wire_types(message)
    result: Object = {}
    for field, value in message.ListFields():
        if is_inlined(field):
            result.update(_json_object(value, node))
        elif field.name in node.fields:
            decoded = _json_field(field, value, node.fields[field.name])
            # Go sends messages that are not pointers even if they are unset. JSON leaves them out.
            kept = is_pointer(field) or field.name in node.required
            if decoded is not None and (kept or decoded not in ("", 0, {})):
                result[field.name] = decoded
    for name in node.required:
        unset: Field = message.DESCRIPTOR.fields_by_name.get(name)
        if name not in result and unset is not None and not unset.has_presence and not unset.is_repeated:
            result[name] = _json_value(unset, getattr(message, name), node.fields[name])
    return result


def _check_wire_types(message: Message) -> None:
    """Raise WireError for a known field of another wire type, which protobuf takes for an unknown field."""
    unknown_fields: Any = UnknownFieldSet(message)
    for unknown in unknown_fields:
        field = message.DESCRIPTOR.fields_by_number.get(unknown.field_number)
        if field is not None:
            raise WireError(f"field {field.full_name} has wire type {unknown.wire_type}")


def _json_field(field: Field, value: Any, node: SchemaType) -> Any:
    if is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        return {key: _json_value(of_value, value[key], node.item) for key in sorted(value)}
    if field.is_repeated:
        return [_json_value(field, item, node.item) for item in value]
    return _json_value(field, value, node)


def _json_value(field: Field, value: Any, node: SchemaType) -> Any:
    if field.message_type is not None:
        form = FORMS.get(field.message_type.full_name)
        return _json_object(value, node) if form is None else _read(form, value)
    return base64.b64encode(value).decode() if field.type == FieldDescriptor.TYPE_BYTES else value


def _read(form: JsonForm, message: Message) -> Any:
    _check_wire_types(message)
    try:
        return form.read(message)
    except (ValueError, OverflowError, OSError) as error:
        raise WireError(f"{message.DESCRIPTOR.full_name} in the message cannot be read: {error}") from error


def _message(descriptor: Any, value: Object, node: SchemaType) -> Message:
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        if is_inlined(field):
            fields[field.name] = _message(field.message_type, value, node)
        elif value.get(field.name) is not None and field.name in node.fields:
            fields[field.name] = _message_field(field, value[field.name], node.fields[field.name])
    return message_class(descriptor.full_name)(**fields)


def _message_field(field: Field, value: Any, node: SchemaType) -> Any:
    if is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        return {key: _message_value(of_value, item, node.item) for key, item in value.items()}
    if field.is_repeated:
        return [_message_value(field, item, node.item) for item in value]
    return _message_value(field, value, node)


def _message_value(field: Field, value: Any, node: SchemaType) -> Any:
    if field.message_type is not None:
        form = FORMS.get(field.message_type.full_name)
        if form is None:
            return _message(field.message_type, value, node)
        return message_class(field.message_type.full_name)(**form.write(value))
    return base64.b64decode(value) if field.type == FieldDescriptor.TYPE_BYTES else value
