# SPDX-License-Identifier: Apache-2.0
"""MPS protocol 2, with one control daemon for each group of devices.

A daemon has one set of limits, which its servers read when they start. So all shares of a group must have the same
limits, and other limits need a new daemon. The limit of a MIG device is set for its UUID and for its ordinal (0, as the
daemon sees only this device), because drivers accept the UUID of a MIG device but do not enforce its limit. The
container also gets a variable with the limit (`kubeletplugin.containers.mps`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dra_driver.errors import MpsError
from dra_driver.process.programs import excerpt

from .daemon import Command, ControlDaemon
from .memory import SharedMemory
from .program import Program
from .selinux import let_containers_use
from .shares import MpsShare, trash_in

_PROBE: Final = Command((), "get_default_active_thread_percentage\n")
_QUIT: Final = Command((), "quit\n")
_MIG: Final = "MIG-"
_MOST_SHOWN: Final = 100


class Protocol2:
    """The daemons of the groups, in folders below `folder`. A group must be used by one thread at a time. The shared
    memory of a group is a folder in `shared_memory`.
    """

    def __init__(self, program: Program, folder: Path, shared_memory: Path) -> None:
        self._program = program
        self._folder = folder
        self._memory = SharedMemory(shared_memory, program.private, trash_in(folder))
        self._daemons: dict[str, tuple[MpsShare, ControlDaemon]] = {}

    def serves(self, server: str, shares: Mapping[str, MpsShare]) -> bool:
        """Whether a daemon runs that serves these shares."""
        share, daemon = self._daemons.get(server, (None, None))
        return daemon is not None and daemon.is_running() and all(wanted == share for wanted in shares.values())

    def runs(self, server: str) -> bool:
        """Whether a daemon runs, with any limits."""
        return server in self._daemons and self._daemons[server][1].is_running()

    def pid(self, server: str) -> int | None:
        """The process of the daemon, if it runs."""
        return self._daemons[server][1].pid if server in self._daemons else None

    def answers(self, server: str, seconds: float) -> None:
        """Check that the daemon answers a command in time. Raises MpsError or ProgramError if it does not."""
        self._daemons[server][1].ask(_PROBE, seconds)

    def publish(self, server: str) -> None:
        """Show containers the sockets of the daemon again, if they are gone. Raises OSError."""
        self._daemons[server][1].publish()

    def serve(self, server: str, shares: Mapping[str, MpsShare]) -> None:
        """Serve the shares. Raises MpsError, ProgramError or OSError, after which none of them is served."""
        if self.serves(server, shares):
            return
        share, *others = shares.values()
        if any(other != share for other in others):
            raise MpsError("shares of one device have one MPS daemon, and must have the same limits")
        if server in self._daemons:
            self.end(server)
        daemon = self._daemon(server, share)
        self._daemons[server] = share, daemon  # even if it does not start: what remains of it is ended before the next
        said = daemon.start(_limits(share), _PROBE).strip().rpartition("\n")[2]
        if share.percentage is not None and _number(said) != share.percentage:
            self.end(server)
            raise MpsError(
                f"{daemon}: the active thread percentage is '{excerpt(said, _MOST_SHOWN)}' after it was set to"
                f" {share.percentage}"
            )

    def end(self, server: str) -> None:
        """End the daemon of a group, even one that an earlier process has started. Keeps its folder. Raises MpsError or
        OSError.
        """
        _, daemon = self._daemons.get(server, (None, None))
        if daemon is None:
            daemon = ControlDaemon(self._program, self._folder / server, _name(()))
        daemon.stop(_QUIT)
        self._daemons.pop(server, None)

    def discard(self, server: str) -> None:
        """Remove the shared memory of a group whose daemon has ended. Raises MpsError, ProgramError or OSError."""
        self._memory.discard(server)

    def _daemon(self, server: str, share: MpsShare) -> ControlDaemon:
        arguments = ["-f", *(["-multiuser-server"] if share.multi_user else [])]
        memory = None
        if share.shared_memory:
            memory = self._memory.provide(server)
            let_containers_use(memory)
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(share.devices)}
        return ControlDaemon(self._program, self._folder / server, _name(share.devices), arguments, environment, memory)


def _name(devices: Sequence[str]) -> str:
    return f"the MPS control daemon of {', '.join(devices) or 'an earlier dra-mps'}"


def _limits(share: MpsShare) -> Command:
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
