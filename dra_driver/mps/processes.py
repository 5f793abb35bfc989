# SPDX-License-Identifier: Apache-2.0
"""Finding and ending processes by a variable of their environment.

A control daemon starts servers, which start sessions of their own and outlive it when it is killed. All of them inherit
its environment. So a variable that only this driver sets tells them from every other process of the node, also after
dra-mps was killed and started again, and whatever the processes call themselves.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .errors import MpsError

VARIABLE: Final = "DRA_MPS_DAEMON"
"""Set for each control daemon to the path of its folder."""

_PAUSE: Final = 0.005
_DEAD: Final = {b"Z", b"X"}


def processes_of(folder: Path, proc: Path = Path("/proc")) -> list[int]:
    """The daemon of a folder and all that it started; those of all folders below it too."""
    exact = f"{VARIABLE}={folder}".encode()
    own = os.getpid()
    return [
        pid
        for pid in _all(proc)
        if pid != own
        and any(one == exact or one.startswith(exact + b"/") for one in _environment(proc, pid))
        and _lives(proc, pid)
    ]


def end_processes(folder: Path, patience: float, proc: Path = Path("/proc")) -> None:
    """End them: ask, and after `patience` seconds kill. Raises MpsError when some do not even end then: they hang in
    the kernel.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience
        while left := processes_of(folder, proc):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        if not left:
            return
    raise MpsError(f"processes {', '.join(map(str, left))} of the MPS daemon in {folder} cannot be killed")


def _all(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        yield from (int(one.name) for one in entries if one.name.isdigit())


def _environment(proc: Path, pid: int) -> list[bytes]:
    try:
        return (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return []


def _lives(proc: Path, pid: int) -> bool:
    try:
        return (proc / str(pid) / "stat").read_bytes().rpartition(b") ")[2][:1] not in _DEAD
    except OSError:
        return False
