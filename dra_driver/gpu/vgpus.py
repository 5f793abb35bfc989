# SPDX-License-Identifier: Apache-2.0
"""vGPUs of a host that runs NVIDIA's vGPU manager: what NVML reports about their types, and their files in sysfs.

NVIDIA has two frameworks (NVIDIA's vGPU software user guide, Linux with KVM):

- Mediated devices. A function has the folder `mdev_supported_types` with one folder for each type. A UUID that is
  written to `create` makes the vGPU `/sys/bus/mdev/devices/<UUID>`; 1 that is written to its `remove` removes it.
- Vendor-specific VFIO. A virtual function of the GPU becomes a vGPU when the number of a type is written to
  `nvidia/current_vgpu_type`, and stops being one when 0 is written. `nvidia/creatable_vgpu_types` lists the types that
  still fit.

On boards with SR-IOV, the functions are the virtual functions of the GPU, with one vGPU each. An administrator enables
them (`sriov-manage -e`). Other boards have mediated devices only, and their function is the GPU itself.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .functions import device_folder, group_obstacles, iommu_group, listed, obstacle_text, virtual_function_addresses

_MDEVS = "bus/mdev/devices"
_MDEV_TYPES, _MDEV_TYPE = "mdev_supported_types", re.compile(r"nvidia-([0-9]+)", re.ASCII)
_CURRENT, _CREATABLE = "nvidia/current_vgpu_type", "nvidia/creatable_vgpu_types"


@dataclass(frozen=True, slots=True)
class VgpuType:
    """A type of vGPU. `id` is its number in NVML and sysfs. `name` is NVML's name without the vendor, in one word
    (`L40S-12Q`). `memory` is in bytes.

    A vGPU of the type takes `size` consecutive units of the GPU, from one of `starts` on (NVML's placement IDs). On a
    GPU whose vGPUs all have one type (homogeneous mode), a vGPU is one unit, and there are as many as fit.
    """

    id: int
    name: str
    memory: int
    size: int
    starts: tuple[int, ...]

    @property
    def profile(self) -> str:
        """`12Q`."""
        return self.name.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class VgpuTypes:
    """The types that a GPU supports, without the types that are parts of MIG instances. `mixed` tells whether vGPUs of
    several types can be on the GPU together (heterogeneous mode).
    """

    mixed: bool
    types: tuple[VgpuType, ...]


@dataclass(frozen=True, slots=True)
class VgpuPlace:
    """An existing or future vGPU of a type, on the function at `address`. `mdev` is the UUID of a mediated device, and
    empty if the function itself is the vGPU.
    """

    gpu_uuid: str
    address: str
    type_id: int
    mdev: str = ""


class VgpuFramework(enum.StrEnum):
    """How vGPUs are created."""

    MDEV = "mdev"
    VFIO = "vfio"


@dataclass(frozen=True, slots=True)
class VgpuHost:
    """A GPU for which the vGPU manager runs. `functions` are the functions that can be or have vGPUs, and `existing`
    are all vGPUs of the GPU. `problem` tells why no vGPU can be created, and is empty otherwise.
    """

    types: VgpuTypes
    framework: VgpuFramework
    functions: tuple[str, ...]
    existing: tuple[VgpuPlace, ...]
    problem: str = ""


def vgpu_functions(sys_root: Path, address: str) -> tuple[VgpuFramework, tuple[str, ...]]:
    """The functions of the GPU at `address` that can be or have vGPUs. Empty without a vGPU manager."""
    for functions in (virtual_function_addresses(sys_root, address), (address,)):
        for framework, file in ((VgpuFramework.VFIO, _CURRENT), (VgpuFramework.MDEV, _MDEV_TYPES)):
            found = tuple(function for function in functions if (device_folder(sys_root, function) / file).exists())
            if found:
                return framework, found
    return VgpuFramework.VFIO, ()


def existing_vgpus(sys_root: Path, gpu_uuid: str, address: str) -> tuple[VgpuPlace, ...]:
    """The vGPUs of the GPU at `address`, whoever created them. Costs a few system calls for each function."""
    framework, functions = vgpu_functions(sys_root, address)
    if framework is VgpuFramework.MDEV:
        return tuple(_mdevs(sys_root, gpu_uuid, functions))
    places = (
        VgpuPlace(gpu_uuid, function, _number(device_folder(sys_root, function) / _CURRENT)) for function in functions
    )
    return tuple(place for place in places if place.type_id)


def read_vgpu_host(sys_root: Path, gpu_uuid: str, address: str, types: VgpuTypes) -> VgpuHost:
    """The GPU as a host of vGPUs."""
    framework, functions = vgpu_functions(sys_root, address)
    existing = existing_vgpus(sys_root, gpu_uuid, address)
    return VgpuHost(types, framework, functions, existing, _problem(sys_root, types, framework, functions))


def vgpu_folder(sys_root: Path, place: VgpuPlace) -> Path:
    """The folder of a vGPU in sysfs. It has the links `iommu_group` and `vfio-dev` while the vGPU exists."""
    return sys_root / _MDEVS / place.mdev if place.mdev else device_folder(sys_root, place.address)


def current_type(sys_root: Path, place: VgpuPlace) -> int:
    """The type of the vGPU at this place. 0 if there is none."""
    if place.mdev:
        return _mdev_type(vgpu_folder(sys_root, place))
    return _number(device_folder(sys_root, place.address) / _CURRENT)


def can_create(sys_root: Path, place: VgpuPlace) -> bool:
    """Whether the vGPU manager would create this vGPU now."""
    folder = device_folder(sys_root, place.address)
    if place.mdev:
        return _number(_type_folder(folder, place.type_id) / "available_instances") > 0
    try:
        lines = (folder / _CREATABLE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    # `1177 : NVIDIA L40S-12Q`, after a line with the titles of these columns.
    return any(line.partition(":")[0].strip() == str(place.type_id) for line in lines)


def creation(sys_root: Path, place: VgpuPlace) -> tuple[Path, str]:
    """The file and the text that create a vGPU."""
    folder = device_folder(sys_root, place.address)
    if place.mdev:
        return _type_folder(folder, place.type_id) / "create", place.mdev
    return folder / _CURRENT, str(place.type_id)


def removal(sys_root: Path, place: VgpuPlace) -> tuple[Path, str]:
    """The file and the text that remove a vGPU."""
    folder = vgpu_folder(sys_root, place)
    return (folder / "remove", "1") if place.mdev else (folder / _CURRENT, "0")


def pinning(sys_root: Path, place: VgpuPlace, start: int) -> tuple[Path, str]:
    """The file and the text that make the vGPU manager place a new vGPU at `start` when its machine starts."""
    return vgpu_folder(sys_root, place) / "nvidia/vgpu_params", f"vgpu-placement-id={start}"


def _problem(sys_root: Path, types: VgpuTypes, framework: VgpuFramework, functions: tuple[str, ...]) -> str:
    if not functions:
        return "no function has vGPU types: enable the virtual functions with sriov-manage -e"
    if not types.types:
        return "NVML reports no time-sliced vGPU types; on a GPU in MIG mode, vGPUs are not supported"
    for function in functions if framework is VgpuFramework.VFIO else ():
        group = iommu_group(sys_root, function)
        if group is None:
            return f"its virtual function {function} has no IOMMU group: enable the IOMMU in firmware and kernel"
        if others := tuple(
            name for name in listed(device_folder(sys_root, function) / "iommu_group/devices") if name != function
        ):
            obstacles = group_obstacles(sys_root, function) or others
            return f"a virtual machine cannot get {function}: {obstacle_text(group, obstacles)}"
    return ""


def _mdevs(sys_root: Path, gpu_uuid: str, functions: tuple[str, ...]) -> Iterator[VgpuPlace]:
    for uuid in sorted(listed(sys_root / _MDEVS)):
        parent = (sys_root / _MDEVS / uuid).resolve().parent.name
        type_id = _mdev_type(sys_root / _MDEVS / uuid)
        if parent in functions and type_id:
            yield VgpuPlace(gpu_uuid, parent, type_id, uuid)


def _mdev_type(folder: Path) -> int:
    try:
        found = _MDEV_TYPE.fullmatch((folder / "mdev_type").readlink().name)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _type_folder(function: Path, type_id: int) -> Path:
    return function / _MDEV_TYPES / f"nvidia-{type_id}"


def _number(file: Path) -> int:
    """The number in a file. 0 if there is none."""
    try:
        return int(file.read_text(encoding="ascii").partition("\n")[0])
    except (OSError, ValueError):
        return 0
