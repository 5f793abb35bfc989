# SPDX-License-Identifier: Apache-2.0
"""The entry point of the dra-dryrun program. Ctrl-C ends it without a traceback, whatever it is doing."""

import os
import signal
import sys

from . import INTERRUPTED


def main() -> None:
    """Runs the command. Before its modules are loaded, and after it has ended, Ctrl-C ends the process at once."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from .main import main as run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
