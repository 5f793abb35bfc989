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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .cdi import HOOK_NAMES, CdiError, DeviceNode, Edits, Hook, Mount, inject, scan
from .model import Container, Pod
from .programs import Launch, Supervisor, expand

_log = logging.getLogger(__name__)

_DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class DeviceStat:
    """The type (c, b or p) and the numbers of a device on the host."""

    type: str
    major: int
    minor: int


def stat_device(path: str) -> DeviceStat:
    """Return what the device node at `path` is, without following links. Raises CdiError for any other file."""
    try:
        status = os.lstat(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise CdiError(f'failed to stat CDI host device "{path}": {reason}') from error
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise CdiError(f'failed to stat CDI host device "{path}": not a device node')
    return DeviceStat(kind, os.major(status.st_rdev), os.minor(status.st_rdev))


def stat_stand_in(path: str) -> DeviceStat:
    """Like `stat_device`, but a regular file counts as a character device. For hosts that forbid device nodes."""
    file = Path(path)
    return DeviceStat("c", 0, 0) if file.is_file() and not file.is_symlink() else stat_device(path)


@dataclass(frozen=True, slots=True)
class OciDevice:
    """A device node in the container."""

    path: str
    host_path: str
    type: str
    major: int
    minor: int
    access: str
    """The access that the device cgroup allows, of `rwm`. Empty for types that cgroups do not control."""
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The part of an OCI runtime config that CDI edits can change. `hooks` are by OCI name, in the order they run."""

    env: tuple[str, ...] = ()
    devices: tuple[OciDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: Mapping[str, tuple[Hook, ...]] = field(default_factory=lambda: MappingProxyType({}))
    additional_gids: tuple[int, ...] = ()
    cdi_devices: tuple[str, ...] = ()

    def variable(self, name: str) -> str | None:
        """Return the value of an environment variable, or None."""
        return next((value for key, _, value in (e.partition("=") for e in self.env) if key == name), None)


def apply(edits: Edits, base: ContainerSpec, device_stat: Callable[[str], DeviceStat]) -> ContainerSpec:
    """Return `base` with the edits. They replace entries of `base` with the same name or path. Raises CdiError."""
    env = {entry.partition("=")[0]: entry for entry in (*base.env, *edits.env)}
    devices = _by_last((device.path, device) for device in base.devices)
    devices |= _by_last((node.path, _device(node, device_stat)) for node in edits.device_nodes)
    mounts = _by_last((mount.container_path, mount) for mount in (*base.mounts, *edits.mounts))
    return replace(
        base,
        env=tuple(env.values()),
        devices=tuple(devices.values()),
        mounts=tuple(sorted(mounts.values(), key=_depth)) if edits.mounts else tuple(mounts.values()),
        hooks={
            name: hooks
            for name in HOOK_NAMES
            if (hooks := (*base.hooks.get(name, ()), *(h for h in edits.hooks if h.hook_name == name)))
        },
        additional_gids=tuple(dict.fromkeys((*base.additional_gids, *(gid for gid in edits.additional_gids if gid)))),
    )


def _by_last(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the last entry of each name, in the order of these last entries."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        result.pop(key, None)
        result[key] = value
    return result


def _depth(mount: Mount) -> int:
    return os.path.normpath(mount.container_path).count("/")


def _device(node: DeviceNode, device_stat: Callable[[str], DeviceStat]) -> OciDevice:
    host_path = node.host_path or node.path
    kind, major, minor, file_mode = node.type, node.major, node.minor, node.file_mode
    if not kind or (not major and kind != "p"):
        found = device_stat(host_path)
        if kind and kind != found.type:
            raise CdiError(f'CDI device ("{node.path}", "{host_path}"), host type mismatch ({kind}, {found.type})')
        kind = found.type
        if not major and kind != "p":
            major, minor = found.major, found.minor
    access = (node.permissions or "rwm") if kind in ("b", "c") else ""
    return OciDevice(node.path, host_path, kind, major, minor, access, file_mode, node.uid, node.gid)


def problems_on_host(spec: ContainerSpec) -> tuple[str, ...]:
    """Return why a container could not start on this host: mounts without a source, hooks without a program."""
    mounts = [
        f'error mounting "{mount.host_path}" to rootfs at "{mount.container_path}": no such file or directory'
        for mount in spec.mounts
        if mount.host_path.startswith("/") and not Path(mount.host_path).exists()
    ]
    hooks = [
        f'error running {name} hook "{hook.path}": no such program'
        for name, all_hooks in spec.hooks.items()
        for hook in all_hooks
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


Supervise = Callable[[Launch, Callable[[], None]], Supervisor | None]
"""A function that starts the program of a container, if it has one. The second argument is called when its state
changes. Raises OSError.
"""


class Runtime:
    """The containers of one node. Callers serialize the calls for one pod; calls for different pods may overlap."""

    def __init__(
        self,
        cdi_dirs: Sequence[Path],
        cdi_version: str,
        device_stat: Callable[[str], DeviceStat],
        network: IPv4Network | None,
        supervise: Supervise,
        clean_up: Callable[[str], None],
    ) -> None:
        """`network` has the addresses of pods. None: they have no addresses. `clean_up` is called with the UID of each
        pod that was removed.
        """
        self._cdi_dirs = cdi_dirs
        self._cdi_version = cdi_version
        self._device_stat = device_stat
        self._network = network
        self._supervise = supervise
        self._clean_up = clean_up
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
            free = (str(one) for one in self._network.hosts() if str(one) not in used) if self._network else iter(())
            self._pods[uid] = _PodSandbox(next(free, ""))

    def address(self, uid: str) -> str:
        """Return the pod's address. Empty: it has none."""
        pod = self._pods.get(uid)
        return pod.address if pod else ""

    def containers(self, uid: str) -> Mapping[str, RunningContainer]:
        """Return the pod's containers by name."""
        pod = self._pods.get(uid)
        return dict(pod.containers) if pod else {}

    def create_container(
        self, pod: Pod, container: Container, cdi_ids: Sequence[str], changed: Callable[[], None]
    ) -> None:
        """Create and start a container with these CDI devices. `changed` is called when its program's state changes.

        Raises ContainerError.
        """
        address = self._pods[pod.uid].address
        base = ContainerSpec(env=(_DEFAULT_PATH, *_variables(pod, container, address)), cdi_devices=tuple(cdi_ids))
        try:
            spec = self._inject(base)
        except CdiError as error:
            raise ContainerError("CreateContainerError", f"CDI device injection failed: {error}") from error
        if problems := problems_on_host(spec):
            raise ContainerError("RunContainerError", f"unable to start container process: {'; '.join(problems)}")
        variables = {key: value for key, _, value in (entry.partition("=") for entry in spec.env)}
        launch = Launch(pod, container, variables, spec.mounts, address)
        with self._lock:
            if self._stopped:
                raise ContainerError("RunContainerError", "the container runtime has stopped")
            try:
                supervisor = self._supervise(launch, changed)
            except OSError as error:
                raise ContainerError("RunContainerError", f"unable to start container process: {error}") from error
            running = RunningContainer(uuid.uuid4().hex, spec, time.time(), supervisor)
            self._pods[pod.uid].containers[container.name] = running

    def _inject(self, base: ContainerSpec) -> ContainerSpec:
        registry = scan(self._cdi_dirs, self._cdi_version)
        for error in sum(registry.errors.values(), ()):
            _log.warning("%s", error)
        edits = inject(registry, base.cdi_devices)
        try:
            return apply(edits, base, self._device_stat)
        except CdiError as error:
            raise CdiError(f"failed to inject devices: {error}") from error

    def stop_pod(self, uid: str, grace: float) -> None:
        """End the programs of a pod. They have `grace` seconds."""
        for container in self.containers(uid).values():
            if container.supervisor is not None:
                container.supervisor.stop(grace)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod with its containers. Does nothing if the pod does not exist."""
        if self._pods.pop(uid, None) is not None:
            self._clean_up(uid)

    def stop(self) -> None:
        """Kill all programs, as when the node loses its power. No container is created after that."""
        with self._lock:
            self._stopped = True
        for uid in list(self._pods):
            self.stop_pod(uid, 0)


def _variables(pod: Pod, container: Container, address: str) -> list[str]:
    """Return the variables of a container, with fields of the pod and the values of earlier variables."""
    values: dict[str, str] = {}
    for entry in container.env:
        name, _, value = entry.partition("=")
        field = container.fields.get(name)
        values[name] = expand(value, values) if field is None else pod.field(field, address)
    return [f"{name}={value}" for name, value in values.items()]
