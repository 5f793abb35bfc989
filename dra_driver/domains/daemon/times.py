# SPDX-License-Identifier: Apache-2.0
"""The times of dra-imex-daemon that follow from nvidia-imex and from the size of a domain."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DaemonTimes:
    """Times in seconds."""

    settle: float = 5.0
    """How long a changed report waits before it is written to the clique, unless `ready` has changed."""
    look: float = 5.0
    """Between two questions to a daemon that is READY and whose domain does not change."""
    nodes: float = 20.0
    """The limit of nvidia-imex-ctl -N, which waits for peers that do not answer."""
    signal: float = 5.5
    """Between two SIGUSR1. nvidia-imex drops one within five seconds after it has processed the last one, which is a
    moment after that was sent.
    """
    grace: float = 10.0
    """From SIGTERM to the end of nvidia-imex."""
    first_pause: float = 1.0
    """Before a process that ended is started again. The pause grows unless the process ran for a minute."""
    longest_pause: float = 60.0
