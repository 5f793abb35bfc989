# SPDX-License-Identifier: Apache-2.0
"""Simulated IMEX: the programs in the driver root of a simulated node (see `imex_programs`), and their faults."""

import shutil
import sys
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("nvidia-imex", "nvidia-imex-ctl")


def imex_program() -> str:
    """The script for both programs. Write it to usr/bin of a driver root whose parent folder contains `state`."""
    folder = str(Path(__file__).parent)
    start = f"#!{sys.executable} -IS\nimport sys\nsys.path.append({folder!r})\n"
    return f"{start}import imex_programs\nimex_programs.main()\n"


def install_imex(root: Path) -> None:
    """Install both programs in a driver root."""
    for name in PROGRAMS:
        path = root / "usr/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(imex_program(), encoding="utf-8")
        path.chmod(0o755)


class SimulatedImex:
    """Makes the simulated IMEX of a node fail, with files in `folder` (`state/imex` beside the driver root)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fail_start(self, text: str) -> None:
        """Let daemons print this text and end at their start, until `mend`."""
        self._write("start-fails", text)

    def stay(self, state: str) -> None:
        """Let the daemon stay in a state such as WAITING_FOR_RECOVERY, until `mend`."""
        self._write("state", state)

    def hang(self, what: str) -> None:
        """Let the daemon ignore SIGTERM (`end`), or not answer the command service (`control`), until `mend`."""
        self._write(f"{what}-hangs", "")

    def partition(self, *peers: int) -> None:
        """Let no message pass to and from these node IDs, until `mend`."""
        self._write("partition", "\n".join(map(str, peers)))

    def mend(self) -> None:
        """Remove all faults."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_text(text, encoding="utf-8")
