# SPDX-License-Identifier: Apache-2.0
"""Finds and ends the processes of control daemons, including daemons of an earlier dra-mps.

A control daemon starts servers, which have their own sessions and continue to run when the daemon is killed. So neither
a process ID, nor a session, nor the parent tells all of them. Names, arguments and environments do not tell either,
because each container can give its processes the same ones. But only root has access to the folder of a daemon's logs:
no container gets it. A process belongs to a daemon if the kernel reports one of these, which both are inherited:

- The log folder is mounted in the mount namespace of the process. So it is with `Program.private`, and a process cannot
  lose it. Containers cannot mount a folder that they do not have.
- Its standard output or error is the file OUTPUT in the log folder, opened in the mount of this process. So it is also
  without mounts of its own. A container can have a file with the same path, but not in the same mount.

Both are texts and numbers of the kernel: no file that a container has made is opened. Processes of other user
namespaces are left out, because every user can make mount namespaces with very many mounts in one of their own. A
process gets its signals through a descriptor (pidfd), which never means another process that has got its number.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import MpsError

PIPE: Final = "pipe"
"""The folder of a daemon that containers have."""
MEMORY: Final = "memory"
"""The folder of the groups' shared memory, unless another one is configured."""
REMOVED: Final = "removed"
"""The folder of what is being removed."""
EXPOSED: Final = frozenset((PIPE, MEMORY, REMOVED))
"""The folders of MPS in which containers can write."""

LOG: Final = "log"
"""The folder of a daemon's logs, in the folder of the daemon."""
OUTPUT: Final = "output"
"""The file in LOG with the output of a daemon: its standard output and error."""

_PAUSE: Final = 0.01
_MOST_NAMED: Final = 10
_PROC: Final = Path("/proc")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})", re.ASCII)
_DELETED: Final = ("//deleted", " (deleted)")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount: its ID, device and root in the device's file system, its path, whether mounts below it are shared with
    other mount namespaces, its file system and source. See proc_pid_mountinfo(5).
    """

    number: str
    device: str
    root: str
    path: str
    is_shared: bool
    kind: str
    source: str


def mounts_of(pid: int | str = "self") -> list[Mount]:
    """The mounts that a process sees. Of several with the same path, the last one covers the others. Raises OSError."""
    text = (_PROC / str(pid) / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    found = []
    for line in filter(None, text.split("\n")):
        left, _, right = line.partition(" - ")
        number, _, device, root, path, _, *propagation = left.split(" ")
        kind, source, *_ = right.split(" ")
        is_shared = any(word.startswith("shared:") for word in propagation)
        found.append(Mount(number, device, _unescaped(root), _unescaped(path), is_shared, kind, _unescaped(source)))
    return found


def is_namespace_of_node() -> bool:
    """Whether this process sees the mounts of the node's first process."""
    return _link("self", "ns/mnt") == _link(1, "ns/mnt")


def processes_of(folder: Path) -> list[int]:
    """The daemons whose folder is `folder` or below it, and all processes that they started. Raises OSError."""
    try:
        marks = _Marks(folder)
    except FileNotFoundError:
        return []
    return [pid for pid in _all() if marks.has(pid)]


def end_processes(folder: Path, patience: float) -> None:
    """Terminate these processes (see `processes_of`), and kill them after `patience` seconds. Raises MpsError if some
    still run after that, because they hang in the kernel, and OSError.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience
        while left := processes_of(folder):
            marks = _Marks(folder)
            for pid in left:
                _send(marks, pid, number)
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        if not left:
            return
    some = ", ".join(map(str, left[:_MOST_NAMED]))
    raise MpsError(f"processes {some} of the MPS daemon in {folder} cannot be killed")


class _Marks:
    """What the processes of the daemons in a folder have, and nothing else has (see above)."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder)
        number = _mount_number(self._folder)
        mount = next(mount for mount in mounts_of() if mount.number == number)
        self._number = f"mnt_id:\t{number}\n"
        inner = os.path.relpath(self._folder, mount.path)
        self._mounted = mount.device, os.path.normpath(os.path.join(mount.root, inner))  # noqa: PTH118 - no path here
        self._namespaces: dict[str, bool] = {_link("self", "ns/mnt"): False}  # this is never the namespace of a daemon
        self._users = _link("self", "ns/user")

    def has(self, pid: int) -> bool:
        if pid == os.getpid() or _link(pid, "ns/user") != self._users:
            return False
        namespace = _link(pid, "ns/mnt")
        if namespace not in self._namespaces:
            self._namespaces[namespace] = self._is_daemons(pid)
        return self._namespaces[namespace] or any(self._is_output(pid, number) for number in (1, 2))

    def _is_daemons(self, pid: int) -> bool:
        try:
            mounts = mounts_of(pid)
        except (OSError, ValueError):  # it has ended
            return False
        device, root = self._mounted
        return any(mount.device == device and _is_below(mount.root, root, (LOG,)) for mount in mounts)

    def _is_output(self, pid: int, number: int) -> bool:
        if not _is_below(_link(pid, f"fd/{number}"), self._folder, (LOG, OUTPUT)):
            return False
        try:
            return self._number in (_PROC / str(pid) / "fdinfo" / str(number)).read_text(encoding="ascii")
        except (OSError, ValueError):
            return False


def _mount_number(folder: str) -> str:
    """The ID of the mount in which a folder is. Raises OSError."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        facts = (_PROC / "self/fdinfo" / str(descriptor)).read_text(encoding="ascii")
    finally:
        os.close(descriptor)
    return next(line.split()[1] for line in facts.splitlines() if line.startswith("mnt_id:"))


def _send(marks: _Marks, pid: int, number: signal.Signals) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if marks.has(pid):  # and not another process, which has got its number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _is_below(path: str, folder: str, end: tuple[str, ...]) -> bool:
    """Whether a path is below a folder, has these last parts, and leads through no folder in which containers write."""
    for suffix in _DELETED:
        path = path.removesuffix(suffix)
    if not path.startswith(f"{folder}/"):
        return False
    parts = tuple(path[len(folder) + 1 :].split("/"))
    return parts[-len(end) :] == end and not EXPOSED & set(parts)


def _link(pid: int | str, name: str) -> str:
    """A link of /proc as a text, which is never followed. Empty if the process has ended, or belongs to others."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")  # noqa: PTH115 - a Path would take twice as long
    except OSError:
        return ""


def _all() -> Iterator[int]:
    with os.scandir(_PROC) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
