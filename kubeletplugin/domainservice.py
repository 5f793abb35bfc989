# SPDX-License-Identifier: Apache-2.0
"""The driver compute-domain.nvidia.com in the plugin's process: its sockets, its claims, and their events.

The driver is registered with kubelet on its own. Its sockets and records are in a folder of its own. The GPUs, the
common CDI spec, metrics and the way to the API server are those of the process. What claims have on the node is
recovered and unprepared whether there is an NVIDIA driver or not.

kubelet 1.36 opens a health stream to every driver, and tries again every five seconds if the driver has no health
service. So this driver serves one. Its lists are empty, because the driver has no health checks of IMEX channels and
daemons: kubelet shows their health as unknown.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from dra_driver.domains.names import DRIVER
from dra_driver.gpu.nvml import NvmlError
from dra_driver.kube.api import ApiClient, Connection
from dra_driver.kube.api.events import EventRecorder
from dra_driver.process.containment import contained

from .claims.answers import PreparedDevice, prepared_devices
from .claims.boundary import ClaimBoundary
from .claims.call import Call
from .claims.engine import Engine
from .claims.files import RecordFiles
from .claims.model import ClaimRef
from .claims.planner import Planner
from .claims.reader import ClaimReader
from .claims.records import record_format
from .claims.specs import ClaimSpecs
from .containers import cdi
from .containers.common import CommonSpec
from .drivers import DomainDriver
from .errors import StoppedError
from .features.domain.folder import DomainFolder
from .features.domain.plan import find_domain
from .kubelet import health
from .kubelet.health import HealthService
from .kubelet.instance import SocketPaths, sweep_sockets
from .kubelet.service import SERVICES, DraService, RegistrationService
from .kubelet.sockets import SocketServer
from .metrics import PluginMetrics
from .node.node import Node
from .options import PluginOptions
from .reports.prepared import PreparedClaims
from .reports.reporter import ClaimReports, claim_events

log = logging.getLogger(__name__)

_REPORT_SECONDS = 2.0


class DomainClaims:
    """The claims of the driver as kubelet's calls see them. `count` counts unexpected errors."""

    def __init__(self, engine: Engine, count: Callable[[str], None]) -> None:
        self._engine = engine
        self._count = count
        self._recovering = threading.Lock()
        self._is_recovered = False
        self._ending = threading.Event()

    def begin(self) -> None:
        """Tidy up after an earlier process, and bring the node into the recorded state. Raises OSError."""
        self._engine.begin()
        self.recover()

    def recover(self) -> None:
        """Bring the node into the recorded state, as far as that is possible now. Without an NVIDIA driver, specs are
        written again as soon as there is one.
        """
        with contained("recover ComputeDomains", self._engine.files.folder, self._count):
            try:
                self._recover()
            except (OSError, NvmlError) as error:
                log.error("the claims of ComputeDomains cannot be checked: %s", error)

    def end(self) -> None:
        """End the waiting of all calls."""
        self._ending.set()

    def prepare(self, ref: ClaimRef, call: Call) -> Sequence[PreparedDevice]:
        """Prepare a claim. Raises one of EXPECTED_ERRORS."""
        if not self._is_recovered:  # marks may be those of an earlier boot
            self._recover()
        record = self._engine.prepare(ref, self._stoppable(ref, call))
        return prepared_devices(record.plan, kind=cdi.DOMAIN_CLAIM_KIND)

    def unprepare(self, ref: ClaimRef, call: Call) -> None:
        """Undo everything of a claim. Needs no NVIDIA driver and no API server. Raises one of EXPECTED_ERRORS."""
        self._engine.unprepare(ref, self._stoppable(ref, call))

    def _recover(self) -> None:
        with self._recovering:
            self._engine.recover()
            self._is_recovered = True

    def _stoppable(self, ref: ClaimRef, call: Call) -> Call:
        """The same call, which also stops when the plugin ends."""

        def check() -> None:
            if self._ending.is_set():
                raise StoppedError(f"claim {ref} is continued by kubelet's next call, because the plugin ends")

        return call.also(check)


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
        domains = options.domains
        self._folder = DomainFolder(node.folders.domain_folder)
        self._registry = options.node.registry
        boundary = ClaimBoundary(
            claim_events(events, lambda reason: metrics.claim_event(reason, DRIVER)),
            metrics.unexpected_error,
            lambda verb, step, seconds: metrics.step(verb, step, seconds, DRIVER),
        )
        host = domains.host_daemon(node.folders.hardware)
        driver = DomainDriver(partial(find_domain, ApiClient(connection)), domains.namespace, host).driver()
        engine = Engine(
            Planner(driver, node, ClaimReader(connection)),
            RecordFiles(self._folder.records, record_format(driver)),
            ClaimSpecs(node, common, kind=cdi.DOMAIN_CLAIM_KIND),
            boundary,
        )
        self._claims = DomainClaims(engine, metrics.unexpected_error)
        self._prepared = PreparedClaims(self._folder.records, driver)
        self._reports = ClaimReports(
            connection, options.node_name, lambda _: {}, status=False, events=events, boundary=boundary
        )
        self._dra = DraService(self._claims.prepare, self._claims.unprepare, metrics, self._reports, DRIVER)
        sockets: SocketPaths = options.domain_sockets
        self._health = HealthService(lambda: ())
        services = (*SERVICES, *health.SERVICES)
        self.registration = RegistrationService(
            sockets.service, services, lambda registered: metrics.registration(registered, DRIVER), DRIVER
        )
        self.server = SocketServer(sockets.service, [self._dra, self._health, self.registration], sockets.registration)
        metrics.begin(DRIVER)

    def start(self) -> None:
        """Tidy up after an earlier process, before `server` is started. Raises OSError."""
        sweep_sockets(self._folder.path, self._registry, DRIVER)
        self._claims.begin()
        self._reports.start()

    def recover(self) -> None:
        """See DomainClaims."""
        self._claims.recover()

    def end(self, seconds: float) -> bool:
        """Answer the running calls. Calls that wait for a daemon end with an error. Returns whether all were answered
        within `seconds`.
        """
        self._health.stop()
        self._claims.end()
        answered = self._dra.drain(seconds)
        self._reports.stop(_REPORT_SECONDS)
        return answered

    def prepared_types(self) -> list[str]:
        """The type of each device of a prepared claim."""
        return self._prepared.types()
