# SPDX-License-Identifier: Apache-2.0
"""MPS protocol 3 (driver 615 and newer): one control daemon for the node, and a server for each group of devices.

Each share has a namespace of the server, with its own limits and its own pipe directory. The daemon runs in multi-user
mode, because a server otherwise belongs to one user, and the users of a claim's containers are not known before they
run. The limits of a server apply only to its default namespace, which no container uses. If a device does not exist,
the server is created without an error and then ends, and its clients would run without MPS. So this module checks after
each creation that the server exists.
"""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dra_driver.errors import MpsError, ProgramError
from dra_driver.process.mps import PIPE

from ...errors import ServerGoneError
from .daemon import Command, ControlDaemon, DaemonLimits
from .program import Program
from .shares import NODE_DAEMON, MpsShare, trash_in

log = logging.getLogger(__name__)

_NAME: Final = "the MPS control daemon of this node"
_PROBE: Final = Command(("server", "list", "--format=csv,noheader"))
_QUIT: Final = Command(("-q",))


class Protocol3:
    """The daemon of the node, in a folder below `folder`. A group must be used by one thread at a time."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._daemon = ControlDaemon(program, folder / NODE_DAEMON, _NAME, ("-f", "-p", "3", "-m"))
        self._trash = trash_in(folder)
        self._lock = threading.Lock()
        self._served: dict[str, dict[str, MpsShare]] = {}

    def serves(self, server: str, shares: Mapping[str, MpsShare]) -> bool:
        """Whether exactly these shares of the group are served."""
        return self._daemon.is_running() and self._served.get(server) == dict(shares)

    def runs(self, server: str) -> bool:
        """Whether a server of the group was created and the daemon runs."""
        return self._daemon.is_running() and server in self._served

    def pid(self, server: str) -> int | None:
        """The process of the daemon, if it runs and has a server of the group."""
        return self._daemon.pid if server in self._served else None

    def answers(self, server: str, seconds: float) -> None:
        """Check that the daemon answers in time and has this server. Raises MpsError or ProgramError."""
        self._require_listed(server, seconds)

    def publish(self, server: str) -> None:
        """Show containers the sockets of the daemon again, if they are gone. Raises OSError."""
        self._daemon.publish()

    def serve(self, server: str, shares: Mapping[str, MpsShare]) -> None:
        """Serve exactly these shares of the group. Raises MpsError, ProgramError or OSError."""
        with self._lock:
            devices = next(iter(shares.values())).devices
            create = Command(("server", "create", server, f"--allowed-devices={','.join(devices)}"))
            if not self._daemon.is_running():
                self._served.clear()  # a new daemon has no servers
                self._daemon.start(create, _PROBE)
            elif server not in self._served:
                self._daemon.ask(create)
            served = self._served.setdefault(server, {})
            for key in [key for key, share in served.items() if shares.get(key) != share]:
                self._daemon.ask(Command(("namespace", "delete", key, f"--server={server}")))
                del served[key]
            for key, share in shares.items():
                if key not in served:
                    self._daemon.ask(Command(("namespace", "create", key, f"--server={server}", *_limits(share))))
                    served[key] = share
            self._require_listed(server, DaemonLimits.COMMAND)
            self._daemon.publish()

    def end(self, server: str) -> None:
        """End the server of a group, and also the daemon if there is no other server. Raises MpsError or OSError."""
        with self._lock:
            if server in self._served and self._daemon.is_running():
                try:
                    self._daemon.ask(Command(("server", "delete", server, "--force")))
                except (MpsError, ProgramError) as error:
                    log.warning("the MPS daemon is ended with all its servers: %s", error, extra={"server": server})
                    self._served.clear()  # the supervisor creates the others again
                    self._daemon.kill()
            self._served.pop(server, None)
            if not self._served:
                self._daemon.stop(_QUIT)

    def discard(self, server: str) -> None:
        """Remove the pipe directories of a group whose server has ended. A container may have filled them, so their
        content is removed later. Raises OSError.
        """
        self._trash.take(self._daemon.pipe_directory / server)

    def _require_listed(self, server: str, seconds: float) -> None:
        listed = [line.partition(",")[0].strip() for line in self._daemon.ask(_PROBE, seconds).splitlines()]
        if server not in listed:
            self._served.pop(server, None)
            raise ServerGoneError(f"MPS server {server} has ended: its devices are not there, or cannot be used")


def _limits(share: MpsShare) -> list[str]:
    """The options of a namespace. All devices of a share have the same memory limit with this protocol."""
    limits = [] if share.percentage is None else [f"--active-thread-percentage={share.percentage}"]
    memory = set(share.memory.values())
    return limits + [f"--pinned-memory-limit={limit}M" for limit in sorted(memory)[:1]]


def namespace_folder(folder: Path, server: str, key: str) -> Path:
    """The path of the pipe directory of a share for this process."""
    return folder / NODE_DAEMON / PIPE / server / key
