# SPDX-License-Identifier: Apache-2.0
"""The DRA service that kubelet calls. Each claim of a call gets its devices or an error of its own."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import grpc

from ..claims.actions import EXPECTED_ERRORS
from ..containers.metadata import MetadataFiles, metadata_names
from ..containers.specs import cdi_names
from ..hardware.targets import ClaimRef, PrepareError
from ..metrics import PREPARE, UNPREPARE, PluginMetrics
from ..plans.plan import Plan
from ..protocol import dra_v1_pb2, dra_v1beta1_pb2
from ..reports.reporter import ClaimReports
from .threads import CallThreads

log = logging.getLogger(__name__)

VERSIONS = ("v1", "v1beta1")
"""Served versions, the one to use first. kubelet calls them `<version>.DRAPlugin`."""

_MESSAGES: dict[str, ModuleType] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}


class ClaimWork(Protocol):
    """What is done for claims (see Lifecycle). Raises EXPECTED_ERRORS; no step is begun that nobody waits for."""

    def prepare(self, ref: ClaimRef, wanted: Callable[[], bool]) -> Plan:
        """Make the claim's devices ready."""

    def unprepare(self, ref: ClaimRef, wanted: Callable[[], bool]) -> None:
        """Undo all of it."""


class DraService:
    """NodePrepareResources and NodeUnprepareResources in every served version. Claims of one call run side by side.

    What becomes of each claim is counted in `metrics` and told to `reports`.
    """

    def __init__(
        self,
        lifecycle: ClaimWork,
        metrics: PluginMetrics,
        reports: ClaimReports,
        metadata: MetadataFiles,
    ) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._reports = reports
        self._metadata = metadata
        self._threads = CallThreads("claim")
        self._calls = 0
        self._idle = threading.Condition()

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""
        for version, messages in _MESSAGES.items():
            server.add_generic_rpc_handlers((self._handler(version, messages),))

    def drain(self, seconds: float) -> bool:
        """Wait so long for running calls to end and their answers to be sent; gives whether they were. A gRPC server's
        own grace period waits for idle connections too, which kubelet keeps open.
        """
        with self._idle:
            return self._idle.wait_for(lambda: self._calls == 0, timeout=seconds)

    def _handler(self, version: str, messages: Any) -> "grpc.GenericRpcHandler[Any, Any]":
        def prepare(request: Any, context: grpc.ServicerContext) -> Any:
            answers = self._each(request.claims, context, lambda ref: self._prepare(ref, context, messages))
            return messages.NodePrepareResourcesResponse(claims=answers)

        def unprepare(request: Any, context: grpc.ServicerContext) -> Any:
            answers = self._each(request.claims, context, lambda ref: self._unprepare(ref, context, messages))
            return messages.NodeUnprepareResourcesResponse(claims=answers)

        methods = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                prepare,
                request_deserializer=messages.NodePrepareResourcesRequest.FromString,
                response_serializer=messages.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                unprepare,
                request_deserializer=messages.NodeUnprepareResourcesRequest.FromString,
                response_serializer=messages.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", methods)

    def _each(
        self, claims: Sequence[Any], context: grpc.ServicerContext, work: Callable[[ClaimRef], Any]
    ) -> dict[str, Any]:
        refs = [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]
        with self._counted(context):
            answers = map(work, refs) if len(refs) == 1 else self._threads.map(work, refs)
            return dict(zip((ref.uid for ref in refs), answers, strict=True))

    @contextlib.contextmanager
    def _counted(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Count the work, which may outlast the caller's patience, and the call, which ends when its answer is sent."""
        self._count(1)
        try:
            self._count(1)
            if not context.add_callback(lambda: self._count(-1)):
                self._count(-1)  # the caller has hung up
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._idle:
            self._calls += change
            self._idle.notify_all()

    def _prepare(self, ref: ClaimRef, context: grpc.ServicerContext, messages: Any) -> Any:
        try:
            with self._metrics.request(PREPARE):
                plan = self._lifecycle.prepare(ref, context.is_active)
                answer = messages.NodePrepareResourceResponse(devices=self._devices(plan, messages))
        except Exception as error:
            text = _explain(PREPARE, ref, error)
            self._reports.failed(ref, text, tell_users=isinstance(error, PrepareError))
            return messages.NodePrepareResourceResponse(error=text)
        self._reports.prepared(ref)
        return answer

    def _unprepare(self, ref: ClaimRef, context: grpc.ServicerContext, messages: Any) -> Any:
        try:
            with self._metrics.request(UNPREPARE):
                self._lifecycle.unprepare(ref, context.is_active)
        except Exception as error:
            return messages.NodeUnprepareResourceResponse(error=_explain(UNPREPARE, ref, error))
        self._reports.unprepared(ref)
        return messages.NodeUnprepareResourceResponse()

    def _devices(self, plan: Plan, messages: Any) -> list[Any]:
        uid = plan.claim.uid
        metadata = metadata_names(uid, self._metadata.requests(uid))
        devices = []
        for one in plan.devices:
            fields: dict[str, Any] = {
                "request_names": [one.request],
                "pool_name": plan.pool,
                "device_name": one.name,
                # The file of a request comes with its first device.
                "cdi_device_ids": [*cdi_names(uid, one.name), *metadata.pop(one.request, ())],
            }
            if one.share_id is not None and "share_id" in messages.Device.DESCRIPTOR.fields_by_name:
                fields["share_id"] = one.share_id
            devices.append(messages.Device(**fields))
        return devices


def _explain(what: str, ref: ClaimRef, error: Exception) -> str:
    """Log why a claim could not be worked on, and give what kubelet is told."""
    fields = {"claim": str(ref), "claim_uid": ref.uid}
    if isinstance(error, EXPECTED_ERRORS):
        log.warning("%s failed: %s", what, error, extra=fields)
        return str(error)
    log.error("%s failed unexpectedly", what, extra=fields, exc_info=error)
    return f"internal error: {error!r}"
