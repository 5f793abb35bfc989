# SPDX-License-Identifier: Apache-2.0
"""Programs of the node, which need the libraries and sockets of the node.

The plugin's container has neither modprobe, nor the libraries of the node's modprobe. nvidia-smi reaches
nvidia-persistenced through a socket of the node. So these programs run with the node's folder as their root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.programs import Ended, run_program

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
