# SPDX-License-Identifier: Apache-2.0
"""One sandbox at a time in a folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DriverError

_ENDING_SECONDS = 10.0
"""How long the processes of a killed sandbox may take to end."""
_PAUSE_SECONDS = 0.1


class FolderInUseError(DriverError, OSError):
    """Another sandbox has the folder; the text says which."""


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Have `folder` for this process, and for children that inherit the descriptor, which is the context.

    Raises FolderInUseError or another OSError.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, folder)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode()
            if _runs(owner) or time.monotonic() > deadline:
                raise FolderInUseError(
                    f"{folder} is in use by the sandbox of process {owner}: end that one, or choose another folder"
                ) from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True
