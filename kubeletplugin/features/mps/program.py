# SPDX-License-Identifier: Apache-2.0
"""The command line, environment and mounts with which nvidia-cuda-mps-control of the driver root is run.

If the driver root is a complete system (it has a shell), the program runs in it with chroot, to find the libraries and
device nodes of that system. Otherwise, the program gets the libraries of the root with LD_LIBRARY_PATH.

The daemon and its commands have the pipe directory DAEMON_PIPE, to which only root has access. In the folder that
containers have (`dra_driver.process.mps.PIPE`), a container could exchange a name for a link, and a program of root
follows links: it would change the mode of another file, or send its commands to the daemon of other claims.

With `private`, the program also gets its own mount namespace. In it, the pipe directory has the same path as in
containers, because MPS is only known to work if daemon and clients use the same path, and /dev/shm is the same folder
as in its clients. These mounts end with the process and are not visible on the node. They need util-linux and
CAP_SYS_ADMIN.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.errors import MpsError
from dra_driver.process.mps import LOG, PIPE
from kubeletplugin.containers.cdi import LIBRARY_FOLDERS, Root
from kubeletplugin.containers.cdi.files import find_program

from .shares import INSIDE

NAME: Final = "nvidia-cuda-mps-control"

DAEMON_PIPE: Final = "daemon"
"""The pipe directory of a daemon, in its folder."""

_ENTER: Final = f"""
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root$1/{PIPE}" "$root$1/{LOG}"
mount --bind "$2/{DAEMON_PIPE}" "$root$1/{PIPE}"
mount --bind "$2/{LOG}" "$root$1/{LOG}"
[ -z "$3" ] || mount --bind "$3" "$root/dev/shm"
shift 3
[ -z "$root" ] || exec chroot "$root" "$@"
exec "$@"
"""
"""A script for sh -e. Its arguments are the path at which the program sees its folder ($1), the folder ($2), the folder
for /dev/shm or an empty string ($3), and the command."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program in the driver root `root`. With `private`, each run has its own mounts."""

    root: Root
    private: bool

    def command(
        self, folder: Path, shared_memory: Path | None, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and the whole environment of a run for the daemon in `folder`. Raises MpsError."""
        found = find_program(self.root, NAME)
        if found is None:
            raise MpsError(f"there is no {NAME} below {self.root.path}: install it with the driver")
        whole, place = self._is_whole_system, f"{INSIDE}/{folder.name}"
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            **environment,
            "CUDA_MPS_PIPE_DIRECTORY": f"{place}/{PIPE}" if self.private else str(folder / DAEMON_PIPE),
            "CUDA_MPS_LOG_DIRECTORY": f"{place}/{LOG}" if self.private else str(folder / LOG),
        }
        if not whole:
            variables |= self._libraries()
            variables["PATH"] = f"{self.root.here(found[1]).parent}:{variables['PATH']}"
        program = found[0] if whole and self.private else str(self.root.here(found[1]))
        if not self.private:
            return [program, *arguments], variables
        root = str(self.root.path).rstrip("/") if whole else ""
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f"root={root}{_ENTER}", "mps"]
        memory = "" if shared_memory is None else str(shared_memory)
        return [*enter, place, str(folder), memory, program, *arguments], variables

    @property
    def _is_whole_system(self) -> bool:
        return self.root.resolve("/bin/sh") is not None

    def _libraries(self) -> dict[str, str]:
        here = [str(path) for name in LIBRARY_FOLDERS if (path := self.root.here(name)).is_dir()]
        return {"LD_LIBRARY_PATH": ":".join(here)} if here else {}
