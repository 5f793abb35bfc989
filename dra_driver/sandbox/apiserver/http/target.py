# SPDX-License-Identifier: Apache-2.0
"""What a URL and a method mean, before anything is looked up.

Follows the RequestInfo of k8s.io/apiserver.
"""

from dataclasses import dataclass

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


@dataclass(frozen=True, slots=True)
class Target:
    """A request to a resource, or with an empty `resource` to some other path."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def full_resource(self) -> str:
        """`pods`, or `pods/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def parse_target(method: str, path: str, *, watch: bool) -> Target:
    """The target of a request; `watch` is its query parameter."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Target(method.lower(), path)
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
    return Target(verb, path, group, version, namespace, resource, name, subresource)
