# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the container runtime: it creates each container as far as CDI goes, and runs only a few programs.

Containers exist in memory only. As on a node that has booted, a new kubelet starts without containers. All pods share
the network of the host, in which each pod can have an address of its own.
"""

import logging
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from .cdi import CdiError, DeviceNode, Edits, Hook, Mount, inject, scan
from .model import Container, KubeletPod
from .options import KubeletOptions
from .programs import Launch, Supervisor, answers, expand

_log = logging.getLogger(__name__)

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def stat_device(path: str, *, plain_files: bool) -> tuple[str, int, int]:
    """Return the type (c, b or p) and the numbers of the device node at `path`, without following links.

    With `plain_files`, a regular file counts as a character device. Raises CdiError for any other file.
    """
    try:
        status = os.lstat(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise CdiError(f'failed to stat CDI host device "{path}": {reason}') from error
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"} | ({stat.S_IFREG: "c"} if plain_files else {})
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise CdiError(f'failed to stat CDI host device "{path}": not a device node')
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container: its variables, and what CDI edits have added. Device nodes have the numbers of the host's."""

    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


def apply(edits: Edits, env: Mapping[str, str], *, plain_files: bool) -> ContainerSpec:
    """Return a container with these variables and edits. The last edit of a name or path counts. Raises CdiError."""
    return ContainerSpec(
        {**env, **dict(entry.split("=", 1) for entry in edits.env)},
        tuple({node.path: _device(node, plain_files=plain_files) for node in edits.device_nodes}.values()),
        tuple({mount.container_path: mount for mount in edits.mounts}.values()),
        edits.hooks,
    )


def _device(node: DeviceNode, *, plain_files: bool) -> DeviceNode:
    """Return the node with what it leaves open: type and numbers are those of the node on the host."""
    host_path = node.host_path or node.path
    if node.type == "p" or (node.type and node.major):
        return replace(node, host_path=host_path)
    kind, major, minor = stat_device(host_path, plain_files=plain_files)
    if node.type and node.type != kind:
        raise CdiError(f'CDI device ("{node.path}", "{host_path}"), host type mismatch ({node.type}, {kind})')
    if node.major:
        major, minor = node.major, node.minor
    return replace(node, host_path=host_path, type=kind, major=major, minor=minor)


def problems_on_host(spec: ContainerSpec) -> tuple[str, ...]:
    """Return why a container could not start on this host: mounts without a source, hooks without a program."""
    mounts = [
        f'error mounting "{mount.host_path}" to rootfs at "{mount.container_path}": no such file or directory'
        for mount in spec.mounts
        if mount.host_path.startswith("/") and not Path(mount.host_path).exists()
    ]
    hooks = [
        f'error running {hook.hook_name} hook "{hook.path}": no such program'
        for hook in spec.hooks
        if not os.access(hook.path, os.X_OK)
    ]
    return (*mounts, *hooks)


class ContainerError(Exception):
    """A container could not be created. `reason` is the reason in the container's status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container that was started. `started_at` is in seconds since the epoch."""

    id: str
    spec: ContainerSpec
    started_at: float
    supervisor: Supervisor | None = None
    """Runs its program. None: the container runs none."""


@dataclass(slots=True)
class _PodSandbox:
    address: str
    containers: dict[str, RunningContainer] = field(default_factory=dict)


class ContainerRuntime:
    """The containers of one node. Callers serialize the calls for one pod; calls for different pods may overlap."""

    def __init__(self, options: KubeletOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._pods: dict[str, _PodSandbox] = {}
        self._stopped = False

    def has_pod(self, uid: str) -> bool:
        """Return whether the pod's sandbox exists."""
        return uid in self._pods

    def create_pod(self, uid: str) -> None:
        """Create the pod's sandbox. It gets the first free address, so addresses are soon used again."""
        with self._lock:
            used = {pod.address for pod in self._pods.values()}
            network = self._options.pod_network
            addresses = map(str, network.hosts()) if network else iter(())
            self._pods[uid] = _PodSandbox(next((address for address in addresses if address not in used), ""))

    def address(self, uid: str) -> str:
        """Return the pod's address. Empty: it has none."""
        pod = self._pods.get(uid)
        return pod.address if pod else ""

    def containers(self, uid: str) -> Mapping[str, RunningContainer]:
        """Return the pod's containers by name."""
        pod = self._pods.get(uid)
        return dict(pod.containers) if pod else {}

    def create_container(
        self, pod: KubeletPod, container: Container, cdi_ids: Sequence[str], changed: Callable[[], None]
    ) -> None:
        """Create and start a container with these CDI devices. `changed` is called when its program's state changes.

        Raises ContainerError.
        """
        address = self._pods[pod.uid].address
        try:
            spec = self._inject(_variables(pod, container, address), cdi_ids)
        except CdiError as error:
            raise ContainerError("CreateContainerError", f"CDI device injection failed: {error}") from error
        if problems := problems_on_host(spec):
            raise ContainerError("RunContainerError", f"unable to start container process: {'; '.join(problems)}")
        launch = Launch(pod, container, spec.env, spec.mounts, address)
        with self._lock:
            if self._stopped:
                raise ContainerError("RunContainerError", "the container runtime has stopped")
            try:
                supervisor = self._supervise(launch, changed)
            except OSError as error:
                raise ContainerError("RunContainerError", f"unable to start container process: {error}") from error
            running = RunningContainer(uuid.uuid4().hex, spec, time.time(), supervisor)
            self._pods[pod.uid].containers[container.name] = running

    def _inject(self, env: Mapping[str, str], cdi_ids: Sequence[str]) -> ContainerSpec:
        registry = scan(self._options.cdi_dir)
        for error in registry.errors:
            _log.warning("%s", error)
        edits = inject(registry, cdi_ids)
        try:
            return apply(edits, env, plain_files=self._options.plain_files)
        except CdiError as error:
            raise CdiError(f"failed to inject devices: {error}") from error

    def _supervise(self, launch: Launch, changed: Callable[[], None]) -> Supervisor | None:
        """Run the program of a container, if it has one. `changed` is called when its state changes. Raises OSError."""
        programs, probe, periods = self._options.programs, launch.container.readiness, self._options.periods
        if programs is None or not programs.runs(launch.container):
            return None
        return Supervisor(
            lambda: programs.start(launch),
            None if probe is None else lambda: answers(probe, launch.address),
            min(probe.period if probe else periods.longest_probe, periods.longest_probe),
            periods.program_restart.backoff(),
            changed,
        )

    def stop_pod(self, uid: str, grace: float) -> None:
        """End the programs of a pod. They have `grace` seconds."""
        for container in self.containers(uid).values():
            if container.supervisor is not None:
                container.supervisor.stop(grace)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod with its containers. Does nothing if the pod does not exist."""
        if self._pods.pop(uid, None) is not None and self._options.programs is not None:
            self._options.programs.clean_up(uid)

    def stop(self) -> None:
        """Kill all programs, as when the node loses its power. No container is created after that."""
        with self._lock:
            self._stopped = True
        for uid in list(self._pods):
            self.stop_pod(uid, 0)


def _variables(pod: KubeletPod, container: Container, address: str) -> Mapping[str, str]:
    """Return the variables of a container, with fields of the pod and the values of earlier variables."""
    values = {"PATH": _DEFAULT_PATH}
    for name, value in container.env.items():
        path = container.fields.get(name)
        values[name] = expand(value, values) if path is None else pod.field(path, address)
    return values
