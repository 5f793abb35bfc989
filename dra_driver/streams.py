# SPDX-License-Identifier: Apache-2.0
"""The standard streams of a process, made to fail in one way that a command can tell from everything else.

Left alone, a reader that went away ends click and rich with exit status 1, which is an answer of some commands, and a
full disk ends them with a traceback, as does a character that the locale lacks. Here output that cannot be written
raises OutputError, messages that cannot be written are dropped, and a character that cannot be encoded is written as
`\\u2026`.
"""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from .errors import DriverError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2
_UNUSABLE: Final = ((0, os.O_WRONLY), (_STDOUT, os.O_RDONLY), (_STDERR, os.O_WRONLY))
"""How a stream that is closed is opened: reading the first and writing the second fails, as it would if it were not."""


class OutputError(DriverError):
    """Standard output takes no more; `error` says why.

    It is no OSError: click and rich end the process when a pipe is closed, and commands report those of their files.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.error = error


class _Output(io.FileIO):
    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from None


class _Messages(io.FileIO):
    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError:  # nobody is left to be told
            return memoryview(data).nbytes


def adopt_streams() -> None:
    """Put such streams in the place of the interpreter's own; those of a test that captures output stay.

    A stream that is closed gets its number back, so that no file or socket is opened under it.
    """
    for number, how in _UNUSABLE:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, how)  # the lowest number that is free, which is this one
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Output(_STDOUT, "w", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Messages(_STDERR, "w", closefd=False), sys.stderr)


def read_standard_input() -> bytes:
    """All that is on standard input. Raises OSError, also when it is closed."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    return sys.stdin.buffer.read()


UNPRINTABLE: Final = (
    *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"),
    *(0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
)
"""Characters that move the cursor, change the terminal, break lines, or turn the direction of writing around."""

_REPLACED: Final = dict.fromkeys(UNPRINTABLE, "\N{REPLACEMENT CHARACTER}")


def printable(text: str) -> str:
    """The text without such characters. Names and texts of manifests and clusters may contain any of them."""
    return text.translate(_REPLACED)


def abandon_output() -> None:
    """Let what is still to be written go nowhere, since the interpreter would try once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    encoding = before.encoding if before is not None else None
    by_line = raw.fileno() == _STDERR or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=by_line)
