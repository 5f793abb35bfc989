# SPDX-License-Identifier: Apache-2.0
"""Processes of our commands, forked from a process that has imported their modules.

Tests start these commands about a thousand times, and most of such a process's time is spent on imports. `start` and
`run` take the commands that subprocess.Popen and subprocess.run take: `PYTHON -m MODULE`, `PYTHON -c PROGRAM`, or the
path of an installed script. What they start is a process with its own ID, environment, working folder and standard
streams, which can be stopped and killed. Two things differ from a process that starts from nothing: environment
variables that the interpreter itself reads at its start (PYTHONPATH, PYTHONIOENCODING, ...) have no effect, and modules
that the command does not need are loaded as well. Tests of these two use subprocess.

All test workers of a run share one such parent process, `preloading.py`, which ends with the last of them.
"""

import contextlib
import fcntl
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from dra_driver.sandbox import child

FOLDER_VARIABLE: Final = "TESTS_PRELOADED_FOLDER"
"""Names the folder of the socket on which the parent process takes orders."""
SANDBOX: Final = (sys.executable, "-m", f"{__package__}.sandboxcommand")
"""The command dra-sandbox. The processes that it starts also come from the parent process."""
_ROOT = Path(__file__).parents[2]


class _Process(subprocess.Popen[Any]):
    """As a context, kills the process if the context ends with an exception, instead of waiting for its end."""

    _status: int
    """The read end of a pipe: the parent process writes the ID of the process into it, and its exit status later."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        super().__exit__(kind, error, trace)

    def _execute_child(self, args: Sequence[str], *options: Any) -> None:
        sys.audit("subprocess.Popen", args[0], args, None, None)  # as Popen does
        passed, cwd, environment = options[3:6]
        streams = options[9:15]
        order = {
            "command": [os.fspath(one) for one in args],
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "passed": list(passed),
        }
        self._status, writer = os.pipe()
        weakref.finalize(self, os.close, self._status)
        self._told_status = threading.Lock()
        given = (streams[0], streams[3], streams[5])
        files = [own if one == -1 else one for own, one in enumerate(given)]
        socket.send_fds(orders(), [json.dumps(order).encode()], [*files, *passed, writer])
        os.close(writer)
        self.pid = self._told()
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined] # Popen's own, without a declaration

    def _told(self) -> int:
        told = os.read(self._status, 4)
        if not told:
            raise ChildProcessError("the process with the imported modules has ended")
        return int.from_bytes(told, "big", signed=True)

    def _wait(self, timeout: float | None) -> int:
        status = select.poll()
        status.register(self._status, select.POLLIN)
        if self.returncode is None and not status.poll(None if timeout is None else timeout * 1000):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self._told_status:  # several threads may wait
            if self.returncode is None:
                self.returncode = self._told()
        return self.returncode

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._wait(0.0)
        return None


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """subprocess.Popen for our commands. Of its options, those about streams, files, `cwd` and `env` are understood."""
    return _Process(command, **options)


def run(command: Sequence[str], *, timeout: float = 60, **options: Any) -> "subprocess.CompletedProcess[str]":
    """subprocess.run for our commands, with both outputs captured as text."""
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        output, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def children(lock: int) -> child.Children:
    """The starter of such processes for a sandbox: `Sandbox(..., children=children)`."""
    return child.Children(lock, start)


@contextlib.contextmanager
def one_parent() -> Iterator[None]:
    """All processes that are started meanwhile, and this one, share one parent process."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        yield
        del os.environ[FOLDER_VARIABLE]


@functools.cache
def orders() -> socket.socket:
    """This process's connection to the parent process, which is started unless there is one."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = folder / "orders"
    with locked(folder):
        try:
            ours.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
                listening.bind(str(path))
                listening.listen()
                descriptor = listening.fileno()
                command = [sys.executable, "-m", f"{__package__}.preloading", str(descriptor)]
                subprocess.Popen(command, pass_fds=[descriptor], cwd=_ROOT)
            ours.connect(str(path))
    return ours


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else starts or ends the parent process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
