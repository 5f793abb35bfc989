# SPDX-License-Identifier: Apache-2.0
"""MPS of a simulated node: the programs in its driver root (see `mps_control`), their faults, and their clients."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def mps_program() -> str:
    """The program, for either name. It belongs in usr/bin of a driver root that has `state` beside it."""
    folder = str(Path(__file__).parent)
    return f"#!{sys.executable} -IS\nimport sys\nsys.path.append({folder!r})\nimport mps_control\nmps_control.main()\n"


class RefusedClientError(Exception):
    """A CUDA program is not served; the text is CUDA's."""


class SimulatedMps:
    """How MPS is made to fail, by files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> None:
        """Begin without faults."""
        self._folder.mkdir(parents=True)

    def fail_start(self, text: str) -> None:
        """From now on daemons print this and end."""
        (self._folder / "start-fails").write_text(text, encoding="utf-8")

    def hang_start(self) -> None:
        """From now on daemons that are started do nothing."""
        (self._folder / "start-hangs").touch()

    def fail(self, command: str, text: str) -> None:
        """From now on this command prints this and fails."""
        (self._folder / f"fail-{command}").write_text(text, encoding="utf-8")

    def hang(self, command: str) -> None:
        """From now on this command gets no answer."""
        (self._folder / f"hang-{command}").touch()

    def mend(self) -> None:
        """Everything works again."""
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)


def connect(pipe: Path, uid: int = 0, pid: int = 0) -> dict[str, Any]:
    """Be a CUDA program with this pipe directory: the limits that it gets, and the `server`'s process. Raises
    RefusedClientError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        folder = os.open(pipe, os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{folder}/control")
        except OSError:
            raise RefusedClientError("CUDA_ERROR_MPS_CONNECTION_FAILED") from None
        finally:
            os.close(folder)
        connection.settimeout(60.0)
        connection.send(json.dumps({"client": pid or os.getpid(), "uid": uid}).encode())
        answer: dict[str, Any] = json.loads(connection.recv(1 << 16))
    if answer.pop("code"):
        raise RefusedClientError(answer["text"])
    return answer
