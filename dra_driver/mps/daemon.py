# SPDX-License-Identifier: Apache-2.0
"""One control daemon: started, asked, ended.

It runs in the foreground as a child of this process, so that its end is seen at once. It is ready when its control
socket answers a command; that it has started, or made the socket, says nothing. Its folders are kept over a restart:
containers have the pipe directory mounted, and would never see a new one.
"""

import contextlib
import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..files import make_folder, names_in
from ..programs import Ended, ProgramError, run_program
from .errors import MpsError
from .processes import VARIABLE, end_processes
from .program import NAME, Program

log = logging.getLogger(__name__)

_PAUSE: Final = 0.005
_MOST_OUTPUT: Final = 500
_PIPE_MODE: Final = 0o755  # containers reach the sockets whatever user they run as; CUDA sets the modes of these
_SHARED_MODE: Final = 0o1777


class Limits:
    """How many seconds things may take: until a started daemon answers; one command; a daemon that is told to quit,
    which waits for clients for ever; processes that are asked to end.
    """

    START: Final = 10.0
    COMMAND: Final = 3.0
    QUIT: Final = 1.0
    END: Final = 2.0


class Daemon:
    """The daemon in `folder`. `arguments` and `environment` are for its start; `shared_memory` is the folder that it
    has as /dev/shm, if any.
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
        """Its pipe directory, as this process sees it."""
        return self.folder / "pipe"

    def is_running(self) -> bool:
        """Whether the process is there; whether it answers is another question."""
        return self._process is not None and self._process.poll() is None

    def start(self, probe: Sequence[str], text: str = "") -> None:
        """Start it, and wait until it answers the command `probe` (see `ask`). Raises MpsError or OSError; then nothing
        runs.
        """
        end_processes(self.folder, Limits.END)
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
            self._wait_ready(output, probe, text)
        except BaseException:
            self.kill()
            raise

    def ask(self, arguments: Sequence[str], text: str = "", seconds: float = Limits.COMMAND) -> str:
        """Run the program with these arguments and `text` on its standard input, and give what it prints. Raises
        MpsError when it fails.
        """
        done = self._run(arguments, text, seconds)
        if done.code:
            raise MpsError(f"{NAME} {' '.join(arguments) or ', '.join(text.splitlines())} {done}")
        return done.output

    def stop(self, goodbye: Sequence[str], text: str = "") -> None:
        """End it and its servers: with its own command, and by force what is left after that. Raises MpsError when
        something cannot be killed, or OSError.
        """
        if self.is_running():
            try:
                done = self._run(goodbye, text, Limits.QUIT)
                if done.code:
                    log.warning("an MPS daemon refuses to quit: %s", done, extra={"folder": str(self.folder)})
            except ProgramError as error:
                log.warning("an MPS daemon does not quit and is killed: %s", error, extra={"folder": str(self.folder)})
        self.kill()

    def kill(self) -> None:
        """End it by force, with all that it started. Raises MpsError or OSError."""
        end_processes(self.folder, Limits.END)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(Limits.END)
            self._process = None

    def _prepare_folders(self) -> None:
        """The folders, empty: sockets of a daemon that was killed stay where they are."""
        for name in ("pipe", "log"):
            make_folder(self.folder / name, _PIPE_MODE)
            (self.folder / name).chmod(_PIPE_MODE)
        _remove_files(self.pipe_directory)
        if self._shared_memory is not None:
            make_folder(self._shared_memory, _SHARED_MODE)
            self._shared_memory.chmod(_SHARED_MODE)

    def _wait_ready(self, output: Path, probe: Sequence[str], text: str) -> None:
        deadline = time.monotonic() + Limits.START
        problem = "it made no control socket"
        while True:
            if not self.is_running():
                raise MpsError(f"{NAME} ended while it started: {_said(output)}")
            if (self.pipe_directory / "control").exists():
                try:
                    done = self._run(probe, text, max(0.1, deadline - time.monotonic()))
                except ProgramError as error:
                    done = Ended(1, str(error))
                if done.code == 0:
                    return
                problem = str(done)
            if time.monotonic() > deadline:
                raise MpsError(f"{NAME} did not answer within {Limits.START:g} s: {problem}")
            time.sleep(_PAUSE)

    def _run(self, arguments: Sequence[str], text: str, seconds: float) -> Ended:
        command, environment = self._program.command(self.folder, self._shared_memory, arguments, {})
        return run_program(command, seconds, environment, text=text, inherit=False)


def _remove_files(folder: Path) -> None:
    """Remove all files below a folder, and leave the folders: some of them are mounted in containers."""
    for name in names_in(folder):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            _remove_files(path)
        else:
            path.unlink(missing_ok=True)


def _said(output: Path) -> str:
    text = " ".join(output.read_text(encoding="utf-8", errors="replace").split())
    return text[-_MOST_OUTPUT:] or "it did not say why"
