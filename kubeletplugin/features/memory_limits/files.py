# SPDX-License-Identifier: Apache-2.0
"""The hook for a device whose memory is limited: where the hook program and its socket are, and the edit of the CDI
spec.

Both paths are the same on the host and in the plugin's container, because the folder of the plugin is mounted there at
its own path.
"""

from dataclasses import dataclass
from pathlib import Path

from dra_driver.process.files import make_folder, read_file, write_file

from ...containers import cdi
from ...containers.cdi.spec import Hook
from ...node.node import Node

PROGRAM_MODE = 0o755


@dataclass(frozen=True, slots=True)
class LimitFiles:
    """The files for limits of memory in their folder, which `dra-kubeletplugin cleanup` removes."""

    folder: Path

    @property
    def program(self) -> Path:
        """The hook program on the host."""
        return self.folder / "dra-memory-limits"

    @property
    def socket(self) -> Path:
        """The socket on which the plugin answers the hook."""
        return self.folder / "hook.sock"

    @property
    def claims(self) -> Path:
        """The folder with a file for each claim in use."""
        return self.folder / "claims"

    def install(self, program: Path) -> None:
        """Copy the hook program to the host, unless the same program is there. A process that executes the old one is
        not affected. Raises OSError.
        """
        make_folder(self.folder)
        wanted = read_file(program)
        try:
            same = read_file(self.program) == wanted and self.program.stat().st_mode & 0o777 == PROGRAM_MODE
        except (OSError, ValueError):
            same = False
        if not same:
            write_file(self.program, wanted, self.folder / ".program.new", mode=PROGRAM_MODE)

    def edits(self, claim_uid: str, device: str) -> cdi.ContainerEdits:
        """The edit for a device of the claim, by its name in the claim's CDI spec. The container starts only after the
        plugin has set its limit.
        """
        arguments = (self.program.name, str(self.socket), claim_uid, device)
        return cdi.ContainerEdits(hooks=(Hook("createRuntime", str(self.program), arguments),))


def limit_files(node: Node) -> LimitFiles:
    """The files for limits of memory on the node."""
    return LimitFiles(node.folders.folder / "memory-limits")
