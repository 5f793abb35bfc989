# SPDX-License-Identifier: Apache-2.0
"""Writes to sysfs with a time limit.

A write to `bind` or `unbind` returns when the kernel driver is done. If a driver waits for something, the write cannot
be interrupted, and its process cannot be killed. So each write is made by a process of its own, which is left behind if
it does not return.

While a write for a device runs, its process holds a lock on a file. Further writes for this device wait for it, also in
the next plugin process, but only for a while. Then they are refused. Otherwise a write that was left behind could undo
what was written later.
"""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dra_driver.process.files import make_folder, try_lock

from ...errors import StuckError, WriteError

_PATIENCE: Final = 8.0
"""How long to wait for an earlier write. Together with a write, this is less than the time limit of a step."""
_LOOK_SECONDS: Final = 0.05

_PROGRAM: Final = """
import os, sys
try:
    os.write(os.open(sys.argv[1], os.O_WRONLY), sys.argv[2].encode())
except OSError as error:
    sys.exit(error.errno)
"""


class SysfsWrites:
    """Writes to files of sysfs, for devices. A write may take `seconds`. The lock files are in `folder`."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._stuck: set[str] = set()  # the devices for which this process has waited in vain

    def write(self, address: str, file: Path, text: str) -> None:
        """Write a line to a file, for the device at `address`. Raises OSError, WriteError, or StuckError if this write
        or an earlier one for the device does not return.
        """
        with self._locked(address) as lock:
            code = self._write(file, text, lock)
        if code is None:
            self._stuck.add(address)
            raise StuckError(_stuck(f"writing {text!r} to {file}, after {self._seconds:g} s"))
        if code:
            reason = f"{os.strerror(code)} ({errno.errorcode.get(code, code)})"
            raise WriteError(f"the kernel refuses to write {text!r} to {file}: {reason}", code)

    def require_none(self, address: str) -> None:
        """Raises StuckError if an earlier write for the device has not returned, because it may still have an
        effect.
        """
        with self._locked(address):
            pass

    @contextmanager
    def _locked(self, address: str) -> Iterator[int]:
        """A context with the lock of a device. A process that inherits its descriptor keeps the lock."""
        make_folder(self._folder)
        lock = os.open(self._folder / f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._await(address, lock)
            yield lock
        finally:
            os.close(lock)

    def _await(self, address: str, lock: int) -> None:
        """Take the lock. The process that has it may only be a write of a plugin that was killed. Raises StuckError."""
        deadline = time.monotonic() + (0.0 if address in self._stuck else min(self._seconds, _PATIENCE))
        while not try_lock(lock):
            if time.monotonic() >= deadline:
                self._stuck.add(address)
                raise StuckError(_stuck(f"an earlier change of {address}"))
            time.sleep(_LOOK_SECONDS)
        self._stuck.discard(address)

    def _write(self, file: Path, text: str, lock: int) -> int | None:
        """The errno of the write, 0 if it succeeded, or None if it has not returned."""
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(file), f"{text}\n"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,  # a signal for the plugin's group must not interrupt a change
        )
        try:
            code = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            process.kill()  # it ends when the write returns
            return None
        return code if code >= 0 else errno.EINTR


def _stuck(what: str) -> str:
    return (
        f"the kernel does not finish {what}: a driver waits for a user of the device; see the kernel log, and restart"
        " the node if this lasts"
    )
