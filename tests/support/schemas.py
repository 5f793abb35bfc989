# SPDX-License-Identifier: Apache-2.0
"""The JSON schemas that Kubernetes publishes with each release, from the package kubernetes_validate.

Its own `validate` reads the release's definitions, 1.6 MB, for every object. Here they are read once, and stand where
schemas refer to them: looking them up would be half of the time.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator


def validate(value: dict[str, Any], release: str) -> None:
    """Raises jsonschema.ValidationError unless `value` is as the schema of this release (`1.37`) says, without unknown
    fields.
    """
    _validator(release, value["kind"], value["apiVersion"]).validate(value)


def validate_slices(values: Iterable[dict[str, Any]], release: str) -> None:
    """Like `validate`, for ResourceSlices. Schemas restrict the fields and the types of devices, and nothing else:
    of devices in which both are the same, only the first is validated.
    """
    seen = set[object]()
    for value in values:
        devices = {_shape(device): device for device in reversed(value["spec"].get("devices", ()))}
        new = [device for shape, device in devices.items() if shape not in seen]
        seen.update(devices)
        validate({**value, "spec": {**value["spec"], "devices": new}}, release)


def _shape(value: Any) -> object:
    """The fields and the types of a value. Numbers are left out of the keys: no field has a number, but counters do."""
    if isinstance(value, dict):
        return frozenset((key.rstrip("0123456789"), _shape(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(_shape, value))
    return type(value)


@cache
def _validator(release: str, kind: str, api_version: str) -> Any:
    group, _, version = api_version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], version)))
    return Draft202012Validator(_resolved(_read(release, name), _definitions(release)))


@cache
def _definitions(release: str) -> dict[str, Any]:
    """The definitions by name. They contain each other, some themselves."""
    definitions: dict[str, Any] = _read(release, "_definitions")["$defs"]
    for definition in definitions.values():
        _resolved(definition, definitions)
    return definitions


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """The schema, which is changed: it has the definitions themselves instead of references to them. What stands beside
    a reference says nothing about validity (`x-kubernetes-list-type` and the like).
    """
    if isinstance(schema, list):
        schema[:] = [_resolved(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return definitions[reference.rpartition("/")[2]]
    for key, value in schema.items():
        schema[key] = _resolved(value, definitions)
    return schema


def _read(release: str, name: str) -> Any:
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    return json.loads((schemas / f"v{release}.0-local-strict/{name}.json").read_bytes())
