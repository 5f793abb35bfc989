# SPDX-License-Identifier: Apache-2.0
"""dra-imex-daemon: runs NVIDIA's IMEX daemon, which connects the GPUs of several nodes, in the pods of a ComputeDomain.

`supervisor` is the loop. It reads the other members from the API server (`peers`) and reports the own state there
(`rows`). It writes the files of `nvidia-imex` (`config`, `hosts`), runs the program (`process`), and asks for its state
(`control`). `report` has what a daemon tells the plugin of its node. `main` is the command.
"""

from typing import Final

PEER_PORT: Final = 50000
"""Where a daemon listens for its peers (SERVER_PORT)."""
COMMAND_PORT: Final = 50005
"""Where its command service listens (IMEX_CMD_PORT)."""
