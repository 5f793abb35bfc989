# SPDX-License-Identifier: Apache-2.0
"""The driver's files except libraries: device nodes, programs, configuration of graphics loaders, firmware, daemons.

nvidia-modprobe creates a device node only when a program needs it, /dev/nvidia-uvm often when the first CUDA program
starts. But /proc/devices has the driver's major numbers from the moment a module is loaded. So a spec contains the
numbers, and the runtime creates the node in the container, whether the host has it or not. If the node exists, the spec
also has its mode and group, and the group's number if others may not open the node (DRM nodes are often root:render,
0660), as in internal/edits of nvidia-container-toolkit 1.20. Otherwise a container whose user is not root, or one in a
user namespace, sees the device and cannot open it.

Containers do not always need the other files, so missing ones are left out. Names and places are those of pkg/nvcdi and
internal/discover of nvidia-container-toolkit 1.20.
"""

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dra_driver.process.files import read_file

from ...errors import DriverFilesError
from .root import DriverRoot, Root
from .spec import ContainerEdits, DeviceNode, Mount

_PERMISSIONS = "rw"
"""Containers only use the nodes; the runtime creates them. So `m` (mknod) is not needed."""

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""Mount options of a file that a container may read and execute."""

SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
"""Mount options of a socket, or of a folder of sockets, that a container may connect to."""

PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin", "/opt/bin")

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)

_CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")

# The key is the folder in which the loaders of every image search. The file may be elsewhere on this node.
_CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
        "X11/xorg.conf.d/10-nvidia.conf",
        "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    ),
    "/etc": ("OpenCL/vendors/nvidia.icd",),
}

_VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_VULKAN_FOLDERS = (*_CONFIG_FOLDERS, "/")
"""GKE's installer creates a folder `vulkan` directly below the driver root."""

DAEMON_PLACES = (
    ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
    ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
    ("/tmp/nvidia-mps",),  # noqa: S108 - the folder of a node-wide MPS daemon, where CUDA looks for it by default
)
"""The sockets of the driver's daemons, preferred places first."""

_INFINIBAND = "/dev/infiniband"

ADDITIONAL_DEVICES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # name: globs of device nodes, and what is mounted if there is such a node
    "gds": (("/dev/nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    "gdrcopy": (("/dev/gdrdrv",), ()),
    "mofed": ((f"{_INFINIBAND}/uverbs*", f"{_INFINIBAND}/rdma_cm"), ()),
    "nvswitch": (("/dev/nvidia-nvswitch*",), ()),
}
"""The devices beside GPUs that a container gets on request, as in internal/discover of nvidia-container-toolkit."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """Edits that were found on a node. `warnings` are messages for the log about missing or unusual files."""

    edits: ContainerEdits
    warnings: tuple[str, ...] = ()


def character_majors(proc: Path) -> Mapping[str, int]:
    """Major number of every character driver in `proc`/devices, by name. Empty if the file is missing."""
    try:
        lines = read_file(f"{proc}/devices").decode().splitlines()
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
    """The device node `path` for a container, or None if there is no such device, and a warning or an empty string.

    If the node is missing or not a device (a simulated one may be a plain file), the numbers are `minor` and the major
    number of the first name of `registered` in `majors`. Without these, the runtime must read the host's node.
    `additional_gids` has the groups that a container needs for the node.
    """
    major = next((majors[name] for name in registered if name in majors), 0)
    numbers = ("c", major, minor) if major else ("", 0, 0)
    try:
        status = os.stat(root.dev.name_here(path))  # noqa: PTH116
    except FileNotFoundError:
        if not major:
            return None, ""
        return DeviceNode(path, "", *numbers, permissions=_PERMISSIONS), ""
    host_path = root.dev.on_host(path)
    if host_path == path:
        host_path = ""  # it needs cdiVersion 0.5.0, so it is given only if it differs
    if not stat.S_ISCHR(status.st_mode):
        node = DeviceNode(path, host_path, *numbers, permissions=_PERMISSIONS)
        return node, f"{root.dev.here(path)} is not a character device"
    found = DeviceNode(
        path,
        host_path,
        "c",
        os.major(status.st_rdev),
        os.minor(status.st_rdev),
        permissions=_PERMISSIONS,
        file_mode=stat.S_IMODE(status.st_mode) or None,
        gid=status.st_gid or None,
    )
    return found, ""


def additional_gids(nodes: Iterable[DeviceNode]) -> tuple[int, ...]:
    """The groups of those `nodes` that only their group may read and write, without root's group and duplicates."""
    everyone = stat.S_IROTH | stat.S_IWOTH
    restricted = (node.gid for node in nodes if node.file_mode is not None and node.file_mode & everyone != everyone)
    return tuple(dict.fromkeys(gid for gid in restricted if gid))


def capability_node(proc: Path, capability: str, majors: Mapping[str, int]) -> DeviceNode:
    """The node that grants an NVIDIA capability, such as `gpu0/mig/gi1/access`, to a container.

    It need not exist on the host. Raises DriverFilesError if the driver does not offer the capability.
    """
    file = proc / "driver/nvidia/capabilities" / capability
    try:
        lines = read_file(file).decode().splitlines()
    except FileNotFoundError:
        raise DriverFilesError(
            f"{file} is missing: no such instance exists, or this process does not see the node's /proc/driver/nvidia"
        ) from None
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    major = majors.get("nvidia-caps")
    try:
        minor, mode = int(fields["DeviceFileMinor"]), int(fields.get("DeviceFileMode", 0o444))
    except (KeyError, ValueError):
        raise DriverFilesError(f"{file} does not have the DeviceFileMinor of a device: {lines}") from None
    if major is None:
        raise DriverFilesError(f"{proc / 'devices'} has no entry nvidia-caps: is the nvidia module loaded?")
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return DeviceNode(path, type="c", major=major, minor=minor, file_mode=mode, permissions=_PERMISSIONS)


def find_program(root: Root, name: str, folders: Iterable[str] = PROGRAM_FOLDERS) -> tuple[str, str] | None:
    """(Path, file without links) of the executable `name` in the first of `folders` that has it. None if none
    has it.
    """
    for folder in folders:
        path = posixpath.join(folder, name)
        source = root.resolve(path)
        if source and root.here(source).is_file() and os.access(root.here(source), os.X_OK):
            return path, source
    return None


def program_mounts(root: Root) -> Iterator[Mount]:
    """Mounts of the driver's tools and daemons, at the same paths as on the node."""
    for name in PROGRAMS:
        if found := find_program(root, name):
            path, source = found
            yield Mount(root.on_host(source), path, READ_ONLY)


def config_places(machine: str) -> dict[str, list[str]]:
    """The possible places of each configuration file on a node of `machine` (`uname -m`), best ones first, by the path
    in a container.
    """
    searched = {
        posixpath.join(container_folder, name): [posixpath.join(folder, name) for folder in _CONFIG_FOLDERS]
        for container_folder, names in _CONFIGS.items()
        for name in names
    }
    for name in (*_VULKAN_CONFIGS, f"vulkan/icd.d/nvidia_icd.{machine}.json"):
        searched[f"/etc/{name}"] = [posixpath.join(folder, name) for folder in _VULKAN_FOLDERS]
    return searched


def config_mounts(root: Root, machine: str) -> Iterator[Mount]:
    """Mounts of the files that describe the driver to the EGL, Vulkan, OpenCL and X.Org loaders of a container."""
    for container_path, places in config_places(machine).items():
        if found := _first(root, places):
            _, source = found
            yield Mount(root.on_host(source), container_path, READ_ONLY)


def firmware_folders(sys: Path, version: str, kernel_release: str) -> list[str]:
    """The folders in which kernel `kernel_release` (`uname -r`) searches the GSP firmware of driver `version`, in
    order.

    `sys` is where sysfs is mounted. It has the folder that an administrator may have set.
    """
    try:
        custom = (sys / "module/firmware_class/parameters/path").read_text().strip()
    except FileNotFoundError:
        custom = ""
    folders = [
        *([posixpath.normpath(custom)] if custom.startswith("/") else []),
        f"/lib/firmware/updates/{kernel_release}",
        "/lib/firmware/updates",
        f"/lib/firmware/{kernel_release}",
        "/lib/firmware",
    ]
    return [posixpath.join(folder, "nvidia", version) for folder in dict.fromkeys(folders)]


def firmware_mounts(root: Root, folders: Iterable[str]) -> Iterator[Mount]:
    """Mounts of the GSP firmware in `folders`."""
    for folder in folders:
        source = root.resolve(folder)
        for entry in root.entries(source) if source else ():
            path = posixpath.join(folder, entry.name)
            file = root.resolve(path)
            if file and fnmatchcase(entry.name, "gsp*.bin"):
                yield Mount(root.on_host(file), path, READ_ONLY)


def daemon_mounts(root: Root) -> Iterator[Mount]:
    """Mounts of the sockets of nvidia-persistenced and the Fabric Manager, and of the folder of MPS, if these run."""
    for places in DAEMON_PLACES:
        if found := _first(root, places):
            path, source = found
            yield Mount(root.on_host(source), path, SOCKET)


def _first(root: Root, places: Iterable[str]) -> tuple[str, str] | None:
    """The first of `places` that exists, and its file without links."""
    return next(((place, source) for place in places if (source := root.resolve(place))), None)


def find_additional(root: DriverRoot, name: str) -> Discovered:
    """Edits for the devices `name` of ADDITIONAL_DEVICES. If the node has none of them, a warning and no edits."""
    patterns, mounted = ADDITIONAL_DEVICES[name]
    folder = posixpath.dirname(patterns[0])
    paths = [posixpath.join(folder, entry.name) for entry in root.dev.entries(folder)]
    found = [find_node(root, path, {}) for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)]
    nodes = tuple(node for node, _ in found if node)
    if not nodes:
        return Discovered(ContainerEdits(), (f"{name}: the node has no {' or '.join(patterns)}",))
    mounts = [
        Mount(root.files.on_host(source), path, READ_ONLY) for path in mounted if (source := root.files.resolve(path))
    ]
    edits = ContainerEdits(device_nodes=nodes, mounts=tuple(mounts), additional_gids=additional_gids(nodes))
    return Discovered(edits, tuple(warning for _, warning in found if warning))
