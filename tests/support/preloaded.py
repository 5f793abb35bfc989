# SPDX-License-Identifier: Apache-2.0
"""Processes of our commands, forked from a process that has imported their modules.

Tests start these commands about a thousand times, and most of such a process's time is spent on imports. `start` and
`run` take the commands that subprocess.Popen and subprocess.run take: `PYTHON -m MODULE`, `PYTHON -c PROGRAM`, or the
path of an installed script. What they start is a process with its own ID, environment, working folder and standard
streams, which can be stopped and killed. Two things differ from a process that starts from nothing: environment
variables that the interpreter itself reads at its start (PYTHONPATH, PYTHONIOENCODING, ...) have no effect, and modules
that the command does not need are loaded as well. Tests of these two use subprocess.

Each test worker has one such parent process. It is this module as a program: `python -m tests.support.preloaded FD`.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dra_driver.dryrun.main import SUBCOMMANDS
from dra_driver.gpu.simulated.board import boards
from dra_driver.sandbox import child
from dra_driver.scheduler.cel.parse.grammar import lark_parser

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
)
_WITH_CEL = ("dra-dryrun", "kubectl-dra_dryrun", "dra-sandbox", "dra_driver.dryrun.main", "dra_driver.sandbox.main")
"""Commands that parse expressions. Making the parser takes longer than most of them do otherwise."""
_ROOT = Path(__file__).parents[2]
_LARGEST_ORDER = 1 << 20  # bytes: a command and its environment
_MOST_FILES = 16
_HIGH = 1000  # where a file is out of the way of the number that it is to have


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
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = self._told()
            os.close(self._status)
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


@functools.cache
def orders() -> socket.socket:
    """The worker's end of a socket to its parent process, which ends with the worker."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        descriptor = theirs.fileno()
        subprocess.Popen([sys.executable, "-m", __name__, str(descriptor)], pass_fds=[descriptor], cwd=_ROOT)
    return ours


# The parent process


def serve(orders: socket.socket) -> Callable[[], object]:
    """Fork a process for each order. Returns in these processes only: what they have to do."""
    children: dict[int, int] = {}
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the worker's end is this process's end
    signal.set_wakeup_fd(wakes)
    while True:
        ready, _, _ = select.select([woken, orders.fileno()], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _bury(children)
        if orders.fileno() not in ready:
            continue
        message, received, _, _ = socket.recv_fds(orders, _LARGEST_ORDER, _MOST_FILES)
        if not message:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        order = json.loads(message)
        if any(Path(word).name in _WITH_CEL for word in order["command"][:3]):
            lark_parser()  # is kept for all further processes
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            orders.detach()
            return _become(order, received)
        *files, children[pid] = received
        with contextlib.suppress(BrokenPipeError):  # who ordered it has ended meanwhile
            os.write(children[pid], pid.to_bytes(4, "big"))
        for file in files:
            os.close(file)


def _bury(children: dict[int, int]) -> None:
    """Tell the exit status of every child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            pipe = children.pop(ended[0])
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
    for module in PRELOADED:
        importlib.import_module(module)
    boards()  # which every simulated node reads
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
    _end_after(serve(socket.socket(fileno=int(sys.argv[1]))))
