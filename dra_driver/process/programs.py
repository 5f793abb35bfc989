# SPDX-License-Identifier: Apache-2.0
"""Runs other programs with a limit of time and of output."""

import contextlib
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import ProgramError, TimeLimitError

MOST_OUTPUT: Final = 1 << 20
"""The number of bytes that a program may print."""

_SHOWN: Final = 500
_PIECE: Final = 1 << 16
_END_SECONDS: Final = 5.0
"""The time to wait for the end of a killed program. A program that hangs in the kernel does not end."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code of a program (negative for a signal), and its output."""

    code: int
    output: str

    def __str__(self) -> str:
        return f"ended with code {self.code}: {excerpt(self.output) or 'without any output'}"


def excerpt(text: str, most: int = _SHOWN) -> str:
    """The beginning of a foreign text, for an error or a log: words on one line, at most `most` characters, and escapes
    such as \\x1b in place of characters that cannot be printed.
    """
    words = " ".join(text[: 2 * most].split())
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words)
    return shown if len(shown) <= most and len(text) <= 2 * most else f"{shown[:most]}…"


def run_program(
    command: Sequence[str],
    seconds: float,
    environment: Mapping[str, str] | None = None,
    *,
    text: str = "",
    inherit: bool = True,
) -> Ended:
    """Run a program. Raises ProgramError if it cannot be started or prints more than MOST_OUTPUT bytes, and
    TimeLimitError if it does not end in time.

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
        )
    except OSError as error:
        raise ProgramError(f"{name} cannot be run: {error.strerror}") from error
    deadline = time.monotonic() + seconds
    try:
        output = _communicate(process, text.encode(), deadline)
        process.wait(max(0.0, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise TimeLimitError(f"{name} did not end within {seconds:g} s and was killed") from None
    except OverflowError:
        raise ProgramError(f"{name} printed more than {MOST_OUTPUT} bytes and was killed") from None
    finally:
        end(process)
    return Ended(process.returncode, output.decode("utf-8", "replace"))


def _communicate(process: "subprocess.Popen[bytes]", text: bytes, deadline: float) -> bytes:
    """Write the input and read the output of a program. Unlike `Popen.communicate`, this does not read without a limit.
    Raises TimeoutError or OverflowError.
    """
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        if process.stdin is not None:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            found = selector.select(max(0.0, deadline - time.monotonic()))
            if not found and time.monotonic() >= deadline:
                raise TimeoutError
            for key, events in found:
                if events & selectors.EVENT_WRITE:
                    text = _write_some(key.fd, text)
                    if not text and process.stdin is not None:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif piece := os.read(key.fd, _PIECE):
                    output += piece
                    if len(output) > MOST_OUTPUT:
                        raise OverflowError
                else:
                    selector.unregister(process.stdout)
    return bytes(output)


def _write_some(descriptor: int, text: bytes) -> bytes:
    """Write as much as a pipe certainly takes. Returns the rest: nothing, if the program does not read any more."""
    try:
        return text[os.write(descriptor, text[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return b""


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill the remaining processes of the session that a program leads, and wait for the program."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # input that nobody read
                stream.close()
