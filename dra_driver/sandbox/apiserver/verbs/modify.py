# SPDX-License-Identifier: Apache-2.0
"""The verbs create, update and patch: from the body of a request to the stored object."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from .. import field_errors as errors
from .. import status
from ..apply import apply_configuration
from ..apply.typed import TypedError
from ..catalog import ServedCluster
from ..objects import Object, pick
from ..opaque import compact, encoded_anew, recoded
from ..patches import MalformedPatchError, PatchError, apply_json_patch, apply_merge_patch, apply_strategic_patch
from ..schema import SchemaType
from ..schema.decode import TypeMismatchError, decode
from ..store import StoredObject
from .request import ApiCall, DecodingError, defaulted, media_type, read_object, shown, stored_form, versioned
from .write import create, replace, writer

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

_PATCHES: Final[Mapping[str, Callable[[Object, Any, SchemaType], Any]]] = {
    JSON_PATCH: lambda current, patch, node: apply_json_patch(current, patch),
    MERGE_PATCH: lambda current, patch, node: apply_merge_patch(current, patch),
    STRATEGIC_PATCH: apply_strategic_patch,
}


def create_object(cluster: ServedCluster, call: ApiCall) -> tuple[StoredObject, int]:
    """Create an object (POST to a collection)."""
    obj = read_object(cluster, call)
    return create(cluster, call, obj), 201


def update_object(cluster: ServedCluster, call: ApiCall) -> tuple[StoredObject, int]:
    """Update an object or its status (PUT)."""
    obj = read_object(cluster, call)
    _check_name(call, obj)
    existing = cluster.store.get(call.kind.stored_in, call.key)
    if existing is None:
        raise call.missing()
    given, current = obj["metadata"].get("uid"), existing.object["metadata"]["uid"]
    if given and given != current:
        detail = f"Precondition failed: UID in precondition: {given}, UID in object meta: {current}"
        raise call.conflict(call.name, detail)
    return replace(cluster, call, existing, obj), 200


def _check_name(call: ApiCall, obj: Object) -> None:
    name = obj["metadata"].get("name", "")
    if not name:
        raise status.bad_request("name must be provided")
    if name != call.name:
        raise status.bad_request(f"the name of the object ({name}) does not match the name on the URL ({call.name})")


def patch_object(cluster: ServedCluster, call: ApiCall) -> tuple[StoredObject, int]:
    """Patch an object or its status (PATCH) with any of the four types of patch."""
    kind = media_type(call.content_type)
    if kind == APPLY_PATCH:
        return _apply(cluster, call)
    if kind == STRATEGIC_PATCH and call.kind.custom:
        raise status.unsupported_media_type((JSON_PATCH, MERGE_PATCH, APPLY_PATCH))
    existing = cluster.store.get(call.kind.stored_in, call.key)
    if existing is None:
        raise call.missing()
    form = encoded_anew if kind == STRATEGIC_PATCH else compact
    changed = patched(call, recoded(versioned(existing.object, call.served), form), call.served.type)
    try:
        obj = recoded(stored_form(cluster, call, changed), form)
    except DecodingError as problem:
        cause = errors.FieldError("FieldValueInvalid", "patch", f"Invalid value: {shown(shown(changed))}: {problem}")
        raise status.invalid("", "", "", [cause]) from problem
    _check_name(call, obj)
    return replace(cluster, call, existing, obj), 200


def patched(call: ApiCall, current: Object, node: SchemaType) -> Object:
    """Return `current`, of type `node`, after the request's patch.

    Raises 400, 422 or 500 if the patch cannot be applied, and 415 for server-side apply and unknown types of patch.
    """
    kind = media_type(call.content_type)
    if kind not in _PATCHES:
        raise status.unsupported_media_type((*_PATCHES, APPLY_PATCH))
    try:
        found = _PATCHES[kind](current, json.loads(call.body), node)
        if not isinstance(found, dict):
            raise MalformedPatchError("the patch does not leave an object")
    except (ValueError, MalformedPatchError) as problem:
        raise status.bad_request(f"error decoding patch: {problem}") from problem
    except PatchError as problem:
        if kind == STRATEGIC_PATCH:
            raise status.internal(str(problem), plain=True) from problem
        raise status.unprocessable() from problem
    return found


def _apply(cluster: ServedCluster, call: ApiCall) -> tuple[StoredObject, int]:
    try:
        config = json.loads(call.body)  # JSON is YAML, and clients send nothing else
    except ValueError as problem:
        raise status.bad_request(f"error decoding YAML: {problem}") from problem
    _check_config(call, config)
    config = _decoded_config(call, config)
    existing = cluster.store.get(call.kind.stored_in, call.key)
    if existing is None and call.subresource:
        raise call.missing()
    live = recoded(existing.object, encoded_anew) if existing else None
    config["metadata"].setdefault("name", call.name)
    try:
        merged = apply_configuration(live, config, writer(cluster, call), force=call.flag("force"))
    except TypedError as problem:
        raise status.internal(f"failed to create typed patch object: {problem}", plain=True) from problem
    obj = recoded(defaulted(cluster, call, decode(merged, call.served.type).value), encoded_anew)
    _check_name(call, obj)
    if existing is None:
        return create(cluster, call, obj, track=False), 201
    return replace(cluster, call, existing, obj, track=False), 200


def _check_config(call: ApiCall, config: Any) -> None:
    if not isinstance(config, dict):
        raise status.bad_request("error decoding YAML: the configuration is not an object")
    group, version, kind = call.kind.group, call.served.version, call.kind.name
    if config.get("apiVersion") != call.served.api_version or config.get("kind") != kind:
        given_group, _, given_version = str(config.get("apiVersion", "")).rpartition("/")
        text = f"{given_group}/{given_version}, Kind={config.get('kind', '')}"
        raise status.bad_request(f"invalid object type: {text} (expected {group}/{version}, Kind={kind})")
    if pick(config, "metadata", "managedFields") is not None:
        raise status.bad_request("metadata.managedFields must be nil")


def _decoded_config(call: ApiCall, config: Object) -> Object:
    """Return the configuration in normal form. Fields that it does not mention stay absent."""
    if config.get("metadata") is None:
        config["metadata"] = {}
    try:
        decoded = decode(config, call.served.type)
    except TypeMismatchError as error:
        raise _untyped(call, config, str(error)) from error
    unknown = [text.partition('"')[2].rstrip('"') for text in decoded.unknown]
    if unknown:
        raise _untyped(call, config, f".{unknown[0]}: field not declared in schema")
    return decoded.value


def _untyped(call: ApiCall, config: Object, problem: str) -> status.RequestError:
    name = f"{pick(config, 'metadata', 'namespace') or ''}/{pick(config, 'metadata', 'name') or ''}"
    where = f"{name}; {call.served.api_version}, Kind={call.kind.name}"
    return status.internal(f"failed to create typed patch object ({where}): {problem}", plain=True)
