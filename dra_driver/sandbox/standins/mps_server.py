# SPDX-License-Identifier: Apache-2.0
"""The simulated nvidia-cuda-mps-server, a process that sleeps until it is killed."""

import time

_HOURS = 3600.0


def main() -> None:
    """Entry point."""
    while True:
        time.sleep(_HOURS)
