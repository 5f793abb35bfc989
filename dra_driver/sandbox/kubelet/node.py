# SPDX-License-Identifier: Apache-2.0
"""The Node object of a kubelet: its labels, status and Lease, and the deletion of the node's ResourceSlices."""

import math
import platform
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from dra_driver.kube.api import ApiError
from dra_driver.process.containment import nobody
from dra_driver.process.worker import Worker

from .apiclient import KubernetesCluster
from .journal import Journal
from .options import KubeletOptions
from .podstatus import HOST_IP, timestamp

_ALL_DRIVERS: Final = ""


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


class NodeKeeper:
    """Creates the Node, deletes ResourceSlices, and renews the Lease, on a thread of its own.

    All slices of the node are deleted once: no device is usable before its plugin has registered again. A request that
    fails is repeated.
    """

    def __init__(self, options: KubeletOptions, cluster: KubernetesCluster, journal: Journal) -> None:
        self._options = options
        self._cluster = cluster
        self._journal = journal
        self._lock = threading.Lock()
        self._created = False
        self._wipes = {_ALL_DRIVERS}
        self._renewal = 0.0  # monotonic
        self._backoff = options.periods.wipe_retry.backoff()
        self._worker = Worker("keep node", self._round, count=nobody)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread, and wait for a request that has begun."""
        self._worker.stop(math.inf)

    def wipe(self, driver: str) -> None:
        """Delete the ResourceSlices of a driver on this node, soon."""
        with self._lock:
            self._wipes.add(driver)
        self._worker.wake()

    def _round(self) -> float:
        """Send the requests that are due. Returns the seconds until the next one."""
        steps = {"Node": self._create, "ResourceSlices": self._wipe, "Lease": self._renew}
        for subject, step in steps.items():
            try:
                step()
            except ApiError as error:
                self._journal.record("ApiFailed", subject, str(error))
                return self._backoff.pause()
        self._backoff.reset()
        return max(0.0, self._renewal - time.monotonic())

    def _create(self) -> None:
        if self._created:
            return
        options, name = self._options, self._options.node_name
        labels = {**node_labels(name), **options.labels}
        self._cluster.apply_node(name, labels, node_status(name, options.version, time.time()))
        self._created = True
        self._journal.record("NodeReady", name)

    def _wipe(self) -> None:
        name = self._options.node_name
        with self._lock:
            drivers = sorted(self._wipes)
        for driver in drivers:
            self._cluster.delete_slices(name, driver)
            with self._lock:
                self._wipes.discard(driver)
            self._journal.record("SlicesWiped", driver or name)

    def _renew(self) -> None:
        if time.monotonic() < self._renewal:
            return
        self._cluster.renew_lease(self._options.node_name, time.time())
        self._renewal = time.monotonic() + self._options.periods.lease_renewal
