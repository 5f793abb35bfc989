# SPDX-License-Identifier: Apache-2.0
"""The handling of one HTTP request.

The order is that of k8s.io/apiserver: authentication, authorization, then the resource's verb or the
document of the path. Errors become Status objects in one place.
"""

import contextlib
import logging
from collections.abc import Callable

from aiohttp import web

from .. import rbac, status
from ..catalog import ServedCluster
from ..listing import ListPage
from ..rbac import authenticate
from ..schema.protobuf import WireError, encode_object
from ..store import StoredObject
from ..users import User
from ..verbs import check_shape, run
from ..verbs.request import PROTOBUF, ApiCall, read_body, typed, versioned
from . import watching
from .paths import Paths, Target, target_of
from .rendering import (
    JSON,
    Reply,
    failure,
    form_of,
    headers,
    prefers_protobuf,
    render_page,
    render_record,
    render_value,
    response,
)

_log = logging.getLogger(__name__)


class Handler:
    """Answers all requests to a server."""

    def __init__(self, cluster: ServedCluster, settle: Callable[[], None]) -> None:
        """`settle` runs after each write and schedules the controllers."""
        self._cluster = cluster
        self._paths = Paths(cluster.catalog)
        self._settle = settle

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a request."""
        target = target_of(request)
        warnings: list[str] = []
        try:
            user = authenticate(self._cluster, request.headers)
            self._authorize(user, target)
            if not target.resource:
                return response(self._paths.answer(target.path))
            answer = await self._answer(request, target, user, warnings)
            return answer if isinstance(answer, web.StreamResponse) else response(answer, warnings)
        except status.RequestError as error:
            return response(failure(error), warnings)
        except ConnectionError:
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path_qs)
            return response(failure(status.internal("see the server's log")))

    def _authorize(self, user: User, target: Target) -> None:
        if not self._cluster.rbac:
            return
        if not rbac.allowed(self._cluster, user, target):
            text = rbac.refusal(user, target)
            if not target.resource:
                raise status.RequestError(403, "Forbidden", f"forbidden: {text}", {})
            raise status.forbidden(target.resource, target.group, target.name, text)

    async def _answer(
        self, request: web.BaseRequest, target: Target, user: User, warnings: list[str]
    ) -> web.StreamResponse | Reply:
        cluster = self._cluster
        body = await request.read()
        content_type = request.headers.get("Content-Type", "")
        served = cluster.catalog.find(target.group, target.version, target.resource)
        if served is None:
            return self._review(target, user, body, content_type)
        call = ApiCall(
            target.verb,
            served,
            target.namespace,
            target.name,
            target.subresource,
            user,
            request.query,
            body,
            content_type,
            request.headers.get("User-Agent", ""),
            warnings,
        )
        check_shape(call)
        deprecation = cluster.release.deprecation(target.group, served.version, served.kind.name)
        if deprecation:
            warnings.append(deprecation)
        form = form_of(request.headers.get("Accept", ""))
        if target.verb == "watch":
            return await self._watch(request, call, form)
        return self._carry_out(call, form, protobuf=prefers_protobuf(request.headers.get("Accept", "")))

    def _review(self, target: Target, user: User, sent: bytes, content_type: str) -> Reply:
        review = rbac.REVIEWS.get((target.group, target.version, target.resource))
        if review is None:
            raise status.no_such_resource()
        if target.verb != "create" or target.name:
            raise status.method_not_allowed()
        kind, api_version = review[0], f"{target.group}/{target.version}"
        value = read_body(self._cluster, sent, content_type, kind, api_version)
        body = {**typed(self._cluster, value, api_version, kind), "kind": kind, "apiVersion": api_version}
        return Reply(201, render_value(rbac.answer(self._cluster, user, body, review)))

    def _carry_out(self, call: ApiCall, form: str, *, protobuf: bool) -> Reply:
        try:
            result, code = run(self._cluster, call)
        finally:
            if call.verb not in ("get", "list"):
                self._settle()
        whole = call.option("includeObject") == "Object"
        if isinstance(result, StoredObject) and protobuf and not call.kind.custom:
            with contextlib.suppress(WireError):  # an object that has no message is answered in JSON
                return Reply(code, encode_object(versioned(result.object, call.served), call.served.type), PROTOBUF)
        if isinstance(result, StoredObject):
            body = render_record(result, call.served, form, whole)
        elif isinstance(result, ListPage):
            body = render_page(result, call.served, form, whole)
        else:
            body = render_value(result)
        return Reply(code, body)

    async def _watch(self, request: web.BaseRequest, call: ApiCall, form: str) -> web.StreamResponse:
        frames = watching.stream(self._cluster, call, form)
        # The first frame is computed before the headers are sent, so that an invalid parameter gets an error status.
        first = await anext(frames)
        answer = web.StreamResponse(headers=headers(JSON, call.warnings))
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        try:
            await answer.write(first)
            async for body in frames:
                await answer.write(body)
            await answer.write_eof()
        except ConnectionError:
            _log.debug("watch of %s ended by the client", call.kind.qualified_plural)
        finally:
            await frames.aclose()
        return answer
