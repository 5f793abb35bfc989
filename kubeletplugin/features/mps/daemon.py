# SPDX-License-Identifier: Apache-2.0
"""Starts one control daemon, sends it commands, and ends it.

A daemon runs in the foreground as a child of this process, so that this process notices its end at once. A daemon is
ready when it answers a command on its control socket; a running process or an existing socket is not enough.

A daemon has two pipe directories. It works in a new one, to which only root has access (`program.DAEMON_PIPE`). When it
is ready and has its limits, its sockets are published in the folder that containers have
(`dra_driver.process.mps.PIPE`). That one is kept when the daemon is restarted, because containers have mounted it and
would not see a new one. No process of the driver reads or removes files that containers write there.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

from dra_driver.errors import MpsError, ProgramError, TimeLimitError
from dra_driver.process.exposed import folder_at, publish
from dra_driver.process.files import make_folder
from dra_driver.process.mps import LOG, OUTPUT, PIPE, end_processes
from dra_driver.process.programs import Ended, excerpt, run_program

from .program import DAEMON_PIPE, NAME, Program
from .selinux import let_containers_use

log = logging.getLogger(__name__)

_PAUSE: Final = 0.002
_MOST_OUTPUT: Final = 500
_MOST_READ: Final = 1 << 16
_PIPE_MODE: Final = 0o755  # containers of any user must reach the sockets, whose modes CUDA sets


class DaemonLimits:
    """Time limits in seconds: from the start of a daemon until it answers, for one command, for `quit` (the daemon
    would wait for its clients without a limit), and for processes to end after a signal.
    """

    START: Final = 10.0
    COMMAND: Final = 3.0
    QUIT: Final = 1.0
    END: Final = 2.0


class Command(NamedTuple):
    """A command for a daemon: arguments of the program, and its standard input."""

    arguments: tuple[str, ...]
    text: str = ""

    def __str__(self) -> str:
        return f"{NAME} {' '.join(self.arguments) or ', '.join(self.text.splitlines())}"


class ControlDaemon:
    """The daemon in `folder`, which is started with `arguments` and `environment`. `name` tells people which one it is.
    `shared_memory` is the folder that is mounted as its /dev/shm, if any.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        name: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        shared_memory: Path | None = None,
    ) -> None:
        self.folder = folder
        self._program = program
        self._name = name
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._shared_memory = shared_memory
        self._process: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return self._name

    @property
    def pipe_directory(self) -> Path:
        """The path of the pipe directory that containers have, for this process."""
        return self.folder / PIPE

    @property
    def pid(self) -> int | None:
        """The ID of its process, if it runs."""
        return self._process.pid if self._process is not None and self.is_running() else None

    def is_running(self) -> bool:
        """Whether the process runs. It may hang."""
        return self._process is not None and self._process.poll() is None

    def start(self, first: Command, probe: Command) -> str:
        """Start the daemon, wait until it is ready, let it execute `first`, and publish its sockets. Returns the output
        of `first`. Raises MpsError, ProgramError or OSError, after which no process of it runs.

        Each run of the program takes time. So `first` is sent as soon as the control socket exists. If it fails, the
        daemon may not be ready yet: `first` is repeated once when the daemon has answered `probe`, which changes
        nothing.
        """
        self.kill()  # its servers may run, and so may a daemon of an earlier dra-mps
        self._prepare_folders()
        with (self.folder / LOG / OUTPUT).open("wb+") as output:
            self._process = self._spawn(output)
            try:
                deadline = time.monotonic() + DaemonLimits.START
                self._wait_for_socket(output, deadline)
                done = self._try(first, DaemonLimits.COMMAND)
                if done.code:
                    self._wait_ready(output, probe, deadline)
                    said = self.ask(first)
                else:
                    said = done.output
                self.publish(files=True)
            except BaseException:
                self.kill()
                raise
        return said

    def publish(self, *, files: bool = False) -> None:
        """Show containers the sockets of the daemon, with `files` also its small files. Raises OSError."""
        with folder_at(self.folder / DAEMON_PIPE) as source, folder_at(self.pipe_directory) as target:
            publish(source, target, files=files)

    def ask(self, command: Command, seconds: float = DaemonLimits.COMMAND) -> str:
        """Execute a command and return its output. Raises MpsError if it fails or is not answered within `seconds`, and
        ProgramError if the program cannot be run.
        """
        done = self._run(command, seconds)
        if done.code:
            raise MpsError(f"{self._name}: {command} {done}")
        return done.output

    def stop(self, goodbye: Command) -> None:
        """End the daemon and its servers with the command `goodbye`, and kill the processes that remain. Raises
        OSError, or MpsError if a process cannot be killed.
        """
        if self.is_running():
            try:
                done = self._run(goodbye, DaemonLimits.QUIT)
                if done.code:
                    log.warning("an MPS daemon refuses to quit: %s", done, extra={"folder": str(self.folder)})
            except (MpsError, ProgramError) as error:
                log.warning("an MPS daemon does not quit and is killed: %s", error, extra={"folder": str(self.folder)})
        self.kill()

    def kill(self) -> None:
        """Kill the daemon and all processes that it started. Raises MpsError or OSError."""
        end_processes(self.folder, DaemonLimits.END)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DaemonLimits.END)
            self._process = None

    def _prepare_folders(self) -> None:
        """Create the folders. The pipe directory of the daemon is a new one, because the sockets of a killed daemon
        remain.
        """
        for name in (DAEMON_PIPE, PIPE, LOG):
            folder = self.folder / name
            if name == DAEMON_PIPE and folder.exists():
                shutil.rmtree(folder)
            make_folder(folder, _PIPE_MODE)
            folder.chmod(_PIPE_MODE)
        for name in (DAEMON_PIPE, PIPE):  # a socket that is published keeps the label that it got in the first
            let_containers_use(self.folder / name)

    def _spawn(self, output: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Run the program. By the file `output`, its processes are found (see `dra_driver.process.mps`)."""
        command, environment = self._program.command(
            self.folder, self._shared_memory, self._arguments, self._environment
        )
        try:
            return subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise MpsError(f"{command[0]} cannot be run: {error.strerror}") from error

    def _wait_for_socket(self, output: IO[bytes], deadline: float) -> None:
        while not (self.folder / DAEMON_PIPE / "control").is_socket():
            self._wait_on(output, deadline, "it made no control socket")

    def _wait_ready(self, output: IO[bytes], probe: Command, deadline: float) -> None:
        while (done := self._try(probe, max(DaemonLimits.COMMAND, deadline - time.monotonic()))).code:
            self._wait_on(output, deadline, str(done))

    def _wait_on(self, output: IO[bytes], deadline: float, problem: str) -> None:
        """Pause, unless the daemon has ended or the time is over. Raises MpsError."""
        if not self.is_running():
            raise MpsError(f"{self._name} ended while it started: {_said(output)}")
        if time.monotonic() > deadline:
            raise MpsError(f"{self._name} did not answer within {DaemonLimits.START:g} s: {problem}")
        time.sleep(_PAUSE)

    def _try(self, command: Command, seconds: float) -> Ended:
        """Execute a command. A command that is not answered in time has failed."""
        try:
            return self._run(command, seconds)
        except (MpsError, ProgramError) as error:
            return Ended(1, str(error))

    def _run(self, asked: Command, seconds: float) -> Ended:
        command, environment = self._program.command(self.folder, self._shared_memory, asked.arguments, {})
        try:
            return run_program(command, seconds, environment, text=asked.text, inherit=False)
        except TimeLimitError:  # its text would name the program in which mounts are made
            raise MpsError(f"{self._name} did not answer within {seconds:g} s: {asked}") from None


def _said(output: IO[bytes]) -> str:
    """The end of what a daemon has printed, without reading all of it."""
    descriptor = output.fileno()
    text = os.pread(descriptor, _MOST_READ, max(0, os.fstat(descriptor).st_size - _MOST_READ)).decode(
        "utf-8", "replace"
    )
    return excerpt(" ".join(text.split())[-_MOST_OUTPUT:]) or "it did not say why"
