# SPDX-License-Identifier: Apache-2.0
"""dra-mps as a process of a test, and what there is of MPS on a node."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dra_driver import DRIVER_NAME
from dra_driver.gpu.simulation import SimulatedNode
from dra_driver.mps.client import SupervisorClient
from dra_driver.mps.errors import MpsError
from dra_driver.mps.processes import processes_of
from dra_driver.mps.server import SOCKET

from .waiting import wait_for


class MpsProcess:
    """dra-mps of the node whose plugin has `folder`, which is a link to `own`: the path of kubelet's plugins has to be
    above it.
    """

    def __init__(self, folder: Path, node: SimulatedNode, log: Path) -> None:
        self.folder = folder / "mps"
        self.shared_memory = folder / "shm"
        self._node = node
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        plugins = log.parent / "plugins-of-mps"
        plugins.mkdir(exist_ok=True)
        if not (plugins / DRIVER_NAME).exists():
            (plugins / DRIVER_NAME).symlink_to(folder)
        self._plugins = plugins

    def start(self, *arguments: str) -> "MpsProcess":
        """Start it, and wait until it can be asked."""
        self._folder().mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = self._spawn(output, *arguments)
        wait_for(self._answers, "dra-mps to answer")
        return self

    def kill(self) -> None:
        """End it at once; what it started goes on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def processes(self) -> list[int]:
        """The daemons and servers."""
        return processes_of(self._folder())

    def left(self) -> list[str]:
        """What claims have of MPS: folders of groups, shared memory, and processes."""
        folders = [path.name for path in sorted(self.folder.glob("s*")) if path.is_dir()]
        memory = [path.name for path in sorted(self.shared_memory.glob("*"))]
        return [*folders, *memory, *map(str, self.processes())]

    @property
    def log(self) -> str:
        """What it logged."""
        return self._log.read_text("utf-8")

    def _folder(self) -> Path:
        return self._plugins / DRIVER_NAME / "mps"

    def _spawn(self, output: IO[bytes], *arguments: str) -> "subprocess.Popen[bytes]":
        where = [
            f"--kubelet-plugins-directory-path={self._plugins}",
            f"--container-driver-root={self._node.driver_root}",
            f"--shared-memory-directory-path={self.shared_memory}",
        ]
        command = [sys.executable, "-m", "dra_driver.mps.main", *where, "--no-private-mounts", *arguments]
        return subprocess.Popen(command, stdout=output, stderr=output)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        if not (self.folder / SOCKET).exists():
            return False
        try:
            SupervisorClient(self.folder).statuses()
        except MpsError:
            return False
        return True


@contextlib.contextmanager
def mps_of(folder: Path, node: SimulatedNode, log: Path, *arguments: str) -> Iterator[MpsProcess]:
    """dra-mps, ended with everything that it started when the test is over."""
    process = MpsProcess(folder, node, log)
    try:
        yield process.start(*arguments)
    finally:
        process.kill()
        MpsProcess(folder, node, log).start().stop()  # ends what is left
