# SPDX-License-Identifier: Apache-2.0
"""MPS protocol 2, with one control daemon for each group of devices.

A daemon has one set of limits, which its servers read when they start. So all shares of a group must have the same
limits, and other limits need a new daemon. The limit of a MIG device is set for its UUID and for its ordinal (0, as the
daemon sees only this device), because drivers accept the UUID of a MIG device but do not enforce its limit. The
container also gets a variable with the limit (`kubeletplugin.containers.mps`).
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .daemon import Command, Daemon
from .errors import MpsError
from .program import Program
from .shares import Share

_PROBE: Final = Command((), "get_default_active_thread_percentage\n")
_QUIT: Final = Command((), "quit\n")
_MIG: Final = "MIG-"


class Protocol2:
    """The daemons of the groups, in folders below `folder`. A group must be used by one thread at a time. The shared
    memory of a group is a folder in `shared_memory`.
    """

    def __init__(self, program: Program, folder: Path, shared_memory: Path) -> None:
        self._program = program
        self._folder = folder
        self._shared_memory = shared_memory
        self._daemons: dict[str, tuple[Share, Daemon]] = {}

    def serves(self, server: str, shares: Mapping[str, Share]) -> bool:
        """Whether a daemon runs that serves these shares."""
        share, daemon = self._daemons.get(server, (None, None))
        return daemon is not None and daemon.is_running() and all(one == share for one in shares.values())

    def runs(self, server: str) -> bool:
        """Whether a daemon runs, with any limits."""
        return server in self._daemons and self._daemons[server][1].is_running()

    def answers(self, server: str) -> None:
        """Check that the daemon answers a command. Raises MpsError or ProgramError if it does not."""
        self._daemons[server][1].ask(_PROBE)

    def serve(self, server: str, shares: Mapping[str, Share]) -> None:
        """Serve the shares. Raises MpsError, ProgramError or OSError, after which none of them is served."""
        if self.serves(server, shares):
            return
        share, *others = shares.values()
        if any(one != share for one in others):
            raise MpsError("shares of one device have one MPS daemon, and must have the same limits")
        if server in self._daemons:
            self.end(server)
        daemon = self._daemon(server, share)
        self._daemons[server] = share, daemon  # even if it does not start: what remains of it is ended before the next
        said = daemon.start(_limits(share), _PROBE).strip().rpartition("\n")[2]
        if share.percentage is not None and _number(said) != share.percentage:
            self.end(server)
            raise MpsError(f"the active thread percentage is {said!r} after it was set to {share.percentage}")

    def end(self, server: str) -> None:
        """End the daemon of a group, even one that an earlier process has started. Keeps its folder. Raises MpsError or
        OSError.
        """
        _, daemon = self._daemons.get(server, (None, None))
        if daemon is None:
            daemon = Daemon(self._program, self._folder / server, (), {})
        daemon.stop(_QUIT)
        self._daemons.pop(server, None)

    def discard(self, server: str) -> None:
        """Remove the shared memory of a group whose daemon has ended. Raises OSError."""
        shutil.rmtree(shared_memory_folder(self._shared_memory, server), ignore_errors=True)

    def _daemon(self, server: str, share: Share) -> Daemon:
        arguments = ["-f", *(["-multiuser-server"] if share.multi_user else [])]
        memory = shared_memory_folder(self._shared_memory, server) if share.shared_memory else None
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(share.devices)}
        return Daemon(self._program, self._folder / server, arguments, environment, memory)


def shared_memory_folder(root: Path, server: str) -> Path:
    """The folder that is mounted as /dev/shm for the clients and the daemon of a group."""
    return root / f"dra-mps-{server}"


def _limits(share: Share) -> Command:
    """The commands that set the limits, which must be done before a server starts. The last line of their output is the
    percentage.
    """
    commands = [
        f"set_default_device_pinned_mem_limit {device} {limit}M\n"
        for uuid, limit in share.memory.items()
        for device in ((uuid, "0") if uuid.startswith(_MIG) else (uuid,))
    ]
    if share.percentage is not None:
        commands.append(f"set_default_active_thread_percentage {share.percentage}\n")
    return Command((), "".join([*commands, _PROBE.text]))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
