# SPDX-License-Identifier: Apache-2.0
"""URLs: the target of a request, and the documents at URLs that name no resource (discovery, OpenAPI, health).

Targets follow the RequestInfo of k8s.io/apiserver.
"""

from dataclasses import dataclass
from typing import Final

from .. import discovery
from ..catalog import Catalog
from ..objects import Object, encode
from ..rbac import Attributes
from .rendering import JSON, Reply

_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_CHECKS: Final = ("ping", "etcd", "log", "poststarthook/rbac/bootstrap-roles")


class Paths:
    """The documents at URLs that name no resource. They are cached for each state of the catalog."""

    def __init__(self, catalog: Catalog, address: str) -> None:
        self._catalog = catalog
        self._address = address
        self._made: dict[str, Reply] = {}
        self._generation = -1

    def answer(self, path: str) -> Reply | None:
        """Return the answer to a GET of `path`, or None if nothing is there."""
        trimmed = path.rstrip("/") or "/"
        health = self._health(trimmed)
        if health is not None:
            return health
        if self._generation != self._catalog.generation:
            self._made.clear()
            self._generation = self._catalog.generation
        if trimmed == "/openapi/v2":
            return Reply(200, discovery.V2_PROTOBUF, discovery.V2_PROTOBUF_TYPE)
        if trimmed not in self._made:
            made = self._make(trimmed)
            if made is None:
                return None
            self._made[trimmed] = made
        return self._made[trimmed]

    def _make(self, path: str) -> Reply | None:
        if path == "/version":
            return _json(discovery.version_info(self._catalog.release.minor))
        if path == "/openapi/v3":
            return _json(discovery.index_document(self._catalog))
        if path.startswith("/openapi/v3/"):
            found = discovery.paths_of(self._catalog).get(path.removeprefix("/openapi/v3/"))
            return None if found is None else _bytes(discovery.v3_document(self._catalog, *found))
        return self._discovery(path)

    def _discovery(self, path: str) -> Reply | None:
        catalog = self._catalog
        if path == "/api":
            return _json(discovery.api_versions(self._address))
        if path == "/apis":
            return _json(discovery.api_group_list(catalog))
        if path == "/api/v1":
            return _json(discovery.api_resource_list(catalog, "", "v1"))
        groups = discovery.group_versions(catalog)
        match path.split("/")[1:]:
            case ["apis", group] if group in groups:
                return _json({"kind": "APIGroup", "apiVersion": "v1", **discovery.api_group(group, groups[group])})
            case ["apis", group, name] if name in groups.get(group, ()):
                return _json(discovery.api_resource_list(catalog, group, name))
        return None

    def _health(self, path: str) -> Reply | None:
        for root in _HEALTH:
            if path == root or (path.startswith(f"{root}/") and path.removeprefix(f"{root}/") in _CHECKS):
                return Reply(200, b"ok", "text/plain; charset=utf-8")
        return None


def _json(value: Object) -> Reply:
    return Reply(200, encode(value) + b"\n", JSON)


def _bytes(body: bytes) -> Reply:
    return Reply(200, body, JSON)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


@dataclass(frozen=True, slots=True)
class Target(Attributes):
    """The target of a request, with the API version."""

    version: str = ""


def parse_target(method: str, path: str, *, watch: bool) -> Target:
    """Return the target of a request. `watch` is its query parameter."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Target(method.lower(), path=path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    resource, name = rest[0], rest[1] if len(rest) > 1 else ""
    subresource = "/".join(rest[2:])
    if resource == "namespaces":
        namespace = ""
    verb = _VERBS.get(method, method.lower())
    if not name:
        verb = {"get": "watch" if watch else "list", "delete": "deletecollection"}.get(verb, verb)
    return Target(verb, group, resource, subresource, namespace, name, version=version)
