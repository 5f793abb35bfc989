# SPDX-License-Identifier: Apache-2.0
"""The health service, from which kubelet gets the health of devices for the status of pods (KEP-4680).

kubelet opens one stream for each instance, and considers what it hears valid for a limited time. So every stream gets
the whole list at once, again after every change, and again before the last list expires.
"""

import contextlib
import enum
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import grpc

from ..protocol import health_v1_pb2, health_v1alpha1_pb2

log = logging.getLogger(__name__)

VERSIONS = ("v1", "v1alpha1")
"""Served versions, the one to use first. kubelet calls them `<version>.DRAResourceHealth`."""

STREAMS = 8
"""How many streams are served at a time; each has a thread. kubelet needs one."""

_REPEAT_SECONDS = 10.0
_TIMEOUT_SECONDS = 30  # after which kubelet takes a device for unknown

_MESSAGES: dict[str, ModuleType] = {"v1": health_v1_pb2, "v1alpha1": health_v1alpha1_pb2}


class HealthStatus(enum.IntEnum):
    """How a device is, as the protocol numbers it."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How one device is. `since` is when that was found, in seconds of the epoch; `message` says why, for people."""

    pool: str
    device: str
    status: HealthStatus
    since: float
    message: str = ""


class HealthSource(Protocol):
    """Who knows how the devices are. It tells HealthService.changed whenever it would answer differently."""

    def devices(self) -> Sequence[DeviceHealth]:
        """All devices of this node. Must not wait, and may be called from several threads."""


class HealthService:
    """NodeWatchResources in every served version.

    `repeat` is the longest pause between two messages of a stream, in seconds.
    """

    def __init__(self, source: HealthSource, repeat: float = _REPEAT_SECONDS) -> None:
        self._source = source
        self._repeat = repeat
        self._condition = threading.Condition()
        self._changes = 0
        self._streams = 0
        self._stopped = False

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""
        for version, messages in _MESSAGES.items():
            server.add_generic_rpc_handlers((self._handler(version, messages),))

    def changed(self) -> None:
        """Something is different: every stream is told."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def stop(self) -> None:
        """End every stream; new ones end at once."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def streams(self) -> int:
        """How many streams are open."""
        with self._condition:
            return self._streams

    def _handler(self, version: str, messages: Any) -> "grpc.GenericRpcHandler[Any, Any]":
        def watch(_request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._stream(context):
                seen = -1
                while (seen := self._next(seen, context)) >= 0:
                    yield _response(self._source.devices(), messages)

        methods = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                watch,
                request_deserializer=messages.NodeWatchResourcesRequest.FromString,
                response_serializer=messages.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        return grpc.method_handlers_generic_handler(f"{version}.DRAResourceHealth", methods)

    @contextlib.contextmanager
    def _stream(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Count a stream; one too many is refused: whoever opens them without end must not use up all threads."""
        with self._condition:
            full = self._streams >= STREAMS
            self._streams += not full
        if full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS} health streams are open already")
        log.debug("a health stream begins", extra={"peer": context.peer()})
        try:
            yield
        finally:
            with self._condition:
                self._streams -= 1
                self._condition.notify_all()
            log.debug("a health stream ended")

    def _next(self, seen: int, context: grpc.ServicerContext) -> int:
        """Wait until there is something to send, and give how many changes there have been; -1 when it is over."""
        if seen < 0:
            context.add_callback(self._wake)  # else a stream that was cancelled would wait on for its next message

        def over() -> bool:
            return self._stopped or not context.is_active()

        with self._condition:
            self._condition.wait_for(lambda: over() or seen != self._changes, timeout=self._repeat)
            return -1 if over() else self._changes

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()


def _response(devices: Sequence[DeviceHealth], messages: Any) -> Any:
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=int(one.status),
                last_updated_time=int(one.since),
                health_check_timeout_seconds=_TIMEOUT_SECONDS,
                message=one.message,
            )
            for one in devices
        ]
    )
