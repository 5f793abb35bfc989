# SPDX-License-Identifier: Apache-2.0
"""The driver's inside on a simulated node: kubelet's calls arrive on a socket, and everything but kubelet is real."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from dra_driver.domains.names import DRIVER
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.names import DRIVER_NAME
from dra_driver.process.endpoints import new_registry
from kubeletplugin.claims.boundary import ClaimBoundary
from kubeletplugin.claims.cache import RecordCache
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.claims.reader import ClaimReader
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.features.domain.folder import DomainFolder
from kubeletplugin.features.domain.lifecycle import DomainClaims, DomainTimes
from kubeletplugin.features.domain.placing import HostDaemon, NodeImex
from kubeletplugin.features.domain.plan import DomainPlanner
from kubeletplugin.features.domain.records import FORMAT, DomainRecord
from kubeletplugin.features.domain.specs import DomainSpecs
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

SOON = DomainTimes(wait=0.3, look=0.02, grace=0.0, sweep=600.0)
LONG = DomainTimes(wait=60.0, look=0.02, grace=0.0, sweep=600.0)


class DomainPlugin:
    """A plugin on the node in `root`, made there when it is missing. A second one is another process, or the next."""

    def __init__(
        self,
        root: Path,
        kubeconfig: Path,
        *,
        settings: DomainTimes = LONG,
        boot_id: str = "boot-1",
        host_managed: bool = False,
        name: str = "dra.sock",
        hardware: str = HARDWARE,
        driver: bool = True,
    ) -> None:
        self.cdi = root / "cdi"
        self.folder = DomainFolder(root / DRIVER)
        self.records = RecordFiles(self.folder.records, FORMAT)
        self.node: ControlledNode = make_node(root / "node", hardware, POOL).node
        install_imex(self.node)
        self.events: list[tuple[str, str]] = []
        hardware_here = hardware_of(self.node.driver_root, self.node.nvml)
        folders = NodeFolders(root / "registry", root / DRIVER_NAME, self.cdi, root / "shm", hardware_here)
        self.place = Node(POOL, boot_id, folders, yields=False)
        self._common = CommonSpec(self.cdi, folders.driver_root)
        programs = HostPrograms(self.node.driver_root, enter=False)
        node = NodeImex(self.place, HostDaemon(programs, "/ctl.sock") if host_managed else None)
        self._connection = Connection(load_credentials(str(kubeconfig)), "tests")
        client = ApiClient(self._connection)
        self.claims = DomainClaims(
            folder=self.folder,
            boot_id=boot_id,
            planner=DomainPlanner(POOL, ClaimReader(self._connection), client, NAMESPACE, host_managed=host_managed),
            node=node,
            specs=DomainSpecs(self._common, self.folder, node),
            namespace=NAMESPACE,
            boundary=ClaimBoundary(lambda ref, reason, _: self.events.append((ref.uid, reason))),
            settings=settings,
        )
        reports = ClaimReports(self._connection, POOL, lambda _: {}, status=False)
        self.service = DraService(
            self.claims.prepare, self.claims.unprepare, PluginMetrics(new_registry(), POOL), reports, DRIVER
        )
        self.server = SocketServer(self.folder.path / name, [self.service])
        self.claims.begin()
        self.server.start()
        self._channel = grpc.insecure_channel(f"unix:{self.server.path}", [("grpc.use_local_subchannel_pool", 1)])
        self._begun: list[Any] = []
        if driver:
            self.start_access()
            wait_for(self.has_driver, "the driver")

    def start_access(self) -> None:
        """Look for the driver from now on."""
        self.place.access.start(self._ready)

    def _ready(self) -> None:
        self._common.write(self.place.gpus().inventory.driver_version)

    def has_driver(self) -> bool:
        """Whether the GPUs can be used."""
        with contextlib.suppress(Exception):
            return bool(self.place.gpus())
        return False

    def attend(self) -> None:
        """Look after the node once, as the plugin does regularly."""
        self.claims.attend()

    def stop(self) -> None:
        """End, and leave everything on the node."""
        self.claims.end()
        self._channel.close()
        self.server.stop()
        self.place.access.stop()
        self.place.threads.end()
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

    def record(self, ref: ClaimRef) -> DomainRecord | None:
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
