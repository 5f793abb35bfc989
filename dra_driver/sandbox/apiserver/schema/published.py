# SPDX-License-Identifier: Apache-2.0
"""The types of Kubernetes' own kinds, from the JSON schemas that each release publishes.

The schemas are data of the package kubernetes-validate. The definitions of a release are one file of about 1.6 MB.
Reading it takes about ten milliseconds. A definition becomes a `SchemaType` when a kind needs it for the first time.
"""

import importlib.util
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import ListKind, SchemaType, Shape

_STRING_DEFINITIONS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": SchemaType(Shape.QUANTITY),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": SchemaType(Shape.INT_OR_STRING),
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": SchemaType(Shape.TIME),
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": SchemaType(Shape.MICRO_TIME),
}
# The published schemas have no defaults. These are the defaults of list keys.
_KEY_DEFAULTS = {
    "io.k8s.api.core.v1.ContainerPort": {"protocol": "TCP"},
    "io.k8s.api.core.v1.ServicePort": {"protocol": "TCP"},
}


class SchemaError(Exception):
    """The published schemas of a release cannot be found."""


class PublishedSchemas:
    """The types of one Kubernetes release, by group, version and kind."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = definitions
        self._types: dict[str, SchemaType] = {}
        self._names: dict[tuple[str, str, str], str] = {}
        for name, schema in definitions.items():
            for gvk in schema.get("x-kubernetes-group-version-kind", ()):
                # Options kinds are published for every group. The first name is the kind's own.
                key = (gvk["group"], gvk["version"], gvk["kind"])
                self._names.setdefault(key, name)

    def find(self, group: str, version: str, kind: str) -> SchemaType | None:
        """Return the kind's type, or None if the release does not publish it."""
        name = self._names.get((group, version, kind))
        return None if name is None else self._definition(name)

    def _definition(self, name: str) -> SchemaType:
        if name in _STRING_DEFINITIONS:
            return _STRING_DEFINITIONS[name]
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = SchemaType(Shape.ANY)  # filled below, so that cyclic definitions find this node
            self._fill(found, self.definitions[name])
            found.definition = name
            found.key_defaults = _KEY_DEFAULTS.get(name, {})
        return found

    def _fill(self, node: SchemaType, schema: dict[str, Any]) -> None:
        kind = _type_name(schema)
        node.atomic = schema.get("x-kubernetes-map-type") == "atomic"
        node.open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        if kind == "object" and "properties" in schema:
            node.shape = Shape.STRUCT
            node.fields = {name: self.type_of(field) for name, field in schema["properties"].items()}
            node.required = tuple(schema.get("required", ()))
        elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            node.shape, node.element = Shape.MAP, self.type_of(schema["additionalProperties"])
        elif kind == "array" and isinstance(schema.get("items"), dict):
            node.shape, node.element = Shape.LIST, self.type_of(schema["items"])
        elif kind == "string":
            node.shape = Shape.BYTES if schema.get("format") == "byte" else Shape.STRING
        elif kind in ("integer", "number", "boolean"):
            node.shape = Shape(kind)
        else:
            node.shape, node.atomic = Shape.ANY, True
        _merging(node, schema)

    def type_of(self, schema: dict[str, Any]) -> SchemaType:
        """Return the type that a schema declares: a part of a definition, or that of a CustomResourceDefinition."""
        reference = schema.get("$ref")
        if reference is None:
            node = SchemaType(Shape.ANY)
            self._fill(node, schema)
            return node
        target = self._definition(reference.rpartition("/")[2])
        if "x-kubernetes-patch-strategy" in schema or "x-kubernetes-map-type" in schema:
            # The extension applies only to this use of the definition. No cyclic definition is used with an extension.
            target = replace(target)
            target.atomic = schema.get("x-kubernetes-map-type", "atomic" if target.atomic else "") == "atomic"
            _merging(target, schema)
        return target


def _merging(node: SchemaType, schema: dict[str, Any]) -> None:
    strategies = schema.get("x-kubernetes-patch-strategy", "")
    node.strategies = frozenset(strategies.split(",")) if strategies else frozenset()
    node.merge_key = schema.get("x-kubernetes-patch-merge-key", "")
    if node.shape is not Shape.LIST:
        return
    declared = schema.get("x-kubernetes-list-type")
    if declared is not None:
        node.list_kind = ListKind(declared)
        node.list_keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
    elif "merge" in node.strategies:
        node.list_kind = ListKind.MAP if node.merge_key else ListKind.SET
        node.list_keys = (node.merge_key,) if node.merge_key else ()


def _type_name(schema: dict[str, Any]) -> str:
    names = schema.get("type", "")
    if isinstance(names, list):
        names = next(name for name in names if name != "null")
    return str(names)


@lru_cache(maxsize=4)
def schemas_of(minor: int) -> PublishedSchemas:
    """Return the published schemas of Kubernetes 1.`minor`.

    Raises SchemaError when kubernetes-validate is not installed or has no such release.
    """
    package = importlib.util.find_spec("kubernetes_validate")
    if package is None or not package.submodule_search_locations:
        raise SchemaError("the API schemas are not installed: pip install 'dra-driver-gpu[sandbox]'")
    root = Path(package.submodule_search_locations[0]) / "kubernetes-json-schema"
    path = root / f"v1.{minor}.0-local-strict" / "_definitions.json"
    if not path.is_file():
        raise SchemaError(f"kubernetes-validate has no schemas of Kubernetes 1.{minor} (looked for {path})")
    with path.open("rb") as file:
        return PublishedSchemas(json.load(file)["$defs"])
