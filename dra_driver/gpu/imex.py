# SPDX-License-Identifier: Apache-2.0
"""The node as a part of a multi-node NVLink system: its IMEX channels, and the fabric that its GPUs have joined.

An IMEX channel is a character device, and the right to use memory of other nodes' GPUs. The kernel module registers the
channels under a major number of its own, which differs from node to node, and makes no device nodes. So a container
gets a node with explicit numbers. The formats are those of kernel-open/nvidia/nv-caps-imex.c and nv-caps.c in
NVIDIA/open-gpu-kernel-modules.
"""

import enum
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import ImexFilesError
from .facts import Gpu, Inventory
from .nvml import Fabric, FabricState

CHANNELS_FOLDER: Final = "/dev/nvidia-caps-imex-channels"
CAPABILITIES_FOLDER: Final = "/dev/nvidia-caps"
MANAGEMENT: Final = "driver/nvidia/capabilities/fabric-imex-mgmt"
"""The capability of the IMEX daemon, below /proc."""

_CHANNELS_DRIVER: Final = "nvidia-caps-imex-channels"
_CAPABILITIES_DRIVER: Final = "nvidia-caps"
_PARAMETERS: Final = "driver/nvidia/params"
_COUNT: Final = "ImexChannelCount"
_DEFAULT_COUNT: Final = 2048
_MOST_CHANNELS: Final = 1 << 20
_NO_CLUSTER: Final = str(uuid.UUID(int=0))


@dataclass(frozen=True, slots=True)
class Channels:
    """The IMEX channels of the node: their major number, and how many there are. The minor number is the channel's."""

    major: int
    count: int


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """The numbers of a character device."""

    major: int
    minor: int


def read_channels(proc_root: Path) -> Channels | None:
    """The channels of the node whose /proc is `proc_root`, or None without channels: the NVIDIA driver is not loaded,
    is too old, or its parameter NVreg_ImexChannelCount is 0. Raises ImexFilesError.
    """
    major = _major(proc_root, _CHANNELS_DRIVER)
    if major is None:
        return None
    count = _fields(proc_root / _PARAMETERS).get(_COUNT)
    number = _DEFAULT_COUNT if count is None else _number(proc_root / _PARAMETERS, _COUNT, count)
    if number > _MOST_CHANNELS:
        raise ImexFilesError(f"{proc_root / _PARAMETERS}: {_COUNT} is {number}, more than {_MOST_CHANNELS}")
    return Channels(major, number) if number else None


def read_management(proc_root: Path) -> DeviceNumbers | None:
    """The device of the capability that an IMEX daemon needs, or None if the driver does not offer it. Raises
    ImexFilesError.
    """
    fields = _fields(proc_root / MANAGEMENT)
    major = _major(proc_root, _CAPABILITIES_DRIVER)
    if not fields or major is None:
        return None
    name = "DeviceFileMinor"
    return DeviceNumbers(major, _number(proc_root / MANAGEMENT, name, fields.get(name, "")))


def _major(proc_root: Path, driver: str) -> int | None:
    """The major number of a character driver."""
    characters = _text(proc_root / "devices").partition("Block devices")[0]
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        if name.strip() == driver and number.isdigit():
            return int(number)
    return None


def _fields(path: Path) -> dict[str, str]:
    """The lines `name: value` of a file. Empty if the file does not exist."""
    parts = (line.partition(":") for line in _text(path).splitlines())
    return {name.strip(): value.strip() for name, colon, value in parts if colon}


def _number(path: Path, name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ImexFilesError(f"{path}: {name} is {value!r}, which is not a number")
    return int(value)


def _text(path: Path) -> str:
    """The content of a file. Empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ImexFilesError(f"{path} cannot be read: {error.strerror}") from error


class FabricProgress(enum.StrEnum):
    """How far the GPUs of a node are with joining a fabric that leaves the node."""

    NONE = "none"
    IN_PROGRESS = "in-progress"
    FAILED = "failed"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """The fabric of a node. `clique` (`<cluster uuid>.<clique>`) is set only if the progress is COMPLETED. `problem`
    tells why the node has no clique yet, and is set for IN_PROGRESS and FAILED.
    """

    progress: FabricProgress
    clique: str = ""
    problem: str = ""


def clique_of(fabric: Fabric | None) -> str | None:
    """The clique of a GPU: `<cluster uuid>.<clique>`. None if the GPU has not joined a fabric, failed to join, or the
    fabric does not leave the node.
    """
    if fabric is None or fabric.state is not FabricState.COMPLETED or fabric.status != 0:
        return None
    return f"{fabric.cluster_uuid}.{fabric.clique}" if fabric.cluster_uuid not in ("", _NO_CLUSTER) else None


def fabric_of(inventory: Inventory) -> NodeFabric:
    """The fabric of the node with these GPUs.

    In a system whose NVLink does not leave the node, GPUs outside of an active partition never complete the
    registration. Such a system is recognized by the partitions of its own Fabric Manager, or by a GPU that has
    completed the registration without a cluster. It has no clique, and that is no problem.
    """
    members = [gpu for gpu in inventory.gpus if gpu.fabric is not None and not _is_left_out(gpu)]
    cliques = {clique: gpu for gpu in members if (clique := clique_of(gpu.fabric))}
    if not cliques and (inventory.switches.partitions or any(map(_is_local, members))):
        return NodeFabric(FabricProgress.NONE)
    waiting = [member for member in members if member.fabric and member.fabric.state is not FabricState.COMPLETED]
    failed = [member for member in members if member not in waiting and member.fabric and member.fabric.status != 0]
    if failed:
        statuses = ", ".join(f"GPU {gpu.index}: status {gpu.fabric.status}" for gpu in failed if gpu.fabric)
        return NodeFabric(FabricProgress.FAILED, problem=f"GPUs could not join the NVLink fabric ({statuses})")
    if waiting:
        indices = ", ".join(f"GPU {gpu.index}" for gpu in waiting)
        return NodeFabric(FabricProgress.IN_PROGRESS, problem=f"not yet in the NVLink fabric: {indices}")
    if len(cliques) > 1:
        places = ", ".join(f"GPU {gpu.index}: {clique}" for clique, gpu in sorted(cliques.items()))
        return NodeFabric(FabricProgress.FAILED, problem=f"the GPUs of the node are in several cliques ({places})")
    return NodeFabric(FabricProgress.COMPLETED, *cliques) if cliques else NodeFabric(FabricProgress.NONE)


def _is_left_out(gpu: Gpu) -> bool:
    """Whether the GPU takes no part in a fabric: in MIG mode it has no NVLink."""
    return gpu.in_mig_mode and clique_of(gpu.fabric) is None


def _is_local(gpu: Gpu) -> bool:
    """Whether the GPU has joined a fabric that does not leave the node."""
    fabric = gpu.fabric
    completed = fabric is not None and fabric.state is FabricState.COMPLETED and fabric.status == 0
    return completed and clique_of(fabric) is None
