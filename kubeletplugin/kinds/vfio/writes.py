# SPDX-License-Identifier: Apache-2.0
"""Writes to sysfs with a time limit.

A write to `bind` or `unbind` returns when the kernel driver is done. If a driver waits for something, the write cannot
be interrupted, and its process cannot be killed. So all writes of one change of a device are made by a process of their
own, one after the other. This process is left behind if a write does not return, and ends by itself when the plugin
ends.

While the process runs, it holds a lock on a file. Further changes of the device wait for it, also in the next plugin
process, but only for a while. Then they are refused. Otherwise a write that was left behind could undo what was written
later.
"""

import contextlib
import errno
import os
import select
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

_END_SECONDS: Final = 5.0
"""The time to wait for the end of a process that has nothing more to write."""

_PROGRAM: Final = """
import os, sys
lines = sys.stdin.buffer
while file := lines.readline():
    text, code = lines.readline(), 0
    try:
        opened = os.open(file[:-1], os.O_WRONLY)
        try:
            os.write(opened, text)
        finally:
            os.close(opened)
    except OSError as error:
        code = error.errno
    print(code, flush=True)
"""


class DeviceWrites:
    """The writes of one change of a device. Each may take `seconds`. The first one starts their process, which inherits
    the descriptor of the device's lock.
    """

    def __init__(self, lock: int, seconds: float) -> None:
        self._lock = lock
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, file: Path, text: str) -> None:
        """Write a line to a file. Raises OSError, WriteError, or StuckError if the write does not return."""
        if self._process is None:
            self._process = self._start()
        code = self._ask(self._process, os.fsencode(file) + b"\n" + text.encode() + b"\n")
        if code is None:
            self._process.kill()  # it ends when the write returns
            raise StuckError(_stuck(f"writing {text!r} to {file}, after {self._seconds:g} s"))
        if code:
            reason = f"{os.strerror(code)} ({errno.errorcode.get(code, code)})"
            raise WriteError(f"the kernel refuses to write {text!r} to {file}: {reason}", code)

    def close(self, *, wait: bool) -> None:
        """Let the process end."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if wait:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.stdout.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._lock],
            start_new_session=True,  # a signal for the plugin's group must not interrupt a change
        )

    def _ask(self, process: "subprocess.Popen[bytes]", lines: bytes) -> int | None:
        """The errno of a write, 0 if it succeeded, or None if it has not returned."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(lines)
        answer = select.poll()
        answer.register(process.stdout, select.POLLIN)
        if not answer.poll(self._seconds * 1000):
            return None
        return int(process.stdout.readline() or errno.EINTR)  # no answer: the process was killed


class SysfsWrites:
    """Writes to files of sysfs, for devices. A write may take `seconds`. The lock files are in `folder`."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._stuck: set[str] = set()  # the devices for which this process has waited in vain

    @contextmanager
    def of(self, address: str) -> Iterator[DeviceWrites]:
        """A context in which the device at `address` is changed. Raises OSError, or StuckError if an earlier write for
        the device does not return.
        """
        with self._locked(address) as lock:
            writes = DeviceWrites(lock, self._seconds)
            try:
                yield writes
            except StuckError:
                self._stuck.add(address)
                raise
            finally:
                writes.close(wait=address not in self._stuck)

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
        """Take the lock. The process that has it may only be one of a plugin that was killed. Raises StuckError."""
        deadline = time.monotonic() + (0.0 if address in self._stuck else min(self._seconds, _PATIENCE))
        while not try_lock(lock):
            if time.monotonic() >= deadline:
                self._stuck.add(address)
                raise StuckError(_stuck(f"an earlier change of {address}"))
            time.sleep(_LOOK_SECONDS)
        self._stuck.discard(address)


def _stuck(what: str) -> str:
    return (
        f"the kernel does not finish {what}: a driver waits for a user of the device; see the kernel log, and restart"
        " the node if this lasts"
    )
