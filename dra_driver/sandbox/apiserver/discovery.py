# SPDX-License-Identifier: Apache-2.0
"""The documents that tell clients what the server serves: discovery below /api and /apis, and OpenAPI.

Discovery follows k8s.io/apiserver/pkg/endpoints/discovery. There is no aggregated discovery; clients that prefer it
fall back to these documents.

OpenAPI documents come from the published schemas. They have what clients use: schemas with descriptions, merge keys and
kinds (for `kubectl explain` and the strategic merge patches of `kubectl apply`), and the kinds and query parameters of
operations (which tell kubectl that the server validates fields).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from .catalog import ServedKinds
from .kinds import Served, ServedKind
from .names import version_order
from .objects import Object
from .release import Release
from .schema.published import PublishedSchemas
from .verbs.subresources import HANDLERS

_FOREIGN_KINDS = {
    "attach": ("", "v1", "PodAttachOptions"),
    "binding": ("", "v1", "Binding"),
    "exec": ("", "v1", "PodExecOptions"),
    "portforward": ("", "v1", "PodPortForwardOptions"),
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_PREFIX: Final = "#/components/schemas/"
_GVK: Final = "x-kubernetes-group-version-kind"

V2_PROTOBUF_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The Content-Type of OpenAPI v2 as protobuf. In Accept headers, clients have an @ before v1.0."""
V2_PROTOBUF: Final = b"\x0a\x032.0\x12\x19\x0a\x0aKubernetes\x12\x0bunversioned"
"""OpenAPI v2 as protobuf: a Document with `swagger` and `info`, but without definitions.

kubectl reads OpenAPI v2 only for kinds that v3 does not have. With this document it reports that there are no matches
for the kind.
"""


def group_versions(catalog: ServedKinds) -> dict[str, list[str]]:
    """Return every named group with its versions. The preferred version comes first."""
    found: dict[str, set[str]] = {}
    for served in catalog:
        if served.kind.group:
            found.setdefault(served.kind.group, set()).add(served.version)
    return {group: sorted(versions, key=version_order) for group, versions in sorted(found.items())}


def api_group(group: str, versions: Iterable[str]) -> Object:
    """Return the document `/apis/GROUP`, without kind and apiVersion."""
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def _of(catalog: ServedKinds, group: str, version: str) -> list[Served]:
    found = (served for served in catalog if (served.kind.group, served.version) == (group, version))
    return sorted(found, key=lambda served: served.kind.plural)


def api_resource_list(catalog: ServedKinds, group: str, version: str) -> Object:
    """Return the document `/api/v1` or `/apis/GROUP/VERSION`."""
    resources = []
    for served in _of(catalog, group, version):
        resources.append(_resource(served.kind))
        resources += _subresources(served.kind)
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}


def _resource(kind: ServedKind) -> Object:
    resource: Object = {
        "name": kind.plural,
        "singularName": kind.singular_name,
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(kind.verbs),
    }
    if kind.short:
        resource["shortNames"] = list(kind.short)
    if kind.all_categories:
        resource["categories"] = list(kind.all_categories)
    return resource


def _subresources(kind: ServedKind) -> Iterator[Object]:
    for name in kind.subresources:
        group, version, foreign = _FOREIGN_KINDS.get(name, ("", "", ""))
        resource: Object = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        if group:
            resource["group"], resource["version"] = group, version
        resource["kind"] = foreign or kind.name
        resource["verbs"] = [verb for other, verb in HANDLERS if other == name] or ["get", "patch", "update"]
        yield resource


def metrics(release: Release) -> str:
    """Return the document `/metrics`: of the metrics of kube-apiserver, the feature gates that are known here."""
    name = "kubernetes_feature_enabled"
    gates = (f'{name}{{name="{gate}",stage=""}} {int(enabled)}' for gate, enabled in sorted(release.gates.items()))
    head = f"# HELP {name} This metric records the data about the stage and enablement of a k8s feature."
    return "\n".join((head, f"# TYPE {name} gauge", *gates, ""))


def version_info(minor: int) -> Object:
    """Return the document `/version`."""
    return {
        "major": "1",
        "minor": str(minor),
        "gitVersion": f"v1.{minor}.0",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def index_document(groups: Mapping[str, Iterable[str]]) -> Object:
    """Return the document `/openapi/v3`. `groups` has the versions of every named group."""
    named = [f"apis/{group}/{version}" for group, versions in groups.items() for version in versions]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in ("api/v1", *named)}}


def v3_document(catalog: ServedKinds, group: str, version: str) -> Object:
    """Return the document `/openapi/v3/apis/GROUP/VERSION`."""
    served = _of(catalog, group, version)
    definitions = _definitions(catalog.schemas, served)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": dict(_path(group_version) for group_version in served),
        "components": {"schemas": definitions},
    }


def _definitions(schemas: PublishedSchemas, served: Iterable[Served]) -> dict[str, Object]:
    """Return the schemas of some kinds and everything that they refer to."""
    custom: dict[str, Object] = {}
    published: dict[str, Object] = {}
    for item in served:
        kind = item.kind
        if kind.schema is not None:
            name = f"{'.'.join(reversed(kind.group.split('.')))}.{item.version}.{kind.name}"
            custom[name] = _custom_schema(item, kind.schema)
            _collect(_META, schemas, published)
        else:
            _collect(item.type.definition, schemas, published)
    return {**custom, **{name: _schema(schema) for name, schema in published.items()}}


def _collect(name: str, schemas: PublishedSchemas, found: dict[str, Object]) -> None:
    if name in found:
        return
    schema = found[name] = schemas.definitions[name]
    for reference in _references(schema):
        _collect(reference, schemas, found)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference.rpartition("/")[2]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _custom_schema(served: Served, declared: Object) -> Object:
    """Return the schema that a definition has for its kind, with the metadata of all objects."""
    meta = {"allOf": [{"$ref": _PREFIX + _META}]}
    text = {"type": "string"}
    properties = {**(declared.get("properties") or {}), "apiVersion": text, "kind": text, "metadata": meta}
    return {"type": "object", **declared, "properties": properties, _GVK: [_gvk(served)]}


def _gvk(served: Served) -> Object:
    return {"group": served.kind.group, "kind": served.kind.name, "version": served.version}


def _schema(schema: Any) -> Any:
    """Return a published schema in OpenAPI's form: without null types, with references to components.

    The published schemas have no enumerations except the only values of `apiVersion` and `kind`, which OpenAPI does not
    state.
    """
    if isinstance(schema, list):
        return [_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result: Object = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, list):
            result[key] = next(name for name in value if name != "null")
        elif key == "$ref" and isinstance(value, str):
            reference = {"$ref": _PREFIX + value.rpartition("/")[2]}
            if len(schema) == 1:
                result.update(reference)
            else:
                result["allOf"] = [reference]
        elif key == "properties" and isinstance(value, dict):
            result[key] = {name: _schema(field) for name, field in value.items()}
        elif key in ("description", "default", _GVK):
            result[key] = value
        elif key != "enum" and (key, value) != ("additionalProperties", False):
            result[key] = _schema(value)
    return result


def _path(served: Served) -> tuple[str, Object]:
    """Return the URL of an object, with the only operation that kubectl reads: PATCH.

    `kubectl explain` takes the kind of a resource from it, and other commands read which parameters a kind supports.
    """
    kind = served.kind
    root = f"/apis/{kind.group}/{served.version}" if kind.group else f"/api/{served.version}"
    namespace = "/namespaces/{namespace}" if kind.namespaced else ""
    types = {"dryRun": "string", "fieldManager": "string", "fieldValidation": "string", "force": "boolean"}
    patch = {
        "parameters": [{"name": name, "in": "query", "schema": {"type": value}} for name, value in types.items()],
        "responses": {"200": {"description": "OK"}},
        _GVK: _gvk(served),
    }
    return f"{root}{namespace}/{kind.plural}/{{name}}", {"patch": patch}
