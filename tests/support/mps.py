# SPDX-License-Identifier: Apache-2.0
"""dra-mps as a process of a test, and what there is of MPS on a node."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from dra_driver.errors import MpsError
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.names import DRIVER_NAME
from dra_driver.process.mps import processes_of
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.server import SOCKET

from . import preloaded
from .listing import paths_in
from .waiting import wait_for

LINKED = "plugins-of-mps"


class RefusedClientError(Exception):
    """MPS does not serve a CUDA program. The text is the error of CUDA."""


class MpsProcess:
    """dra-mps of the node whose plugin has `folder`. It ends, and ends what it started, when this object goes.

    A folder that is not below kubelet's of plugins gets a link that is. `shared_memory` is by default in `folder`.
    `fresh` starts Python anew, as in a cluster, which measurements need.
    """

    def __init__(
        self,
        folder: Path,
        node: SimulatedNode,
        log: Path,
        shared_memory: Path | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self._start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen if fresh else preloaded.start
        self.folder = folder / "mps"
        self.shared_memory = shared_memory or folder / "shm"
        self._node = node
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._plugins = folder.parent
        if folder.name != DRIVER_NAME:
            self._plugins = folder / LINKED
            self._plugins.mkdir(exist_ok=True)
            if not (self._plugins / DRIVER_NAME).exists():
                (self._plugins / DRIVER_NAME).symlink_to(folder)

    def start(self, *arguments: str) -> "MpsProcess":
        """Start it, and wait until it can be asked."""
        self._folder().mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = self._spawn(output, *arguments)
        wait_for(self._answers, "dra-mps to answer")
        return self

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

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

    def end(self) -> None:
        """End it if it runs, and everything that it, or one before, started."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.start()
        self.stop()

    def processes(self) -> list[int]:
        """The daemons and servers."""
        return processes_of(self._folder())

    def left(self) -> list[str]:
        """What claims have of MPS: folders of groups, shared memory, and processes."""
        folders = [path.name for path in paths_in(self.folder, "s*") if path.is_dir()]
        memory = [path.name for path in paths_in(self.shared_memory)]
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
        command = [sys.executable, "-m", "dra_driver.sandbox.child", "kubeletplugin.features.mps.main", *where]
        command += ["--no-private-mounts", *arguments]
        return self._start(command, stdin=subprocess.PIPE, stdout=output, stderr=output)

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
def mps_of(folder: Path, node: SimulatedNode, log: Path, shared_memory: Path | None = None) -> Iterator[MpsProcess]:
    """dra-mps, ended with everything that it started when the test is over."""
    process = MpsProcess(folder, node, log, shared_memory)
    try:
        yield process.start()
    finally:
        process.end()


def connect(pipe: Path, uid: int = 0, pid: int = 0) -> dict[str, Any]:
    """Connect like a CUDA program with this pipe directory. Returns its limits and the process ID of its `server`.
    Raises RefusedClientError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        folder = os.open(pipe, os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{folder}/control")
        except OSError:
            raise RefusedClientError("CUDA_ERROR_MPS_CONNECTION_FAILED") from None
        finally:
            os.close(folder)
        connection.settimeout(60.0)
        connection.send(json.dumps({"client": pid or os.getpid(), "uid": uid}).encode())
        answer: dict[str, Any] = json.loads(connection.recv(1 << 16))
    if answer.pop("code"):
        raise RefusedClientError(answer["text"])
    return answer


def daemons_of(state: Path) -> int:
    """How many processes MPS has for the plugin with this folder. Looking at all processes takes long, and there are
    none without the folder, which dra-mps never removes.
    """
    folders = (state / "mps", state / LINKED / DRIVER_NAME / "mps")
    return sum(len(processes_of(folder)) for folder in folders if folder.exists())
