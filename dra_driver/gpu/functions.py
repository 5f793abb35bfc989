# SPDX-License-Identifier: Apache-2.0
"""The functions of PCI devices, their slots and their IOMMU groups, from sysfs.

A GPU's slot may have further functions: audio, USB and UCSI. They belong to the board, so they go to a virtual machine
together with the GPU. The kernel gives an IOMMU group to a virtual machine only if every function of the group is bound
to a vfio driver or to no driver; bridges are exempt (Documentation/driver-api/vfio.rst). So a GPU can be given to a
virtual machine only if the group has no function of another slot that the node uses, and together with the other GPUs
of the group.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NVIDIA_VENDOR = 0x10DE
GPU_CLASSES = (0x0300, 0x0302)
"""VGA and 3D controllers; the lowest byte of a class is its interface."""

_BRIDGE = 0x06  # the highest byte of a class
_HARMLESS = ("pci-stub",)
"""Drivers that never use their device, in addition to the vfio drivers."""
_NO_OVERRIDE = "(null)"


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A function at `address`. `driver` is the kernel driver that it is bound to, or None. `override` is the driver
    that its `driver_override` demands, or empty.
    """

    address: str
    driver: str | None
    override: str = ""


def is_vfio(driver: str | None) -> bool:
    """Whether a kernel driver gives its devices to virtual machines (`vfio-pci`, `nvgrace_gpu_vfio_pci`)."""
    return driver is not None and "vfio" in driver


def device_folder(sys_root: Path, address: str) -> Path:
    """The folder of a function in sysfs."""
    return sys_root / f"bus/pci/devices/{address}"


def read_function(sys_root: Path, address: str) -> PciFunction:
    """The state of a function. Raises OSError if it is not on the bus."""
    folder = device_folder(sys_root, address)
    override = (folder / "driver_override").read_text(encoding="utf-8").strip()
    return PciFunction(address, bound_driver(sys_root, address), "" if override == _NO_OVERRIDE else override)


def bound_driver(sys_root: Path, address: str) -> str | None:
    """The kernel driver that a function is bound to, or None."""
    return link_name(device_folder(sys_root, address) / "driver")


def iommu_group(sys_root: Path, address: str) -> int | None:
    """The number of a function's IOMMU group, or None if it has none."""
    return group_of(device_folder(sys_root, address))


def group_of(folder: Path) -> int | None:
    """The number of the IOMMU group of the device with this folder in sysfs, or None if it has none."""
    name = link_name(folder / "iommu_group")
    return int(name) if name is not None and name.isdecimal() else None


def slot_functions(sys_root: Path, address: str) -> tuple[str, ...]:
    """The addresses of all functions of the slot, the one at `address` first. SR-IOV virtual functions are no part of
    the board.
    """
    slot = address.rpartition(".")[0] + "."
    found = (name for name in listed(sys_root / "bus/pci/devices") if name.startswith(slot))
    others = (name for name in found if name != address and not _is_virtual(sys_root, name))
    return (address, *sorted(others))


def virtual_functions(sys_root: Path, address: str) -> int:
    """The number of SR-IOV virtual functions that are enabled."""
    return number_in(device_folder(sys_root, address) / "sriov_numvfs") or 0


def virtual_function_addresses(sys_root: Path, address: str) -> tuple[str, ...]:
    """The addresses of the SR-IOV virtual functions that are enabled, in the order of their numbers."""
    folder = device_folder(sys_root, address)
    numbers = sorted(int(name.removeprefix("virtfn")) for name in listed(folder) if name.startswith("virtfn"))
    found = (link_name(folder / f"virtfn{number}") for number in numbers)
    return tuple(name for name in found if name is not None)


def group_obstacles(sys_root: Path, address: str) -> tuple[str, ...]:
    """The functions in the IOMMU group because of which the GPU at `address` cannot be given to a virtual machine:
    functions of other slots that a driver of the node uses, without those of other GPUs' slots, and virtual functions
    of GPUs.
    """
    slots = tuple(group_gpu.rpartition(".")[0] + "." for group_gpu in (address, *group_gpus(sys_root, address)))
    members = listed(device_folder(sys_root, address) / "iommu_group/devices")
    return tuple(
        sorted(member for member in members if not member.startswith(slots) and _is_obstacle(sys_root, member))
    )


def group_gpus(sys_root: Path, address: str) -> tuple[str, ...]:
    """The other GPUs in the IOMMU group of the GPU at `address`, whichever driver they are bound to."""
    members = listed(device_folder(sys_root, address) / "iommu_group/devices")
    found = (
        member
        for member in members
        if member != address and _is_gpu(sys_root, member) and not _is_virtual(sys_root, member)
    )
    return tuple(sorted(found))


def obstacle_text(group: int, obstacles: Iterable[str]) -> str:
    """Why a GPU cannot be given to a virtual machine, for users."""
    return (
        f"its IOMMU group {group} also has {', '.join(obstacles)}, and a virtual machine gets a group as a whole"
        " (PCIe Access Control Services, ACS, in the firmware make the groups smaller)"
    )


def _is_obstacle(sys_root: Path, address: str) -> bool:
    kind = number_in(device_folder(sys_root, address) / "class") or 0
    if kind >> 16 == _BRIDGE:
        return False
    if _is_gpu(sys_root, address):
        return True
    driver = bound_driver(sys_root, address)
    return driver is not None and not is_vfio(driver) and driver not in _HARMLESS


def _is_gpu(sys_root: Path, address: str) -> bool:
    folder = device_folder(sys_root, address)
    return number_in(folder / "vendor") == NVIDIA_VENDOR and (number_in(folder / "class") or 0) >> 8 in GPU_CLASSES


def _is_virtual(sys_root: Path, address: str) -> bool:
    return (device_folder(sys_root, address) / "physfn").is_symlink()


def listed(folder: Path) -> list[str]:
    """The names in a folder. Empty if there is no such folder."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names are needed
    except OSError:
        return []


def read_number(file: Path) -> int:
    """The number in a file, such as `0x10de`. Raises OSError or ValueError."""
    with open(file, "rb", buffering=0) as stream:  # noqa: PTH123 - is called often; decoding takes most of the time
        return int(stream.read(), 0)


def number_in(file: Path) -> int | None:
    """The number in a file. None if there is none."""
    try:
        return read_number(file)
    except (OSError, ValueError):
        return None


def link_name(link: Path | str) -> str | None:
    """The last part of a link's target. None if there is no link. Avoids pathlib, because it is called often."""
    try:
        return os.readlink(link).rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return None
