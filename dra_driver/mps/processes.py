# SPDX-License-Identifier: Apache-2.0
"""Finds and ends processes by a variable of their environment.

A control daemon starts servers, which have their own sessions and continue to run when the daemon is killed. All of
them inherit its environment. So a variable that only this driver sets distinguishes them from all other processes of
the node, even after dra-mps was restarted.
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
_ATTEMPTS: Final = 10
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD of linux/sched.h
_DEAD: Final = {b"Z", b"X"}


def processes_of(folder: Path, proc: Path = Path("/proc"), *, variable: str = VARIABLE) -> list[int]:
    """The daemons of a folder and of all folders below it, and all processes that they started. The sandbox gives
    another `variable`, for processes of its containers.

    A process has no environment for a moment while it begins to execute a program. It is looked at again.
    """
    exact = f"{variable}={folder}".encode()
    own, found, pids = os.getpid(), list[int](), list(_all(proc))
    for attempt in range(_ATTEMPTS):
        if not pids:
            break
        if attempt:
            time.sleep(_PAUSE)
        starting = []
        for pid in pids:
            environment = _environment(proc, pid)
            if not environment:
                starting.append(pid)
            elif exact in environment and pid != own and _has(environment, exact):
                found.append(pid)
        pids = [pid for pid in starting if _is_program(proc, pid)]
    return [pid for pid in found if _is_program(proc, pid)]


def end_processes(folder: Path, patience: float) -> None:
    """Terminate these processes (see `processes_of`), and kill them after `patience` seconds. Raises MpsError if some
    still run after that, because they hang in the kernel.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience
        while left := processes_of(folder):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        if not left:
            return
    raise MpsError(f"processes {', '.join(map(str, left))} of the MPS daemon in {folder} cannot be killed")


def _has(environment: bytes, exact: bytes) -> bool:
    return any(one == exact or one.startswith(exact + b"/") for one in environment.split(b"\0"))


def _all(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        yield from (int(one.name) for one in entries if one.name.isdigit())


def _environment(proc: Path, pid: int) -> bytes:
    try:
        return (proc / str(pid) / "environ").read_bytes()
    except OSError:  # the process has ended, or belongs to another user
        return b"\0"


def _is_program(proc: Path, pid: int) -> bool:
    """Whether a process runs, and is not a thread of the kernel."""
    try:
        state, _, _, _, _, _, flags = (proc / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()[:7]
    except OSError:
        return False
    return state not in _DEAD and not int(flags) & _KERNEL_THREAD
