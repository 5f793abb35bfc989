# SPDX-License-Identifier: Apache-2.0
"""Since when the machine runs."""

from pathlib import Path


def boot_id() -> str:
    """The kernel's name for the time since the machine was last started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def boot_time() -> float:
    """When that was, in seconds of the epoch."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
