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
_REMOTE: Final = ("fuse", "nfs", "cifs", "smb", "ceph", "9p", "afs", "lustre", "gpfs", "beegfs")
"""How the types of such file systems begin."""


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


def _open_nodes(process: str) -> Iterator[tuple[int, ...]]:
    try:
        names = os.listdir(f"{process}/fd")  # noqa: PTH208 - only names are needed
        remote = _remote_mounts(process)
    except OSError:  # the process has ended
        return
    for name in names:
        if remote and _lines(f"{process}/fdinfo/{name}", "mnt_id:") & remote:
            continue
        found = _stat(f"{process}/fd/{name}")
        if found is not None:
            yield _identity(found)


def _remote_mounts(process: str) -> set[str]:
    """The ids of the mounts of FUSE and of network file systems. Raises OSError."""
    with open(f"{process}/mountinfo", encoding="utf-8", errors="replace") as mounts:  # noqa: PTH123
        parts = (line.partition(" - ") for line in mounts)
        return {place.split(" ", 1)[0] for place, _, kind in parts if kind.startswith(_REMOTE)}


def _lines(file: str, name: str) -> set[str]:
    """The values of the lines with this name."""
    try:
        with open(file, encoding="ascii") as lines:  # noqa: PTH123
            return {line.removeprefix(name).strip() for line in lines if line.startswith(name)}
    except OSError:
        return set()


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
