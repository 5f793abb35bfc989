# SPDX-License-Identifier: Apache-2.0
"""From the body of a request to an object in the form in which it is stored."""

import json
from collections.abc import Callable
from typing import Any, Final

from .. import status
from ..catalog import Cluster
from ..kinds import Served
from ..objects import Object
from ..schema.decode import DecodeError, decode, json_name
from ..schema.protobuf import WireError, decode_message, read_envelope
from ..schema.types import Type
from .call import Call

JSON: Final = "application/json"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"


Messages = Callable[[str, str, str], Type | None]
"""(group, version, kind) -> the type of a protobuf body."""


def read_body(body: bytes, content_type: str, kind: str, api_version: str, messages: Messages | None) -> Object:
    """The body of a request as a JSON object.

    `kind` and `api_version` are the URL's. Without `messages` protobuf is refused. 400 or 415 when
    the body is no object.
    """
    content_type = content_type.partition(";")[0].strip().lower() or JSON
    prefix = f"the object provided is unrecognized (must be of type {kind})"
    readable = (JSON,) if messages is None else (JSON, PROTOBUF)
    if content_type not in readable:
        raise status.unsupported_media_type(readable)
    value: Any
    try:
        if content_type == PROTOBUF and messages is not None:
            return _read_protobuf(body, kind, api_version, messages)
        value = json.loads(body)
    except ValueError as problem:
        start = body[:32].decode(errors="replace") or "<empty>"
        raise status.bad_request(
            f"{prefix}: couldn't get version/kind; json parse error: {problem} ({start})"
        ) from problem
    except WireError as problem:
        raise status.bad_request(f"{prefix}: {problem}") from problem
    if not isinstance(value, dict):
        text = f"json: cannot unmarshal {json_name(value)} into Go value of type {kind}"
        raise status.bad_request(f"{prefix}: couldn't get version/kind; json parse error: {text}")
    found: Object = value
    return found


def _read_protobuf(body: bytes, kind: str, api_version: str, messages: Messages) -> Object:
    head, raw = read_envelope(body)
    group, _, version = head.get("apiVersion", api_version).rpartition("/")
    node = messages(group, version, head.get("kind", kind))
    if node is None:
        raise WireError(f"{head} is not known")
    return {**decode_message(raw, node), **head}


def read_value(cluster: Cluster, call: Call) -> Object:
    """As `read_body`, of a request to a resource."""
    messages = None if call.kind.custom else cluster.catalog.schemas.find
    return read_body(call.body, call.content_type, call.kind.name, call.served.api_version, messages)


def read_message(cluster: Cluster, call: Call, api_version: str, kind: str) -> Object:
    """The body as a message that is of another kind than the URL's: options, a Binding, a Scale. 400 or 415."""
    return typed(cluster, read_value(cluster, call), api_version, kind)


def typed(cluster: Cluster, value: Object, api_version: str, kind: str) -> Object:
    """`value` decoded as a built-in kind; fields that it does not have are left out. 400 when it does not fit."""
    group, _, version = api_version.rpartition("/")
    node = cluster.catalog.schemas.find(group, version, kind)
    assert node is not None, f"{api_version} {kind} is published"
    try:
        return decode(value, node).value
    except DecodeError as problem:
        text = f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}'
        raise status.bad_request(text) from problem


def read_object(cluster: Cluster, call: Call) -> Object:
    """The body's object, decoded, defaulted, in stored form. 400, 415 or 422 when it cannot be had."""
    value = read_value(cluster, call)
    _check_kind(call, value)
    try:
        return stored_form(cluster, call, value)
    except DecodingError as problem:
        version = call.served.version
        text = f'{call.kind.name} in version "{version}" cannot be handled as a {call.kind.name}: {problem}'
        raise status.bad_request(text) from problem


def _check_kind(call: Call, value: Object) -> None:
    """Raises 400 when the object says that it is of another kind or version than the URL's."""
    kind = value.get("kind") or call.kind.name
    api_version = value.get("apiVersion") or call.served.api_version
    version = str(api_version).rpartition("/")[2]
    expected = call.served
    if kind != expected.kind.name:
        text = f"the object's kind is {kind}, the URL is of {expected.kind.plural}"
        raise status.bad_request(f'{kind} in version "{version}" cannot be handled as a {expected.kind.name}: {text}')
    if api_version != expected.api_version:
        raise status.bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({expected.api_version})"
        )


class DecodingError(Exception):
    """The JSON does not fit the kind's schema, or strict validation objects to fields of it."""


def stored_form(cluster: Cluster, call: Call, value: Object) -> Object:
    """A JSON object in the request's version, decoded, converted and defaulted. Raises DecodingError."""
    try:
        decoded = decode(value, call.served.type)
    except DecodeError as error:
        raise DecodingError(str(error)) from error
    if decoded.unknown and call.field_validation == "Strict":
        raise DecodingError(f"strict decoding error: {', '.join(decoded.unknown)}")
    if call.field_validation == "Warn":
        call.warnings += [text for text in decoded.unknown if text not in call.warnings]
    return defaulted(cluster, call, decoded.value)


def defaulted(cluster: Cluster, call: Call, value: Object) -> Object:
    """A decoded object in stored form, with its defaults."""
    value.pop("apiVersion", None)
    value.pop("kind", None)
    value.setdefault("metadata", {})
    stored = call.kind.to_stored(value, call.served.version)
    call.kind.strategy.default(stored, cluster.context(call.user))
    return stored


def versioned(obj: Object, served: Served) -> Object:
    """A stored object in a served version, with `apiVersion` and `kind`; shares parts with it."""
    converted = served.kind.from_stored(obj, served.version)
    return {"apiVersion": served.api_version, "kind": served.kind.name, **converted}


def shown(value: Any) -> str:
    """A JSON value inside an error text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
