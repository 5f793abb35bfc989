# SPDX-License-Identifier: Apache-2.0
"""The embedded API server with controls for tests: requests fail on purpose, objects are altered, users are added.

A `RequestFault` selects requests and says what happens to them. All methods may be called from any thread.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiohttp import web

from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions, status
from dra_driver.sandbox.apiserver.catalog import ServedCluster
from dra_driver.sandbox.apiserver.http.paths import Target, target_of
from dra_driver.sandbox.apiserver.http.rendering import failure, response
from dra_driver.sandbox.apiserver.rbac import authenticate
from dra_driver.sandbox.apiserver.users import User, service_account

JSON = dict[str, Any]
_T = TypeVar("_T")

_REASONS: Final = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


@dataclass(slots=True)
class RequestFault:
    """A fault. Empty conditions match every request.

    The server first waits `delay` seconds. Then it either closes the connection without an answer (`disconnect`),
    or answers with the HTTP status `error`. With `after_commit`, the request takes effect and only its answer
    fails, like a lost response.
    """

    verb: str = ""
    """`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`."""
    resource: str = ""
    """`resourceslices`, or `resourceclaims/status`."""
    namespace: str = ""
    name: str = ""
    user: str = ""
    times: int | None = None
    """How many requests the fault hits. None: all requests, until the fault is removed."""
    delay: float = 0.0
    error: int = 0
    retry_after: int = 1
    """The seconds of the Retry-After header of 429 and 503."""
    disconnect: bool = False
    after_commit: bool = False
    hits: int = field(default=0, compare=False)
    """How many requests the fault has hit."""

    def matches(self, target: Target, user: str) -> bool:
        """Whether the fault hits the request."""
        conditions = (
            (self.verb, target.verb),
            (self.resource, target.full_resource),
            (self.namespace, target.namespace),
            (self.name, target.name),
            (self.user, user),
        )
        return all(not wanted or wanted == found for wanted, found in conditions)

    async def suffer(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The failure, or None if the request is only late."""
        await asyncio.sleep(self.delay)
        if self.disconnect:
            return disconnected(request)
        if not self.error:
            return None
        details = {"retryAfterSeconds": self.retry_after} if self.error in (429, 503) else None
        text = f"injected fault {self.error}"
        return response(failure(status.RequestError(self.error, _REASONS.get(self.error, ""), text, details)))


def disconnected(request: web.BaseRequest) -> web.StreamResponse:
    """Closes the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


@dataclass(slots=True)
class Alteration:
    """A change that the server makes to objects, like a mutating webhook.

    `change` edits objects of `resource`, in their stored form, before they are created or updated. This includes
    dry runs. It may raise a RequestError.
    """

    resource: str
    change: Callable[[JSON], None]
    name: str = ""
    """The name of the object. Empty: any object."""
    hits: int = field(default=0, compare=False)
    """How many writes the alteration has changed."""


class Faults:
    """The active faults, of which the first match hits a request, and the active alterations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[RequestFault] = []
        self._alterations: list[Alteration] = []
        self.refusing = False

    def add(self, fault: RequestFault) -> RequestFault:
        """Activates `fault` and returns it. Its `hits` count the requests; `remove` ends it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def alter(self, alteration: Alteration) -> Alteration:
        """Activates `alteration` and returns it."""
        with self._lock:
            self._alterations.append(alteration)
        return alteration

    def restore(self, alteration: Alteration) -> None:
        """Ends one alteration. Does nothing if it has ended already."""
        with self._lock:
            self._alterations = [other for other in self._alterations if other is not alteration]

    def remove(self, fault: RequestFault) -> None:
        """Ends one fault. Does nothing if it has ended already."""
        with self._lock:
            self._faults = [other for other in self._faults if other is not fault]

    def clear(self) -> None:
        """Ends all faults and alterations, and accepts connections again."""
        with self._lock:
            self._faults.clear()
            self._alterations.clear()
            self.refusing = False

    def refuse_connections(self, refuse: bool = True) -> None:
        """Closes the connection of every new request without an answer, like a server that is down."""
        self.refusing = refuse

    def hit(self, target: Target, user: str) -> RequestFault | None:
        """The fault that hits this request, with the hit counted, or None."""
        with self._lock:
            for fault in self._faults:
                if fault.matches(target, user):
                    fault.hits += 1
                    if fault.times is not None and fault.hits >= fault.times:
                        self._faults.remove(fault)
                    return fault
        return None

    def admit(self, resource: str, obj: JSON) -> None:
        """Applies the alterations to an object before it is created or updated."""
        with self._lock:
            alterations = list(self._alterations)
        for one in alterations:
            if one.resource == resource and one.name in ("", obj["metadata"].get("name")):
                one.hits += 1
                one.change(obj)


class FaultyServer(ApiServer):
    """An embedded API server that tests control."""

    def __init__(self, options: ApiServerOptions | None = None) -> None:
        super().__init__(options)
        self.faults = Faults()
        self.cluster.admit = self.faults.admit

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to a request, or what a fault makes of it."""
        if self.faults.refusing:
            return disconnected(request)
        try:
            user = authenticate(self.cluster, request.headers)
        except status.RequestError:
            return await super().answer(request)
        fault = self.faults.hit(target_of(request), user.name)
        if fault is None:
            return await super().answer(request)
        if not fault.after_commit:
            return await fault.suffer(request) or await super().answer(request)
        answer = await super().answer(request)
        return answer if answer.status >= 400 else await fault.suffer(request) or answer

    def add_user(self, user: User, token: str = "") -> str:
        """Accepts a token for `user` and returns it. The default is a random token."""
        token = token or secrets.token_urlsafe(32)
        self.cluster.users[token] = user
        return token

    def add_service_account(self, namespace: str, name: str, *, node: str = "", token: str = "") -> str:
        """A token of a service account, bound to a pod on `node`. The ServiceAccount need not exist."""
        return self.add_user(service_account(namespace, name, node=node), token)

    def drop_watches(self, collection: str = "") -> None:
        """Ends the watches of a collection (`pods`, `resourceslices.resource.k8s.io`) or of all. Clients reconnect."""
        self.call(lambda cluster: cluster.store.end_watches(collection))

    def compact(self) -> None:
        """Discards the history, as etcd does every few minutes. Watches and lists that need it get 410 Gone."""

        def discard(cluster: ServedCluster) -> None:
            for name in cluster.store.names():
                collection = cluster.store.collection(name)
                collection.history.clear()
                collection.floor = cluster.store.revision

        self.call(discard)

    def resource_version(self) -> int:
        """The current revision of the store."""
        return self.call(lambda cluster: cluster.store.revision)

    def call(self, function: Callable[[ServedCluster], _T]) -> _T:
        """Runs `function` on the server's event loop and returns its result. Must not be called on this loop."""

        async def run() -> _T:
            return function(self.cluster)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()
