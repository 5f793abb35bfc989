# SPDX-License-Identifier: Apache-2.0
"""Standard output and standard error of a command, with well-defined errors.

By default, click and rich end with exit status 1 if the reader of the output has ended, although 1 is a valid answer of
some commands. If the disk is full, or the locale lacks a character, they end with a traceback. With this module, output
that cannot be written raises OutputError, messages that cannot be written are dropped, and a character that cannot be
encoded is written as an escape such as `\\u2026`.
"""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from ..errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2
_UNUSABLE: Final = ((0, os.O_WRONLY), (_STDOUT, os.O_RDONLY), (_STDERR, os.O_WRONLY))
"""Modes in which closed streams are opened. Reading standard input or writing the others fails with these modes."""

UNPRINTABLE: Final = (
    *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"),
    *(0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
)
"""Characters that move the cursor, change the terminal, break lines, or turn the direction of writing around."""

_REPLACED: Final = dict.fromkeys(UNPRINTABLE, "\N{REPLACEMENT CHARACTER}")


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
        except OSError:  # there is no other place for the message
            return memoryview(data).nbytes


def adopt_streams() -> None:
    """Replace sys.stdout and sys.stderr, unless a test has replaced them to capture output.

    A closed stream is opened again with its number. Otherwise the next file or socket would get this number.
    """
    for number, how in _UNUSABLE:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, how)  # gets the lowest free number, which is this one
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Output(_STDOUT, "w", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Messages(_STDERR, "w", closefd=False), sys.stderr)


def read_standard_input() -> bytes:
    """The content of standard input. Raises OSError, also if standard input is closed."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    return sys.stdin.buffer.read()


def printable(text: str) -> str:
    """The text without such characters. Names and texts of manifests and clusters may contain any of them."""
    return text if text.isprintable() else text.translate(_REPLACED)


def abandon_output() -> None:
    """Discard buffered output. Otherwise the interpreter would try to write it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    encoding = before.encoding if before is not None else None
    by_line = raw.fileno() == _STDERR or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=by_line)
