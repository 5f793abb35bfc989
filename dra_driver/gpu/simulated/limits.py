# SPDX-License-Identifier: Apache-2.0
"""Limits of the GPU memory of cgroups in the simulated NVML.

A cgroup is a folder with the file cgroup.controllers, as in cgroup version 2. If the topmost of the cgroups above it
has the controller `dmem`, limits are also in dmem.max and dmem.min, and a cgroup without these files is refused.
Otherwise the driver accounts for itself (`misc`), and limits are only in its own state.
"""

from pathlib import Path

from ..memory_limits import MINIMUM_DRIVER, NO_LIMIT, MemoryLimits
from ..nvml import NvmlError, Return
from .state import BoardState

_CONTROLLERS = "cgroup.controllers"


def require_limits(driver_version: str, call: str) -> None:
    """Raises NvmlError if the library of this driver does not have the call."""
    if not has_limits(driver_version):
        raise NvmlError(Return.FUNCTION_NOT_FOUND, call)


def has_limits(driver_version: str) -> bool:
    """Whether this driver can limit memory."""
    return int(driver_version.partition(".")[0]) >= MINIMUM_DRIVER


def get_limits(state: BoardState, cgroup: str, call: str) -> MemoryLimits:
    """The limits of a cgroup on a GPU. Raises NvmlError."""
    _require_cgroup(cgroup, call)
    hard, soft = state.memory_limits.get(cgroup, (NO_LIMIT, 0))
    return MemoryLimits(hard, soft)


def set_limits(state: BoardState, cgroup: str, limits: MemoryLimits, pci_address: str) -> None:
    """Set the limits of a cgroup on a GPU. Those of cgroups that no longer exist are forgotten. Raises NvmlError."""
    call = "nvmlDeviceSetMemoryLimits_v1"
    folder = _require_cgroup(cgroup, call)
    if limits.soft > limits.hard:
        raise NvmlError(Return.INVALID_ARGUMENT, call, "the soft limit is above the hard limit")
    if "dmem" in (_topmost(folder) / _CONTROLLERS).read_text(encoding="utf-8").split():
        if not (folder / "dmem.max").exists():
            raise NvmlError(Return.NOT_FOUND, call, f"the controller dmem is not enabled for {cgroup}")
        for name, value in (("dmem.max", limits.hard), ("dmem.min", limits.soft)):
            text = "max" if value == NO_LIMIT else str(value)
            (folder / name).write_text(f"nvidia/{pci_address}/vidmem {text}\n", encoding="utf-8")
    state.memory_limits = {path: kept for path, kept in state.memory_limits.items() if Path(path).is_dir()}
    state.memory_limits.pop(cgroup, None)
    if (limits.hard, limits.soft) != (NO_LIMIT, 0):
        state.memory_limits[cgroup] = [limits.hard, limits.soft]


def _require_cgroup(cgroup: str, call: str) -> Path:
    folder = Path(cgroup)
    if not folder.is_absolute() or not folder.is_dir():
        raise NvmlError(Return.INVALID_ARGUMENT, call, f"{cgroup} is not the full path of a folder")
    if not (folder / _CONTROLLERS).is_file():
        raise NvmlError(Return.NOT_SUPPORTED, call, f"{cgroup} is not a cgroup of version 2")
    return folder


def _topmost(folder: Path) -> Path:
    return [parent for parent in (folder, *folder.parents) if (parent / _CONTROLLERS).is_file()][-1]
