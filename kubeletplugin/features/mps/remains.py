# SPDX-License-Identifier: Apache-2.0
"""What MPS leaves on a node when the driver is uninstalled: processes of daemons, and their shared memory."""

from pathlib import Path

from dra_driver.errors import MpsError, ProgramError
from dra_driver.process.mps import end_processes, processes_of

from ...claims.model import Remains
from ...node.node import Node
from .daemon import DaemonLimits
from .memory import remove_shared_memory, shared_memory_folder
from .services import MpsServices


class MpsRemains(Remains):
    """The remains of MPS on `node`."""

    def __init__(self, node: Node) -> None:
        self._files = node.of(MpsServices).files
        self._shared_memory = node.folders.shared_memory

    def lines(self) -> list[str]:
        """The processes of daemons."""
        return [f"process {pid} of an MPS daemon" for pid in processes_of(self._files.folder)]

    def paths(self) -> list[Path]:
        """The /dev/shm of each daemon."""
        return [shared_memory_folder(self._shared_memory, server) for server in self._files.servers()]

    def end(self) -> list[str]:
        """End the daemons that a killed dra-mps left."""
        try:
            end_processes(self._files.folder, DaemonLimits.END)
        except MpsError as error:
            return [str(error)]
        return []

    def remove(self, path: Path) -> str:
        """Unmount and remove a /dev/shm."""
        try:
            remove_shared_memory(path, self._files.trash)
        except (MpsError, ProgramError) as error:
            return f"left {path}: {error}"
        return f"removed {path}"
