# SPDX-License-Identifier: Apache-2.0
"""The driver's inside on a simulated node: kubelet's calls arrive on a socket, and everything but kubelet is real."""

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from dra_driver.domains.names import DRIVER
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.names import DRIVER_NAME
from dra_driver.process.endpoints import new_registry
from kubeletplugin.claims.boundary import ClaimBoundary
from kubeletplugin.claims.cache import RecordCache
from kubeletplugin.claims.engine import ClaimTimes, Engine
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import ClaimRef, Record
from kubeletplugin.claims.planner import Planner
from kubeletplugin.claims.reader import ClaimReader
from kubeletplugin.claims.records import record_format
from kubeletplugin.claims.specs import ClaimSpecs
from kubeletplugin.containers.cdi import DOMAIN_CLAIM_KIND
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.domainservice import DomainClaims
from kubeletplugin.drivers import DomainDriver
from kubeletplugin.features.domain.folder import DomainFolder
from kubeletplugin.features.domain.offers import HostDaemon
from kubeletplugin.features.domain.plan import find_domain
from kubeletplugin.host.programs import HostPrograms
from kubeletplugin.kubelet.service import DraService
from kubeletplugin.kubelet.sockets import SocketServer
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node
from kubeletplugin.protocol import dra_v1_pb2
from kubeletplugin.reports.reporter import ClaimReports
from tests.support.hardware import ControlledNode
from tests.support.nodes import hardware_of, make_node
from tests.support.waiting import wait_for

from .domains import HARDWARE, NAMESPACE, POOL, Left, install_imex, left

SOON = ClaimTimes(wait=0.3, look=0.02, grace=0.0, sweep=600.0)
LONG = ClaimTimes(wait=60.0, look=0.02, grace=0.0, sweep=600.0)


class DomainPlugin:
    """A plugin on the node in `root`, made there when it is missing. A second one is another process, or the next."""

    def __init__(
        self,
        root: Path,
        kubeconfig: Path,
        *,
        times: ClaimTimes = LONG,
        boot_id: str = "boot-1",
        host_managed: bool = False,
        name: str = "dra.sock",
        hardware: str = HARDWARE,
        driver: bool = True,
    ) -> None:
        self.cdi = root / "cdi"
        self.folder = DomainFolder(root / DRIVER)
        self.node: ControlledNode = make_node(root / "node", hardware, POOL).node
        install_imex(self.node)
        self.events: list[tuple[str, str]] = []
        hardware_here = hardware_of(self.node.driver_root, self.node.nvml)
        folders = NodeFolders(root / "registry", root / DRIVER_NAME, self.cdi, root / "shm", hardware_here)
        self.place = Node(POOL, boot_id, folders, yields=False)
        self._common = CommonSpec(self.cdi, folders.driver_root)
        programs = HostPrograms(self.node.driver_root, enter=False)
        host = HostDaemon(programs, "/ctl.sock") if host_managed else None
        self._connection = Connection(load_credentials(str(kubeconfig)), "tests")
        domain_driver = DomainDriver(partial(find_domain, ApiClient(self._connection)), NAMESPACE, host).driver()
        self.records = RecordFiles(self.folder.records, record_format(domain_driver))
        self.engine = Engine(
            Planner(domain_driver, self.place, ClaimReader(self._connection)),
            self.records,
            ClaimSpecs(self.place, self._common, kind=DOMAIN_CLAIM_KIND),
            ClaimBoundary(lambda ref, reason, _: self.events.append((ref.uid, reason))),
            times,
        )
        self.claims = DomainClaims(self.engine, lambda _: None)
        reports = ClaimReports(self._connection, POOL, lambda _: {}, status=False)
        metrics = PluginMetrics(new_registry(), POOL)
        metrics.begin(DRIVER)
        self.service = DraService(self.claims.prepare, self.claims.unprepare, metrics, reports, DRIVER)
        self.server = SocketServer(self.folder.path / name, [self.service])
        self.claims.begin()
        self._rounds = itertools.count(1)
        self._rounds_over = 0
        self.place.access.attend(self._count_rounds)  # after what the engine does in a round
        self.server.start()
        self._channel = grpc.insecure_channel(f"unix:{self.server.path}", [("grpc.use_local_subchannel_pool", 1)])
        self._begun: list[Any] = []
        if driver:
            self.start_access()

    def start_access(self) -> None:
        """Look for the driver from now on, and wait until it is found. The sweep after that would remove the folder of
        a daemon that a test starts without a claim: it is waited for, too.
        """
        self.place.access.start(self._ready)
        wait_for(self.has_driver, "the driver")
        wait_for(lambda: self._rounds_over, "the first sweep")

    def _ready(self) -> None:
        self._common.write(self.place.gpus().inventory.driver_version)
        self.claims.recover()

    def _count_rounds(self) -> float:
        self._rounds_over = next(self._rounds)
        return 600.0

    def _is_later(self, round_: int) -> bool:
        return self._rounds_over > round_

    def has_driver(self) -> bool:
        """Whether the GPUs can be used."""
        with contextlib.suppress(Exception):
            return bool(self.place.gpus())
        return False

    def attend(self) -> None:
        """Look after the node, as the plugin does when it finds the driver, and then regularly."""
        self.claims.recover()
        for _ in range(2):  # the first round may have begun before
            before = self._rounds_over
            self.place.access.wake()
            wait_for(partial(self._is_later, before), "a round")

    def stop(self) -> None:
        """End, and leave everything on the node."""
        self.claims.end()
        self._channel.close()
        self.server.stop()
        self.place.access.stop()
        self.place.session.close()
        self._connection.close()

    # kubelet's calls

    def begin(self, verb: str, *refs: ClaimRef) -> Any:
        """Start a call, and do not wait for it."""
        messages: Any = dra_v1_pb2
        method = self._channel.unary_unary(
            f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{verb}Resources",
            lambda request: request.SerializeToString(),
            getattr(messages, f"Node{verb}ResourcesResponse").FromString,
        )
        claims = [messages.Claim(namespace=one.namespace, name=one.name, uid=one.uid) for one in refs]
        self._begun.append(method.future(getattr(messages, f"Node{verb}ResourcesRequest")(claims=claims)))
        return self._begun[-1]

    def prepare(self, ref: ClaimRef) -> Any:
        """The answer for a claim."""
        return self.begin("Prepare", ref).result(60).claims[ref.uid]

    def prepared(self, *refs: ClaimRef) -> None:
        """Prepare claims, which goes well."""
        for ref in refs:
            assert self.prepare(ref).error == ""

    def unprepared(self, *refs: ClaimRef) -> None:
        """Unprepare claims, which goes well."""
        for ref in refs:
            assert self.begin("Unprepare", ref).result(60).claims[ref.uid].error == ""

    # The node

    def waits(self, *refs: ClaimRef) -> None:
        """Wait until the claims are recorded."""
        wait_for(lambda: {one.uid for one in refs} <= self.records.stamps().keys(), "the records")

    def record(self, ref: ClaimRef) -> Record | None:
        """A claim's record."""
        return RecordCache(self.records).get(ref.uid)

    def left(self) -> Left:
        """What claims have on the node."""
        return left(self.folder.path, self.cdi)


@contextlib.contextmanager
def domain_plugin(root: Path, kubeconfig: Path, **options: Any) -> Iterator[DomainPlugin]:
    """A plugin that stops at the end."""
    plugin = DomainPlugin(root, kubeconfig, **options)
    try:
        yield plugin
    finally:
        plugin.stop()
