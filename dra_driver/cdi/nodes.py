# SPDX-License-Identifier: Apache-2.0
"""Device nodes of the driver: their numbers from the node itself, or from what the kernel has registered.

nvidia-modprobe makes the nodes only when somebody needs them, /dev/nvidia-uvm often when the first CUDA program
starts, while /proc/devices has the driver's majors from the moment a module is loaded. A spec that gives the numbers
works in both cases: the runtime makes the node in the container.

A node that is there also brings its mode and group, and the group's number where others than its members may not open
it (DRM nodes are often root:render, 0660), as internal/edits of nvidia-container-toolkit 1.19 has it: without them a
container whose user is not root, or one in a user namespace, sees the device and cannot open it.
"""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .root import DriverFilesError, DriverRoot
from .spec import ContainerEdits, DeviceNode

_PERMISSIONS = "rw"
"""Containers use nodes, the runtime makes them: no `m`."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """Edits found on a node. `warnings` are sentences for the log about what is not as on a working GPU node."""

    edits: ContainerEdits
    warnings: tuple[str, ...] = ()


def character_majors(proc: Path) -> Mapping[str, int]:
    """Major number by name of every character driver in `proc`/devices; empty when that file is missing."""
    try:
        lines = (proc / "devices").read_text().splitlines()
    except FileNotFoundError:
        return {}
    majors: dict[str, int] = {}
    for line in lines:
        if line.startswith("Block"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            majors[name] = int(number)
    return majors


def find_node(
    root: DriverRoot, path: str, majors: Mapping[str, int], registered: Sequence[str] = (), minor: int = 0
) -> tuple[DeviceNode | None, str]:
    """The device node `path` of a container, None when there is no such device, and a warning or an empty string.

    When the node is missing or no device (a simulated one may be a plain file), the numbers are `minor` and the major
    of the first name of `registered` that is in `majors`. Without those the runtime has to look at the host's node.
    `additional_gids` tells the groups that a container needs for the node.
    """
    major = next((majors[name] for name in registered if name in majors), 0)
    numbers = ("c", major, minor) if major else ("", 0, 0)
    try:
        status = root.dev.here(path).stat()
    except FileNotFoundError:
        if not major:
            return None, ""
        return DeviceNode(path, "", *numbers, permissions=_PERMISSIONS), ""
    host_path = root.dev.on_host(path)
    # hostPath needs cdiVersion 0.5.0, so it is given only where it says something
    node = DeviceNode(path, host_path if host_path != path else "", *numbers, permissions=_PERMISSIONS)
    if not stat.S_ISCHR(status.st_mode):
        return node, f"{root.dev.here(path)} is not a character device"
    found = replace(
        node,
        type="c",
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        file_mode=stat.S_IMODE(status.st_mode) or None,
        gid=status.st_gid or None,
    )
    return found, ""


def additional_gids(nodes: Iterable[DeviceNode]) -> tuple[int, ...]:
    """The groups whose members alone may read and write some of `nodes`, root's left out, each once."""
    everyone = stat.S_IROTH | stat.S_IWOTH
    restricted = (node.gid for node in nodes if node.file_mode is not None and node.file_mode & everyone != everyone)
    return tuple(dict.fromkeys(gid for gid in restricted if gid))


def capability_node(proc: Path, capability: str, majors: Mapping[str, int]) -> DeviceNode:
    """The node that grants an NVIDIA capability, such as `gpu0/mig/gi1/access`, to a container.

    It need not exist on the host. DriverFilesError when the driver does not offer the capability.
    """
    file = proc / "driver/nvidia/capabilities" / capability
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        raise DriverFilesError(
            f"{file} is missing: no such instance exists, or this process does not see the node's /proc/driver/nvidia"
        ) from None
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    major = majors.get("nvidia-caps")
    try:
        minor, mode = int(fields["DeviceFileMinor"]), int(fields.get("DeviceFileMode", 0o444))
    except (KeyError, ValueError):
        raise DriverFilesError(f"{file} does not tell the DeviceFileMinor of a device: {lines}") from None
    if major is None:
        raise DriverFilesError(f"{proc / 'devices'} has no entry nvidia-caps: is the nvidia module loaded?")
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return DeviceNode(path, type="c", major=major, minor=minor, file_mode=mode, permissions=_PERMISSIONS)
