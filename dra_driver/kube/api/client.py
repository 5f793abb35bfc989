# SPDX-License-Identifier: Apache-2.0
"""The verbs of the Kubernetes API for raw JSON objects: requests, pages of a list, the stream of a watch."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack
from urllib.parse import urlencode

import urllib3

from ..kinds import Kind
from ..resource.codec import DIALECTS, GROUP, TAINT_RULE_VERSIONS, Dialect
from .answers import decode_answer
from .connection import RequestOptions
from .errors import (
    ApiError,
    GoneError,
    NotFoundError,
    StatusError,
    UnreachableError,
    error_of_status,
    status_error,
    text_of,
)

JSON = dict[str, Any]

_CHUNK = 1 << 16

_PAGE = 500
_TAINT_RULES = "devicetaintrules"
_UNAUTHORIZED = 401
_WATCH_SECONDS = 300  # up to twice as long, like client-go, so that clients do not reconnect at the same time
# Exactly one form for each request: kube-apiserver accepts the list form for a watch too, and then sends nothing.
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


class EventStream(Iterator[tuple[str, JSON]]):
    """(type, object) of each change, with type ADDED, MODIFIED, DELETED or BOOKMARK, until the server ends the stream.

    Every object has a resourceVersion. `next` may raise ApiError, for example GoneError. `end` may be called while
    another thread waits in `next`.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, path: str) -> None:
        self._response = response
        self._path = path
        self._events = self._read()

    def __next__(self) -> tuple[str, JSON]:
        return next(self._events)

    def end(self) -> None:
        """Close the connection. A thread that waits for an event gets an UnreachableError."""
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
        return _lines(self._response, f"watch {self._path}")


def _lines(response: urllib3.BaseHTTPResponse, request: str) -> Iterator[bytes]:
    """The complete lines of a body as they arrive, without empty ones. Raises UnreachableError."""
    rest = b""
    try:
        for chunk in response.stream(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from filter(None, lines)
    except (urllib3.exceptions.HTTPError, ValueError) as error:  # ValueError: `EventStream.end` has closed the file
        raise UnreachableError(f"{request}: {text_of(error)}") from None


def _event(line: bytes, path: str) -> tuple[str, JSON]:
    try:
        event = decode_answer(line)
        kind, value = str(event["type"]), event["object"]
        if kind != "ERROR" and not value["metadata"]["resourceVersion"]:
            raise ValueError("an object without a resourceVersion")
    except (ValueError, KeyError, TypeError):
        raise UnreachableError(f"watch {path}: the server sent {line[:200]!r}, which is not an event") from None
    if kind == "ERROR":
        raise error_of_status(f"watch {path}", value)
    return kind, value


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of a collection, and the resource version of the collection."""

    items: list[JSON]
    resource_version: str


class Selection(TypedDict, total=False):
    """Which objects of a kind to list or watch; by default all, in all namespaces. With `metadata_only`, as
    PartialObjectMetadata.
    """

    namespace: str
    field_selector: str
    label_selector: str
    metadata_only: bool


class Transport(Protocol):
    """Sends requests to the server: a `Connection`, or another object with the same methods."""

    server: str
    identity: str

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> urllib3.BaseHTTPResponse:
        """Send one request, like `Connection.request`."""


class ApiClient:
    """The verbs, over one connection. Every method may raise ApiError."""

    def __init__(self, connection: Transport) -> None:
        self._connection = connection

    def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        """Get one object."""
        return self._json("GET", kind.path(namespace, name))

    def get_path(self, path: str) -> JSON:
        """Get any JSON document, such as a discovery document."""
        return self._json("GET", path)

    def lines(self, path: str, *, seconds: float) -> Iterator[bytes]:
        """The lines of a text document, such as `/metrics`, as they arrive with pauses of at most this time. The caller
        may stop at any line.
        """
        request = f"GET {path}"
        response = self._connection.request("GET", path, stream_seconds=seconds, accept="text/plain")
        try:
            if response.status != 200:
                raise self._failure(request, response, response.read())
            yield from _lines(response, request)
        finally:
            response.close()

    def list(
        self,
        kind: Kind,
        *,
        keep: Callable[[JSON], JSON] | None = None,
        page: int = _PAGE,
        **selection: Unpack[Selection],
    ) -> Page:
        """All selected objects, read in pages. If the server forgets the list before the last page, it is read again as
        a whole.

        For large collections, `keep` reduces each object to what the caller needs. So at most one `page` of complete
        objects is in memory.
        """
        selectors = _selectors(selection)
        path = kind.path(selection.get("namespace", ""))
        accept = _METADATA_LIST if selection.get("metadata_only") else None
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
        """Create an object. With `name` and `subresource`, create the subresource of an object (such as a pod's
        binding). With `dry_run`, the server only returns what it would store.

        ConflictError may mean that this call created the object: the answer was lost, and the request was repeated. If
        the server generates the name, the request is not repeated, and a lost answer raises UnreachableError.
        """
        named = bool(name or value.get("metadata", {}).get("name"))
        path = kind.path(namespace, name, subresource) + ("?dryRun=All" if dry_run else "")
        return self._json("POST", path, value, repeatable=named or dry_run)

    def update(self, kind: Kind, value: Mapping[str, Any], *, subresource: str = "") -> JSON:
        """Replace an object, or its status. Its resourceVersion must be the current one."""
        meta = value["metadata"]
        return self._json("PUT", kind.path(meta.get("namespace", ""), meta["name"], subresource), value)

    def patch(
        self, kind: Kind, name: str, value: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> JSON:
        """Change the given fields of an object (JSON merge patch)."""
        path = kind.path(namespace, name, subresource)
        return self._json("PATCH", path, value, content_type="application/merge-patch+json")

    def json_patch(self, kind: Kind, name: str, operations: Sequence[JSON], *, namespace: str = "") -> JSON:
        """Carry out operations on an object (JSON Patch, RFC 6902), all of them or none. ApiError with status 422 if
        one fails, such as a `test`.
        """
        path = kind.path(namespace, name)
        return self._json("PATCH", path, operations, content_type="application/json-patch+json")

    def delete(self, kind: Kind, name: str, namespace: str = "", *, uid: str = "", resource_version: str = "") -> None:
        """Delete an object. With `uid` or `resource_version`, only if the object still has these."""
        preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        options: JSON = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            options["preconditions"] = preconditions
        self._json("DELETE", kind.path(namespace, name), options)

    def watch(self, kind: Kind, resource_version: str, **selection: Unpack[Selection]) -> EventStream:
        """Watch changes after `resource_version`, for 5 to 10 minutes. Raises GoneError, here or from the stream, if
        the version is too old.
        """
        seconds = int(_WATCH_SECONDS * random.uniform(1.0, 2.0))  # noqa: S311 - not a secret
        query = _query(
            {
                "watch": "1",
                "resourceVersion": resource_version,
                **_selectors(selection),
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(seconds),
            }
        )
        path = f"{kind.path(selection.get('namespace', ''))}?{query}"
        accept = _METADATA if selection.get("metadata_only") else None
        response = self._connection.request("GET", path, stream_seconds=seconds + 10, accept=accept)
        if response.status != 200:
            try:
                raise self._failure(f"GET {path}", response, response.read())
            finally:
                response.close()
        return EventStream(response, path)

    def send(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = "", accept: str = ""
    ) -> bytes:
        """Send a request whose body or answer is not JSON, and return the body of the answer."""
        response = self._connection.request(
            method, path, body=body, content_type=content_type or None, accept=accept or None
        )
        if not 200 <= response.status < 300:
            raise self._failure(f"{method} {path}", response, response.data)
        return response.data

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[JSON] | None = None,
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
            value = decode_answer(response.data)
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


def _selectors(selection: Selection) -> dict[str, str]:
    return {
        "fieldSelector": selection.get("field_selector", ""),
        "labelSelector": selection.get("label_selector", ""),
    }


def _query(parameters: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in parameters.items() if value})


def newest_dialect(client: ApiClient) -> Dialect:
    """The newest version of resource.k8s.io that the server and this driver support. Raises ApiError."""
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
        f"the API server serves {found}, and this driver needs one of {wanted}: v1 is enabled by default from"
        " Kubernetes 1.34; for older versions, start kube-apiserver with --feature-gates=DynamicResourceAllocation=true"
        f" and --runtime-config={GROUP}/v1beta1=true (1.33: also {GROUP}/v1beta2=true)"
    )


def served_versions(client: ApiClient, group: str) -> Iterator[str]:
    """The versions of an API group, such as `apps/v1`, the preferred one first. Raises ApiError."""
    if not group:
        yield "v1"
        return
    served = client.get_path(f"/apis/{group}")
    known = (served.get("preferredVersion") or {}, *(served.get("versions") or ()))
    yield from dict.fromkeys(version["groupVersion"] for version in known if "groupVersion" in version)


def newest_taint_rules(client: ApiClient) -> Kind | None:
    """The newest version in which the server has DeviceTaintRules. None if it has none. Raises ApiError."""
    return first_served(client, (Kind(version, _TAINT_RULES) for version in TAINT_RULE_VERSIONS))


def first_served(client: ApiClient, kinds: Iterable[Kind]) -> Kind | None:
    """The first of these kinds that the server has. None if it has none of them. It needs no right to read objects.
    Raises ApiError.
    """
    for kind in kinds:
        try:
            resources = client.get_path(f"/apis/{kind.api_version}").get("resources") or []
        except NotFoundError:
            continue
        if any(resource.get("name") == kind.plural for resource in resources):
            return kind
    return None
