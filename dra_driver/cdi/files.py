# SPDX-License-Identifier: Apache-2.0
"""What of the driver is no library: programs, configuration of the graphics loaders, GSP firmware, daemons.

None of it is needed by every container, so what is missing is left out. The names and places are those of pkg/nvcdi
and internal/discover of nvidia-container-toolkit 1.19.
"""

import os
import posixpath
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from .root import Root
from .spec import Mount

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""Options of a file that a container may read and run."""

SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
"""Options of a socket, or of a folder of sockets, that a container may connect to."""

PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin", "/opt/bin")

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)

_CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")

# the folder is where the loaders of every image look, wherever the file is on this node
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
"""GKE's installer puts a folder `vulkan` right below the driver root."""

DAEMON_PLACES = (
    ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket"),
    ("/run/nvidia-fabricmanager/socket", "/var/run/nvidia-fabricmanager/socket"),
    ("/tmp/nvidia-mps",),  # noqa: S108 - the folder of a node-wide MPS daemon, where CUDA looks for it by default
)
"""Where the driver's daemons listen, the place to prefer first."""


def find_program(root: Root, name: str, folders: Iterable[str] = PROGRAM_FOLDERS) -> tuple[str, str] | None:
    """Where in `folders` the executable `name` is, and the file itself without links; None when it is nowhere."""
    for folder in folders:
        path = posixpath.join(folder, name)
        source = root.resolve(path)
        if source and root.here(source).is_file() and os.access(root.here(source), os.X_OK):
            return path, source
    return None


def program_mounts(root: Root) -> Iterator[Mount]:
    """The driver's tools and daemons, each where the node has it."""
    for name in PROGRAMS:
        if found := find_program(root, name):
            path, source = found
            yield Mount(root.on_host(source), path, READ_ONLY)


def config_places(machine: str) -> dict[str, list[str]]:
    """Where a node of `machine` (`uname -m`) may have each configuration file, best place first, by where a container
    has it.
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
    """What tells the EGL, Vulkan, OpenCL and X.Org loaders of a container about the driver."""
    for container_path, places in config_places(machine).items():
        if found := _first(root, places):
            _, source = found
            yield Mount(root.on_host(source), container_path, READ_ONLY)


def firmware_folders(sys: Path, version: str, kernel_release: str) -> list[str]:
    """Where kernel `kernel_release` (`uname -r`) looks for the GSP firmware of driver `version`, first place first.

    `sys` tells of a folder that an administrator set.
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
    """The GSP firmware in `folders`."""
    for folder in folders:
        source = root.resolve(folder)
        for entry in root.entries(source) if source else ():
            path = posixpath.join(folder, entry.name)
            file = root.resolve(path)
            if file and fnmatchcase(entry.name, "gsp*.bin"):
                yield Mount(root.on_host(file), path, READ_ONLY)


def daemon_mounts(root: Root) -> Iterator[Mount]:
    """The sockets of nvidia-persistenced and the Fabric Manager and the folder of MPS, while those run."""
    for places in DAEMON_PLACES:
        if found := _first(root, places):
            path, source = found
            yield Mount(root.on_host(source), path, SOCKET)


def _first(root: Root, places: Iterable[str]) -> tuple[str, str] | None:
    """The first of `places` where something is, and what it is without links."""
    return next(((place, source) for place in places if (source := root.resolve(place))), None)
