# SPDX-License-Identifier: Apache-2.0
"""What of the driver is no library: programs, configuration of the graphics loaders, GSP firmware, sockets.

None of it is needed by every container, so what is missing is left out. The names and places are those of pkg/nvcdi
and internal/discover of nvidia-container-toolkit 1.19.
"""

import os
import posixpath
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from .root import Root
from .spec import Mount

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""Options of a file that a container may read and run."""

SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
"""Options of a socket that a container may connect to."""

PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin", "/opt/bin")

_PROGRAMS = (
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
    "/etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_icd.x86_64.json",
        "vulkan/icd.d/nvidia_icd.aarch64.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
    ),
}

_SOCKET_FOLDERS = ("/run", "/var/run")
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")


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
    for name in _PROGRAMS:
        if found := find_program(root, name):
            path, source = found
            yield Mount(root.on_host(source), path, READ_ONLY)


def config_mounts(root: Root) -> Iterator[Mount]:
    """What tells the EGL, Vulkan, OpenCL and X.Org loaders of a container about the driver."""
    for container_folder, names in _CONFIGS.items():
        for name in names:
            if source := _first(root, _CONFIG_FOLDERS, name):
                yield Mount(root.on_host(source), posixpath.join(container_folder, name), READ_ONLY)


def firmware_mounts(root: Root, version: str, kernel_release: str) -> Iterator[Mount]:
    """The GSP firmware of driver `version`, from the folders where kernel `kernel_release` (`uname -r`) looks."""
    folders = (f"/lib/firmware/updates/{kernel_release}", "/lib/firmware/updates", f"/lib/firmware/{kernel_release}")
    for folder in (*folders, "/lib/firmware"):
        path = posixpath.join(folder, "nvidia", version)
        source = root.resolve(path)
        for entry in root.entries(source) if source else ():
            file = root.resolve(posixpath.join(path, entry.name))
            if file and fnmatchcase(entry.name, "gsp*.bin"):
                yield Mount(root.on_host(file), posixpath.join(path, entry.name), READ_ONLY)


def socket_mounts(root: Root) -> Iterator[Mount]:
    """The sockets of nvidia-persistenced and of the Fabric Manager, while those run."""
    for name in _SOCKETS:
        if source := _first(root, _SOCKET_FOLDERS, name):
            yield Mount(root.on_host(source), source, SOCKET)


def _first(root: Root, folders: Iterable[str], name: str) -> str | None:
    """The first of `folders` that has `name`: that file, without links."""
    return next((file for folder in folders if (file := root.resolve(posixpath.join(folder, name)))), None)
