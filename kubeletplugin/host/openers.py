# SPDX-License-Identifier: Apache-2.0
"""The processes of the node that have a device node open.

/proc of the node's process IDs is necessary (the pod has `hostPID`), else no process of another container is found. A
process may have the node under another path, in a container. So nodes are compared by their numbers.

A look at a file of FUSE or of a network file system may block for ever if its server does not answer. No device node is
there, so these files are left out.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MOST: Final = 5
_REMOTE: Final = (b"fuse", b"nfs", b"cifs", b"smb", b"ceph", b"9p", b"afs", b"lustre", b"gpfs", b"beegfs")
"""How the types of such file systems begin."""
_WITHOUT_PATH: Final = ("socket:", "pipe:", "anon_inode:")
_FDINFO_BYTES: Final = 256
"""Of a file in `fdinfo`: `mnt_id` is its third line (proc(5))."""


@dataclass(frozen=True, slots=True)
class Opener:
    """A process."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'a process'} (PID {self.pid})"


def openers(nodes: Iterable[Path], proc: Path = _PROC, *, devices: Collection[int] = ()) -> tuple[Opener, ...]:
    """The processes that have any of the device nodes, or a node with one of these device numbers, open. Nodes that do
    not exist are open nowhere.
    """
    wanted = {_identity(found) for node in nodes if (found := _stat(str(node))) is not None}
    wanted |= {(device,) for device in devices}
    if not wanted:
        return ()
    names = (name for name in os.listdir(proc) if name.isdecimal())  # noqa: PTH208 - only names are needed
    pids = sorted(int(name) for name in names if not wanted.isdisjoint(_open_nodes(f"{proc}/{name}")))
    return tuple(Opener(pid, _name(proc / str(pid))) for pid in pids)


def names_of(found: Iterable[Opener]) -> str:
    """The processes for users. Of many, only the first ones are named."""
    texts = [str(opener) for opener in found]
    more = len(texts) - _MOST
    return ", ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _remote_mounts(process: str) -> set[bytes]:
    """The IDs of the mounts of FUSE and of network file systems that a process sees. Raises OSError.

    They are read for each process. What tells which processes see the same mounts, such as the path of the root, can be
    made equal by a container.
    """
    with open(f"{process}/mountinfo", "rb") as mounts:  # noqa: PTH123
        parts = (line.partition(b" - ") for line in mounts)
        return {place.split(b" ", 1)[0] for place, _, kind in parts if kind.startswith(_REMOTE)}


def _open_nodes(process: str) -> Iterator[tuple[int, ...]]:
    try:
        descriptors = os.listdir(f"{process}/fd")  # noqa: PTH208 - only names are needed
        names = [name for name in descriptors if not _is_without_path(f"{process}/fd/{name}")]
        remote = _remote_mounts(process) if names else set()  # threads of the kernel have no files
    except OSError:  # the process has ended
        return
    for name in names:
        if remote and _mount(f"{process}/fdinfo/{name}") in remote:
            continue
        found = _stat(f"{process}/fd/{name}")
        if found is not None:
            yield _identity(found)


def _is_without_path(descriptor: str) -> bool:
    """Whether it is a socket, a pipe or the like, which most descriptors of a node are. Paths begin with `/`."""
    try:
        return os.readlink(descriptor).startswith(_WITHOUT_PATH)  # noqa: PTH115 - called for every descriptor
    except OSError:  # it was closed, or its path is longer than the kernel tells
        return False


def _mount(file: str) -> bytes:
    """The ID of the mount of a descriptor, from its file in `fdinfo`. Empty if it cannot be read."""
    try:
        with open(file, "rb", buffering=0) as lines:  # noqa: PTH123
            return lines.read(_FDINFO_BYTES).partition(b"mnt_id:")[2].partition(b"\n")[0].strip()
    except OSError:
        return b""


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_rdev,) if stat.S_ISCHR(found.st_mode) else (found.st_dev, found.st_ino)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - called for every descriptor of the node
    except OSError:
        return None


def _name(process: Path) -> str:
    """The name of a process, which every process can change to any 15 bytes."""
    try:
        name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
