# SPDX-License-Identifier: Apache-2.0
"""Everything that is served besides resources: discovery, OpenAPI, health, version."""

from typing import Final

from ..catalog import Catalog
from ..discovery import documents, openapi
from ..objects import Object, encode
from .negotiation import JSON, accept_terms
from .reply import Reply

_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_CHECKS: Final = ("ping", "etcd", "log", "poststarthook/rbac/bootstrap-roles")
_DISCOVERY_GROUP: Final = "apidiscovery.k8s.io"
_DISCOVERY_VERSIONS: Final = ("v2", "v2beta1")


class Paths:
    """Answers requests that are to no resource. Documents are made once for each state of the catalog."""

    def __init__(self, catalog: Catalog, address: str) -> None:
        self._catalog = catalog
        self._address = address
        self._made: dict[tuple[str, str], Reply] = {}
        self._generation = -1

    def answer(self, path: str, accept: str) -> Reply | None:
        """The answer to a GET of `path`; None when nothing is there. Raises 406."""
        trimmed = path.rstrip("/") or "/"
        health = self._health(trimmed)
        if health is not None:
            return health
        if self._generation != self._catalog.generation:
            self._made.clear()
            self._generation = self._catalog.generation
        if trimmed == "/openapi/v2":
            return Reply(200, openapi.V2_PROTOBUF, openapi.V2_PROTOBUF_TYPE)
        version = _aggregated_version(accept) if trimmed in ("/api", "/apis") else ""
        key = (trimmed, version)
        if key not in self._made:
            made = self._make(trimmed, version)
            if made is None:
                return None
            self._made[key] = made
        return self._made[key]

    def _make(self, path: str, version: str) -> Reply | None:
        if path == "/version":
            return _json(documents.version_info(self._catalog.release.minor))
        if path == "/openapi/v3":
            return _json(openapi.index_document(self._catalog))
        if path.startswith("/openapi/v3/"):
            found = openapi.paths_of(self._catalog).get(path.removeprefix("/openapi/v3/"))
            return None if found is None else _bytes(openapi.v3_document(self._catalog, *found))
        return self._discovery(path, version)

    def _discovery(self, path: str, version: str) -> Reply | None:
        catalog = self._catalog
        if version:
            document = documents.aggregated(catalog, core=path == "/api", version=version)
            kind = f"{JSON};g={_DISCOVERY_GROUP};v={version};as=APIGroupDiscoveryList"
            return Reply(200, encode(document), kind, {"Vary": "Accept"})
        if path == "/api":
            return _json(documents.api_versions(self._address))
        if path == "/apis":
            return _json(documents.api_group_list(catalog))
        if path == "/api/v1":
            return _json(documents.api_resource_list(catalog, "", "v1"))
        groups = documents.group_versions(catalog)
        match path.split("/")[1:]:
            case ["apis", group] if group in groups:
                return _json({"kind": "APIGroup", "apiVersion": "v1", **documents.api_group(group, groups[group])})
            case ["apis", group, name] if name in groups.get(group, ()):
                return _json(documents.api_resource_list(catalog, group, name))
        return None

    def _health(self, path: str) -> Reply | None:
        for root in _HEALTH:
            if path == root or (path.startswith(f"{root}/") and path.removeprefix(f"{root}/") in _CHECKS):
                return Reply(200, b"ok", "text/plain; charset=utf-8")
        return None


def _aggregated_version(accept: str) -> str:
    """The version of aggregated discovery that the client prefers to the plain documents; empty when it does not."""
    for kind, pairs in accept_terms(accept):
        parameters = dict(pairs)
        if parameters.get("as") == "APIGroupDiscoveryList" and parameters.get("g") == _DISCOVERY_GROUP:
            if parameters.get("v") in _DISCOVERY_VERSIONS:
                return parameters["v"]
        elif kind in (JSON, "*/*", "application/*") and not parameters.get("as"):
            return ""
    return ""


def _json(value: Object) -> Reply:
    return Reply(200, encode(value) + b"\n", JSON)


def _bytes(body: bytes) -> Reply:
    return Reply(200, body, JSON)
