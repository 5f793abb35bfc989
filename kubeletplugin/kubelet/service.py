# SPDX-License-Identifier: Apache-2.0
"""The services that kubelet calls: the registration, and DRA, where each claim of a call gets its devices or an error.

The registration socket is in kubelet's registry folder. kubelet asks there for the plugin's identity and reports the
result, again whenever it starts or finds the socket again.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from dra_driver.names import DRIVER_NAME
from dra_driver.process.call_threads import CallThreads

from ..claims.answers import PreparedDevice
from ..claims.boundary import EXPECTED_ERRORS
from ..claims.call import Call, kubelet_call
from ..claims.model import ClaimRef
from ..errors import PrepareError
from ..metrics import PREPARE, UNPREPARE, PluginMetrics
from ..protocol import dra_v1_pb2 as messages
from ..protocol import registration_pb2
from ..reports.reporter import ClaimReports
from .sockets import unary

log = logging.getLogger(__name__)

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The served versions, whose messages are the same, the preferred one first."""


class DraService:
    """NodePrepareResources and NodeUnprepareResources in every served version. Claims of one call run in parallel.

    `prepare` and `unprepare` do the work for a claim, and raise EXPECTED_ERRORS. The result of each claim is counted in
    `metrics` for `driver`, and sent to `reports`.
    """

    def __init__(
        self,
        prepare: Callable[[ClaimRef, Call], Sequence[PreparedDevice]],
        unprepare: Callable[[ClaimRef, Call], None],
        metrics: PluginMetrics,
        reports: ClaimReports,
        driver: str = DRIVER_NAME,
    ) -> None:
        self._prepare_claim = prepare
        self._unprepare_claim = unprepare
        self._metrics = metrics
        self._reports = reports
        self._driver = driver
        self._threads = CallThreads("claim")
        self._calls = 0
        self._idle = threading.Condition()

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""
        methods = {
            "NodePrepareResources": unary(
                self._prepare_all, messages.NodePrepareResourcesRequest, messages.NodePrepareResourcesResponse
            ),
            "NodeUnprepareResources": unary(
                self._unprepare_all, messages.NodeUnprepareResourcesRequest, messages.NodeUnprepareResourcesResponse
            ),
        }
        for service in SERVICES:
            handler = grpc.method_handlers_generic_handler(f"k8s.io.kubelet.pkg.apis.dra.{service}", methods)
            server.add_generic_rpc_handlers((handler,))

    def drain(self, seconds: float) -> bool:
        """Wait up to `seconds` until running calls have ended and their answers are sent. Returns whether they have.
        The grace period of a gRPC server would also wait for idle connections, which kubelet keeps open.
        """
        with self._idle:
            return self._idle.wait_for(lambda: self._calls == 0, timeout=seconds)

    def _prepare_all(self, request: Any, context: grpc.ServicerContext) -> Any:
        answers = self._each(request.claims, context, lambda ref: self._prepare(ref, context))
        return messages.NodePrepareResourcesResponse(claims=answers)

    def _unprepare_all(self, request: Any, context: grpc.ServicerContext) -> Any:
        answers = self._each(request.claims, context, lambda ref: self._unprepare(ref, context))
        return messages.NodeUnprepareResourcesResponse(claims=answers)

    def _each(
        self, claims: Sequence[Any], context: grpc.ServicerContext, work: Callable[[ClaimRef], Any]
    ) -> dict[str, Any]:
        refs = [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]
        with self._counted(context):
            answers = map(work, refs) if len(refs) == 1 else self._threads.map(work, refs)
            return dict(zip((ref.uid for ref in refs), answers, strict=True))

    @contextlib.contextmanager
    def _counted(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Count the work, which may last longer than the caller waits, and the call, which ends when its answer is
        sent.
        """
        self._count(2)
        try:
            if not context.add_callback(lambda: self._count(-1)):
                self._count(-1)  # the caller has already gone
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._idle:
            self._calls += change
            if not self._calls:
                self._idle.notify_all()

    def _prepare(self, ref: ClaimRef, context: grpc.ServicerContext) -> Any:
        try:
            with self._metrics.request(PREPARE, self._driver):
                devices = [_encode(device) for device in self._prepare_claim(ref, kubelet_call(ref, context.is_active))]
                answer = messages.NodePrepareResourceResponse(devices=devices)
        except Exception as error:
            text = _explain(PREPARE, ref, error)
            self._reports.failed(ref, text, tell_users=isinstance(error, PrepareError))
            return messages.NodePrepareResourceResponse(error=text)
        self._reports.prepared(ref)
        return answer

    def _unprepare(self, ref: ClaimRef, context: grpc.ServicerContext) -> Any:
        try:
            with self._metrics.request(UNPREPARE, self._driver):
                self._unprepare_claim(ref, kubelet_call(ref, context.is_active))
        except Exception as error:
            return messages.NodeUnprepareResourceResponse(error=_explain(UNPREPARE, ref, error))
        self._reports.unprepared(ref)
        return messages.NodeUnprepareResourceResponse()


def _encode(device: PreparedDevice) -> messages.Device:
    return messages.Device(
        request_names=[device.request],
        pool_name=device.pool,
        device_name=device.name,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _explain(what: str, ref: ClaimRef, error: Exception) -> str:
    """Log why the work for a claim failed, and return the text for kubelet."""
    fields = {"claim": str(ref), "claim_uid": ref.uid}
    if isinstance(error, EXPECTED_ERRORS):
        log.warning("%s failed: %s", what, error, extra=fields)
        return str(error)
    log.error("%s failed unexpectedly", what, extra=fields, exc_info=error)
    return f"internal error: {error!r}"


class RegistrationService:
    """Answers kubelet's GetInfo with the socket and versions of a driver's service.

    `notified(registered)` is called with each result that kubelet reports.
    """

    def __init__(
        self,
        endpoint: Path,
        versions: Sequence[str],
        notified: Callable[[bool], None],
        driver: str = DRIVER_NAME,
    ) -> None:
        self._driver = driver
        self._info = registration_pb2.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=list(versions)
        )
        self._tell = notified
        self._lock = threading.Lock()
        self._problem = "kubelet has not asked for the registration yet"

    def problem(self) -> str | None:
        """Why the plugin is not registered, or None."""
        with self._lock:
            return self._problem or None

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""
        methods = {
            "GetInfo": unary(
                lambda _request, _context: self._info, registration_pb2.InfoRequest, registration_pb2.PluginInfo
            ),
            "NotifyRegistrationStatus": unary(
                self._notified, registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse
            ),
        }
        handler = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
        server.add_generic_rpc_handlers((handler,))

    def _notified(self, status: Any, _context: grpc.ServicerContext) -> Any:
        if status.plugin_registered:
            log.info("registered with kubelet", extra={"driver": self._driver})
        else:
            log.error(
                "kubelet refused the registration: %s; kubelet will try again",
                status.error,
                extra={"driver": self._driver},
            )
        with self._lock:
            self._problem = "" if status.plugin_registered else f"kubelet refused it: {status.error}"
        self._tell(bool(status.plugin_registered))
        return registration_pb2.RegistrationStatusResponse()
