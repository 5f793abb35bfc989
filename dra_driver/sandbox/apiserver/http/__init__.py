# SPDX-License-Identifier: Apache-2.0
"""The handling of one HTTP request.

The order is that of k8s.io/apiserver: authentication, injected faults, authorization, then the resource's verb or the
document of the path. Errors become Status objects in one place.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from .. import rbac, status
from ..catalog import Cluster
from ..faults import RequestFault
from ..kinds import Served
from ..listing import Page
from ..rbac import acting_user
from ..store import Record
from ..users import User
from ..verbs import check_shape, run
from ..verbs.request import Call, read_body, typed
from . import watching
from .paths import Paths, Target, parse_target
from .rendering import (
    JSON,
    Media,
    Reply,
    failure,
    headers,
    negotiate,
    render_page,
    render_record,
    render_value,
    response,
)

_log = logging.getLogger(__name__)
_requests = _log.getChild("requests")
"""Logs each request at its begin, with the client's agent, if this logger is enabled for DEBUG."""

_MOST_BYTES: Final = 3 * 1024 * 1024
_NOT_FOUND: Final = Reply(404, b"404 page not found\n", "text/plain; charset=utf-8")


class Handler:
    """Answers all requests to a server."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self._cluster = cluster
        self._paths = Paths(cluster.catalog, address)
        self.settle: Callable[[], None] = lambda: None
        """Runs after each write and schedules the controllers."""

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a request."""
        if self._cluster.faults.refusing:
            return _disconnect(request)
        watch = request.query.get("watch", "") in ("1", "true", "True")
        target = parse_target(request.method, request.path, watch=watch)
        if _requests.isEnabledFor(logging.DEBUG):
            agent = request.headers.get("User-Agent", "")
            _requests.debug("%s %s", target.verb, request.path_qs, extra={"agent": agent, "resource": target.resource})
        warnings: list[str] = []
        try:
            user = acting_user(self._cluster, self._authenticate(request), request.headers.items())
            fault = self._cluster.faults.hit(
                target.verb, target.full_resource, target.namespace, target.name, user.name
            )
            if fault is not None and not fault.after_commit:
                await _suffer(fault)
                if fault.disconnect:
                    return _disconnect(request)
            self._authorize(user, target)
            if not target.resource:
                return response(self._document(request, target))
            answer = await self._answer(request, target, user, warnings)
            if fault is not None and fault.after_commit:
                await _suffer(fault)
                if fault.disconnect:
                    return _disconnect(request)
            return answer if isinstance(answer, web.StreamResponse) else response(answer, warnings)
        except status.RequestError as error:
            return response(failure(error), warnings)
        except ConnectionError:
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path_qs)
            return response(failure(status.internal("see the server's log")))

    def _authenticate(self, request: web.BaseRequest) -> User:
        header = request.headers.get("Authorization", "")
        if not header:
            raise status.unauthorized()
        scheme, _, token = header.partition(" ")
        user = self._cluster.tokens.user(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise status.unauthorized()
        return user

    def _authorize(self, user: User, target: Target) -> None:
        if not self._cluster.rbac:
            return
        if not rbac.allowed(self._cluster, user, target):
            text = rbac.refusal(user, target)
            if not target.resource:
                raise status.RequestError(403, "Forbidden", f"forbidden: {text}", {})
            raise status.forbidden(target.resource, target.group, target.name, text)

    def _document(self, request: web.BaseRequest, target: Target) -> Reply:
        if target.verb not in ("get", "head"):
            raise status.method_not_allowed()
        reply = self._paths.answer(target.path)
        if reply is None:
            group = target.path.removeprefix("/apis/").partition("/")
            if target.path.startswith("/apis/") and group[2] and self._has_group(group[0]):
                raise status.no_such_resource()
            return _NOT_FOUND
        return reply

    async def _answer(
        self, request: web.BaseRequest, target: Target, user: User, warnings: list[str]
    ) -> web.StreamResponse | Reply:
        review = rbac.find_review(target.group, target.version, target.resource)
        served = self._cluster.catalog.find(target.group, target.version, target.resource)
        if served is None and review is None:
            if not self._has_group(target.group):
                return _NOT_FOUND
            raise status.no_such_resource()
        media = negotiate(request.headers.get("Accept", ""))
        body = await _read(request) if request.method in ("POST", "PUT", "PATCH", "DELETE") else b""
        if served is None:
            assert review is not None, "one of both was found"
            if target.verb != "create" or target.name:
                raise status.method_not_allowed()
            content_type = request.headers.get("Content-Type", "")
            api_version = f"{review.group}/{target.version}"
            value = read_body(body, content_type, review.kind, api_version, self._cluster.catalog.schemas.find)
            value = typed(self._cluster, value, api_version, review.kind)
            return Reply(201, render_value(rbac.answer(self._cluster, review, user, value)), JSON)
        call = _call(request, target, served, user, warnings, body)
        check_shape(call)
        deprecation = self._cluster.release.deprecation(target.group, served.version, served.kind.name)
        if deprecation:
            warnings.append(deprecation)
        if target.verb == "watch":
            return await self._watch(request, call, media)
        return self._carry_out(request, call, media)

    def _has_group(self, group: str) -> bool:
        reviewed = any(review.group == group for review in rbac.REVIEWS)
        return reviewed or self._cluster.catalog.has_group(group)

    def _carry_out(self, request: web.BaseRequest, call: Call, media: Media) -> Reply:
        try:
            result, code = run(self._cluster, call)
            include, now = call.option("includeObject"), self._cluster.clock()
            if isinstance(result, Record):
                body = render_record(result, call.served, media, now, include)
            elif isinstance(result, Page):
                body = render_page(result, call.served, media, now, include)
            else:
                body = render_value(result)
        finally:
            if call.verb not in ("get", "list"):
                self.settle()
        return Reply(code, body, JSON)

    async def _watch(self, request: web.BaseRequest, call: Call, media: Media) -> web.StreamResponse:
        frames = watching.stream(self._cluster, call, media)
        # The first frame is computed before the headers are sent, so that an invalid parameter gets an error status.
        first = await anext(frames, b"")
        answer = web.StreamResponse(headers=headers(JSON, {}, call.warnings))
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        try:
            if first:
                await answer.write(first)
            async for body in frames:
                await answer.write(body)
            await answer.write_eof()
        except ConnectionError:
            _log.debug("watch of %s ended by the client", call.kind.qualified_plural)
        finally:
            await frames.aclose()
        return answer


def _call(
    request: web.BaseRequest, target: Target, served: Served, user: User, warnings: list[str], body: bytes
) -> Call:
    query: dict[str, list[str]] = {}
    for key, value in request.query.items():
        query.setdefault(key, []).append(value)
    return Call(
        target.verb,
        served,
        target.namespace,
        target.name,
        target.subresource,
        user,
        query,
        body,
        request.headers.get("Content-Type", ""),
        request.headers.get("User-Agent", ""),
        warnings,
    )


async def _read(request: web.BaseRequest) -> bytes:
    length = request.content_length
    body = b"" if length is not None and length > _MOST_BYTES else await request.read()
    if max(length or 0, len(body)) > _MOST_BYTES:
        text = f"Request entity is too large: limit is {_MOST_BYTES}"
        raise status.RequestError(413, "RequestEntityTooLarge", text, {})
    return body


async def _suffer(fault: RequestFault) -> None:
    if fault.delay:
        await asyncio.sleep(fault.delay)
    if fault.error and not fault.disconnect:
        raise fault.failure()


def _disconnect(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
