# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's IMEX daemon, which connects the GPUs of several nodes, as a part of a ComputeDomain.

`report` has what a daemon tells the plugin of its node. `main` is the process dra-imex-daemon, which runs in the pods
of a domain's DaemonSet.
"""

from typing import Final

PEER_PORT: Final = 50000
"""Where a daemon listens for its peers (SERVER_PORT)."""
COMMAND_PORT: Final = 50005
"""Where its command service listens (IMEX_CMD_PORT)."""
