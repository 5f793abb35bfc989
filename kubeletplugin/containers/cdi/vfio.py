# SPDX-License-Identifier: Apache-2.0
"""The edits for a GPU that is bound to a vfio driver, or a vGPU: what a container needs to pass it on to a machine.

The kernel has two interfaces (Documentation/driver-api/vfio.rst). The older one has a node for each IOMMU group,
`/dev/vfio/<group>`, and the node `/dev/vfio/vfio`. The newer one, iommufd, has a node for each function,
`/dev/vfio/devices/vfio<N>`, and the node `/dev/iommu`. With iommufd, the container gets the nodes of both interfaces,
as VEP 266 of KubeVirt demands, so that the virtual machine monitor can use either.

Only the paths of the nodes are in a spec. The runtime reads the numbers when it creates the container, and lets the
user of the container open the nodes. In contrast to NVIDIA's own nodes, these always exist on the host.

On Grace boards, a device `/dev/egm<N>` has memory of the host that belongs to several GPUs. A machine may have it only
with all of these GPUs, as in NVIDIA/kubevirt-gpu-device-plugin.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from dra_driver.process.files import names_in

from ...errors import DriverFilesError
from .root import Root
from .spec import ContainerEdits, DeviceNode

VFIO_API: Final = "/dev/vfio/vfio"
IOMMUFD_API: Final = "/dev/iommu"

_PERMISSIONS: Final = "rw"


def vfio_edits(
    device: Path, dev: Root, group: int, *, prefer_iommufd: bool = False, api_device: bool = False
) -> ContainerEdits:
    """Edits for a PCI function or a mediated device in the IOMMU group `group`. `device` is its folder in sysfs.

    With `prefer_iommufd`, also the nodes of iommufd, if the kernel has it. With `api_device`, also the nodes of the
    interfaces themselves. `dev` contains the host's /dev. Raises DriverFilesError if a node is missing.
    """
    paths = vfio_nodes(device, dev, group, prefer_iommufd=prefer_iommufd, api_device=api_device)
    return ContainerEdits(device_nodes=tuple(_node(dev, path) for path in paths))


def vfio_nodes(
    device: Path, dev: Root, group: int, *, prefer_iommufd: bool = False, api_device: bool = False
) -> list[str]:
    """The nodes that a container needs for a device that is bound to a vfio driver, see `vfio_edits`."""
    functions = _function_nodes(device) if prefer_iommufd and dev.here(IOMMUFD_API).exists() else []
    legacy = [f"/dev/vfio/{group}", *([VFIO_API] if api_device else [])]
    if functions:
        # A kernel may have iommufd only, or have it in the place of /dev/vfio/vfio.
        legacy = [path for path in legacy if dev.here(path).exists()]
        functions += [IOMMUFD_API] if api_device else []
    return [*legacy, *functions]


def interface_nodes(dev: Root, *, prefer_iommufd: bool = False, api_device: bool = False) -> list[str]:
    """Those of the nodes that must be there before a device is bound: that of the older interface, if the container
    needs it. A kernel with iommufd may not need it, which only a bound device tells.
    """
    may_be_iommufd = prefer_iommufd and dev.here(IOMMUFD_API).exists()
    return [VFIO_API] if api_device and not may_be_iommufd else []


def require_nodes(dev: Root, paths: Iterable[str]) -> None:
    """Raises DriverFilesError if a node is missing."""
    for path in paths:
        if not dev.here(path).exists():
            raise DriverFilesError(
                f"{dev.here(path)} is missing: udev has not made it, or its kernel module is not loaded"
            )


def egm_edits(sys: Path, dev: Root, gpus: Collection[str], allocated: Collection[str]) -> ContainerEdits:
    """Edits for the memory devices of these GPUs, all of whose GPUs are `allocated` together (addresses)."""
    own, together = ({address.lower() for address in some} for some in (gpus, allocated))
    folder = sys / "class/egm"
    nodes = []
    for name in sorted(names_in(folder)):
        its = _addresses(folder / name / "gpu_devices") if name.startswith("egm") else set()
        if its & own and its <= together:
            nodes.append(_node(dev, f"/dev/{name}"))
    return ContainerEdits(device_nodes=tuple(nodes))


def _node(dev: Root, path: str) -> DeviceNode:
    require_nodes(dev, [path])
    host_path = dev.on_host(path)
    return DeviceNode(path, host_path if host_path != path else "", permissions=_PERMISSIONS)


def _function_nodes(device: Path) -> list[str]:
    """The nodes of all devices of the IOMMU group. The group goes to one machine as a whole. Empty if the device itself
    has none, because its kernel has no such nodes.
    """
    if not names_in(device / "vfio-dev"):
        return []
    members = device / "iommu_group/devices"
    devices = [device, *(members / member for member in sorted(names_in(members)) if member != device.name)]
    return [f"/dev/vfio/devices/{name}" for device in devices for name in _vfio_names(device)]


def _vfio_names(device: Path) -> Iterator[str]:
    """`vfio<N>` of a device that VFIO has."""
    return (name for name in sorted(names_in(device / "vfio-dev")) if name.startswith("vfio"))


def _addresses(file: Path) -> set[str]:
    try:
        return set(file.read_text(encoding="ascii").lower().split())
    except (OSError, ValueError):  # without the list, nobody knows whose memory it is
        return set()
