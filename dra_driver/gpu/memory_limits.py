# SPDX-License-Identifier: Apache-2.0
"""Limits of the GPU memory of cgroups, and what a node needs for them.

From driver 615 on, the driver counts the memory of a GPU that the processes of a cgroup (version 2) use, and refuses
more than a limit. A limit applies to the cgroup and ends with it. Limits are set through NVML, never in files of the
kernel. Source: NVIDIA's documentation "MPS v3 Memory Partitioning", which also applies to processes without MPS.

The driver has two ways to do this. With the kernel's controller `dmem` (6.14 and later), limits nest: a cgroup with all
of its descendants stays below its own limit. With the driver's own accounting (`misc`), a process has only the limit
of its nearest cgroup with a limit.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MINIMUM_DRIVER: Final = 615
"""The first major version of the driver with limits."""

NO_LIMIT: Final = (1 << 64) - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""

HOOK_PROGRAM: Final = Path(sys.prefix) / "libexec/dra-memory-limits"
"""The hook program in the image (Dockerfile). Other installations of the driver do not have it."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """nvmlGetMemoryLimits_v1_t, in bytes. `soft` is the memory that a cgroup is guaranteed, `hard` the most that it
    gets, and `used` what it uses now.
    """

    hard: int = NO_LIMIT
    soft: int = 0
    used: int = 0


def problem_of_node(sys_root: Path, program: Path) -> str | None:
    """Why this node cannot set limits of GPU memory, or None if it can. `sys_root` is where sysfs is mounted.

    Both node processes find out the same, because they run in the same image on the same node. Whether the NVIDIA
    driver has limits for a GPU is a fact of the GPU (`facts.Gpu.memory_limits`).
    """
    if not program.is_file():
        return f"this installation has no hook program {program}; use the driver's image"
    if not (cgroup_root(sys_root) / "cgroup.controllers").exists():
        return f"{cgroup_root(sys_root)} is not cgroup version 2, which limits of GPU memory need"
    return None


def cgroup_root(sys_root: Path) -> Path:
    """Where cgroups are mounted, below the mount of sysfs."""
    return sys_root / "fs/cgroup"
