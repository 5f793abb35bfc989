# SPDX-License-Identifier: Apache-2.0
"""The verbs of the Kubernetes API on raw JSON objects."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from .connection import Connection
from .errors import GoneError, StatusError, UnreachableError, error_of_status, status_error

JSON = dict[str, Any]

_PAGE = 500
_WATCH_SECONDS = 290  # shorter than the idle limits of common load balancers
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of one kind are: `plural` under `api_version` (`v1`, or `group/version`)."""

    api_version: str
    plural: str
    namespaced: bool = False

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, an object, or its subresource."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        parts = [self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return root + "/".join(parts)


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of a collection, and the resource version as of which they are."""

    items: list[JSON]
    resource_version: str


class ApiClient:
    """The verbs, over one connection. Every method may raise ApiError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        """One object."""
        return self._json("GET", kind.path(namespace, name))

    def get_path(self, path: str) -> JSON:
        """Any JSON document, such as a discovery one."""
        return self._json("GET", path)

    def list(self, kind: Kind, *, namespace: str = "", field_selector: str = "", label_selector: str = "") -> Page:
        """All objects of a collection, read in pages; at once when that takes longer than the server's memory."""
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        path = kind.path(namespace)
        try:
            return self._pages(path, {**selectors, "limit": str(_PAGE)})
        except GoneError:
            return self._pages(path, selectors)

    def _pages(self, path: str, parameters: Mapping[str, str]) -> Page:
        items: list[JSON] = []
        token = ""
        while True:
            page = self._json("GET", f"{path}?{_query({**parameters, 'continue': token})}")
            meta = page.get("metadata") or {}
            items += page.get("items") or []
            token = meta.get("continue") or ""
            if not token:
                return Page(items, str(meta.get("resourceVersion") or ""))

    def create(
        self, kind: Kind, value: Mapping[str, Any], namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> JSON:
        """A new object, or with `name` and `subresource` one that is made there (a pod's binding).

        ConflictError may mean that it was made by this very call: the answer was lost and the request repeated. A
        name that the server is to generate excludes that, and a lost answer is then an UnreachableError.
        """
        named = bool(name or value.get("metadata", {}).get("name"))
        return self._json("POST", kind.path(namespace, name, subresource), value, repeatable=named)

    def update(self, kind: Kind, value: Mapping[str, Any], *, subresource: str = "") -> JSON:
        """Replace an object, or its status; its resourceVersion must be the current one."""
        meta = value["metadata"]
        return self._json("PUT", kind.path(meta.get("namespace", ""), meta["name"], subresource), value)

    def patch(
        self, kind: Kind, name: str, value: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> JSON:
        """Change the given fields of an object (JSON merge patch)."""
        path = kind.path(namespace, name, subresource)
        return self._json("PATCH", path, value, content_type="application/merge-patch+json")

    def delete(self, kind: Kind, name: str, namespace: str = "", *, uid: str = "", resource_version: str = "") -> None:
        """Delete an object; with `uid` or `resource_version`, only if it still is that one."""
        preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: JSON = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            options["preconditions"] = preconditions
        self._json("DELETE", kind.path(namespace, name), options)

    def watch(
        self, kind: Kind, resource_version: str, *, namespace: str = "", field_selector: str = ""
    ) -> Iterator[tuple[str, JSON]]:
        """(type, object) of each change after `resource_version`, ADDED, MODIFIED, DELETED or BOOKMARK, until the
        server ends the stream. Raises GoneError when the version is too old. Every object has a resourceVersion.
        """
        query = _query(
            {
                "watch": "1",
                "resourceVersion": resource_version,
                "fieldSelector": field_selector,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_SECONDS),
            }
        )
        path = f"{kind.path(namespace)}?{query}"
        response = self._connection.request("GET", path, stream_seconds=_WATCH_SECONDS + 10)
        try:
            if response.status != 200:
                raise status_error(f"GET {path}", response.status, response.read())
            for line in _lines(response, path):
                yield _event(line, path)
        finally:
            response.close()

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        *,
        repeatable: bool = True,
    ) -> JSON:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        response = self._connection.request(
            method, path, body=data, content_type=content_type if data else None, repeatable=repeatable
        )
        if not 200 <= response.status < 300:
            raise status_error(f"{method} {path}", response.status, response.data)
        try:
            value = json.loads(response.data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise StatusError(f"{method} {path}", response.status, "", "the answer is not a JSON object")
        return value


def _query(parameters: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in parameters.items() if value})


def _event(line: bytes, path: str) -> tuple[str, JSON]:
    try:
        event = json.loads(line)
        kind, value = str(event["type"]), event["object"]
        if kind != "ERROR" and not value["metadata"]["resourceVersion"]:
            raise ValueError("an object without a resourceVersion")
    except (ValueError, KeyError, TypeError):
        raise UnreachableError(f"watch {path}: the server sent {line[:200]!r}, which is not an event") from None
    if kind == "ERROR":
        raise error_of_status(f"watch {path}", value)
    return kind, value


def _lines(response: urllib3.BaseHTTPResponse, path: str) -> Iterator[bytes]:
    """The lines of a streamed body, as they come in."""
    rest = b""
    try:
        for chunk in response.stream(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from filter(None, lines)
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(f"watch {path}: {error}") from None
