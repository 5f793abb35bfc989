# SPDX-License-Identifier: Apache-2.0
"""A whole cluster: a control plane, and nodes with simulated GPUs, a kubelet and the driver's real processes.

    with Sandbox(Path("/tmp/sandbox"), "h100x8-mixed") as sandbox:
        sandbox.apply("examples/mig-slices.yaml")
        sandbox.nodes[0].kubelet.wait_pod_running("default", "mig-slices")

Only one sandbox can use a folder at a time.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

import yaml

from ..errors import FolderInUseError, SandboxError
from ..gpu.simulated import load_description
from ..kube.api import load_credentials
from ..kube.kinds import PODS
from ..names import DRIVER_NAME
from ..process.files import try_lock
from . import computedomains
from .child import Children
from .controlplane import Kubernetes, control_plane, device_classes
from .loop import CLAIMS, CLASSES, JSON, SLICES, TEMPLATES, connected
from .nodes import NodeSetup, SandboxNode
from .processes import Processes

_ENDING_SECONDS = 10.0
"""How long to wait for the processes of a killed sandbox to end."""
_PAUSE_SECONDS = 0.1

NODE = "node-1"
"""The name of the first node. Further nodes are node-2, node-3, ..."""

_LOOK_SECONDS = 0.1

__all__ = ["JSON", "NODE", "Kubernetes", "Sandbox", "SandboxError", "SandboxNode"]


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Lock `folder` for this process, and for child processes that inherit the descriptor (the context).

    Raises FolderInUseError or another OSError.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, folder)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + _ENDING_SECONDS
    while not try_lock(descriptor):
        owner = os.pread(descriptor, 20, 0).decode()
        if _runs(owner) or time.monotonic() > deadline:
            raise FolderInUseError(
                f"{folder} is in use by the sandbox of process {owner}: end that one, or choose another folder"
            )
        time.sleep(_PAUSE_SECONDS)


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


class Sandbox:
    """A sandbox. Everything runs inside its context. Its files are in `folder`.

    `simulated` names or describes the hardware of each of the `nodes`. `policy` is the driver's policy file. If the
    nodes have IMEX channels, there are ComputeDomains.
    """

    cluster: computedomains.ClusterProcesses
    """The processes of the cluster. It has some only with ComputeDomains."""

    def __init__(
        self,
        folder: Path,
        simulated: str,
        *,
        nodes: int = 1,
        policy: Path | None = None,
        kubernetes: Kubernetes | None = None,
        children: Callable[[int], Children] = Children,
    ) -> None:
        """`children` starts the processes of nodes, which inherit the descriptor of the folder's lock.

        Raises DescriptionError for unknown hardware, and ReleaseError for an unknown feature gate.
        """
        self.folder = folder.absolute()
        self.kubeconfig = self.folder / "kubeconfig"
        self.nodes: tuple[SandboxNode, ...] = ()
        self._names = [f"node-{number}" for number in range(1, nodes + 1)]
        self._policy = policy.absolute() if policy else None
        self._description = load_description(simulated)
        self.compute_domains = self._description.imex_channels > 0
        self._kubernetes = kubernetes or Kubernetes()
        self._children = children
        if self._kubernetes.assets is None:
            self._kubernetes.release()
        self._running = contextlib.ExitStack()

    def __enter__(self) -> "Sandbox":
        """Start everything, and return after the plugins are registered and the nodes' devices are published.

        Raises SandboxError, DescriptionError (the folder has other hardware), or OSError (another sandbox uses
        the folder).
        """
        try:
            self._start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything. The files stay."""
        self._running.close()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self._running.enter_context(held(self.folder))
        plane = control_plane(self._kubernetes, self.folder, self.kubeconfig, lock)
        networks: Sequence[IPv4Network | None] = [None] * len(self._names)
        if self.compute_domains:
            networks = self._running.enter_context(computedomains.pod_networks())
        children = self._children(lock)
        setup = NodeSetup(self.kubeconfig, self._description, children, self._policy)
        self.nodes = tuple(
            SandboxNode(name, self.folder / name, setup, network)
            for name, network in zip(self._names, networks, strict=False)
        )
        self.cluster = computedomains.ClusterProcesses(self.folder / "logs", self.kubeconfig, children)
        start_controllers = self._running.enter_context(plane)
        self.client = self._running.enter_context(connected(self.kubeconfig))
        self.url = load_credentials(str(self.kubeconfig)).server
        for value in device_classes(compute_domains=self.compute_domains):
            self.client.create(CLASSES, value)
        if self.compute_domains:
            computedomains.install(self.client)
            self._running.callback(self.cluster.stop)
            self.cluster.start_controller()
        version = str(self.client.get_path("/version")["gitVersion"])
        for node in self.nodes:
            self._running.enter_context(node.kubelet_running(version))
        start_controllers()
        for node in self.nodes:
            self._running.enter_context(node.driver_running())
        for node in self.nodes:
            node.wait_registered()
            for driver in node.drivers:
                node.wait("controller", partial(self.slices, node.name, driver))

    def wait(self) -> str:
        """Wait until a process of the driver ends by itself. Return which one, how it ended, and where its log is."""
        with contextlib.ExitStack() as opened:
            ends: dict[int, tuple[Processes, str]] = {}
            for place in (self.cluster, *self.nodes):
                for name, process in place.processes.items():
                    descriptor = os.pidfd_open(process.pid)
                    opened.callback(os.close, descriptor)
                    ends[descriptor] = place, name
            ended: list[int] = []
            while not ended:  # Python handles signals between these calls; a wait without an end could miss them
                ended = select.select(list(ends), [], [], _LOOK_SECONDS)[0]
        place, name = ends[ended[0]]
        return place.ending(name)

    def apply(self, path: Path | str) -> list[JSON]:
        """Create the objects of a manifest in namespace default, and return them as stored."""
        return [self._create(value) for value in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if value]

    def slices(self, node: str = "", driver: str = DRIVER_NAME) -> list[JSON]:
        """Return the driver's ResourceSlices of one node, or of all nodes."""
        where = f",spec.nodeName={node}" if node else ""
        return self.client.list(SLICES, field_selector=f"spec.driver={driver}{where}").items

    def claims(self) -> list[JSON]:
        """Return all ResourceClaims."""
        return self.client.list(CLAIMS).items

    def pods(self) -> list[JSON]:
        """Return all Pods."""
        return self.client.list(PODS).items

    def clear(self) -> None:
        """Delete all pods and templates, and wait until the pods and their claims are gone."""
        for kind in (TEMPLATES, PODS):
            for item in self.client.list(kind).items:
                self.client.delete(kind, item["metadata"]["name"], item["metadata"]["namespace"])
        kubelet = self.nodes[0].kubelet
        kubelet.wait(lambda: not self.pods() and not self.claims(), what="pods and claims to be gone")

    def _create(self, value: JSON) -> JSON:
        kinds = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES, "Pod": PODS}
        return self.client.create(kinds[value["kind"]], value, value["metadata"].get("namespace", "default"))
