# SPDX-License-Identifier: Apache-2.0
"""What every container with an NVIDIA GPU gets, whichever GPU it is: the driver itself.

Found once and written to one spec of the node, so that a claim's spec names only the claim's devices. It goes out of
date with the driver: look again after the driver was replaced, when a module was loaded, and when one of its daemons
(nvidia-persistenced, Fabric Manager, MPS) came or went, because a container whose spec mounts a file that is gone does
not start. `fingerprint` tells cheaply whether something of it changed.
"""

import os
from collections.abc import Sequence

from .files import READ_ONLY, config_mounts, daemon_mounts, firmware_folders, firmware_mounts, program_mounts
from .hooks import HookTool, alias_mounts
from .libraries import LIBRARY_FOLDERS, DriverLibraries, find_libraries
from .nodes import Discovered, additional_gids, character_majors, find_node
from .root import DriverRoot
from .spec import ContainerEdits, DeviceNode, Hook, Mount

CONTROL_NODES = (
    # path, names of its driver in /proc/devices, minor, what a container misses without it
    ("/dev/nvidiactl", ("nvidiactl", "nvidia-frontend", "nvidia"), 255, "no program can use the GPU"),
    ("/dev/nvidia-uvm", ("nvidia-uvm",), 0, "CUDA programs cannot start"),
    ("/dev/nvidia-uvm-tools", ("nvidia-uvm",), 1, ""),
    ("/dev/nvidia-modeset", ("nvidia-modeset",), 254, ""),
)


def common_edits(
    root: DriverRoot,
    driver_version: str,
    hook: HookTool | None,
    *,
    library_folders: Sequence[str] = LIBRARY_FOLDERS,
    machine: str = os.uname().machine,
    kernel_release: str = os.uname().release,
) -> Discovered:
    """Edits for the driver `driver_version` (such as `550.54.15`, the loaded kernel module's) below `root`.

    Without a `hook` program the mounts follow `fallback`, with its limits. What is missing is left out, with a
    warning where programs will notice. DriverFilesError when there is no library of that version at all.
    """
    libraries = find_libraries(root.files, driver_version, library_folders)
    nodes, warnings = _control_nodes(root)
    if not libraries.folder_of("libcuda.so"):
        warnings.append(f"libcuda.so.{driver_version} is not below {root.files.path}: CUDA programs cannot start")
    mounts = [Mount(root.files.on_host(library.source), library.path, READ_ONLY) for library in libraries.libraries]
    if hook is None:
        warnings.append("no nvidia-cdi-hook or nvidia-ctk: libraries are mounted under every name they need instead")
        mounts += alias_mounts(root.files, libraries, machine)
    mounts += program_mounts(root.files)
    mounts += config_mounts(root.files, machine)
    mounts += firmware_mounts(root.files, firmware_folders(root.sys, driver_version, kernel_release))
    mounts += daemon_mounts(root.files)
    cuda_folder = libraries.folder_of("libcuda.so") or libraries.folder_of("libnvidia-ml.so")
    edits = ContainerEdits(
        env=(f"NVIDIA_CTK_LIBCUDA_DIR={cuda_folder}",) if cuda_folder else (),
        device_nodes=tuple(nodes),
        mounts=tuple(mounts),
        hooks=_hooks(hook, libraries, driver_version) if hook else (),
        additional_gids=additional_gids(nodes),
    )
    return Discovered(edits, tuple(warnings))


def _control_nodes(root: DriverRoot) -> tuple[list[DeviceNode], list[str]]:
    majors = character_majors(root.proc)
    nodes, warnings = [], []
    for path, registered, minor, loss in CONTROL_NODES:
        node, warning = find_node(root, path, majors, registered, minor)
        if node:
            nodes.append(node)
        elif loss:
            warning = f"{path} is missing and its kernel module not loaded: {loss}"
        if warning:
            warnings.append(warning)
    return nodes, warnings


def _hooks(hook: HookTool, libraries: DriverLibraries, driver_version: str) -> tuple[Hook, ...]:
    # in this order: the cache is refreshed when the links and the compatibility folder are there
    return (
        hook.create_symlinks((link.target, link.path) for link in libraries.links),
        hook.enable_cuda_compat(driver_version),
        hook.update_ldcache(libraries.folders),
        hook.disable_device_node_modification(),
    )
