# SPDX-License-Identifier: Apache-2.0
"""The driver compute-domain.nvidia.com in the plugin's process: its sockets, its claims, and their events.

The driver is registered with kubelet on its own. Its sockets and records are in a folder of its own. The GPUs, the
common CDI spec, metrics and the way to the API server are those of the process.

kubelet 1.36 opens a health stream to every driver, and tries again every five seconds if the driver has no health
service. So this driver serves one. Its lists are empty, because the driver has no health checks of IMEX channels and
daemons: kubelet shows their health as unknown.
"""

import logging

from dra_driver.domains.names import DRIVER
from dra_driver.kube.api import ApiClient, Connection
from dra_driver.kube.api.events import EventRecorder

from ...claims.boundary import ClaimBoundary
from ...claims.model import State
from ...claims.reader import ClaimReader
from ...containers.common import CommonSpec
from ...host.programs import HostPrograms
from ...kubelet import health
from ...kubelet.health import HealthService
from ...kubelet.instance import SocketPaths, sweep_sockets
from ...kubelet.service import SERVICES, DraService, RegistrationService
from ...kubelet.sockets import SocketServer
from ...metrics import PluginMetrics
from ...node.node import Node
from ...options import PluginOptions
from ...reports.reporter import ClaimReports, claim_events
from .folder import DomainFolder
from .lifecycle import DomainClaims
from .placing import HostDaemon, NodeImex
from .plan import DomainPlanner
from .records import read_domain_records
from .specs import DomainSpecs

log = logging.getLogger(__name__)

_REPORT_SECONDS = 2.0


class DomainService:
    """The parts of the second driver. `node`, `common` and `events` are those of the first."""

    def __init__(
        self,
        options: PluginOptions,
        connection: Connection,
        metrics: PluginMetrics,
        node: Node,
        common: CommonSpec,
        events: EventRecorder,
    ) -> None:
        domains, hardware = options.domains, node.folders.hardware
        self._folder = DomainFolder(options.node.domain_folder)
        self._registry = options.node.registry
        self._node = node
        on_event = claim_events(events, lambda reason: metrics.claim_event(reason, DRIVER))
        boundary = ClaimBoundary(on_event, metrics.unexpected_error)
        host = None
        if domains.host_managed:
            programs = HostPrograms(hardware.driver_root, hardware.enter_root)
            host = HostDaemon(programs, domains.host_socket)
        imex = NodeImex(node, host)
        self._claims = DomainClaims(
            folder=self._folder,
            boot_id=node.boot_id,
            planner=DomainPlanner(
                options.node_name,
                ClaimReader(connection),
                ApiClient(connection),
                domains.namespace,
                host_managed=domains.host_managed,
            ),
            node=imex,
            specs=DomainSpecs(common, self._folder, imex),
            namespace=domains.namespace,
            boundary=boundary,
        )
        self._reports = ClaimReports(
            connection, options.node_name, lambda _: {}, status=False, events=events, boundary=boundary
        )
        self._dra = DraService(self._claims.prepare, self._claims.unprepare, metrics, self._reports, DRIVER)
        sockets: SocketPaths = options.domain_sockets
        self._health = HealthService(lambda: ())
        self.service = SocketServer(sockets.service, [self._dra, self._health])
        services = (*SERVICES, *health.SERVICES)
        self.registration = RegistrationService(
            sockets.service, services, lambda registered: metrics.registration(registered, DRIVER), DRIVER
        )
        self.registry = SocketServer(sockets.registration, [self.registration])
        metrics.begin(DRIVER)

    def start(self) -> None:
        """Answer calls. kubelet does not know the driver before `registry` is started, too. Raises OSError."""
        sweep_sockets(self._folder.path, self._registry, DRIVER)
        self._claims.begin()
        self._node.access.attend(self._claims.attend)
        self.service.start()
        self._reports.start()

    def end(self, seconds: float) -> bool:
        """Answer the running calls, of which those that wait for a daemon end. Returns whether all were answered within
        `seconds`.
        """
        self.registry.stop()
        self._health.stop()
        self._claims.end()
        answered = self._dra.drain(seconds)
        self._reports.stop(_REPORT_SECONDS)
        return answered

    def prepared_types(self) -> list[str]:
        """The type of each device of a prepared claim."""
        records, _ = read_domain_records(self._folder.records)
        prepared = [one.plan for one in records if one.state is State.PREPARED]
        return [plan.device_type for plan in prepared for _ in plan.devices]
