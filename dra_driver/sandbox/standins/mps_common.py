# SPDX-License-Identifier: Apache-2.0
"""What the simulated control program and control daemon of MPS share: folders, faults, and the control socket.

The driver starts the control program often. So these modules import nothing whose import takes time (see
`imex_common`).
"""

import os
import sys

PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - the default of the real program
STATE = os.path.realpath(sys.argv[0]).rsplit("/", 4)[0] + "/state"
"""The folder beside the driver root, in which the program is usr/bin/PROGRAM."""

CONTROL = "control"
BUFFER = 1 << 16
SEPARATOR = "\0"
"""Between the protocol and the words of a command. An answer is the exit code, a digit, before the output."""


class MpsRefusedError(Exception):
    """A refused request. The program prints the text and exits with code 1."""


def fault(name: str) -> str | None:
    """The text of the file of a fault, or None if there is no such file."""
    try:
        with open(f"{STATE}/mps/{name}", encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib takes time, too
            return file.read()
    except OSError:
        return None


class WorkingFolder:
    """As a context, changes the working directory, because the path of a socket is limited to 107 characters."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._before = os.open(".", os.O_RDONLY)
        os.chdir(self._folder)

    def __exit__(self, *_error: object) -> None:
        os.fchdir(self._before)
        os.close(self._before)
