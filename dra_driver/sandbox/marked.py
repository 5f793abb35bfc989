# SPDX-License-Identifier: Apache-2.0
"""Finds the processes of the sandbox's containers by a variable of their environment.

A program in a container starts others, with sessions of their own. All of them inherit the environment. They are
programs of this project and run as the user of the sandbox. Other processes do not set the variable.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MARK: Final = "DRA_SANDBOX_CONTAINER"
"""Set in all processes of a container to the folder of its files."""

_PAUSE: Final = 0.005
_ATTEMPTS: Final = 10
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD of linux/sched.h
_DEAD: Final = {b"Z", b"X"}


def marked_processes(folder: Path, proc: Path = Path("/proc")) -> list[int]:
    """The processes of the containers whose files are in a folder or below it.

    A process has no environment for a moment while it begins to execute a program. It is looked at again.
    """
    exact = f"{MARK}={folder}".encode()
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


def _has(environment: bytes, exact: bytes) -> bool:
    return any(setting == exact or setting.startswith(exact + b"/") for setting in environment.split(b"\0"))


def _all(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _environment(proc: Path, pid: int) -> bytes:
    try:
        return _read(f"{proc}/{pid}/environ")
    except OSError:  # the process has ended, or belongs to another user
        return b"\0"


def _is_program(proc: Path, pid: int) -> bool:
    """Whether a process runs, and is not a thread of the kernel."""
    try:
        state, _, _, _, _, _, flags = _read(f"{proc}/{pid}/stat").rpartition(b") ")[2].split()[:7]
    except OSError:
        return False
    return state not in _DEAD and not int(flags) & _KERNEL_THREAD


def _read(path: str) -> bytes:
    """Read a file without pathlib, which would take longer than reading it."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see above
        return file.read()
