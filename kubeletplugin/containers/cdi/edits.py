# SPDX-License-Identifier: Apache-2.0
"""The edits of a container: the driver, for any GPU, and the devices of an allocated GPU or MIG device."""

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dra_driver.process.files import names_in

from ...errors import DriverFilesError
from .files import (
    READ_ONLY,
    Discovered,
    additional_gids,
    capability_node,
    character_majors,
    config_mounts,
    daemon_mounts,
    find_node,
    firmware_folders,
    firmware_mounts,
    program_mounts,
)
from .libraries import DriverLibraries, HookTool, alias_mounts, find_libraries
from .root import DriverRoot
from .spec import ContainerEdits, DeviceNode, Hook, Mount

CONTROL_NODES: tuple[tuple[str, tuple[str, ...], int, str], ...] = (
    # path, names of its driver in /proc/devices, minor, the effect if it is missing
    ("/dev/nvidiactl", ("nvidiactl", "nvidia-frontend", "nvidia"), 255, "no program can use a GPU"),
    ("/dev/nvidia-uvm", ("nvidia-uvm",), 0, "CUDA programs cannot start"),
    ("/dev/nvidia-uvm-tools", ("nvidia-uvm",), 1, ""),
    ("/dev/nvidia-modeset", ("nvidia-modeset",), 254, ""),
)

GPU_DRIVERS = ("nvidia", "nvidia-frontend")
"""Names of the driver of GPU nodes in /proc/devices, in newer and older releases."""


def common_edits(
    root: DriverRoot,
    driver_version: str,
    hook: HookTool | None,
    *,
    machine: str = os.uname().machine,
    kernel_release: str = os.uname().release,
) -> Discovered:
    """Edits for the driver `driver_version` (such as `550.54.15`, the version of the loaded kernel module) below
    `root`.

    Without a `hook` program, mounts replace the hooks, with the limits in `libraries`. Missing files are left out, with
    a warning if programs need them. Raises DriverFilesError if no library of this version exists.
    """
    libraries = find_libraries(root.files, driver_version, root.library_folders)
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
    # As in nvidia-container-toolkit 1.20: all folders with libraries, here with that of libcuda.so first.
    cuda_folder = libraries.folder_of("libcuda.so") or libraries.folder_of("libnvidia-ml.so")
    cuda_folders = dict.fromkeys((cuda_folder, *libraries.folders))
    edits = ContainerEdits(
        env=(f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(cuda_folders)}",) if cuda_folder else (),
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
    # In this order: the cache must be refreshed after the links and the compatibility folder were created.
    return (
        hook.create_symlinks((link.target, link.path) for link in libraries.links),
        hook.enable_cuda_compat(driver_version),
        hook.update_ldcache(libraries.folders),
        hook.disable_device_node_modification(),
        hook.update_application_profile(),
    )


def gpu_edits(root: DriverRoot, minor: int, pci_address: str = "", hook: HookTool | None = None) -> Discovered:
    """Edits for the whole GPU /dev/nvidia`minor`, with the DRM nodes of `pci_address` (`0000:17:00.0`) if it has any.

    With `hook`, the container also gets their links in /dev/dri/by-path. Raises DriverFilesError if there is no such
    GPU.
    """
    node, warning = _gpu_node(root, minor, character_majors(root.proc))
    return _discovered(root, [node], [warning], pci_address, hook)


def mig_edits(
    root: DriverRoot,
    minor: int,
    gpu_instance: int,
    compute_instance: int,
    pci_address: str = "",
    hook: HookTool | None = None,
) -> Discovered:
    """Edits for a MIG device of the GPU /dev/nvidia`minor`, by the ids of its instances.

    `pci_address` is the GPU's address if the device supports graphics (its profile ends in `+gfx`). Such a device gets
    the DRM nodes, and with `hook` their links, like a whole GPU. For other devices, `pci_address` is empty. Raises
    DriverFilesError if there is no such GPU or instance.
    """
    majors = character_majors(root.proc)
    node, warning = _gpu_node(root, minor, majors)
    instance = f"gpu{minor}/mig/gi{gpu_instance}"
    nodes = [
        node,
        capability_node(root.proc, f"{instance}/access", majors),
        capability_node(root.proc, f"{instance}/ci{compute_instance}/access", majors),
    ]
    return _discovered(root, nodes, [warning], pci_address, hook)


def _discovered(
    root: DriverRoot, nodes: Sequence[DeviceNode], warnings: Sequence[str], pci_address: str, hook: HookTool | None
) -> Discovered:
    """Edits for `nodes`, and for the files of the GPU `pci_address` in /dev/dri."""
    address = _sysfs_address(pci_address)
    found = [find_node(root, path, {}) for path in _drm_paths(root, address)]
    drm_nodes = [node for node, _ in found if node]
    links = _by_path_links(root, address, [node.path for node in drm_nodes])
    all_nodes = (*nodes, *drm_nodes)
    edits = ContainerEdits(
        device_nodes=all_nodes,
        hooks=(hook.create_symlinks(links),) if hook and links else (),
        additional_gids=additional_gids(all_nodes),
    )
    return Discovered(edits, tuple(filter(None, [*warnings, *(warning for _, warning in found)])))


def _gpu_node(root: DriverRoot, minor: int, majors: Mapping[str, int]) -> tuple[DeviceNode, str]:
    path = f"/dev/nvidia{minor}"
    node, warning = find_node(root, path, majors, GPU_DRIVERS, minor)
    if node is None:
        raise DriverFilesError(
            f"{root.dev.here(path)} is missing and {root.proc / 'devices'} has no nvidia driver: "
            "is the nvidia module loaded?"
        )
    return node, warning


def _sysfs_address(pci_address: str) -> str:
    """`pci_address` as in /sys. NVML writes the domain with eight digits."""
    domain, colon, rest = pci_address.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _drm_paths(root: DriverRoot, address: str) -> list[str]:
    if not address:
        return []
    names = sorted(names_in(f"{root.sys}/bus/pci/devices/{address}/drm"))
    return [f"/dev/dri/{name}" for name in names if fnmatchcase(name, "card*") or fnmatchcase(name, "renderD*")]


def _by_path_links(root: DriverRoot, address: str, paths: list[str]) -> list[tuple[str, str]]:
    """(Text, path) of the links in /dev/dri/by-path that lead to `paths`."""
    links = []
    for kind in ("card", "render"):
        path = f"/dev/dri/by-path/pci-{address}-{kind}"
        if paths and root.dev.resolve(path) in paths:
            links.append((str(root.dev.here(path).readlink()), path))
    return links
