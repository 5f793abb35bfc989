# SPDX-License-Identifier: Apache-2.0
"""The parent process of `preloaded.py`: imports the modules of our commands, and forks a process for each order.

`python -m tests.support.preloading FD`: FD is a socket that listens in the folder that FOLDER_VARIABLE names. A message
of a connection is an order: a command with its folder, its environment and its open files, of which the last is a pipe
for the process ID and the exit status.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dra_driver.dryrun.main import SUBCOMMANDS
from dra_driver.dryrun.nodetypes import built_in_nodes
from dra_driver.gpu.simulated.board import boards
from dra_driver.sandbox import child
from dra_driver.scheduler.cel.parse.grammar import lark_parser

from .preloaded import FOLDER_VARIABLE, locked

PRELOADED = (
    *("controller.main", "controller.cluster.main", "controller.webhook.main", "kubeletplugin.main"),
    *(
        "dra_driver.dryrun.main",
        "kubeletplugin.features.mps.main",
        "dra_driver.sandbox.main",
        "dra_driver.sandbox.demo",
    ),
    *(entry.module for entry in SUBCOMMANDS.values()),
    *("dra_driver.dryrun.start", "dra_driver.domains.daemon.main", "grpc._server", "tests.faults.child"),
    *("kubernetes.client.rest", "kubernetes.config", "encodings.idna"),  # of a dry run for a cluster
)
_LARGEST_ORDER = 1 << 20  # bytes: a command and its environment
_MOST_FILES = 16
_HIGH = 1000  # where a file is out of the way of the number that it is to have


class _Parent:
    """Forks a process for each order that comes through a connection to the socket `listening`."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        listening.setblocking(False)
        self._connections: dict[int, socket.socket] = {}  # by their file descriptors
        self._children: dict[int, tuple[int, int]] = {}  # by process ID: the connection, and the pipe for the status
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the end of the workers is this process's end
        signal.set_wakeup_fd(wakes)

    def serve(self) -> Callable[[], object]:
        """Return in the forked processes only: what they have to do. Ends the parent process."""
        while True:
            ready, _, _ = select.select([self._woken, self._listening.fileno(), *self._connections], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._bury()
            if self._listening.fileno() in ready:
                self._accept()
            for connection in self._connections.keys() & set(ready):
                work = self._obey(connection)
                if work is not None:
                    return work

    def _accept(self) -> bool:
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return False
        self._connections[connection.fileno()] = connection
        return True

    def _obey(self, connection: int) -> Callable[[], object] | None:
        try:
            message, received, _, _ = socket.recv_fds(self._connections[connection], _LARGEST_ORDER, _MOST_FILES)
        except ConnectionResetError:
            message = b""
        if not message:
            self._close(connection)
            return None
        order = json.loads(message)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (self._listening, *self._connections.values()):
                each.detach()  # the number will be that of another file
            return _become(order, received)
        *files, status = received
        self._children[pid] = connection, status
        with contextlib.suppress(BrokenPipeError):  # who ordered it has ended meanwhile
            os.write(status, pid.to_bytes(4, "big"))
        for file in files:
            os.close(file)
        return None

    def _close(self, connection: int) -> None:
        """Kill the processes that a worker has left. End after the last worker."""
        self._connections.pop(connection).close()
        for pid, (owner, _) in self._children.items():
            if owner == connection:
                os.kill(pid, signal.SIGKILL)
        if not self._connections:
            with contextlib.suppress(FileNotFoundError), locked(Path(os.environ[FOLDER_VARIABLE])):
                if self._accept():
                    return
                self._listening.close()
            sys.exit()

    def _bury(self) -> None:
        """Tell the exit status of every child that has ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                _, pipe = self._children.pop(ended[0])
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(pipe, code.to_bytes(4, "big", signed=True))
                os.close(pipe)


def _become(order: dict[str, Any], files: Sequence[int]) -> Callable[[], object]:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    passed = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files[3:-1]]
    os.closerange(3, _HIGH)
    for number, file in zip(order["passed"], passed, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    program, *arguments = order["command"]
    if program != sys.executable:
        sys.argv = [program, *arguments]
        return lambda: runpy.run_path(program, run_name="__main__")
    how, what, *arguments = arguments
    sys.argv = [how, *arguments]
    if how == "-c":
        return lambda: exec(what, {"__name__": "__main__"})
    assert how == "-m", order["command"]
    for module in (what, arguments[0]) if what == child.__name__ else (what,):
        sys.modules.pop(module, None)
    return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)


def _preload() -> None:
    """All that processes begin with. What is made at first use, only later ones have, and it counts as their growth."""
    for module in PRELOADED:
        importlib.import_module(module)
    boards()  # which every simulated node reads
    lark_parser()  # of expressions
    built_in_nodes(None, machines=False)  # of dry runs
    gc.collect()
    gc.freeze()


def _end_after(work: Callable[[], object]) -> None:
    """Do the work and end as Python ends, but without the taking down of all modules, which costs 0.1 seconds."""
    ended: list[int] = []
    atexit.register(_leave, ended)  # what is registered first runs last
    try:
        work()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        ended.append(end.code or 0)
    else:
        ended.append(0)


def _leave(ended: Sequence[int]) -> None:
    if not ended:
        return  # an error, which Python prints
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(ended[0])


if __name__ == "__main__":
    _preload()
    _end_after(_Parent(socket.socket(fileno=int(sys.argv[1]))).serve())
