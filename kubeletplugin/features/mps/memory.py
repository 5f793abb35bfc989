# SPDX-License-Identifier: Apache-2.0
"""The shared memory of groups of devices: a folder for each group, which is the /dev/shm of its daemon and clients.

Every user of the node, and every pod with `hostIPC`, can create names in the node's /dev/shm. So the folders are in a
folder of the driver, in which only root can create names. What others could have made there is refused.

With `mounted`, the folder of a group is a tmpfs, which needs CAP_SYS_ADMIN. It stays mounted as long as the group has
shares, because containers have it mounted, too. Its mount is visible on the node if the folder is in a shared mount
(`mountPropagation: Bidirectional`). The limit of its size is that of the kernel for each tmpfs, half of the memory, as
of a node's /dev/shm and in NVIDIA's own driver. The kernel charges the memory to the pods that write it. Without
`mounted`, which is for simulated nodes, the folder is on the disk.
"""

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.errors import MpsError
from dra_driver.process.exposed import Trash
from dra_driver.process.mps import Mount, is_namespace_of_node, mounts_of
from dra_driver.process.programs import run_program

_SECONDS: Final = 10.0
_TMPFS: Final = "tmpfs"
_SOURCE: Final = "dra-mps"
"""The source of our mounts, which tells them from those of others."""
_OPTIONS: Final = "mode=1777,nosuid,nodev,noexec"
_SHARED_MODE: Final = 0o1777
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The folders of groups in `folder`."""

    folder: Path
    mounted: bool
    trash: Trash

    def provide(self, server: str) -> Path:
        """Make the folder of a group, if there is none, and return it. Raises MpsError, ProgramError or OSError."""
        path = shared_memory_folder(self.folder, server)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _require_own(self.folder)
        if os.lstat(self.folder).st_mode & _OTHERS_WRITE:
            raise MpsError(
                f"others than root can create names in {self.folder}: set --shared-memory-directory-path to a folder"
                " in which only root can"
            )
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o755)
        _require_own(path)
        if not self.mounted:
            path.chmod(_SHARED_MODE)
        elif _our_mount(path) is None:
            _run("mount", "-t", _TMPFS, "-o", _OPTIONS, _SOURCE, str(path))
            self._require_visible(path)
        return path

    def _require_visible(self, path: Path) -> None:
        mount = _our_mount(path)
        if is_namespace_of_node() or (mount is not None and mount.is_shared):
            return
        remove_shared_memory(path, self.trash)
        raise MpsError(f"a mount at {path} would not be visible on the node: set mountPropagation to Bidirectional")

    def discard(self, server: str) -> None:
        """Remove the folder of a group whose daemon has ended. Raises MpsError, ProgramError or OSError."""
        remove_shared_memory(shared_memory_folder(self.folder, server), self.trash)


def shared_memory_folder(root: Path, server: str) -> Path:
    """The folder that is mounted as /dev/shm for the clients and the daemon of a group."""
    return root / f"dra-mps-{server}"


def remove_shared_memory(path: Path, trash: Trash) -> None:
    """Remove the folder of a group, mounted or not. Removing the place of a mount also ends the mount in containers of
    other programs of the node, which got it with a folder above. Raises MpsError, ProgramError or OSError.
    """
    if not os.path.lexists(path):
        return
    _require_own(path)
    while _our_mount(path) is not None:
        _run("umount", "--lazy", "--no-canonicalize", str(path))
    try:
        path.rmdir()
    except OSError:  # not empty: it was no mount
        trash.take(path)


def _require_own(path: Path) -> None:
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise MpsError(f"{path} was not made by this driver: it must be a folder of user {os.geteuid()}; remove it")


def _our_mount(path: Path) -> Mount | None:
    """The tmpfs of ours that is mounted at this path, if any. Raises MpsError if something else is mounted there."""
    real = os.path.realpath(path)
    mount = next((candidate for candidate in reversed(mounts_of()) if candidate.path == real), None)
    if mount is not None and (mount.kind, mount.source) != (_TMPFS, _SOURCE):
        raise MpsError(f"{path} was not made by this driver: {mount.kind} {mount.source} is mounted there; unmount it")
    return mount


def _run(*command: str) -> None:
    done = run_program(command, _SECONDS)
    if done.code:
        raise MpsError(f"{' '.join(command)} {done}")
