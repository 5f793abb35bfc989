# SPDX-License-Identifier: Apache-2.0
"""The checks behind /healthz and /readyz of this process.

/healthz: the process's own sockets answer calls like those of kubelet. If they do not for a long time, a restart helps.
Waiting calls do not delay this check, because each call has its own thread. A driver that hangs is no reason for a
restart, because the next process would hang too.

/readyz: the process can do its work. kubelet has registered it, GPUs are available, the common CDI spec is up to date,
and the API server answers. Every answer of the API server counts, also a refusal. The server is asked for its version
only if there was no request for a while, so that a thousand idle nodes do not poll it.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Unpack

import grpc
import urllib3

from dra_driver.kube.api import ApiClient, ApiError, Connection, Credentials, RequestOptions, UnreachableError
from dra_driver.process.worker import Worker

from .containers.common import CommonSpec
from .errors import NoDriverError
from .kubelet.health import HealthWatch
from .kubelet.service import RegistrationService
from .kubelet.sockets import SocketServer
from .node.node import Node
from .protocol import dra_v1_pb2, registration_pb2

_QUIET_SECONDS = 60.0
_LATELY_SECONDS = 180.0

Observe = Callable[[str, str], None]
"""Called with the method and the HTTP status (or `unreachable`) of each request."""

_SECONDS: Final = 2.0
_OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
"""gRPC shares connections within a process. One that another call has open works although the socket is gone."""

_PREPARE: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
_GET_INFO: Final = "/pluginregistration.Registration/GetInfo"


class ApiContact:
    """The time of the API server's last answer. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answered: float | None = None
        self._error = ""

    def answered(self) -> None:
        """The server has answered."""
        with self._lock:
            self._answered, self._error = self._clock(), ""

    def failed(self, error: str) -> None:
        """The server has not answered."""
        with self._lock:
            self._error = error

    def quiet_seconds(self) -> float | None:
        """The seconds since the last answer, or None if there was none."""
        with self._lock:
            return None if self._answered is None else self._clock() - self._answered

    def problem(self) -> str | None:
        """Why the server counts as unavailable. None if it answered recently, so that one failed request does not
        count.
        """
        quiet = self.quiet_seconds()
        if quiet is not None and quiet < _LATELY_SECONDS:
            return None
        since = "yet" if quiet is None else f"for {quiet:.0f} s"
        with self._lock:
            return f"it has not answered {since}" + (f": {self._error}" if self._error else "")


class ObservedConnection(Connection):
    """A connection that reports the result of each request to `contact` and `observe`."""

    def __init__(self, credentials: Credentials, user_agent: str, contact: ApiContact, observe: Observe) -> None:
        super().__init__(credentials, user_agent)
        self._contact = contact
        self._observe = observe

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> urllib3.BaseHTTPResponse:
        """See Connection."""
        try:
            response = super().request(method, path, **options)
        except UnreachableError as error:
            self._contact.failed(str(error))
            self._observe(method, "unreachable")
            raise
        self._contact.answered()
        self._observe(method, str(response.status))
        return response


def keep_contact(client: ApiClient, contact: ApiContact) -> None:
    """Start a thread that asks the server for its version, at once and whenever there was no answer for a minute. It
    ends with the process.
    """

    def ask() -> float:
        quiet = contact.quiet_seconds()
        if quiet is None or quiet >= _QUIET_SECONDS:
            try:
                client.get_path("/version")
            except ApiError as error:
                contact.failed(str(error))
        return _QUIET_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    Worker("ask API server", ask).start()


def live_checks(*servers: SocketServer) -> dict[str, Callable[[], str | None]]:
    """The checks of /healthz. `servers` has one for each driver."""

    def answers() -> str | None:
        try:
            for server in servers:
                if server.is_started:
                    _check(server)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            return f"the plugin does not answer on its own sockets: {details}"
        return None

    return {"sockets": answers}


def _check(server: SocketServer) -> None:
    """Call both services. Raises grpc.RpcError."""
    _call(server.path, _PREPARE, dra_v1_pb2.NodePrepareResourcesRequest(), dra_v1_pb2.NodePrepareResourcesResponse)
    if server.registration is not None:
        _call(server.registration, _GET_INFO, registration_pb2.InfoRequest(), registration_pb2.PluginInfo)


def ready_checks(
    registration: RegistrationService, node: Node, common: CommonSpec, health: HealthWatch, contact: ApiContact
) -> dict[str, Callable[[], str | None]]:
    """The checks of /readyz."""
    return {
        "kubelet": registration.problem,
        "gpus": lambda: _gpus(node),
        "cdi": common.problem,
        "health": health.problem,
        "api-server": contact.problem,
    }


def _gpus(node: Node) -> str | None:
    hanging = node.threads.problem()
    if hanging is not None:
        return hanging
    try:
        node.gpus()
    except NoDriverError as error:
        return str(error)
    return None


def _call(socket: Path, method: str, request: Any, response: Any) -> None:
    """Call a method of this process like kubelet does. An empty prepare needs no claim."""
    with grpc.insecure_channel(f"unix:{socket}", options=_OWN_CONNECTION) as channel:
        channel.unary_unary(method, type(request).SerializeToString, response.FromString)(request, timeout=_SECONDS)
