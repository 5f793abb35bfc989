# SPDX-License-Identifier: Apache-2.0
"""Runs a module as a process that does not outlive the one that started it, not even when that is killed.

`python -m dra_driver.sandbox.child MODULE [ARGUMENT...]`, with standard input a pipe of which only the parent has the
other end: that closes when the parent is gone, and counts as SIGTERM.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Become the module."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
