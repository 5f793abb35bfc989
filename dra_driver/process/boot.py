# SPDX-License-Identifier: Apache-2.0
"""The last boot of the machine."""

from pathlib import Path


def boot_id() -> str:
    """The kernel's ID of the last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def boot_time() -> float:
    """The time of the last boot, in seconds since the epoch."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
