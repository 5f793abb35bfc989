# SPDX-License-Identifier: Apache-2.0
"""The flag that dra-mps and dra-kubeletplugin share."""

from pathlib import Path
from typing import Final

import click

from ..command import flag

shared_memory_option: Final = flag(
    "--shared-memory-directory-path",
    type=click.Path(file_okay=False, path_type=Path),
    default="/dev/shm",  # noqa: S108 - the node's own
    help="The node's /dev/shm, in which each MPS daemon has a folder that it shares with its clients.",
)
"""Passes the folder as `shared_memory_directory_path`."""
