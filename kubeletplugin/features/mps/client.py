# SPDX-License-Identifier: Apache-2.0
"""The client with which the plugin sends requests to dra-mps."""

import json
import socket
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from dra_driver.errors import MpsError

from ...errors import SupervisorAwayError
from .server import SOCKET
from .supervisor import Status

SETTLE_SECONDS: Final = 20.0
"""The time limit for starting or ending a daemon. It is shorter than the time limit of a step on a GPU."""
_STATUS_SECONDS: Final = 2.0


class SupervisorClient:
    """A client of the dra-mps whose socket is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET

    def settle(self, server: str, seconds: float = SETTLE_SECONDS) -> None:
        """Let dra-mps apply the share files of a group of devices. Raises SupervisorAwayError or MpsError."""
        answer = self._ask({"settle": server}, seconds)
        if "error" in answer:
            raise MpsError(str(answer["error"]))

    def statuses(self) -> dict[str, Status]:
        """The status of every group of devices. Raises SupervisorAwayError or MpsError."""
        answer = self._ask({"status": True}, _STATUS_SECONDS)
        try:
            return {name: _status(status) for name, status in answer["servers"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise MpsError(f"dra-mps at {self._path} answers something else: {error!r}") from None

    def _ask(self, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            try:
                connection.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError) as error:
                raise SupervisorAwayError(f"no dra-mps answers at {self._path}: {error.strerror}") from None
            try:
                connection.sendall(json.dumps(asked).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    line = lines.readline()
            except TimeoutError:
                raise MpsError(f"dra-mps did not answer within {seconds:g} s") from None
            except OSError as error:
                raise SupervisorAwayError(f"dra-mps ended before it answered: {error.strerror}") from None
        if not line:
            raise SupervisorAwayError("dra-mps ended before it answered")
        try:
            answer = json.loads(line)
        except ValueError:
            raise MpsError(f"dra-mps at {self._path} answers something else: {line[:100]!r}") from None
        return answer if isinstance(answer, dict) else {}


def _status(value: dict[str, Any]) -> Status:
    """A status without fields of later versions: the plugin may be older or newer than dra-mps."""
    return Status(**{field.name: value[field.name] for field in fields(Status) if field.name in value})
