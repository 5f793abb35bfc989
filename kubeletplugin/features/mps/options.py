# SPDX-License-Identifier: Apache-2.0
"""The flag that dra-mps and dra-kubeletplugin share."""

from pathlib import Path
from typing import Final

import click

from dra_driver.names import DRIVER_NAME
from dra_driver.process.command import flag
from dra_driver.process.mps import MEMORY

shared_memory_option: Final = flag(
    "--shared-memory-directory-path",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder in which each MPS daemon has a folder that it shares with its clients as /dev/shm. Only root may"
    f" create names in it. By default {DRIVER_NAME}/mps/{MEMORY} below kubelet's folder for plugins.",
)
"""Passes the folder as `shared_memory_directory_path`, or None (see `shared_memory_in`)."""


def shared_memory_in(mps: Path, configured: Path | None) -> Path:
    """The folder for shared memory, where `mps` is the driver's folder for MPS."""
    return configured.absolute() if configured is not None else mps / MEMORY
