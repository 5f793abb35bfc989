# SPDX-License-Identifier: Apache-2.0
"""A request to a resource: its parameters and its body; and the verbs get and list."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from multidict import MultiDict, MultiMapping

from .. import field_errors as errors
from .. import status
from ..catalog import ServedCluster
from ..field_errors import FieldError
from ..kinds import FieldSelectors, Served, ServedKind, text_at
from ..listing import ListPage, ListQuery, SelectorError, Test, field_test, label_test, list_page
from ..objects import Object
from ..opaque import has_opaque_objects, parse
from ..schema.decode import TypeMismatchError, decode
from ..schema.protobuf import WireError, decode_message, read_envelope
from ..store import StoredObject
from ..users import User

_MANAGER_LENGTH = 128

JSON: Final = "application/json"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"


@dataclass
class ApiCall:
    """A request to a resource. The client gets `warnings` in headers."""

    verb: str
    served: Served
    namespace: str
    name: str
    subresource: str
    user: User
    query: MultiMapping[str] = field(default_factory=MultiDict)
    body: bytes = b""
    content_type: str = ""
    user_agent: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def kind(self) -> ServedKind:
        """The kind in the URL."""
        return self.served.kind

    @property
    def key(self) -> str:
        """The key of the object in the URL."""
        return self.key_of(self.name)

    def key_of(self, name: str) -> str:
        """Return the key of an object of this name in the request's namespace."""
        return f"{self.namespace}/{name}" if self.kind.namespaced else name

    def option(self, name: str) -> str:
        """Return a query parameter. Empty if it is absent."""
        return self.query.get(name, "")

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter: true if it is present and neither `false` nor `0`."""
        return self.query.get(name, "false").lower() not in ("false", "0")

    def number(self, name: str) -> int | None:
        """Return an integer query parameter, or None. Raises 400."""
        text = self.option(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    @cached_property
    def dry_run(self) -> bool:
        """Whether the request must not store anything."""
        return "All" in self.query.getall("dryRun", ())

    @cached_property
    def field_validation(self) -> str:
        """How to handle unknown and duplicate fields: Ignore, Warn or Strict."""
        return self.option("fieldValidation") or "Warn"

    @cached_property
    def manager(self) -> str:
        """The field manager: the parameter, or the first part of the user agent."""
        given = self.option("fieldManager")
        return given or self.user_agent.partition("/")[0][:_MANAGER_LENGTH]

    def missing(self) -> status.RequestError:
        """Return 404 for the object in the URL."""
        return status.not_found(self.kind.plural, self.kind.group, self.name)

    def invalid(self, name: str, problems: Sequence[FieldError]) -> status.RequestError:
        """Return 422 for an object of this kind."""
        return status.invalid(self.kind.name, self.kind.group, name, problems)

    def conflict(self, name: str, detail: str) -> status.RequestError:
        """Return 409 for an object of this kind."""
        return status.conflict(self.kind.plural, self.kind.group, name, detail)


def get_object(cluster: ServedCluster, call: ApiCall) -> StoredObject:
    """Return an object (GET). Raises 404."""
    record = cluster.store.get(call.kind.stored_in, call.key)
    if record is None:
        raise call.missing()
    return record


def list_objects(cluster: ServedCluster, call: ApiCall) -> ListPage:
    """Return a page of a collection (GET)."""
    return list_page(cluster.store, call.kind, call.namespace, list_query(call))


def resource_version(call: ApiCall) -> int | None:
    """Return the parameter resourceVersion, or None. Raises 400."""
    text = call.option("resourceVersion")
    if not text:
        return None
    if not text.isdecimal():
        problem = errors.invalid("resourceVersion", text, f'strconv.ParseUint: parsing "{text}": invalid syntax')
        raise status.bad_request(f"invalid resource version: {problem}")
    return int(text)


def list_query(call: ApiCall) -> ListQuery:
    """Return the parameters of a list. Raises 400 or 422."""
    token = call.option("continue")
    revision = resource_version(call)
    if token and revision:
        raise status.bad_request("specifying resource version is not allowed when using continue")
    # Revision 0 means any version: the whole list, as from a cache.
    limit = 0 if revision == 0 else call.number("limit") or 0
    return ListQuery(selectors(call), limit, token)


def selectors(call: ApiCall) -> tuple[Test, ...]:
    """Return the tests of labelSelector and fieldSelector. Raises 400."""
    try:
        found = (label_test(call.option("labelSelector")), field_test(call.option("fieldSelector"), readers(call)))
    except SelectorError as error:
        raise status.bad_request(str(error)) from error
    return tuple(test for test in found if test is not None)


def readers(call: ApiCall) -> FieldSelectors:
    """Return the fields that the kind can be selected by."""
    common = {"metadata.name": text_at("metadata", "name")}
    if call.kind.namespaced:
        common["metadata.namespace"] = text_at("metadata", "namespace")
    return {**common, **call.kind.selectors}


def media_type(content_type: str) -> str:
    """Return the media type in a Content-Type header, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def read_body(cluster: ServedCluster, body: bytes, content_type: str, kind: str, api_version: str) -> Object:
    """Return the body of a request as a JSON object.

    `kind` and `api_version` are those of the URL. Raises 400 or 415.
    """
    form = media_type(content_type) or JSON
    read_json = parse if has_opaque_objects(api_version.rpartition("/")[0], kind) else json.loads
    if form not in (JSON, PROTOBUF):
        raise status.unsupported_media_type((JSON, PROTOBUF))
    try:
        value: Any = read_json(body) if form == JSON else _read_protobuf(cluster, body, kind, api_version)
        if not isinstance(value, dict):
            raise ValueError("the body is not a JSON object")
    except (ValueError, WireError) as problem:
        text = f"the object provided is unrecognized (must be of type {kind}): {problem}"
        raise status.bad_request(text) from problem
    return value


def _read_protobuf(cluster: ServedCluster, body: bytes, kind: str, api_version: str) -> Object:
    head, raw = read_envelope(body)
    group, _, version = head.get("apiVersion", api_version).rpartition("/")
    node = cluster.catalog.schemas.find(group, version, head.get("kind", kind))
    if node is None:
        raise WireError(f"{head} is not known")
    return {**decode_message(raw, node), **head}


def read_value(cluster: ServedCluster, call: ApiCall) -> Object:
    """Return the body of a request to a resource as a JSON object. Raises 400 or 415."""
    return read_body(cluster, call.body, call.content_type, call.kind.name, call.served.api_version)


def read_message(cluster: ServedCluster, call: ApiCall, api_version: str, kind: str) -> Object:
    """Return the body as an object of another kind than the URL's: options, a Binding, a Scale. Raises 400 or 415."""
    return typed(cluster, read_value(cluster, call), api_version, kind)


def typed(cluster: ServedCluster, value: Object, api_version: str, kind: str) -> Object:
    """Decode `value` as a built-in kind, without fields that the kind does not have. Raises 400."""
    group, _, version = api_version.rpartition("/")
    node = cluster.catalog.schemas.find(group, version, kind)
    assert node is not None, f"{api_version} {kind} is published"
    try:
        return decode(value, node).value
    except TypeMismatchError as problem:
        text = f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}'
        raise status.bad_request(text) from problem


def read_object(cluster: ServedCluster, call: ApiCall) -> Object:
    """Return the body's object in stored form, decoded and with defaults. Raises 400, 415 or 422."""
    value = read_value(cluster, call)
    _check_kind(call, value)
    try:
        return stored_form(cluster, call, value)
    except DecodingError as problem:
        version = call.served.version
        text = f'{call.kind.name} in version "{version}" cannot be handled as a {call.kind.name}: {problem}'
        raise status.bad_request(text) from problem


def _check_kind(call: ApiCall, value: Object) -> None:
    """Raise 400 if the object has another kind or version than the URL."""
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
    """The JSON object does not match the kind's schema, or strict validation refuses its fields."""


def stored_form(cluster: ServedCluster, call: ApiCall, value: Object) -> Object:
    """Decode an object in the request's version, convert it to stored form and set defaults. Raises DecodingError."""
    try:
        decoded = decode(value, call.served.type)
    except TypeMismatchError as error:
        raise DecodingError(str(error)) from error
    if decoded.unknown and call.field_validation == "Strict":
        raise DecodingError(f"strict decoding error: {', '.join(decoded.unknown)}")
    if call.field_validation == "Warn":
        call.warnings += [text for text in decoded.unknown if text not in call.warnings]
    return defaulted(cluster, call, decoded.value)


def defaulted(cluster: ServedCluster, call: ApiCall, value: Object) -> Object:
    """Convert a decoded object to stored form and set defaults."""
    value.pop("apiVersion", None)
    value.pop("kind", None)
    value.setdefault("metadata", {})
    stored = call.kind.to_stored(value, call.served.version)
    call.kind.strategy.default(stored, cluster.context(call.user))
    return stored


def versioned(obj: Object, served: Served) -> Object:
    """Return a stored object in a served version, with `apiVersion` and `kind`. The result shares parts with it."""
    converted = served.kind.from_stored(obj, served.version)
    return {"apiVersion": served.api_version, "kind": served.kind.name, **converted}


def shown(value: Any) -> str:
    """Return a JSON value as text for errors."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
