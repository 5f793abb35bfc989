# SPDX-License-Identifier: Apache-2.0
"""The health of each device for the health service: the findings behind the taints, as healthy, unhealthy or unknown.

A device is unhealthy if a finding keeps pods away from it, if its GPU vanished, or if the NVIDIA driver has been
missing for long. It is unknown if its GPU cannot be watched, or cannot be read at the moment. A finding that is only
informative (an error of an application) is sent as a message.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver import DRIVER_NAME
from dra_driver.boot import boot_time
from dra_driver.containment import Count, contained, nobody
from dra_driver.gpu.devices import GpuDevices
from dra_driver.gpu.health import Finding, HealthMonitor, concerns, worst_first
from dra_driver.gpu.health.meanings import UNMONITORED
from dra_driver.gpu.pci import read_driver
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.session import Session
from dra_driver.gpu.view import NodeView, Published
from dra_driver.kubeapi import ApiClient, ApiError, newest_dialect, slices_of
from dra_driver.resource import AttributeValue, Device, DeviceTaint, DeviceToleration, TaintEffect
from dra_driver.resource.claim import tolerates
from dra_driver.resource.codec import DecodeError, decode_slice

from ..hardware.marks import Marks
from ..options import Options
from .health import DeviceHealth, HealthService, HealthStatus

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
_LONGEST_SILENCE = 60.0  # several times as long as from one look at the GPUs to the next


def device_healths(
    pool: str, gpus: Iterable[GpuDevices], findings: Sequence[Finding], since: float
) -> Iterator[DeviceHealth]:
    """The health of every device; `since` is from when on a device without findings has been well."""
    for gpu in gpus:
        for device in gpu.devices:
            found = _about(device.name, gpu, findings)
            status = _status(found)
            telling = [one for one in found if _status([one]) is status]
            began = min((one.since for one in telling), default=since)
            yield DeviceHealth(pool, device.name, status, began, "; ".join(_text(one) for one in found))


def silence(seconds: float) -> str | None:
    """What it means that the GPUs were not looked at for so long; None when it is nothing unusual."""
    if seconds < _LONGEST_SILENCE:
        return None
    return f"the GPUs could not be looked at for {seconds:.0f} s: the NVIDIA driver hangs or is away"


class NodeHealth:
    """The health source of one node. Healthy devices are unknown while nobody looks, for which `problem` has the
    reason. `sick` are devices that a claim cannot use, since when and why.
    """

    def __init__(
        self,
        pool: str,
        published: Callable[[], Published],
        problem: Callable[[], str | None],
        sick: Callable[[], Mapping[str, tuple[float, str]]] = dict,
    ) -> None:
        self._pool = pool
        self._sick = sick
        self._published = published
        self._problem = problem
        self._since = time.time()

    def devices(self) -> list[DeviceHealth]:
        """As of HealthSource."""
        (gpus, findings), problem, now = self._published(), self._problem(), time.time()
        healths = device_healths(self._pool, gpus, findings, self._since)
        sick = self._sick()
        return [
            _sickened(one, *sick[one.device])
            if one.device in sick
            else (one if problem is None else _doubted(one, problem, now))
            for one in healths
        ]


class HealthWatch:
    """Watches the GPUs with the same monitor as the controller does, which taints them, and serves what it finds.

    Like the controller it begins with what is published: an earlier process may have found more than can be seen now.
    """

    def __init__(
        self,
        options: Options,
        client: ApiClient,
        session: Session,
        policy: Callable[[], NodePolicy],
        count: Count = nobody,
        sick: Callable[[], Mapping[str, tuple[float, str]]] = dict,
    ) -> None:
        self._node_name = options.node_name
        self._client = client
        self._count = count
        sys_root = options.node.hardware.sys_root
        self._monitor = HealthMonitor(session, driver_load=lambda: read_driver(sys_root).module, booted_at=boot_time())
        self._devices = NodeView(
            session, marks=Marks(options.node.folder).instances, policy=policy, health=self._monitor
        )
        self.service = HealthService(NodeHealth(options.node_name, self._devices.published, self._doubt, sick))
        self._monitor.on_change = self._devices.on_change = self.service.changed
        self._stopped = threading.Event()
        self._restoring = threading.Thread(target=self._restore, name="health-restore", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._devices.start()
        self._monitor.start()
        self._restoring.start()

    def look_soon(self) -> None:
        """There is a driver now."""
        self._devices.look_soon()

    def stop(self) -> None:
        """Watch no more, and end all streams."""
        self._stopped.set()
        self.service.stop()
        self._devices.stop()
        self._monitor.stop(wait=False)

    def problem(self) -> str | None:
        """Why nothing new is known of the GPUs; None when they were looked at lately."""
        return silence(self._monitor.seconds_since_look)

    def fitness(self, device: str, tolerations: Sequence[DeviceToleration]) -> str | None:
        """Why a device should not be used by whom it was allocated to, None when nothing is held against it. Raises
        LookupError without a driver, and with one that hangs.
        """
        known, findings = self._look_up(device)
        problem = self._doubt()
        if problem is not None:
            raise LookupError(problem)
        if known is None:
            return f"there is no device {device} on this node any more"
        found = _about(device, known[0], findings)
        return "; ".join(_text(one) for one in found if _keeps_away(one, tolerations)) or None

    def attributes(self, device: str) -> Mapping[str, AttributeValue]:
        """The attributes that a device is published with; none when it is not published."""
        known = _find(self._devices.described, device)
        if known is None:
            try:
                known, _ = self._look_up(device)
            except LookupError as error:
                log.warning("the attributes of device %s are not known: %s", device, error)
        return {} if known is None else known[1].attributes

    def _look_up(self, device: str) -> tuple[tuple[GpuDevices, Device] | None, Sequence[Finding]]:
        """A published device with its GPU, and all findings. One that is not known is looked for again: the controller
        may have looked, and published it, a moment ago. Raises LookupError when that is not possible now.
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
        """Why devices that are well as far as is known may not be."""
        return self.problem() or self._devices.problem

    def _restore(self) -> None:
        """Read the published taints, once the API server answers."""
        while not self._stopped.is_set():
            with contained("read published taints", self._node_name, self._count):
                try:
                    self._adopt_published()
                    return
                except (ApiError, DecodeError) as error:
                    log.info("the published health of the GPUs cannot be read yet: %s", error)
            self._stopped.wait(_RETRY_SECONDS)

    def _adopt_published(self) -> None:
        dialect = newest_dialect(self._client)
        selector = f"spec.driver={DRIVER_NAME},spec.nodeName={self._node_name}"
        page = self._client.list(slices_of(dialect), field_selector=selector)
        self._devices.adopt([decode_slice(one, dialect, strict=False) for one in page.items])


def _about(device: str, gpu: GpuDevices, findings: Iterable[Finding]) -> list[Finding]:
    """What is held against a device; where several findings say the same, the worst, as in its taint."""
    found = [one for one in findings if concerns(one, gpu, device)]
    worst: dict[tuple[str, str], Finding] = {}
    for one in sorted(found, key=worst_first):
        worst.setdefault((one.key, one.value), one)
    return [one for one in dict.fromkeys(found) if worst[one.key, one.value] == one]


def _doubted(health: DeviceHealth, problem: str, now: float) -> DeviceHealth:
    """The health of a device while nobody looks: what was wrong with it still is."""
    if health.status is HealthStatus.UNHEALTHY:
        return health
    return replace(health, status=HealthStatus.UNKNOWN, since=now, message=problem)


def _sickened(health: DeviceHealth, since: float, problem: str) -> DeviceHealth:
    """The health of a device that its claim cannot use."""
    message = f"{health.message}; {problem}" if health.message else problem
    return replace(health, status=HealthStatus.UNHEALTHY, since=since, message=message)


def _keeps_away(finding: Finding, tolerations: Iterable[DeviceToleration]) -> bool:
    """Whether it keeps pods with these tolerations from the device, as its taint does."""
    taint = DeviceTaint(finding.key, finding.effect, finding.value)
    return finding.effect is not TaintEffect.NONE and not any(tolerates(one, taint) for one in tolerations)


def _find(gpus: Iterable[GpuDevices], name: str) -> tuple[GpuDevices, Device] | None:
    """A device and whose it is."""
    return next(((gpu, one) for gpu in gpus for one in gpu.devices if one.name == name), None)


def _status(found: Sequence[Finding]) -> HealthStatus:
    if any(one.effect is not TaintEffect.NONE for one in found):
        return HealthStatus.UNHEALTHY
    return HealthStatus.UNKNOWN if any(one.key == UNMONITORED for one in found) else HealthStatus.HEALTHY


def _text(finding: Finding) -> str:
    name = finding.key.rpartition("/")[2]
    return f"{name} {finding.value}: {finding.message}" if finding.value else f"{name}: {finding.message}"
