# SPDX-License-Identifier: Apache-2.0
"""The documents that tell clients what the server serves: discovery below /api and /apis, and OpenAPI.

Discovery follows k8s.io/apiserver/pkg/endpoints/discovery. There is no aggregated discovery; clients that prefer it
fall back to these documents.

OpenAPI documents come from the published schemas. They have what clients use: schemas with descriptions, merge keys and
kinds (for `kubectl explain` and the strategic merge patches of `kubectl apply`), and the kinds and query parameters of
operations (which tell kubectl that the server validates fields).
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from .catalog import Catalog
from .kinds import Served, ServedKind
from .names import version_order
from .objects import Object, encode, pick
from .rbac import REVIEWS
from .schema.published import PublishedSchemas

_SUBRESOURCE_VERBS = {
    "binding": ["create"],
    "eviction": ["create"],
    "scale": ["get", "patch", "update"],
    "status": ["get", "patch", "update"],
    "token": ["create"],
}
_FOREIGN_KINDS = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}


def api_versions(address: str) -> Object:
    """Return the document `/api`."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def group_versions(catalog: Catalog) -> dict[str, list[str]]:
    """Return every named group with its versions. The preferred version comes first."""
    found: dict[str, set[str]] = {}
    for served in catalog:
        if served.kind.group:
            found.setdefault(served.kind.group, set()).add(served.version)
    for review in REVIEWS:
        found.setdefault(review.group, set()).add("v1")
    return {group: sorted(versions, key=version_order) for group, versions in sorted(found.items())}


def api_group(group: str, versions: Iterable[str]) -> Object:
    """Return the document `/apis/GROUP`, without kind and apiVersion."""
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def api_group_list(catalog: Catalog) -> Object:
    """Return the document `/apis`."""
    groups = [api_group(group, versions) for group, versions in group_versions(catalog).items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _of(catalog: Catalog, group: str, version: str) -> list[Served]:
    found = (served for served in catalog if (served.kind.group, served.version) == (group, version))
    return sorted(found, key=lambda served: served.kind.plural)


def _storage_hash(kind: ServedKind) -> str:
    digest = hashlib.sha256(f"{kind.group}/{kind.versions[0]}/{kind.name}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def api_resource_list(catalog: Catalog, group: str, version: str) -> Object:
    """Return the document `/api/v1` or `/apis/GROUP/VERSION`."""
    resources = []
    for served in _of(catalog, group, version):
        resources.append(_resource(served.kind))
        resources += _subresources(served.kind)
    for review in REVIEWS:
        if (group, version) == (review.group, "v1"):
            resources.append(
                {
                    "name": review.plural,
                    "singularName": review.kind.lower(),
                    "namespaced": False,
                    "kind": review.kind,
                    "verbs": ["create"],
                }
            )
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
    resource["storageVersionHash"] = _storage_hash(kind)
    return resource


def _subresources(kind: ServedKind) -> Iterator[Object]:
    for name in kind.subresources:
        group, version, foreign = _FOREIGN_KINDS.get(name, ("", "", ""))
        resource: Object = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        if group:
            resource["group"], resource["version"] = group, version
        resource["kind"] = foreign or kind.name
        resource["verbs"] = _SUBRESOURCE_VERBS[name]
        yield resource


def version_info(minor: int) -> Object:
    """Return the document `/version`."""
    return {
        "major": "1",
        "minor": str(minor),
        "emulationMajor": "1",
        "emulationMinor": str(minor),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": str(minor - 1),
        "gitVersion": f"v1.{minor}.0",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_PREFIX: Final = "#/components/schemas/"
_GVK: Final = "x-kubernetes-group-version-kind"
_WRITE_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation")
_INFO: Final = {"title": "Kubernetes", "version": "unversioned"}

V2_PROTOBUF_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The Content-Type of OpenAPI v2 as protobuf. In Accept headers, clients have an @ before v1.0."""
V2_PROTOBUF: Final = b"\x0a\x032.0\x12\x19\x0a\x0aKubernetes\x12\x0bunversioned"
"""OpenAPI v2 as protobuf: a Document with `swagger` and `info`, but without definitions.

kubectl reads OpenAPI v2 only for kinds that v3 does not have. With this document it reports that there are no matches
for the kind.
"""


def paths_of(catalog: Catalog) -> dict[str, tuple[str, str]]:
    """Return the documents of OpenAPI v3: a map from the path (`apis/apps/v1`) to group and version."""
    found = {"api/v1": ("", "v1")}
    for group, versions in group_versions(catalog).items():
        for version in versions:
            found[f"apis/{group}/{version}"] = (group, version)
    return found


def index_document(catalog: Catalog) -> Object:
    """Return the document `/openapi/v3`."""
    seed = f"{catalog.release.minor}/{catalog.generation}"
    digest = hashlib.sha256(seed.encode()).hexdigest().upper()
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"} for path in paths_of(catalog)}}


def v3_document(catalog: Catalog, group: str, version: str) -> bytes:
    """Return the document `/openapi/v3/apis/GROUP/VERSION`."""
    served = [item for item in catalog if (item.kind.group, item.version) == (group, version)]
    definitions = _definitions(catalog, served)
    document = {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": {path: item for one in served for path, item in _paths(one)},
        "components": {"schemas": {name: _schema(schema) for name, schema in definitions.items()}},
    }
    return encode(document)


def _definitions(catalog: Catalog, served: Iterable[Served]) -> dict[str, Object]:
    """Return the schemas of some kinds and everything that they refer to."""
    found: dict[str, Object] = {}
    for item in served:
        if item.kind.custom:
            found[_custom_name(item)] = _custom_schema(item)
            _collect(_META, catalog.schemas, found)
            continue
        _collect(item.type.definition, catalog.schemas, found)
    return found


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


def _custom_name(served: Served) -> str:
    return f"{'.'.join(reversed(served.kind.group.split('.')))}.{served.version}.{served.kind.name}"


def _custom_schema(served: Served) -> Object:
    gvk = {"group": served.kind.group, "kind": served.kind.name, "version": served.version}
    text, meta = {"type": "string"}, {"$ref": f"#/$defs/{_META}"}
    return {"type": "object", "properties": {"apiVersion": text, "kind": text, "metadata": meta}, _GVK: [gvk]}


def _schema(schema: Any) -> Any:
    """Return a published schema in OpenAPI's form: without null types, with references to components."""
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
        elif key == "additionalProperties" and value is False:
            continue
        elif key == "properties" and isinstance(value, dict):
            result[key] = {name: _schema(field) for name, field in value.items()}
        elif key in ("description", "enum", "default", _GVK):
            if key != "enum" or not _is_envelope(schema):
                result[key] = value
        else:
            result[key] = _schema(value)
    return result


def _is_envelope(schema: Object) -> bool:
    """Return whether this is the schema of `apiVersion` or `kind`. OpenAPI does not state their only value."""
    return len(schema.get("enum", ())) == 1 and pick(schema, "description") is not None


def _paths(served: Served) -> Iterator[tuple[str, Object]]:
    kind = served.kind
    root = f"/apis/{kind.group}/{served.version}" if kind.group else f"/api/{served.version}"
    base = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    yield base, {"get": _operation(served, "list"), "post": _operation(served, "post", _WRITE_PARAMETERS)}
    one = {
        "get": _operation(served, "get"),
        "put": _operation(served, "put", _WRITE_PARAMETERS),
        "patch": _operation(served, "patch", (*_WRITE_PARAMETERS, "force")),
        "delete": _operation(served, "delete", ("dryRun",)),
    }
    yield f"{base}/{{name}}", one
    if "status" in kind.subresources:
        yield f"{base}/{{name}}/status", {verb: one[verb] for verb in ("get", "put", "patch")}


def _operation(served: Served, action: str, parameters: Iterable[str] = ()) -> Object:
    gvk = {"group": served.kind.group, "kind": served.kind.name, "version": served.version}
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "boolean" if name == "force" else "string"}}
            for name in parameters
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        _GVK: gvk,
    }
