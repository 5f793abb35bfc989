# SPDX-License-Identifier: Apache-2.0
"""What the health service says of each device: the findings behind the taints, in kubelet's three words.

A device with a finding that keeps pods away is unhealthy; one that cannot be watched, or is on a node without a driver,
is unknown; a finding that is only worth noting (an error of an application) goes along as a message.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from dra_driver import DRIVER_NAME
from dra_driver.boot import boot_time
from dra_driver.cluster import ApiClient, ApiError, newest_dialect, slices_of
from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.health import Finding, HealthMonitor, concerns
from dra_driver.gpu.health.meanings import UNMONITORED
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.ownership import MigPlace
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.session import Session
from dra_driver.resource import AttributeValue, Device, TaintEffect
from dra_driver.resource.codec import DecodeError, decode_slice

from ..hardware.gpus import GpuAccess, Gpus, NoDriverError
from ..hardware.marks import Marks
from ..options import Options
from .health import DeviceHealth, HealthService, HealthStatus

log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0

Described = Callable[[], Sequence[GpuDevices]]
"""The devices of this node as they are published; none while there is no driver."""


def device_healths(
    pool: str, gpus: Iterable[GpuDevices], findings: Sequence[Finding], since: float
) -> Iterator[DeviceHealth]:
    """The health of every device; `since` is from when on a device without findings has been well."""
    for gpu in gpus:
        for device in gpu.devices:
            found = [one for one in findings if concerns(one, gpu, device.name)]
            status = _status(found)
            telling = [one for one in found if _status([one]) is status]
            began = min((one.since for one in telling), default=since)
            yield DeviceHealth(pool, device.name, status, began, "; ".join(_text(one) for one in found))


class NodeHealth:
    """The health source of one node. Devices that were there and are not described now are unknown."""

    def __init__(self, pool: str, described: Described, findings: Callable[[], Sequence[Finding]]) -> None:
        self._pool = pool
        self._described = described
        self._findings = findings
        self._since = time.time()
        self._known: Sequence[GpuDevices] = ()

    def devices(self) -> list[DeviceHealth]:
        """As of HealthSource."""
        gpus = self._described()
        if gpus:
            self._known = gpus
            return list(device_healths(self._pool, gpus, self._findings(), self._since))
        now = time.time()
        text = "the NVIDIA driver of the node does not answer"
        return [
            DeviceHealth(self._pool, device.name, HealthStatus.UNKNOWN, now, text)
            for gpu in self._known
            for device in gpu.devices
        ]


@dataclass(frozen=True, slots=True)
class _Description:
    """Devices as they were described last, and of what: that takes long enough to do it once."""

    inventory: Inventory | None = None
    policy: NodePolicy | None = None
    owned: Set[MigPlace] = frozenset()
    gpus: tuple[GpuDevices, ...] = ()

    def of(self, inventory: Inventory, policy: NodePolicy, owned: Set[MigPlace]) -> "_Description":
        """The description of these: this one if it is."""
        if inventory is self.inventory and (policy, owned) == (self.policy, self.owned):
            return self
        return _Description(inventory, policy, owned, describe(inventory, policy, owned).gpus)


class HealthWatch:
    """Watches the GPUs with the same monitor as the controller does, which taints them, and serves what it finds.

    Like the controller it begins with what is published: an earlier process may have found more than can be seen now.
    """

    def __init__(
        self, options: Options, client: ApiClient, access: GpuAccess, policy: Callable[[], NodePolicy]
    ) -> None:
        hardware = options.node.hardware
        session = Session(
            hardware.nvml, hardware.sys_root, dev_root=hardware.dev_root, driver_root=hardware.driver_root
        )
        self._node_name = options.node_name
        self._client = client
        self._access = access
        self._policy = policy
        self._marks = Marks(options.node.folder)
        self._monitor = HealthMonitor(session, booted_at=boot_time())
        self.service = HealthService(NodeHealth(options.node_name, self._describe, self._monitor.findings))
        self._monitor.on_change = self.service.changed
        self._description = _Description()
        self._stopped = threading.Event()
        self._restoring = threading.Thread(target=self._restore, name="health-restore", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._monitor.start()
        self._restoring.start()

    def look(self, gpus: Gpus) -> None:
        """These are the GPUs now."""
        self._description = _Description()
        self._monitor.watch(gpus.inventory, self._policy())
        self.service.changed()

    def stop(self) -> None:
        """Watch no more, and end all streams."""
        self._stopped.set()
        self.service.stop()
        self._monitor.stop(wait=False)

    def fitness(self, device: str) -> str | None:
        """Why a device should not be used, None when nothing is held against it. LookupError without a driver."""
        gpus = self._describe()
        if not gpus:
            raise LookupError("the NVIDIA driver is not ready")
        known = _find(gpus, device)
        if known is None:
            return f"there is no device {device} on this node any more"
        found = [one for one in self._monitor.findings() if concerns(one, known[0], device)]
        return "; ".join(_text(one) for one in found if one.effect is not TaintEffect.NONE) or None

    def attributes(self, device: str) -> Mapping[str, AttributeValue]:
        """The attributes that a device is published with; none when it is not published."""
        known = _find(self._description.gpus, device) or _find(self._describe(), device)
        return {} if known is None else known[1].attributes

    def _describe(self) -> Sequence[GpuDevices]:
        try:
            inventory = self._access.current().inventory
        except NoDriverError:
            return ()
        self._description = self._description.of(inventory, self._policy(), self._marks.instances.all())
        return self._description.gpus

    def _restore(self) -> None:
        """Read the published taints, once the API server answers."""
        while not self._stopped.is_set():
            try:
                dialect = newest_dialect(self._client)
                selector = f"spec.driver={DRIVER_NAME},spec.nodeName={self._node_name}"
                page = self._client.list(slices_of(dialect), field_selector=selector)
                self._monitor.restore([decode_slice(one, dialect, strict=False) for one in page.items])
            except (ApiError, DecodeError) as error:
                log.info("what is known of the GPUs' health cannot be read yet: %s", error)
                self._stopped.wait(_RETRY_SECONDS)
            else:
                return


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
