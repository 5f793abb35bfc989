# SPDX-License-Identifier: Apache-2.0
"""The DRA service that kubelet calls: each claim of a call gets its devices or an error of its own."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import grpc

from .claimspecs import cdi_names
from .lifecycle import EXPECTED_ERRORS, Lifecycle
from .plan import ClaimRef, Plan
from .protocol import dra_v1_pb2, dra_v1beta1_pb2

log = logging.getLogger(__name__)

VERSIONS = ("v1", "v1beta1")
"""Served versions, the one to use first. kubelet calls them `<version>.DRAPlugin`."""

_MESSAGES: dict[str, ModuleType] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}


class DraService:
    """NodePrepareResources and NodeUnprepareResources in every served version. Claims of one call run side by side."""

    def __init__(self, lifecycle: Lifecycle, workers: int = 8) -> None:
        self._lifecycle = lifecycle
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="claim")
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
            answers = self._each(request.claims, context, lambda ref: self._prepare(ref, messages))
            return messages.NodePrepareResourcesResponse(claims=answers)

        def unprepare(request: Any, context: grpc.ServicerContext) -> Any:
            answers = self._each(request.claims, context, lambda ref: self._unprepare(ref, messages))
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
            answers = map(work, refs) if len(refs) == 1 else self._pool.map(work, refs)
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

    def _prepare(self, ref: ClaimRef, messages: Any) -> Any:
        try:
            plan = self._lifecycle.prepare(ref)
        except EXPECTED_ERRORS as error:
            return messages.NodePrepareResourceResponse(error=_report("prepare", ref, error))
        except Exception as error:
            log.exception("prepare failed unexpectedly", extra={"claim": str(ref), "claim_uid": ref.uid})
            return messages.NodePrepareResourceResponse(error=f"internal error: {error!r}")
        return messages.NodePrepareResourceResponse(devices=_devices(plan, messages))

    def _unprepare(self, ref: ClaimRef, messages: Any) -> Any:
        try:
            self._lifecycle.unprepare(ref)
        except EXPECTED_ERRORS as error:
            return messages.NodeUnprepareResourceResponse(error=_report("unprepare", ref, error))
        except Exception as error:
            log.exception("unprepare failed unexpectedly", extra={"claim": str(ref), "claim_uid": ref.uid})
            return messages.NodeUnprepareResourceResponse(error=f"internal error: {error!r}")
        return messages.NodeUnprepareResourceResponse()


def _devices(plan: Plan, messages: Any) -> list[Any]:
    devices = []
    for one in plan.devices:
        fields: dict[str, Any] = {
            "request_names": [one.request],
            "pool_name": plan.pool,
            "device_name": one.name,
            "cdi_device_ids": cdi_names(plan.claim.uid, one.name),
        }
        if one.share_id is not None and "share_id" in messages.Device.DESCRIPTOR.fields_by_name:
            fields["share_id"] = one.share_id
        devices.append(messages.Device(**fields))
    return devices


def _report(what: str, ref: ClaimRef, error: Exception) -> str:
    log.warning("%s failed: %s", what, error, extra={"claim": str(ref), "claim_uid": ref.uid})
    return str(error)
