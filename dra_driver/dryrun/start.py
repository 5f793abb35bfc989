# SPDX-License-Identifier: Apache-2.0
"""The entry point of the dra-dryrun program: Ctrl-C ends it quietly also while its modules are loaded."""

import os
import signal


def main() -> None:
    """Runs the command."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from .main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
