# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet of one node: plugins, claims, pods, and the Node object."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping

from dra_driver.process.containment import nobody
from dra_driver.process.worker import Worker

from .apiclient import KubernetesCluster
from .health import PluginHealth
from .journal import Journal
from .manager import ClaimManager
from .node import NodeKeeper
from .options import KubeletOptions
from .plugin import Registration
from .plugins import Plugins, PluginWatcher
from .pods import Phase, PodManager, Services
from .runtime import ContainerRuntime, ContainerSpec
from .state import PREPARE, UNPREPARE, ClaimCache, ClaimInfo
from .wire import ClaimAnswer, ClaimRef, DeviceHealth

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 60.0


class Kubelet:
    """The kubelet. It runs inside its context. The `wait_` methods raise TimeoutError."""

    def __init__(self, options: KubeletOptions, cluster: KubernetesCluster) -> None:
        """Create the directories and read the checkpoint. Raises CheckpointError if it is damaged."""
        self.options = options
        self.journal = Journal()
        self._cluster = cluster
        for directory in (options.root, options.registration_dir, options.plugins_dir):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        periods = options.periods
        self._claims = ClaimCache(options.checkpoint)
        self._health = PluginHealth(periods, self.journal, self._health_changed)
        self._plugins = Plugins(periods, self._health, self.journal)
        self._runtime = ContainerRuntime(options)
        manager = ClaimManager(self._claims, cluster, self._plugins, self.journal)
        self._pods = PodManager(
            Services(cluster, manager, self._claims, self._health, self._runtime, self.journal, periods)
        )
        self._node = NodeKeeper(options, cluster, self.journal)
        self._sockets = PluginWatcher(options, self._plugins, self.journal, self._node.wipe)
        self._pod_watch = cluster.watch_pods(options.node_name, periods.watch_retry, self._pods.handle)
        self._reconciler = Worker(
            "reconcile claims", self._pods.reconcile_claims, interval=periods.claim_reconcile, count=nobody
        )

    def __enter__(self) -> "Kubelet":
        """Start the threads. Pods can be scheduled to the node when its object is Ready."""
        _log.info("kubelet of node %s below %s", self.options.node_name, self.options.root)
        self._sockets.start()
        self._node.start()
        self._pod_watch.start()
        self._reconciler.start(after=self.options.periods.claim_reconcile)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and kill the programs of containers. Claims stay prepared, as with a real kubelet."""
        self._pod_watch.stop()
        self._pods.stop()
        self._runtime.stop()
        self._sockets.stop()
        self._plugins.stop()  # calls under way end with it, and with them the threads that wait for them
        self._node.stop()
        self._reconciler.stop(math.inf)
        self._pods.join()
        self._cluster.close()
        self.journal.record("KubeletStopped", self.options.node_name)

    # Waiting

    def wait(self, is_so: Callable[[], bool], timeout: float = DEFAULT_TIMEOUT, what: str = "condition") -> None:
        """Wait until `is_so()` is true. It is checked after each entry in the journal, and every 50 ms."""
        self.journal.wait(is_so, timeout, what)

    def wait_event(
        self, reason: str, subject: str | None = None, timeout: float = DEFAULT_TIMEOUT, count: int = 1
    ) -> None:
        """Wait until the journal has `count` entries with this reason (and subject)."""
        what = f"{count} {reason} of {subject or 'anything'}"
        self.wait(lambda: len(self.journal.entries(reason, subject)) >= count, timeout, what)

    def wait_ready(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until the Node is Ready and old ResourceSlices are deleted."""
        self.wait_event("NodeReady", self.options.node_name, timeout)
        self.wait_event("SlicesWiped", self.options.node_name, timeout)

    def wait_registered(self, driver: str, timeout: float = DEFAULT_TIMEOUT, instances: int = 1) -> None:
        """Wait until exactly that many plugins of the driver are registered and connected."""
        self.wait(
            lambda: len(self._plugins.connected(driver)) == instances == len(self._plugins.registered(driver)),
            timeout,
            f"{instances} connected plugins of {driver}",
        )

    def wait_deregistered(self, driver: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until no plugin of the driver is registered."""
        self.wait(lambda: not self._plugins.registered(driver), timeout, f"no plugin of {driver}")

    def wait_pod_running(self, namespace: str, name: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until all containers of the pod are started and its status says so."""

        def is_so() -> bool:
            worker = self._pods.find(namespace, name)
            return worker is not None and worker.phase is Phase.RUNNING

        self.wait(is_so, timeout, f"pod {namespace}/{name} running")

    def wait_pod_gone(self, namespace: str, name: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until kubelet has no pod of that name."""
        self.wait(lambda: self._pods.find(namespace, name) is None, timeout, f"pod {namespace}/{name} gone")

    # State

    def plugins(self, driver: str) -> tuple[Registration, ...]:
        """Return the registered plugins of a driver, oldest first."""
        return self._plugins.registered(driver)

    def pending_wipes(self) -> frozenset[str]:
        """Return the drivers whose ResourceSlices will be deleted if none of their plugins connects in time."""
        return self._plugins.pending_wipes()

    def claims(self) -> tuple[ClaimInfo, ...]:
        """Return the claims in the checkpoint, with the plugins' answers."""
        return self._claims.all()

    def health(self, driver: str, pool: str, device: str) -> DeviceHealth:
        """Return the current health of a device."""
        return self._health.get(driver, pool, device)

    def container(self, namespace: str, pod: str, container: str) -> ContainerSpec | None:
        """Return the spec of a container, or None if it was not created."""
        worker = self._pods.find(namespace, pod)
        running = self._runtime.containers(worker.pod.uid).get(container) if worker else None
        return running.spec if running else None

    # Actions

    def prepare(self, driver: str, claims: Iterable[ClaimRef]) -> Mapping[str, ClaimAnswer]:
        """Call NodePrepareResources without pods and checkpoint. Return unchecked answers by UID. Raises ClaimError."""
        return self._plugins.get(driver).call(PREPARE, claims)

    def unprepare(self, driver: str, claims: Iterable[ClaimRef]) -> Mapping[str, ClaimAnswer]:
        """Call NodeUnprepareResources in the same way."""
        return self._plugins.get(driver).call(UNPREPARE, claims)

    def _health_changed(self, driver: str, devices: frozenset[tuple[str, str]]) -> None:
        pods: frozenset[str] = frozenset().union(
            *(
                info.pods
                for info in self._claims.all()
                if any((device.pool, device.device) in devices for device in info.devices.get(driver, ()))
            )
        )
        self._pods.wake(pods)
