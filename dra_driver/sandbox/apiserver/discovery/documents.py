# SPDX-License-Identifier: Apache-2.0
"""Discovery: the documents below /api and /apis, as in k8s.io/apiserver/pkg/endpoints/discovery.

There is no aggregated form: clients that prefer it ask for these one by one.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator

from ..auth.rbac import REVIEWS
from ..catalog import Catalog
from ..kinds import Served, ServedKind
from ..names import version_order
from ..objects import Object

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
    """`/api`."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def group_versions(catalog: Catalog) -> dict[str, list[str]]:
    """Every named group and its versions, the preferred one first."""
    found: dict[str, set[str]] = {}
    for served in catalog:
        if served.kind.group:
            found.setdefault(served.kind.group, set()).add(served.version)
    for review in REVIEWS:
        found.setdefault(review.group, set()).add("v1")
    return {group: sorted(versions, key=version_order) for group, versions in sorted(found.items())}


def api_group(group: str, versions: Iterable[str]) -> Object:
    """`/apis/GROUP`, without kind and apiVersion."""
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def api_group_list(catalog: Catalog) -> Object:
    """`/apis`."""
    groups = [api_group(group, versions) for group, versions in group_versions(catalog).items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _of(catalog: Catalog, group: str, version: str) -> list[Served]:
    found = (served for served in catalog if (served.kind.group, served.version) == (group, version))
    return sorted(found, key=lambda served: served.kind.plural)


def _storage_hash(kind: ServedKind) -> str:
    digest = hashlib.sha256(f"{kind.group}/{kind.versions[0]}/{kind.name}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def api_resource_list(catalog: Catalog, group: str, version: str) -> Object:
    """`/api/v1` or `/apis/GROUP/VERSION`."""
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
    """`/version`."""
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
