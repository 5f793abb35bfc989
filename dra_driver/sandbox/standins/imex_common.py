# SPDX-License-Identifier: Apache-2.0
"""What the simulated nvidia-imex and nvidia-imex-ctl share: the configuration, names of hosts, faults and log lines.

The driver starts nvidia-imex-ctl often. So these two modules import nothing whose import takes time: half of a start
would be that of `json` (with `re`) and `socket` (with `selectors` and `enum`).
"""

import _socket
import os
import sys
import time
from _thread import get_native_id

_ROOT = os.path.realpath(sys.argv[0]).rsplit("/", 3)[0]  # without usr/bin/PROGRAM
STATE = f"{_ROOT.rpartition('/')[0]}/state/imex" if _ROOT else "/var/run/nvidia-imex/state"

ANSWER_SECONDS = 5.0
LOOK_SECONDS = 0.05

STATUS_REQUEST = b'{"command": "status"}\n'
"""Asks the command service of a daemon. The answer is a line with four fields between tabs: the state of the daemon,
its name, the letters of its connections, and its entry in the output of -N -j as JSON.
"""


class ImexRefusedError(Exception):
    """The program prints the text and exits with code 1."""


def fault(name: str) -> str | None:
    """The text of the file of a fault, or None if there is no such file."""
    try:
        return _text(f"{STATE}/{name}")
    except OSError:
        return None


def log(level: str, text: str) -> None:
    """Print a line of the log."""
    stamp = time.strftime("%b %d %Y %H:%M:%S")
    try:
        os.write(2, f"[{stamp}] [{level}] [tid {get_native_id()}] {text}\n".encode())
    except OSError:  # nobody reads it any more
        return


class Config:
    """A configuration file and its node list."""

    def __init__(self, path: str) -> None:
        try:
            pairs = (line.partition("=")[::2] for line in _lines(path) if line and not line.startswith("#"))
            self._values = {key.strip(): value.strip() for key, value in pairs}
            nodes = self.get("IMEX_NODE_CONFIG_FILE", "/etc/nvidia-imex/nodes_config.cfg")
            names = [line.partition("#")[0].strip() for line in _lines(nodes)]
        except OSError as error:
            raise ImexRefusedError(f"Failed to read {error.filename}: {error.strerror}") from None
        self.nodes = [name for name in names if name]

    def get(self, key: str, default: str = "") -> str:
        """A value, or the default if it is missing or empty."""
        return self._values.get(key) or default

    @property
    def control_port(self) -> int:
        """The port of the command service."""
        return int(self.get("IMEX_CMD_PORT", "50005"))


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib takes time, too
        return file.read()


def _lines(path: str) -> list[str]:
    return [line.strip() for line in _text(path).splitlines()]


def resolve(name: str) -> str | None:
    """The address of a host name or address, or None."""
    path = os.environ.get("DRA_SIMULATED_HOSTS_FILE")
    try:
        if not path or name[0].isdigit() or ":" in name:
            found = _socket.getaddrinfo(name.encode(), None, type=_socket.SOCK_STREAM)
            return str(found[0][4][0])
        for line in _lines(path):
            address, *names = line.partition("#")[0].split() or [""]
            if name in names:
                return address
    except OSError:
        return None
    return None


def family(address: str) -> int:
    """The address family of an address."""
    return _socket.AF_INET6 if ":" in address else _socket.AF_INET
