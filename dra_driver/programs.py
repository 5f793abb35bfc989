# SPDX-License-Identifier: Apache-2.0
"""Running another program, for a limited time."""

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
"""How long the end of a killed program is waited for: one that hangs in the kernel does not end."""


class ProgramError(DriverError):
    """A program could not be run, did not end in time, or failed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its exit code (negative for a signal), and what it printed."""

    code: int
    output: str

    def __str__(self) -> str:
        said = " ".join(self.output.split())[:_MOST_OUTPUT]
        return f"ended with code {self.code}: {said or 'it did not say why'}"


def run_program(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    text: str = "",
    inherit: bool = True,
) -> Ended:
    """Run a program to its end, with `text` on its standard input. `environment` is added to this process's, or is all
    of it without `inherit`. After `seconds` it is killed, with all processes that it started. Raises ProgramError when
    it cannot be run or does not end.
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
            start_new_session=True,  # so that all of it can be killed
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
        _end(process)
    return Ended(process.returncode, output)


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill what is left of the program's session, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # input that nobody read
                stream.close()
