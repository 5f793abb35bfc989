# SPDX-License-Identifier: Apache-2.0
"""Simulated MPS: the programs in the driver root of a simulated node (see `mps_control`), their faults and clients."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


def mps_program() -> str:
    """The script for both programs. Write it to usr/bin of a driver root whose parent folder contains `state`."""
    folder = str(Path(__file__).parent)
    return f"#!{sys.executable} -IS\nimport sys\nsys.path.append({folder!r})\nimport mps_control\nmps_control.main()\n"


class RefusedClientError(Exception):
    """MPS does not serve a CUDA program. The text is the error of CUDA."""


class SimulatedMps:
    """Makes the simulated MPS fail, with files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> None:
        """Create the folder, without faults."""
        self._folder.mkdir(parents=True)

    def fail_start(self, text: str) -> None:
        """Let daemons print this text and end at their start, until `mend`."""
        (self._folder / "start-fails").write_text(text, encoding="utf-8")

    def hang_start(self) -> None:
        """Let daemons hang at their start, until `mend`."""
        (self._folder / "start-hangs").touch()

    def fail(self, command: str, text: str) -> None:
        """Let this command print this text and fail, until `mend`."""
        (self._folder / f"fail-{command}").write_text(text, encoding="utf-8")

    def hang(self, command: str) -> None:
        """Let this command hang, until `mend`."""
        (self._folder / f"hang-{command}").touch()

    def mend(self) -> None:
        """Remove all faults."""
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)


def connect(pipe: Path, uid: int = 0, pid: int = 0) -> dict[str, Any]:
    """Connect like a CUDA program with this pipe directory. Returns its limits and the process ID of its `server`.
    Raises RefusedClientError.
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
