# SPDX-License-Identifier: Apache-2.0
"""Starts one control daemon, sends it commands, and ends it.

A daemon runs in the foreground as a child of this process, so that this process notices its end at once. A daemon is
ready when it answers a command on its control socket; a running process or an existing socket is not enough. The
folders of a daemon are kept when it is restarted, because containers have mounted the pipe directory and would not see
a new one.
"""

import contextlib
import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..files import make_folder, names_in
from ..programs import Ended, ProgramError, run_program
from .errors import MpsError
from .processes import VARIABLE, end_processes
from .program import NAME, Program
from .selinux import let_containers_use

log = logging.getLogger(__name__)

_PAUSE: Final = 0.002
_MOST_OUTPUT: Final = 500
_PIPE_MODE: Final = 0o755  # containers of any user must reach the sockets, whose modes CUDA sets
_SHARED_MODE: Final = 0o1777


class Limits:
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


class Daemon:
    """The daemon in `folder`, which is started with `arguments` and `environment`. `shared_memory` is the folder that
    is mounted as its /dev/shm, if any.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        shared_memory: Path | None = None,
    ) -> None:
        self.folder = folder
        self._program = program
        self._arguments = tuple(arguments)
        self._environment = {**environment, VARIABLE: str(folder)}
        self._shared_memory = shared_memory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pipe_directory(self) -> Path:
        """The path of its pipe directory for this process."""
        return self.folder / "pipe"

    def is_running(self) -> bool:
        """Whether the process runs. It may hang."""
        return self._process is not None and self._process.poll() is None

    def start(self, first: Command, probe: Command) -> str:
        """Start the daemon, wait until it is ready, and let it execute `first`. Returns the output of `first`. Raises
        MpsError, ProgramError or OSError, after which no process of it runs.

        Each run of the program takes time. So `first` is sent as soon as the control socket exists. If it fails, the
        daemon may not be ready yet: `first` is repeated once when the daemon has answered `probe`, which changes
        nothing.
        """
        if self._process is not None:
            self.kill()  # its servers may run; those of an earlier dra-mps were ended at the start (Supervisor.begin)
        self._prepare_folders()
        output = self.folder / "log/output"
        command, environment = self._program.command(
            self.folder, self._shared_memory, self._arguments, self._environment
        )
        try:
            with output.open("wb") as file:
                self._process = subprocess.Popen(  # noqa: S603
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise MpsError(f"{command[0]} cannot be run: {error.strerror}") from error
        try:
            deadline = time.monotonic() + Limits.START
            self._wait_for_socket(output, deadline)
            done = self._try(first, Limits.COMMAND)
            if done.code == 0:
                return done.output
            self._wait_ready(output, probe, deadline)
            return self.ask(first)
        except BaseException:
            self.kill()
            raise

    def ask(self, command: Command) -> str:
        """Execute a command and return its output. Raises MpsError if it fails, and ProgramError if it does not end in
        time.
        """
        done = self._run(command, Limits.COMMAND)
        if done.code:
            raise MpsError(f"{command} {done}")
        return done.output

    def stop(self, goodbye: Command) -> None:
        """End the daemon and its servers with the command `goodbye`, and kill those that remain. Raises OSError, or
        MpsError if a process cannot be killed.
        """
        if self.is_running():
            try:
                done = self._run(goodbye, Limits.QUIT)
                if done.code:
                    log.warning("an MPS daemon refuses to quit: %s", done, extra={"folder": str(self.folder)})
            except ProgramError as error:
                log.warning("an MPS daemon does not quit and is killed: %s", error, extra={"folder": str(self.folder)})
        self.kill()

    def kill(self) -> None:
        """Kill the daemon and all processes that it started. Raises MpsError or OSError."""
        end_processes(self.folder, Limits.END)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(Limits.END)
            self._process = None

    def _prepare_folders(self) -> None:
        """Create the folders, or empty them, because the sockets of a killed daemon remain."""
        for name in ("pipe", "log"):
            make_folder(self.folder / name, _PIPE_MODE)
            (self.folder / name).chmod(_PIPE_MODE)
        let_containers_use(self.pipe_directory)
        _remove_files(self.pipe_directory)
        if self._shared_memory is not None:
            make_folder(self._shared_memory, _SHARED_MODE)
            self._shared_memory.chmod(_SHARED_MODE)
            let_containers_use(self._shared_memory)

    def _wait_for_socket(self, output: Path, deadline: float) -> None:
        while not (self.pipe_directory / "control").exists():
            self._wait_on(output, deadline, "it made no control socket")

    def _wait_ready(self, output: Path, probe: Command, deadline: float) -> None:
        while (done := self._try(probe, max(0.1, deadline - time.monotonic()))).code:
            self._wait_on(output, deadline, str(done))

    def _wait_on(self, output: Path, deadline: float, problem: str) -> None:
        """Pause, unless the daemon has ended or the time is over. Raises MpsError."""
        if not self.is_running():
            raise MpsError(f"{NAME} ended while it started: {_said(output)}")
        if time.monotonic() > deadline:
            raise MpsError(f"{NAME} did not answer within {Limits.START:g} s: {problem}")
        time.sleep(_PAUSE)

    def _try(self, command: Command, seconds: float) -> Ended:
        """Execute a command. A command that does not end in time has failed."""
        try:
            return self._run(command, seconds)
        except ProgramError as error:
            return Ended(1, str(error))

    def _run(self, asked: Command, seconds: float) -> Ended:
        command, environment = self._program.command(self.folder, self._shared_memory, asked.arguments, {})
        return run_program(command, seconds, environment, text=asked.text, inherit=False)


def _remove_files(folder: Path) -> None:
    """Remove all files below a folder, but no folders, because some of them are mounted in containers."""
    for name in names_in(folder):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            _remove_files(path)
        else:
            path.unlink(missing_ok=True)


def _said(output: Path) -> str:
    text = " ".join(output.read_text(encoding="utf-8", errors="replace").split())
    return text[-_MOST_OUTPUT:] or "it did not say why"
