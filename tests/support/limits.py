# SPDX-License-Identifier: Apache-2.0
"""Limits of GPU memory in tests: cgroups of pods, the compiled hook program, and a node whose driver has limits."""

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Nvml
from kubeletplugin.errors import LimitError, NoDriverError
from kubeletplugin.features.memory_limits.files import limit_files
from kubeletplugin.features.memory_limits.limiter import Limit, Limiter
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.gpus import Gpus
from kubeletplugin.node.node import Node

from .hardware import ControlledNode
from .nodes import hardware_of, make_node
from .waiting import wait_for

SOURCE = Path(__file__).parents[2] / "kubeletplugin/features/memory_limits/hook.c"
DRIVER = "615.71.09"
POD = "/kubepods/besteffort/pod1b671a64-40d5-491e-99b0-da01ff1f341{}"
DEFAULT = "cpuset cpu io memory pids"


@functools.cache
def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("gcc") or shutil.which("cc")


def compile_program(to: Path, seconds: int = 20) -> Path:
    """The hook program as the Dockerfile makes it, with its time limit. Skips the test without a C compiler."""
    if compiler() is None:
        pytest.skip("no C compiler on PATH to compile the hook program")
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-static", "-Os", f"-DSECONDS={seconds}"]
    done = subprocess.run(
        [str(compiler()), *strict, "-o", str(to), str(SOURCE)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return to


class Tree:
    """Folders like those of cgroup version 2 in `root`, with the controller dmem or without it."""

    def __init__(self, root: Path, *, dmem: bool) -> None:
        self.root = root
        self._dmem = dmem
        (root / "cgroup.controllers").write_text(f"{DEFAULT} dmem\n" if dmem else f"{DEFAULT}\n")

    def pod(self, number: int = 0) -> str:
        """The cgroup of a pod, as a path."""
        return self.make(POD.format(number))

    def container(self, name: str, pod: int = 0) -> str:
        """A new cgroup of a running container in a pod."""
        return self.make(f"{self.pod(pod)}/{name}")

    def make(self, path: str) -> str:
        """A cgroup with a process."""
        folder = Path(f"{self.root}{path}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory\n")
        (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        if self._dmem and not (folder / "dmem.max").exists():
            (folder / "dmem.max").write_text("nvidia/0000:3d:00.0/vidmem max\n")
        return path

    def end(self, path: str) -> None:
        """The last process of a cgroup ends."""
        Path(f"{self.root}{path}", "cgroup.events").write_text("populated 0\nfrozen 0\n")

    def remove(self, path: str) -> None:
        """A cgroup goes, with those below it."""
        shutil.rmtree(f"{self.root}{path}")


class LimitNode:
    """The plugin's part for limits, on a simulated node in `root` with claims in `claims`. Its cgroups are a tree of
    its own, or those at `cgroups`.
    """

    def __init__(
        self,
        root: Path,
        *,
        dmem: bool = True,
        seconds: float = 5.0,
        cgroups: Path | None = None,
        nvml: Callable[[ControlledNode], Nvml] = ControlledNode.nvml,
    ) -> None:
        self.node = make_node(root / "node", "l40sx4").node
        self.node.load_driver(DRIVER)
        hardware = hardware_of(self.node.driver_root, lambda: nvml(self.node))
        folders = NodeFolders(root / "registry", root / "plugin", root / "cdi", root / "shm", hardware)
        self.place = Node("node-a", "boot-1", folders, yields=False)
        self.ready: list[Gpus] = []
        self.files = self.place.of(limit_files)
        self.claims: dict[tuple[str, str], Limit] = {}
        self.cgroups = self.node.driver_root / "sys/fs/cgroup"
        self.tree = Tree(self.cgroups, dmem=dmem) if cgroups is None else None
        if cgroups is not None:
            shutil.rmtree(self.cgroups)
            self.cgroups.symlink_to(cgroups)
        self.limiter = Limiter(self.place, self._limit_of, seconds)
        self.place.access.start(self._on_ready)
        wait_for(self.has_driver, "the driver")

    def _on_ready(self) -> None:
        self.limiter.restore()
        self.ready.append(self.place.gpus())

    def _limit_of(self, claim: str, device: str) -> Limit:
        try:
            return self.claims[claim, device]
        except KeyError:
            raise LimitError(f"there is no claim {claim}") from None

    def has_driver(self) -> bool:
        """Whether limits can be set."""
        try:
            self.place.gpus()
        except NoDriverError:
            return False
        return True

    def claim(self, claim: str, device: str = "gpu-0", mebibytes: int = 1024) -> None:
        """Prepare a device of a claim with a limit."""
        nvml = self.node.nvml()
        nvml.initialize()
        uuid = nvml.uuid(nvml.device_by_index(int(device.split("-")[1])))
        self.claims[claim, device] = Limit(uuid, mebibytes)

    def limits(self, gpu: int = 0) -> dict[str, int]:
        """The hard limits on a GPU in MiB, by the path of the cgroup, with `pod` instead of the path of a pod."""
        nvml = self.node.nvml()
        nvml.initialize()
        device = nvml.device_by_index(gpu)
        found = {}
        for folder in sorted(path.parent for path in self.cgroups.glob("kubepods/**/cgroup.controllers")):
            limits = nvml.memory_limits(device, str(folder))
            assert limits.soft == 0
            if limits.hard < 1 << 60:
                name = str(folder).removeprefix(f"{self.cgroups}{POD[:-2]}")
                found[f"pod{name}"] = limits.hard >> 20
        return found

    def stop(self) -> None:
        """Look after the node no more."""
        self.place.access.stop()


@contextlib.contextmanager
def limit_node(**options: object) -> Iterator[LimitNode]:
    """A node in a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        made = LimitNode(Path(name), **options)  # type: ignore[arg-type]
        try:
            yield made
        finally:
            made.stop()


def real_cgroups() -> Path | None:
    """Where cgroup version 2 is mounted and this process may make cgroups."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (root / "cgroup.controllers").exists() and os.access(root, os.W_OK):
            return root
    return None
