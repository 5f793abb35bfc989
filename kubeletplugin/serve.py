# SPDX-License-Identifier: Apache-2.0
"""The running plugin: creates its parts, starts them in the order that kubelet needs, and stops them."""

import logging
import os
import threading
from collections.abc import Callable, Sequence

from dra_driver import __version__
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.policy import NodePolicy
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.resource import ResourceClaim
from dra_driver.process.boot import boot_id
from dra_driver.process.command import UserError, end_when_a_thread_fails, on_termination
from dra_driver.process.containment import contained
from dra_driver.process.endpoints import new_registry, serving

from .claims.answers import PreparedDevice, prepared_devices
from .claims.boundary import ClaimBoundary
from .claims.call import Call
from .claims.engine import Engine
from .claims.files import RecordFiles
from .claims.metadata import ClaimMetadata
from .claims.model import ClaimRef
from .claims.planner import Planner
from .claims.reader import ClaimReader
from .claims.records import record_format
from .claims.specs import ClaimSpecs
from .containers.common import LOOK_SECONDS, CommonSpec
from .containers.metadata import MetadataFiles
from .containers.runtime import ContainerRuntime, reported_runtime
from .domainservice import DomainService
from .drivers import GpuDriver
from .errors import NoDriverError, PrepareError
from .features.memory_limits.service import LimitService
from .features.mps.metrics import publish_daemons, restart_counter
from .features.mps.services import MpsServices
from .features.mps.watch import MpsWatch
from .healthchecks import ApiContact, ObservedConnection, keep_contact, live_checks, ready_checks
from .kinds.vfio.kubevirt import ClassReader
from .kubelet import health
from .kubelet.health import HealthWatch
from .kubelet.instance import another_serves, running, sweep_sockets
from .kubelet.service import SERVICES, DraService, RegistrationService
from .kubelet.sockets import SocketKeeper, SocketServer
from .metrics import PluginMetrics
from .node.node import Node
from .options import PluginOptions
from .reports.binding import BindingWatch
from .reports.prepared import PreparedClaims
from .reports.reporter import ClaimReports, claim_events

log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
_REPORT_SECONDS = 2.0
_LOOK_SECONDS = 0.1
_RETRY_SECONDS = 10.0


def serve(options: PluginOptions) -> None:
    """Serve kubelet until a signal arrives. Raises UserError."""
    registry = new_registry()
    metrics = PluginMetrics(registry, options.node_name)
    contact = ApiContact()
    credentials = load_credentials(options.kubeconfig)
    connection = ObservedConnection(credentials, f"dra-kubeletplugin/{__version__}", contact, metrics.api_request)
    end_when_a_thread_fails()
    limits_memory = options.node.hardware.memory_limits_problem is None
    policy = options.policy.on_node(options.node_name, memory_limits=limits_memory)
    try:
        with running(options.node.folder, options.instance_uid):
            plugin = _Plugin(options, connection, metrics, policy)
            ready = ready_checks(plugin.registration, plugin.node, plugin.common, plugin.health, contact)
            if plugin.domains is not None:
                ready["compute-domains"] = plugin.domains.registration.problem
            with serving(options.endpoint, registry, live=live_checks(*plugin.servers), ready=ready):
                keep_contact(ApiClient(connection), contact)
                plugin.run()
    except OSError as error:
        raise UserError(f"cannot start: {error}") from None


class _Plugin:
    """The parts of a running plugin."""

    def __init__(
        self, options: PluginOptions, connection: Connection, metrics: PluginMetrics, policy: Callable[[], NodePolicy]
    ) -> None:
        self._options = options
        self._metrics = metrics
        self.node = node = Node(options.node_name, boot_id(), options.node)
        node.threads.unexpected = metrics.unexpected_error
        client, reader = ApiClient(connection), ClaimReader(connection)
        root = options.node.driver_root
        runtime = ContainerRuntime(lambda: reported_runtime(client, options.node_name))
        self.common = CommonSpec(options.node.cdi_root, root, options.hook, [root.files], runtime)
        self._events = EventRecorder(client, "dra-kubeletplugin", options.node_name, count=metrics.unexpected_error)
        boundary = ClaimBoundary(
            claim_events(self._events, metrics.claim_event), metrics.unexpected_error, metrics.step
        )
        driver = GpuDriver(policy, options.mps_shared_memory, ClassReader(connection)).driver()
        self._records = RecordFiles(options.node.records, record_format(driver))
        self._prepared = PreparedClaims(options.node.records, driver)
        self._mps = MpsWatch(self._prepared.records, node.of(MpsServices).statuses, boundary, restart_counter(metrics))
        self.health = HealthWatch(node, client, policy, metrics.unexpected_error, self._mps.sick)
        self._files = MetadataFiles(options.node.metadata)
        metadata = ClaimMetadata(self._files, self.health.attributes, reader, enabled=options.device_metadata)

        def fetch(ref: ClaimRef) -> ResourceClaim:
            return metadata.remember(reader(ref))

        specs = ClaimSpecs(node, self.common, metadata)
        self._engine = Engine(Planner(driver, node, fetch), self._records, specs, boundary)
        self._limits = LimitService(node, self._records, metrics.unexpected_error)
        self._reports = ClaimReports(
            connection,
            options.node_name,
            self._prepared.device_data,
            trouble=self._mps.trouble,
            status=options.claim_status,
            events=self._events,
            wrote=metrics.status_write,
            boundary=boundary,
        )
        self._dra = DraService(self._prepare, self._engine.unprepare, metrics, self._reports)
        self._binding = BindingWatch(
            connection, options.node_name, lambda: policy().binding_conditions, self.health.fitness, boundary
        )
        sockets = options.sockets
        services = (*SERVICES, *health.SERVICES)
        self.registration = RegistrationService(sockets.service, services, metrics.registration)
        self.servers = [
            SocketServer(sockets.service, [self._dra, self.health.service, self.registration], sockets.registration)
        ]
        self.domains: DomainService | None = None
        if options.domains.enabled:
            self.domains = DomainService(options, connection, metrics, node, self.common, self._events)
            self.servers.append(self.domains.server)
        self._keeper = SocketKeeper(self.servers)
        self._publish_metrics()

    def _publish_metrics(self) -> None:
        metrics = self._metrics
        metrics.prepared_devices(
            self._prepared.types, self.domains.prepared_types if self.domains is not None else list
        )
        publish_daemons(metrics, self._mps.served)
        metrics.shares(self._prepared.shares)
        metrics.hanging_calls(lambda: len(self.node.threads.hangs()))
        metrics.gauge(
            "unrestored_changes",
            "Changes of GPUs that no claim needs any more, and that could not be undone yet.",
            self._engine.unrestored.count,
        )
        metrics.gauge("health_streams", "Health streams that kubelet has open.", self.health.service.streams)
        metrics.gauge(
            "claim_reports_waiting", "Claims whose device status is still to be written.", self._reports.waiting
        )

    def run(self) -> None:
        """Serve until a signal arrives."""
        options = self._options
        stopped = threading.Event()
        on_termination(stopped.set)
        sweep_sockets(options.node.folder, options.node.registry)
        self._engine.begin()
        self.node.access.attend(self._keep_common, LOOK_SECONDS)  # `_ready` has written it
        self._limits.install()
        if self.domains is not None:
            self.domains.start()
        self._reports.start()
        if not self._another_serves():
            self._serve()  # before the driver is looked for, so that kubelet is always answered
        self.health.start()
        self._binding.start()
        self._mps.start(self._reports.prepared, self.health.service.changed)
        self.node.access.start(self._ready)
        while not (stopped.is_set() or self._is_serving or self._is_better_than_others()):
            stopped.wait(_LOOK_SECONDS)
        if not stopped.is_set():
            if not self._is_serving:
                self._serve()
            stopped.wait()
        self._keeper.stop()
        self._stop()

    @property
    def _is_serving(self) -> bool:
        return self.servers[0].is_started

    def _serve(self) -> None:
        """Let kubelet call this process from now on. Raises SocketError."""
        self._limits.start()
        for server in self.servers:
            server.start()
        self._keeper.start()
        extra = {"version": __version__, "node": self._options.node_name, "socket": str(self._options.sockets.service)}
        log.info("started", extra=extra)

    def _another_serves(self) -> bool:
        return another_serves(self._options.node.registry, self._options.sockets.registration)

    def _is_better_than_others(self) -> bool:
        """Whether kubelet should call this instance, which happens when it is registered. If another instance is
        already serving, this instance takes over only when it is ready. If there is no other instance, it starts
        serving at once.
        """
        try:
            self.node.gpus()
        except NoDriverError:
            return not self._another_serves()
        return True

    def _stop(self) -> None:
        self.node.access.stop()
        for server in self.servers:
            server.unregister()  # kubelet continues with another instance, if there is one
        self.health.stop()
        self._binding.stop()
        self._mps.stop()
        self._limits.stop()
        answered = self.domains is None or self.domains.end(_STOP_SECONDS)
        answered = self._dra.drain(_STOP_SECONDS) and answered
        self._reports.stop(_REPORT_SECONDS)
        self._events.close(_REPORT_SECONDS)
        if answered:
            for server in self.servers:
                server.stop()
            log.info("stopped")
            return
        log.warning("stopped while calls were running; the next start undoes their incomplete steps")
        for server in self.servers:
            server.remove()
        logging.shutdown()
        os._exit(0)  # a call that hangs in the driver cannot be ended, and Python would wait for its thread

    # Callbacks of the parts

    def _prepare(self, ref: ClaimRef, call: Call) -> Sequence[PreparedDevice]:
        plan = self._engine.prepare(ref, call).plan
        self._mps.prepared(plan)
        return prepared_devices(plan, self._files)

    def _ready(self) -> None:
        """Do what is necessary before claims can be prepared. After PrepareError, OSError or NvmlError, it is tried
        again.
        """
        unexpected: list[Exception] = []
        with contained(
            "make node ready",
            self._options.node_name,
            self._metrics.unexpected_error,
            unexpected.append,
            expected=(PrepareError, OSError, NvmlError),
        ):
            self.common.write(self.node.gpus().inventory.driver_version)
            self._engine.recover()
            self._limits.restore()
            for record in self._prepared.records():
                self._reports.prepared(record.plan.claim, known=True)
            self.health.look_soon()
        if self.domains is not None:
            self.domains.recover()
        if unexpected:
            raise PrepareError(f"internal error: {unexpected[0]!r}")

    def _keep_common(self) -> float:
        with contained("keep common CDI spec", self.common.directory, self._metrics.unexpected_error):
            return self.common.keep()
        return _RETRY_SECONDS
