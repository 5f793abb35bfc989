# SPDX-License-Identifier: Apache-2.0
"""Programs of the node, which need the libraries and sockets of the node.

The plugin's container has neither modprobe, nor the libraries of the node's modprobe. nvidia-smi reaches
nvidia-persistenced through a socket of the node. So these programs run with the node's folder as their root.

With persistence mode, nvidia-persistenced or the kernel keeps a GPU open, so it cannot be taken from its driver.
nvidia-smi tells the daemon, if it runs. NVML can do that only where the daemon's socket is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.errors import ProgramError
from dra_driver.process.programs import Ended, run_program

PROGRAM_SECONDS: Final = 10.0

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class HostPrograms:
    """Programs below `root`. With `enter`, `root` is the root folder of the program. Without it, the program's own
    path is below `root`, as for scripts that need the files outside of it.
    """

    root: Path
    enter: bool

    def run(self, name: str, arguments: Sequence[str], seconds: float) -> Ended:
        """Run a program with a time limit. Raises ProgramError if it does not exist, or does not end in time."""
        if self.enter:
            return run_program(["chroot", str(self.root), "/usr/bin/env", name, *arguments], seconds, {"PATH": _PATH})
        folders = [self.root / folder.lstrip("/") for folder in _PATH.split(":")]
        found = next((folder / name for folder in folders if (folder / name).is_file()), self.root / "usr/bin" / name)
        return run_program([str(found), *arguments], seconds)


class PersistenceModes:
    """Persistence modes of GPUs by their PCI addresses. `host` has nvidia-smi."""

    def __init__(self, host: HostPrograms) -> None:
        self._host = host

    def get(self, address: str) -> bool | None:
        """The mode, or None if the GPU has none. Raises ProgramError."""
        ended = self._run(address, "--query-gpu=persistence_mode", "--format=csv,noheader")
        return {"Enabled": True, "Disabled": False}.get(ended.output.strip())

    def set(self, address: str, on: bool) -> None:
        """Set the mode. Raises ProgramError."""
        self._run(address, "-pm", str(int(on)))

    def _run(self, address: str, *arguments: str) -> Ended:
        ended = self._host.run("nvidia-smi", ["-i", address, *arguments], PROGRAM_SECONDS)
        if ended.code:
            raise ProgramError(f"nvidia-smi -i {address} {' '.join(arguments)} {ended}")
        return ended
