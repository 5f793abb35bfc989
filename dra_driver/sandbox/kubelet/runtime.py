# SPDX-License-Identifier: Apache-2.0
"""What stands for the container runtime: no container runs, but each is created as far as CDI goes.

A pod has a directory below `containers/`, a container in it has `config.json` (what an OCI runtime would
be given) and `state.json`. A container may be a `sleep` of its own. What is on disk outlives kubelet, so
that a new one finds the pods that are already there and does not prepare their claims again.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cdi import CdiError, inject, scan
from .model import Container, Pod
from .oci import ContainerSpec, DeviceStat, apply, problems_on_host, to_json

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
