# SPDX-License-Identifier: Apache-2.0
"""Run a module in a process that ends with its parent, even if the parent is killed.

Usage: `python -m dra_driver.sandbox.child MODULE [ARGUMENT...]`. Standard input must be a pipe, and only the parent has
its other end. The pipe closes when the parent ends, and this has the effect of SIGTERM.
"""

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Children:
    """Starts such processes. They inherit the descriptor `lock`."""

    def __init__(self, lock: int, create: "Callable[..., subprocess.Popen[bytes]]" = subprocess.Popen) -> None:
        """`create` has the parameters of subprocess.Popen."""
        self._lock = lock
        self._create = create

    def start(
        self, module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Run a module in such a process. It appends its output to `log`.

        Its environment is that of this process, or `environment`. Raises OSError.
        """
        with log.open("ab") as output:
            return self._create(
                (sys.executable, "-m", __name__, module, *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(self._lock,),
                env=environment,
            )


def main() -> None:
    """Run the module as `__main__`."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
