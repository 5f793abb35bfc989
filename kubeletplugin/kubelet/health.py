# SPDX-License-Identifier: Apache-2.0
"""The health service, from which kubelet gets the health of devices for the status of pods (KEP-4680).

kubelet opens one stream for each instance, and considers each list valid for a limited time. So every stream gets the
whole list at once, again after every change, and again before the last list expires.

The health of a device follows from the findings behind its taints. A device is unhealthy if a finding keeps pods away
from it, if its GPU vanished, or if the NVIDIA driver has been missing for long. It is unknown if its GPU cannot be
watched, or cannot be read at the moment. A finding that is only informative (an error of an application) is sent as a
message.
"""

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from dra_driver.gpu.devices import GpuDevices
from dra_driver.gpu.fabric_marks import FabricTroubles
from dra_driver.gpu.health import Finding, HealthMonitor, concerns, worst_first
from dra_driver.gpu.health.meanings import UNMONITORED
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.view import HardwareView, Published
from dra_driver.kube.api import ApiClient, ApiError, newest_dialect
from dra_driver.kube.kinds import slices_of
from dra_driver.kube.resource import AttributeValue, Device, DeviceTaint, DeviceToleration, TaintEffect
from dra_driver.kube.resource.claim import tolerates
from dra_driver.kube.resource.codec import DecodeError, decode_slice
from dra_driver.kube.resource.meta import empty
from dra_driver.names import DRIVER_NAME
from dra_driver.process.boot import boot_time
from dra_driver.process.containment import Count, nobody
from dra_driver.process.worker import Worker

from ..node.node import Node
from ..protocol import health_v1_pb2 as messages

log = logging.getLogger(__name__)

SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The served versions, whose messages are the same, the preferred one first."""

STREAMS = 8
"""The maximum number of streams at a time. Each has a thread. kubelet needs one."""

_REPEAT_SECONDS = 10.0
_TIMEOUT_SECONDS = 30  # after which kubelet treats a device as unknown

_STOP_SECONDS = 1.0
_RETRY_SECONDS = 10.0
_LONGEST_SILENCE = 60.0  # several times the interval at which the GPUs are read


class HealthStatus(enum.IntEnum):
    """The health of a device, as in the protocol."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of one device. `since` is the time of this finding, in seconds of the epoch. `message` tells users
    why.
    """

    pool: str
    device: str
    status: HealthStatus
    since: float
    message: str = ""


class HealthService:
    """NodeWatchResources in every served version.

    `devices` returns all devices of this node. It must not wait, and may be called from several threads. `changed` must
    be called when it would return something else. `repeat` is the longest pause between two messages of a stream, in
    seconds.
    """

    def __init__(self, devices: Callable[[], Iterable[DeviceHealth]], repeat: float = _REPEAT_SECONDS) -> None:
        self._devices = devices
        self._repeat = repeat
        self._condition = threading.Condition()
        self._changes = 0
        self._streams = 0
        self._stopped = False

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""
        methods = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=messages.NodeWatchResourcesRequest.FromString,
                response_serializer=messages.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        for service in SERVICES:
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))

    def changed(self) -> None:
        """Send the list to every stream, because it has changed."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def stop(self) -> None:
        """End every stream. New ones end at once. Returns when the clients have been told, or after a while: a server
        that stops before would cancel the streams.
        """
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._streams, timeout=_STOP_SECONDS)

    def streams(self) -> int:
        """The number of open streams."""
        with self._condition:
            return self._streams

    def _watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[messages.NodeWatchResourcesResponse]:
        self._begin(context)
        seen = -1
        while (seen := self._next(seen, context)) >= 0:
            yield _response(self._devices())

    def _begin(self, context: grpc.ServicerContext) -> None:
        """Count a stream, and refuse it if there are too many, because each of them uses a thread."""
        with self._condition:
            full = self._streams >= STREAMS
            self._streams += not full
        if full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS} health streams are open already")
        log.debug("a health stream begins", extra={"peer": context.peer()})
        if not context.add_callback(self._ended):  # the client has cancelled it already
            self._ended()

    def _ended(self) -> None:
        """A stream has ended, for the client too. One that waits for its next message must see that."""
        with self._condition:
            self._streams -= 1
            self._condition.notify_all()
        log.debug("a health stream ended")

    def _next(self, seen: int, context: grpc.ServicerContext) -> int:
        """Wait until the list must be sent, and return the number of changes so far. -1 if the stream must end."""

        def over() -> bool:
            return self._stopped or not context.is_active()

        with self._condition:
            self._condition.wait_for(lambda: over() or seen != self._changes, timeout=self._repeat)
            return -1 if over() else self._changes


def _response(devices: Iterable[DeviceHealth]) -> messages.NodeWatchResourcesResponse:
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                health=device.status.name,
                last_updated_time=int(device.since),
                health_check_timeout_seconds=_TIMEOUT_SECONDS,
                message=device.message,
            )
            for device in devices
        ]
    )


def device_healths(
    pool: str,
    published: Published,
    since: float,
    problem: str | None = None,
    sick: Mapping[str, tuple[float, str]] = empty(),
) -> Iterator[DeviceHealth]:
    """The health of every device. `since` is the time since when devices without findings are healthy.

    With a `problem`, the GPUs are not read: healthy devices are unknown, and unhealthy ones stay unhealthy. `sick` has
    the devices that a claim cannot use: the name of each with the time since when, and why.
    """
    gpus, findings = published
    for gpu in gpus:
        for device in gpu.devices:
            found = _about(device.name, gpu, findings)
            status = _status(found)
            telling = [finding for finding in found if _status([finding]) is status]
            began = min((finding.since for finding in telling), default=since)
            texts = [_text(finding) for finding in found]
            if device.name in sick:
                began, reason = sick[device.name]
                status, texts = HealthStatus.UNHEALTHY, [*texts, reason]
            elif problem is not None and status is not HealthStatus.UNHEALTHY:
                status, began, texts = HealthStatus.UNKNOWN, time.time(), [problem]
            yield DeviceHealth(pool, device.name, status, began, "; ".join(texts))


def silence(seconds: float) -> str | None:
    """A problem if the GPUs were not read for so many seconds, or None."""
    if seconds < _LONGEST_SILENCE:
        return None
    return f"the GPUs could not be read for {seconds:.0f} s: the NVIDIA driver hangs or is missing"


class HealthWatch:
    """Watches the GPUs with the same monitor as the controller, which taints them, and serves the health of devices.
    `sick` returns the devices that a claim cannot use, see `device_healths`.

    Like the controller, it begins with the published taints, because an earlier process may have found problems that
    cannot be found now.
    """

    def __init__(
        self,
        node: Node,
        client: ApiClient,
        policy: Callable[[], NodePolicy],
        count: Count = nobody,
        sick: Callable[[], Mapping[str, tuple[float, str]]] = dict,
    ) -> None:
        self._node_name = node.name
        self._client = client
        self._sick = sick
        self._since = time.time()
        self._monitor = HealthMonitor(node.session, marks=node.marked, booted_at=boot_time())
        self._devices = HardwareView(
            node.session,
            marks=node.marked,
            troubles=FabricTroubles(node.folders.folder / "fabric"),
            policy=policy,
            health=self._monitor,
        )
        self.service = HealthService(self._healths)
        self._monitor.on_change = self._devices.on_change = self.service.changed
        self._restoring = Worker("read published taints", self._restore, interval=_RETRY_SECONDS, count=count)

    def start(self) -> None:
        """Start watching."""
        self._devices.start()
        self._monitor.start()
        self._restoring.start()

    def look_soon(self) -> None:
        """Look at the GPUs now, because a driver was found."""
        self._devices.look_soon()

    def stop(self) -> None:
        """Stop watching, and end all streams."""
        self._restoring.stop()
        self.service.stop()
        self._devices.stop()
        self._monitor.stop(wait=False)

    def problem(self) -> str | None:
        """Why the state of the GPUs is out of date, or None."""
        return silence(self._monitor.seconds_since_look)

    def fitness(self, device: str, tolerations: Sequence[DeviceToleration]) -> str | None:
        """Why a device should not be used by a claim with these tolerations, or None. Raises LookupError while no
        driver is found or it hangs.
        """
        known, findings = self._look_up(device)
        problem = self._doubt()
        if problem is not None:
            raise LookupError(problem)
        if known is None:
            return f"device {device} no longer exists on this node"
        found = _about(device, known[0], findings)
        return "; ".join(_text(finding) for finding in found if _keeps_away(finding, tolerations)) or None

    def attributes(self, device: str) -> Mapping[str, AttributeValue]:
        """The attributes with which a device is published. Empty if it is not published."""
        known = _find(self._devices.described, device)
        if known is None:
            try:
                known, _ = self._look_up(device)
            except LookupError as error:
                log.warning("the attributes of device %s are unknown: %s", device, error)
        return {} if known is None else known[1].attributes

    def _healths(self) -> Iterator[DeviceHealth]:
        return device_healths(self._node_name, self._devices.published(), self._since, self._doubt(), self._sick())

    def _look_up(self, device: str) -> tuple[tuple[GpuDevices, Device] | None, Sequence[Finding]]:
        """A published device with its GPU, and all findings. For an unknown device, the hardware is read again, because
        the controller may have published it just now. Raises LookupError if that is impossible at the moment.
        """
        gpus, findings = self._devices.published()
        known = _find(gpus, device)
        if known is None:
            if not self._devices.look_now():
                raise LookupError("the NVIDIA driver does not answer")
            gpus, findings = self._devices.published()
            known = _find(gpus, device)
        return known, findings

    def _doubt(self) -> str | None:
        """Why devices that seem healthy may not be, or None."""
        return self.problem() or self._devices.problem

    def _restore(self) -> None:
        """Read the published taints as soon as the API server answers."""
        try:
            self._adopt_published()
        except (ApiError, DecodeError) as error:
            log.info("the published health of the GPUs cannot be read yet: %s", error)
        else:
            self._restoring.stop()

    def _adopt_published(self) -> None:
        dialect = newest_dialect(self._client)
        selector = f"spec.driver={DRIVER_NAME},spec.nodeName={self._node_name}"
        page = self._client.list(slices_of(dialect), field_selector=selector)
        self._devices.adopt([decode_slice(item, dialect, strict=False) for item in page.items])


def _about(device: str, gpu: GpuDevices, findings: Iterable[Finding]) -> list[Finding]:
    """The findings that affect a device. If several have the same taint, the worst one."""
    found = [finding for finding in findings if concerns(finding, gpu, device)]
    worst: dict[tuple[str, str], Finding] = {}
    for finding in sorted(found, key=worst_first):
        worst.setdefault((finding.key, finding.value), finding)
    return [finding for finding in dict.fromkeys(found) if worst[finding.key, finding.value] == finding]


def _keeps_away(finding: Finding, tolerations: Iterable[DeviceToleration]) -> bool:
    """Whether the taint of a finding keeps pods with these tolerations from the device."""
    taint = DeviceTaint(finding.key, finding.effect, finding.value)
    return finding.effect is not TaintEffect.NONE and not any(
        tolerates(toleration, taint) for toleration in tolerations
    )


def _find(gpus: Iterable[GpuDevices], name: str) -> tuple[GpuDevices, Device] | None:
    """A device and its GPU, or None."""
    return next(((gpu, device) for gpu in gpus for device in gpu.devices if device.name == name), None)


def _status(found: Sequence[Finding]) -> HealthStatus:
    if any(finding.effect is not TaintEffect.NONE for finding in found):
        return HealthStatus.UNHEALTHY
    return HealthStatus.UNKNOWN if any(finding.key == UNMONITORED for finding in found) else HealthStatus.HEALTHY


def _text(finding: Finding) -> str:
    name = finding.key.rpartition("/")[2]
    return f"{name} {finding.value}: {finding.message}" if finding.value else f"{name}: {finding.message}"
