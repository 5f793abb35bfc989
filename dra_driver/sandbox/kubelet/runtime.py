# SPDX-License-Identifier: Apache-2.0
"""What a container is created with once its CDI devices are injected, and the OCI config that says so."""

import contextlib
import json
import logging
import os
import shutil
import signal
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .cdi import HOOK_NAMES, CdiError, DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice, inject, scan
from .model import Container, Pod


@dataclass(frozen=True, slots=True)
class DeviceStat:
    """What a path on the host is, as a device: type c, b or p, and its numbers."""

    type: str
    major: int
    minor: int


def stat_device(path: str) -> DeviceStat:
    """What the device node at `path` is, links not followed. Raises CdiError for anything else."""
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
    """The same, but an ordinary file counts as a character device: a node where none can be made."""
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
    """What the cgroup allows, of `rwm`; empty where cgroups have no say."""
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a container is created with. `hooks` are by OCI name, in the order they run."""

    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    devices: tuple[OciDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: Mapping[str, tuple[Hook, ...]] = field(default_factory=lambda: MappingProxyType({}))
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()
    cdi_devices: tuple[str, ...] = ()

    def variable(self, name: str) -> str | None:
        """The value of an environment variable."""
        return next((value for key, _, value in (e.partition("=") for e in self.env) if key == name), None)


def apply(edits: Edits, base: ContainerSpec, device_stat: Callable[[str], DeviceStat]) -> ContainerSpec:
    """`base` with the edits in it. What it has of the same name or path is replaced. Raises CdiError."""
    env = {entry.partition("=")[0]: entry for entry in (*base.env, *edits.env)}
    devices = _by_last((device.path, device) for device in base.devices)
    devices |= _by_last((node.path, _device(node, device_stat)) for node in edits.device_nodes)
    mounts = _by_last((mount.container_path, mount) for mount in (*base.mounts, *edits.mounts))
    return ContainerSpec(
        env=tuple(env.values()),
        args=base.args,
        devices=tuple(devices.values()),
        mounts=tuple(sorted(mounts.values(), key=_depth)) if edits.mounts else tuple(mounts.values()),
        hooks={
            name: hooks
            for name in HOOK_NAMES
            if (hooks := (*base.hooks.get(name, ()), *(h for h in edits.hooks if h.hook_name == name)))
        },
        net_devices=(*base.net_devices, *edits.net_devices),
        intel_rdt=edits.intel_rdt or base.intel_rdt,
        additional_gids=tuple(dict.fromkeys((*base.additional_gids, *(gid for gid in edits.additional_gids if gid)))),
        cdi_devices=base.cdi_devices,
    )


def _by_last(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A later entry takes the earlier one's name, but its own place."""
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
    """Why a container could not start on this host: mounts without a source, hooks without a program."""
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


def to_json(spec: ContainerSpec) -> Mapping[str, Any]:
    """An OCI runtime config with what is known here; the parts that every container has alike are left out."""
    linux: dict[str, Any] = {
        "devices": [_device_json(device) for device in spec.devices],
        "resources": {
            "devices": [
                {"allow": True, "type": d.type, "major": d.major, "minor": d.minor, "access": d.access}
                for d in spec.devices
                if d.access
            ]
        },
    }
    if spec.net_devices:
        linux["netDevices"] = {device.host_interface_name: {"name": device.name} for device in spec.net_devices}
    if rdt := spec.intel_rdt:
        linux["intelRdt"] = _present(
            closID=rdt.clos_id,
            l3CacheSchema=rdt.l3_cache_schema,
            memBwSchema=rdt.mem_bw_schema,
            schemata=list(rdt.schemata),
            enableMonitoring=rdt.enable_monitoring,
        )
    return {
        "ociVersion": "1.2.0",
        "process": {
            "args": list(spec.args),
            "env": list(spec.env),
            "user": _present(additionalGids=list(spec.additional_gids)) | {"uid": 0, "gid": 0},
        },
        "mounts": [
            {"destination": mount.container_path, "source": mount.host_path}
            | _present(type=mount.type, options=list(mount.options))
            for mount in spec.mounts
        ],
        "hooks": {name: [_hook_json(hook) for hook in hooks] for name, hooks in spec.hooks.items()},
        "linux": linux,
    }


def _device_json(device: OciDevice) -> Mapping[str, Any]:
    required = {"path": device.path, "type": device.type, "major": device.major, "minor": device.minor}
    optional = {"fileMode": device.file_mode, "uid": device.uid, "gid": device.gid}
    return required | {key: value for key, value in optional.items() if value is not None}


def _hook_json(hook: Hook) -> Mapping[str, Any]:
    return {"path": hook.path} | _present(args=list(hook.args), env=list(hook.env), timeout=hook.timeout)


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


_log = logging.getLogger(__name__)

_DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KILLED = 128 + signal.SIGTERM


class ContainerError(Exception):
    """A container that could not be brought up; `reason` is what its status shows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Process:
    """A process and when it started (clock ticks since boot), so that a reused pid is not mistaken for it."""

    pid: int
    started: int

    @classmethod
    def spawn(cls) -> "Process":
        """A new `sleep` that nothing but a signal ends."""
        # a session of its own, as a Ctrl-C meant for kubelet is not meant for its containers; no signal blocked
        pid = os.posix_spawnp("sleep", ["sleep", "infinity"], os.environ, setsid=True, setsigmask=())
        started = _start_time(pid)
        assert started is not None
        return cls(pid, started)

    @property
    def alive(self) -> bool:
        """Whether it is still running."""
        return _start_time(self.pid) == self.started

    def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL when that was not enough within `grace` seconds."""
        for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + patience
            with contextlib.suppress(ProcessLookupError):
                if self.alive:
                    os.kill(self.pid, sign)
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.005)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container that was started. Times are seconds since the epoch."""

    id: str
    name: str
    started_at: float
    process: Process | None = None


class Runtime:
    """The containers of one node. Calls for one pod come one at a time; those for different pods may overlap."""

    def __init__(
        self,
        directory: Path,
        cdi_dirs: Sequence[Path],
        cdi_version: str,
        device_stat: Callable[[str], DeviceStat],
        *,
        processes: bool,
    ) -> None:
        self._directory = directory
        self._cdi_dirs = cdi_dirs
        self._cdi_version = cdi_version
        self._device_stat = device_stat
        self._processes = processes
        self._specs: dict[tuple[str, str], ContainerSpec] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def pods(self) -> Mapping[str, Path]:
        """The directories of all pods here, by uid."""
        return {path.name.rpartition("_")[2]: path for path in self._directory.iterdir()}

    def has_pod(self, uid: str) -> bool:
        """Whether the pod's sandbox exists."""
        return uid in self.pods()

    def create_pod(self, pod: Pod) -> None:
        """Make the pod's sandbox."""
        self.pod_dir(pod).mkdir()

    def pod_dir(self, pod: Pod) -> Path:
        """Where the pod's containers are."""
        return self._directory / f"{pod.namespace}_{pod.name}_{pod.uid}"

    def containers(self, uid: str) -> Mapping[str, RunningContainer]:
        """The pod's containers by name."""
        directory = self.pods().get(uid)
        if directory is None:
            return {}
        return {path.parent.name: _read_state(path) for path in directory.glob("*/state.json")}

    def create_container(self, pod: Pod, container: Container, cdi_ids: Sequence[str]) -> ContainerSpec:
        """Create and start a container with these CDI devices. Raises ContainerError."""
        base = ContainerSpec(env=(_DEFAULT_PATH, *container.env), args=container.args, cdi_devices=tuple(cdi_ids))
        try:
            spec = self._inject(base)
        except CdiError as error:
            raise ContainerError("CreateContainerError", f"CDI device injection failed: {error}") from error
        if problems := problems_on_host(spec):
            raise ContainerError("RunContainerError", f"unable to start container process: {'; '.join(problems)}")
        directory = self.pod_dir(pod) / container.name
        directory.mkdir(exist_ok=True)
        _write(directory / "config.json", to_json(spec))
        # an init container that is no sidecar has run to its end as soon as it started
        runs = self._processes and (container in pod.containers or container.sidecar)
        process = Process.spawn() if runs else None
        _write(
            directory / "state.json", asdict(RunningContainer(uuid.uuid4().hex, container.name, time.time(), process))
        )
        self._specs[pod.uid, container.name] = spec
        return spec

    def spec(self, uid: str, container: str) -> ContainerSpec | None:
        """What a container was created with, if this process created it."""
        return self._specs.get((uid, container))

    def _inject(self, base: ContainerSpec) -> ContainerSpec:
        registry = scan(self._cdi_dirs, self._cdi_version)
        for error in sum(registry.errors.values(), ()):
            _log.warning("%s", error)
        edits = inject(registry, base.cdi_devices)
        try:
            return apply(edits, base, self._device_stat)
        except CdiError as error:
            raise CdiError(f"failed to inject devices: {error}") from error

    def stop_pod(self, uid: str, grace: float) -> Mapping[str, int]:
        """Stop all containers of a pod. Returns exit codes by container: 143 for those that had a process to end."""
        codes = {}
        for name, container in self.containers(uid).items():
            if container.process is not None:
                container.process.stop(grace)
            codes[name] = 0 if container.process is None else _KILLED
        return codes

    def remove_pod(self, uid: str) -> None:
        """Remove what is left of a stopped pod, if anything."""
        if directory := self.pods().get(uid):
            shutil.rmtree(directory)
        for key in [key for key in self._specs if key[0] == uid]:
            del self._specs[key]


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read_state(path: Path) -> RunningContainer:
    raw = json.loads(path.read_text(encoding="utf-8"))
    process = raw.pop("process")
    return RunningContainer(**raw, process=Process(**process) if process else None)
