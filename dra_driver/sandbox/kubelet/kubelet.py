# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet of one node: plugins, claims, pods, and the Node object with its labels and conditions."""

import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .apiclient import KubeletApiError, KubernetesCluster
from .health import PluginHealth
from .journal import Journal
from .manager import ClaimManager
from .options import KubeletOptions
from .plugin import Registration
from .plugins import Plugins, PluginWatcher
from .pods import Phase, PodManager, Services
from .podstatus import HOST_IP, timestamp
from .runtime import ContainerRuntime, ContainerSpec
from .state import PREPARE, UNPREPARE, ClaimCache, ClaimInfo
from .wire import ClaimAnswer, ClaimRef, DeviceHealth

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0


def node_labels(name: str) -> Mapping[str, str]:
    """Return the labels that kubelet sets on every node."""
    return {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": _architecture()}


def node_status(name: str, version: str, now: float) -> Mapping[str, Any]:
    """Return the status of a node that is ready for pods. `version` is the kubelet's."""
    resources = {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "2Ti", "pods": "110"}
    return {
        "addresses": [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": name}],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "stand-in kubelet is posting ready status",
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": timestamp(now),
            }
        ],
        "nodeInfo": {
            "architecture": _architecture(),
            "bootID": "",
            "containerRuntimeVersion": "sandbox://1.0.0",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "stand-in",
            "systemUUID": "",
        },
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class Kubelet:
    """The kubelet. It runs inside its context. The `wait_` methods raise TimeoutError."""

    def __init__(self, options: KubeletOptions, cluster: KubernetesCluster) -> None:
        """Create the directories and read the checkpoint. Raises CheckpointError if it is damaged."""
        self.options = options
        self.journal = Journal()
        self._cluster = cluster
        self._stop = threading.Event()
        for directory in (options.root, options.registration_dir, options.plugins_dir):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        periods = options.periods
        self._claims = ClaimCache(options.checkpoint)
        self._health = PluginHealth(periods, self.journal, self._health_changed)
        self._plugins = Plugins(periods, self._wipe, self._health, self.journal)
        self._runtime = ContainerRuntime(options)
        manager = ClaimManager(self._claims, cluster, self._plugins, self.journal)
        self._pods = PodManager(
            Services(cluster, manager, self._claims, self._health, self._runtime, self.journal, periods)
        )
        self._watcher = PluginWatcher(options, self._plugins, self.journal)
        self._watching = threading.Thread(target=self._watcher.run, args=(self._stop,), name="plugins", daemon=True)
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("node", self._keep_node),
                ("pods", self._watch_pods),
                ("claims", self._reconcile_claims),
            )
        ]

    def __enter__(self) -> "Kubelet":
        """Start the threads. Pods can be scheduled to the node when its object is Ready."""
        _log.info("kubelet of node %s below %s", self.options.node_name, self.options.root)
        for thread in (self._watching, *self._threads):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and kill the programs of containers. Claims stay prepared, as with a real kubelet."""
        self._stop.set()
        self._pods.stop()
        self._runtime.stop()
        self._watching.join()
        self._plugins.stop()  # calls under way end with it, and with them the threads that wait for them
        for thread in self._threads:
            thread.join()
        self._pods.join()
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

    # Threads

    def _keep_node(self) -> None:
        """Create the Node, then delete its slices: no device is usable before its plugin has registered again.

        Then renew the node's Lease until kubelet stops.
        """
        options, name = self.options, self.options.node_name
        labels = {**node_labels(name), **options.labels}
        if self._until_done(
            lambda: self._cluster.apply_node(name, labels, node_status(name, options.version, time.time())), "Node"
        ):
            self.journal.record("NodeReady", name)
            self._wipe(None)
        while not self._stop.is_set():
            self._until_done(lambda: self._cluster.renew_lease(name, time.time()), "Lease")
            self._stop.wait(options.periods.lease_renewal)

    def _wipe(self, driver: str | None) -> None:
        """Delete the ResourceSlices of this node, or of one driver on it."""
        name = self.options.node_name
        if self._until_done(lambda: self._cluster.delete_slices(name, driver), "ResourceSlices"):
            self.journal.record("SlicesWiped", driver or name)

    def _until_done(self, step: Callable[[], None], what: str) -> bool:
        """Repeat `step` until it succeeds or kubelet stops. Return whether it succeeded."""
        failures = 0
        while not self._stop.is_set():
            try:
                step()
                return True
            except KubeletApiError as error:
                failures += 1
                self.journal.record("ApiFailed", what, str(error))
                self._stop.wait(self.options.periods.wipe_retry.delay(failures))
        return False

    def _watch_pods(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                for pods in self._cluster.watch_pods(self.options.node_name, self._stop):
                    failures = 0
                    if self._stop.is_set():
                        return
                    self._pods.handle(pods)
            except KubeletApiError as error:
                if self._stop.is_set():
                    return
                failures += 1
                self.journal.record("ApiFailed", "pods", str(error))
                self._stop.wait(self.options.periods.watch_retry.delay(failures))

    def _reconcile_claims(self) -> None:
        while not self._stop.wait(self.options.periods.claim_reconcile):
            self._pods.reconcile_claims()

    def _health_changed(self, driver: str, devices: frozenset[tuple[str, str]]) -> None:
        pods: frozenset[str] = frozenset().union(
            *(
                info.pods
                for info in self._claims.all()
                if any((device.pool, device.device) in devices for device in info.devices.get(driver, ()))
            )
        )
        self._pods.look(pods)
