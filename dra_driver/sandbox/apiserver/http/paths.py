# SPDX-License-Identifier: Apache-2.0
"""URLs: the target of a request, and the documents at URLs that name no resource (discovery, OpenAPI, health).

Targets follow the RequestInfo of k8s.io/apiserver.
"""

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from .. import discovery, status
from ..catalog import ServedKinds
from ..objects import Object
from ..rbac import Attributes
from .rendering import Reply, render_value

_HEALTH: Final = ("/healthz", "/livez", "/readyz")

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


class Paths:
    """The documents at URLs that name no resource. They are cached for each state of the catalog."""

    def __init__(self, catalog: ServedKinds) -> None:
        self._catalog = catalog
        self._made: dict[str, Reply] = {}
        self._generation = -1

    def answer(self, path: str) -> Reply:
        """Return the answer to a GET of `path`. Raises 404."""
        path = path.rstrip("/")
        if path.startswith(_HEALTH):
            return Reply(200, b"ok", "text/plain; charset=utf-8")
        if path == "/metrics":
            return Reply(200, discovery.metrics(self._catalog.release).encode(), "text/plain; version=0.0.4")
        if path == "/openapi/v2":
            return Reply(200, discovery.V2_PROTOBUF, discovery.V2_PROTOBUF_TYPE)
        if self._generation != self._catalog.generation:
            self._made.clear()
            self._generation = self._catalog.generation
        if path not in self._made:
            self._made[path] = Reply(200, render_value(self._document(path)))
        return self._made[path]

    def _document(self, path: str) -> Object:
        catalog = self._catalog
        groups = discovery.group_versions(catalog)
        match path.split("/")[1:]:
            case ["version"]:
                return discovery.version_info(catalog.release.minor)
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["api", "v1"]:
                return discovery.api_resource_list(catalog, "", "v1")
            case ["apis"]:
                known = [discovery.api_group(group, versions) for group, versions in groups.items()]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": known}
            case ["apis", group] if group in groups:
                return {"kind": "APIGroup", "apiVersion": "v1", **discovery.api_group(group, groups[group])}
            case ["apis", group, version] if version in groups.get(group, ()):
                return discovery.api_resource_list(catalog, group, version)
            case ["openapi", "v3"]:
                return discovery.index_document(groups)
            case ["openapi", "v3", "api", "v1"]:
                return discovery.v3_document(catalog, "", "v1")
            case ["openapi", "v3", "apis", group, version] if version in groups.get(group, ()):
                return discovery.v3_document(catalog, group, version)
        raise status.no_such_resource()


@dataclass(frozen=True, slots=True)
class Target(Attributes):
    """The target of a request, with the API version."""

    version: str = ""


def target_of(request: web.BaseRequest) -> Target:
    """Return the target of a request."""
    method, path = request.method, request.path
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
        watch = request.query.get("watch") in ("1", "true", "True")
        verb = {"get": "watch" if watch else "list", "delete": "deletecollection"}.get(verb, verb)
    return Target(verb, group, resource, subresource, namespace, name, version=version)
