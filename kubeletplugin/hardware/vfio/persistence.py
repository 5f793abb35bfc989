# SPDX-License-Identifier: Apache-2.0
"""The persistence mode of GPUs, through nvidia-smi of the node.

With persistence mode, nvidia-persistenced or the kernel keeps the GPU open, so it cannot be taken from its driver.
nvidia-smi tells the daemon, if it runs. NVML can do that only where the daemon's socket is.
"""

from typing import Final

from dra_driver.programs import Ended, ProgramError

from .programs import HostPrograms

PROGRAM_SECONDS: Final = 10.0


class PersistenceModes:
    """Persistence modes of GPUs by their PCI addresses. `host` has nvidia-smi."""

    def __init__(self, host: HostPrograms) -> None:
        self._host = host

    def get(self, address: str) -> bool | None:
        """The mode, or None if the GPU has none. Raises ProgramError."""
        ended = self._run(address, "--query-gpu=persistence_mode", "--format=csv,noheader")
        return {"Enabled": True, "Disabled": False}.get(ended.output.strip())

    def set(self, address: str, on: bool) -> None:
        """Set the mode. Raises ProgramError."""
        self._run(address, "-pm", str(int(on)))

    def _run(self, address: str, *arguments: str) -> Ended:
        ended = self._host.run("nvidia-smi", ["-i", address, *arguments], PROGRAM_SECONDS)
        if ended.code:
            raise ProgramError(f"nvidia-smi -i {address} {' '.join(arguments)} {ended}")
        return ended
