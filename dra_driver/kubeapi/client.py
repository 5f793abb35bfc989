# SPDX-License-Identifier: Apache-2.0
"""The verbs of the Kubernetes API on raw JSON objects: kinds, requests, pages of a list, the stream of a watch."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import urllib3

from ..resource.codec import DIALECTS, GROUP, Dialect
from .errors import ApiError, GoneError, NotFoundError, StatusError, UnreachableError, error_of_status, status_error

JSON = dict[str, Any]

_CHUNK = 1 << 16


class EventStream(Iterator[tuple[str, JSON]]):
    """(type, object) of each change, ADDED, MODIFIED, DELETED or BOOKMARK, until the server ends the stream.

    Every object has a resourceVersion. `next` may raise ApiError, GoneError among them. `end` may be called from
    another thread, while one waits in `next`.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, path: str) -> None:
        self._response = response
        self._path = path
        self._events = self._read()

    def __next__(self) -> tuple[str, JSON]:
        return next(self._events)

    def end(self) -> None:
        """Cut the connection, so that whoever waits for an event gets an UnreachableError."""
        try:
            self._response.shutdown()
        except (ValueError, RuntimeError, OSError):
            return  # it has ended already

    def _read(self) -> Iterator[tuple[str, JSON]]:
        try:
            for line in self._lines():
                yield _event(line, self._path)
        finally:
            self._response.close()

    def _lines(self) -> Iterator[bytes]:
        """The lines of the body, as they come in."""
        rest = b""
        try:
            for chunk in self._response.stream(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, lines)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"watch {self._path}: {error}") from None


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


_PAGE = 500
_UNAUTHORIZED = 401
_WATCH_SECONDS = 300  # to twice that, as client-go does: clients that began together do not come back together
# Exactly one form for each: kube-apiserver takes the form of a list for a watch too, and then sends nothing.
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


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


class Transport(Protocol):
    """How requests reach the server: a `Connection`, or something else that makes the same requests."""

    server: str
    identity: str

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str | None = None,
        stream_seconds: float | None = None,
        repeatable: bool = True,
        accept: str | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request, as `Connection.request` has it."""


class ApiClient:
    """The verbs, over one connection. Every method may raise ApiError."""

    def __init__(self, connection: Transport) -> None:
        self._connection = connection

    def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        """One object."""
        return self._json("GET", kind.path(namespace, name))

    def get_path(self, path: str) -> JSON:
        """Any JSON document, such as a discovery one."""
        return self._json("GET", path)

    def list(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        metadata_only: bool = False,
        keep: Callable[[JSON], JSON] | None = None,
        page: int = _PAGE,
    ) -> Page:
        """All objects of a collection, read in pages; at once when that takes longer than the server's memory.

        Of large collections, `metadata_only` asks for PartialObjectMetadata, and `keep` says what to keep of each
        object, so that there is never more than a `page` of whole ones in memory.
        """
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        path = kind.path(namespace)
        accept = _METADATA_LIST if metadata_only else None
        try:
            return self._pages(path, {**selectors, "limit": str(page)}, accept, keep)
        except GoneError:
            return self._pages(path, selectors, accept, keep)

    def _pages(
        self, path: str, parameters: Mapping[str, str], accept: str | None, keep: Callable[[JSON], JSON] | None
    ) -> Page:
        items: list[JSON] = []
        token = ""
        while True:
            page = self._json("GET", f"{path}?{_query({**parameters, 'continue': token})}", accept=accept)
            meta = page.get("metadata") or {}
            found = page.get("items") or []
            items += found if keep is None else map(keep, found)
            token = meta.get("continue") or ""
            if not token:
                return Page(items, str(meta.get("resourceVersion") or ""))

    def create(
        self,
        kind: Kind,
        value: Mapping[str, Any],
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> JSON:
        """A new object, or with `name` and `subresource` one that is made there (a pod's binding). With `dry_run` the
        server only says what it would store.

        ConflictError may mean that it was made by this very call: the answer was lost and the request repeated. A
        name that the server is to generate excludes that, and a lost answer is then an UnreachableError.
        """
        named = bool(name or value.get("metadata", {}).get("name"))
        path = kind.path(namespace, name, subresource) + ("?dryRun=All" if dry_run else "")
        return self._json("POST", path, value, repeatable=named or dry_run)

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
        self,
        kind: Kind,
        resource_version: str,
        *,
        namespace: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> EventStream:
        """Each change after `resource_version`, for 5 to 10 minutes. GoneError, here or later, means that the version
        is too old. With `metadata_only` the objects are PartialObjectMetadata.
        """
        seconds = int(_WATCH_SECONDS * random.uniform(1.0, 2.0))  # noqa: S311 - not a secret
        query = _query(
            {
                "watch": "1",
                "resourceVersion": resource_version,
                "fieldSelector": field_selector,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(seconds),
            }
        )
        path = f"{kind.path(namespace)}?{query}"
        accept = _METADATA if metadata_only else None
        response = self._connection.request("GET", path, stream_seconds=seconds + 10, accept=accept)
        if response.status != 200:
            try:
                raise self._failure(f"GET {path}", response, response.read())
            finally:
                response.close()
        return EventStream(response, path)

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        *,
        repeatable: bool = True,
        accept: str | None = None,
    ) -> JSON:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        response = self._connection.request(
            method,
            path,
            body=data,
            content_type=content_type if data else None,
            repeatable=repeatable,
            accept=accept,
        )
        if not 200 <= response.status < 300:
            raise self._failure(f"{method} {path}", response, response.data)
        try:
            value = json.loads(response.data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise StatusError(f"{method} {path}", response.status, "", "the answer is not a JSON object")
        return value

    def _failure(self, request: str, response: urllib3.BaseHTTPResponse, body: bytes) -> StatusError:
        error = status_error(request, response.status, body, response.headers.get("Retry-After", ""))
        if error.status == _UNAUTHORIZED:
            who = f"{self._connection.server} does not know {self._connection.identity}"
            hint = f"{who}: the token or certificate is wrong or has expired"
            return StatusError(request, error.status, error.reason, hint)
        return error


def _query(parameters: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in parameters.items() if value})


NODES = Kind("v1", "nodes")


def slices_of(dialect: Dialect) -> Kind:
    """ResourceSlices in one version."""
    return Kind(dialect.api_version, "resourceslices")


def claims_of(dialect: Dialect) -> Kind:
    """ResourceClaims in one version."""
    return Kind(dialect.api_version, "resourceclaims", namespaced=True)


def newest_dialect(client: ApiClient) -> Dialect:
    """The newest version of resource.k8s.io that the server serves and this driver knows. Raises ApiError."""
    try:
        group = client.get_path(f"/apis/{GROUP}")
    except NotFoundError:
        group = {}
    served = {version["version"] for version in group.get("versions") or []}
    for dialect in DIALECTS:
        if dialect.version in served:
            return dialect
    found = f"only {', '.join(sorted(served))} of {GROUP}" if served else f"no {GROUP}"
    wanted = ", ".join(dialect.version for dialect in DIALECTS)
    raise ApiError(
        f"the API server serves {found}, and this driver needs one of {wanted}: v1 is on by default from Kubernetes"
        " 1.34; before, start kube-apiserver with --feature-gates=DynamicResourceAllocation=true and"
        f" --runtime-config={GROUP}/v1beta1=true (1.33: also {GROUP}/v1beta2=true)"
    )
