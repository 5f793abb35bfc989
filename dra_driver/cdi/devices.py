# SPDX-License-Identifier: Apache-2.0
"""What one allocated device adds to a container: a whole GPU, or a MIG device.

Both open the GPU's own node. What keeps a MIG device's container from the rest of the GPU is the pair of capability
nodes, one for its GPU instance and one for its compute instance; without them the driver shows it no MIG device.

The DRM nodes are for graphics: a whole GPU has them, of MIG devices those with a graphics profile.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from .hooks import HookTool
from .nodes import Discovered, additional_gids, capability_node, character_majors, find_node
from .root import DriverFilesError, DriverRoot
from .spec import ContainerEdits, DeviceNode

_GPU_DRIVERS = ("nvidia", "nvidia-frontend")
"""Names of the GPU nodes' driver in /proc/devices, of newer and older releases."""


def gpu_edits(root: DriverRoot, minor: int, pci_address: str = "", hook: HookTool | None = None) -> Discovered:
    """Edits for the whole GPU /dev/nvidia`minor`, with the DRM nodes of `pci_address` (`0000:17:00.0`) if it has any.

    With `hook`, the container gets their links in /dev/dri/by-path too. DriverFilesError when there is no such GPU.
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

    `pci_address` is the GPU's, for a device that does graphics (its profile ends in `+gfx`): it gets the DRM nodes, and
    with `hook` their links, as a whole GPU does. Leave it empty for others, which get none.
    DriverFilesError when there is no such GPU or instance.
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
    """Edits for `nodes` and, with a `pci_address`, for what that GPU has in /dev/dri."""
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
    node, warning = find_node(root, path, majors, _GPU_DRIVERS, minor)
    if node is None:
        raise DriverFilesError(
            f"{root.dev.here(path)} is missing and {root.proc / 'devices'} has no nvidia driver: "
            "is the nvidia module loaded?"
        )
    return node, warning


def _sysfs_address(pci_address: str) -> str:
    """`pci_address` as /sys spells it; NVML gives the domain eight digits."""
    domain, colon, rest = pci_address.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _drm_paths(root: DriverRoot, address: str) -> list[str]:
    folder = root.sys / "bus/pci/devices" / address / "drm"
    if not address or not folder.is_dir():
        return []
    names = sorted(entry.name for entry in folder.iterdir())
    return [f"/dev/dri/{name}" for name in names if fnmatchcase(name, "card*") or fnmatchcase(name, "renderD*")]


def _by_path_links(root: DriverRoot, address: str, paths: list[str]) -> list[tuple[str, str]]:
    """Text and place of the links in /dev/dri/by-path that lead to `paths`."""
    links = []
    for kind in ("card", "render"):
        path = f"/dev/dri/by-path/pci-{address}-{kind}"
        if paths and root.dev.resolve(path) in paths:
            links.append((str(root.dev.here(path).readlink()), path))
    return links
