# SPDX-License-Identifier: Apache-2.0
"""What the IMEX daemon of a node tells the plugin of that node: a file in the folder that they share.

So a claim that waits for its daemon needs no request to the API server. The daemon holds a lock on the file as long as
it lives, and the kernel releases the lock when the daemon is killed. Therefore the report of a daemon that is gone is
never taken for a current one.
"""

import contextlib
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Final

from ..objects import DaemonReport

FILE: Final = "report.json"
_TEMPORARY: Final = ".report.json.new"
_LONGEST: Final = 1 << 16


class ReportFile:
    """Writes the report of this process to a folder. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def write(self, report: DaemonReport) -> None:
        """Replace the report. Raises OSError."""
        temporary = self._folder / _TEMPORARY
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            fields = {name: getattr(report, name) for name in DaemonReport.__slots__}
            os.write(descriptor, json.dumps(fields).encode())
            temporary.replace(self._folder / FILE)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor

    def close(self) -> None:
        """Let readers know that this process reports no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_report(folder: Path) -> DaemonReport | None:
    """The report of the daemon that runs with this folder, or None if there is none.

    The daemon's container can put anything into the folder: nothing is read but the beginning of a regular file.
    """
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # its writer is gone
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fields = json.loads(os.read(descriptor, _LONGEST))
        return DaemonReport(fields["ready"] is True, *(str(fields[field]) for field in DaemonReport.__slots__[1:]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    finally:
        os.close(descriptor)
