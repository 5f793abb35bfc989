# SPDX-License-Identifier: Apache-2.0
"""Runs other programs with a time limit."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .errors import DriverError

_MOST_OUTPUT: Final = 500
_END_SECONDS: Final = 5.0
"""The time to wait for the end of a killed program. A program that hangs in the kernel does not end."""


class ProgramError(DriverError):
    """A program could not be started, or did not end in time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code of a program (negative for a signal), and its output."""

    code: int
    output: str

    def __str__(self) -> str:
        said = " ".join(self.output.split())[:_MOST_OUTPUT]
        return f"ended with code {self.code}: {said or 'without any output'}"


def run_program(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    text: str = "",
    inherit: bool = True,
) -> Ended:
    """Run a program. Raises ProgramError if it cannot be started, or does not end in time.

    `text` is its standard input. `environment` is added to the environment of this process, or without `inherit` it is
    the whole environment of the program. After `seconds`, the program is killed with all processes that it has started.
    """
    name = command[0]
    inherited = os.environ if inherit else {}
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**inherited, **(environment or {})},
            start_new_session=True,  # so that all of its processes can be killed
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise ProgramError(f"{name} cannot be run: {error.strerror}") from error
    try:
        output, _ = process.communicate(text or None, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{name} did not end within {seconds:g} s and was killed") from None
    finally:
        end(process)
    return Ended(process.returncode, output)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill the remaining processes of the session that a program leads, and wait for the program."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # input that nobody read
                stream.close()
