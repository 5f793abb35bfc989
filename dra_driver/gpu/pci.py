# SPDX-License-Identifier: Apache-2.0
"""The GPUs on the PCI bus and their location in the machine, from sysfs.

NVML knows only the GPUs that are bound to the NVIDIA driver. A GPU that is bound to vfio-pci for a virtual machine is
found only here. The definitions of a GPU and of addressable memory are those of NVIDIA's go-nvlib (package nvpci).
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from .facts import PciGpu
from .functions import (
    GPU_CLASSES,
    NVIDIA_VENDOR,
    group_gpus,
    group_obstacles,
    group_of,
    link_name,
    number_in,
    read_number,
    virtual_functions,
)

log = logging.getLogger(__name__)

NVIDIA_DRIVER = "nvidia"
"""The kernel driver whose GPUs NVML reports."""

_BARS = 6  # the lines after these describe the expansion ROM and the windows of bridges and virtual functions
_ADDRESS_BITS, _BITS_64 = 0x06, 0x04  # of a BAR's flags
_PAGE = 1 << 12  # no text in sysfs is longer
_PCI_IDS = (
    "usr/share/misc/pci.ids",
    "usr/share/hwdata/pci.ids",
    "usr/share/pci.ids",
    "usr/local/share/pci.ids",
    "var/lib/pciutils/pci.ids",
)


def pci_location(sys_root: Path, address: str) -> tuple[str | None, int | None]:
    """(Root complex such as `pci0000:3a`, nearest NUMA node) of the device at `address` (`0000:3b:00.0`), each None if
    sysfs does not report it. `sys_root` is where sysfs is mounted.
    """
    device = sys_root / "bus/pci/devices" / address
    return _root_complex(device), _numa_node(device / "numa_node")


def _root_complex(device: Path) -> str | None:
    try:
        parts = device.readlink().parts
    except OSError:
        return None
    return next((part for part in parts if part.startswith("pci")), None)


def _numa_node(file: Path) -> int | None:
    node = number_in(file)
    return None if node == -1 else node  # -1: the machine has no NUMA, or the firmware does not report the node


class PciBus:
    """The PCI bus, for repeated reads. A node has hundreds of devices. So `PciBus` remembers which of them are GPUs,
    for as long as the inode of a device's link in sysfs stays the same.
    """

    def __init__(self) -> None:
        self._gpus: dict[tuple[str, int], bool] = {}

    def bound_gpus(self, sys_root: Path) -> tuple[tuple[str, str | None], ...]:
        """The address and bound kernel driver of every GPU, in the order of addresses."""
        devices = f"{sys_root}/bus/pci/devices"
        links = _links(devices)
        kinds = {link: self._gpus[link] if link in self._gpus else _is_gpu(Path(devices, link[0])) for link in links}
        self._gpus = {link: kind for link, kind in kinds.items() if kind is not None}
        addresses = sorted((address for (address, _), kind in kinds.items() if kind), key=_place)
        return tuple((address, link_name(f"{devices}/{address}/driver")) for address in addresses)


@dataclass(frozen=True, slots=True)
class KernelDriver:
    """The loaded NVIDIA driver. `gpus` has the address of each GPU bound to it, with the inode of the link in sysfs,
    which changes with every bind. `module` is the inode of the module's folder, which changes with every load.
    """

    gpus: tuple[tuple[str, int], ...]
    module: int | None
    version: str | None


def read_driver(sys_root: Path) -> KernelDriver:
    """Read the state of the NVIDIA driver with a few system calls."""
    root = str(sys_root)
    links = _links(f"{root}/bus/pci/drivers/{NVIDIA_DRIVER}")
    module = f"{root}/module/{NVIDIA_DRIVER}"
    return KernelDriver(
        gpus=tuple(sorted([link for link in links if ":" in link[0]])),  # no other entry of the folder has one
        module=_inode(module),
        version=_text(f"{module}/version"),
    )


def read_pci_gpus(sys_root: Path, pci_ids_root: Path | None = None) -> tuple[PciGpu, ...]:
    """All GPUs on the bus. `sys_root` is where sysfs is mounted. Product names come from the pci.ids file below
    `pci_ids_root`, if there is one. A value that cannot be read is None. A GPU without a readable device id is left
    out, and the reason is logged.
    """
    names = {} if pci_ids_root is None else _product_names(pci_ids_root)
    gpus = []
    for position, folder in enumerate(_gpu_folders(sys_root)):
        try:
            device_id = read_number(folder / "device")
        except (OSError, ValueError) as error:
            log.warning("the GPU at %s is left out: its PCI device id cannot be read: %s", folder.name, error)
            continue
        pcie_root, numa_node = pci_location(sys_root, folder.name)
        gpus.append(
            PciGpu(
                position=position,
                address=folder.name,
                device_id=device_id,
                product_name=names.get(device_id),
                driver=link_name(folder / "driver"),
                iommu_group=group_of(folder),
                addressable_memory=_addressable_memory(folder / "resource"),
                pcie_root=pcie_root,
                numa_node=numa_node,
                group_obstacles=group_obstacles(sys_root, folder.name),
                group_gpus=group_gpus(sys_root, folder.name),
                virtual_functions=virtual_functions(sys_root, folder.name),
            )
        )
    return tuple(gpus)


def _gpu_folders(sys_root: Path) -> list[Path]:
    """The folders of the GPUs in sysfs, in the order of addresses, without the virtual functions of SR-IOV."""
    devices = sys_root / "bus/pci/devices"
    folders = (devices / name for name, _ in _links(devices))
    return sorted((folder for folder in folders if _is_gpu(folder)), key=lambda folder: _place(folder.name))


def _is_gpu(folder: Path) -> bool | None:
    """Whether the device is a GPU. None if that cannot be read."""
    try:
        return (
            read_number(folder / "vendor") == NVIDIA_VENDOR
            and read_number(folder / "class") >> 8 in GPU_CLASSES
            and not (folder / "physfn").is_symlink()
        )
    except (OSError, ValueError):
        return None  # the device was unplugged meanwhile


def _place(address: str) -> tuple[int, ...]:
    """A sort key for addresses: `0000:3b:00.0` comes before `10000:01:00.0`."""
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


# The following functions are called often. They avoid pathlib, which takes longer than the system calls themselves.


def _links(folder: Path | str) -> list[tuple[str, int]]:
    """(name, inode) of each entry of a folder. Empty if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.inode()) for entry in entries]
    except OSError:
        return []


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None


def _text(file: str) -> str | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _PAGE).decode("ascii").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _addressable_memory(resource: Path) -> int | None:
    try:
        return addressable_memory(resource.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def addressable_memory(resource: str) -> int | None:
    """The sum of a device's 64-bit BARs in bytes, rounded up to a power of two; None if it has none. `resource` is the
    text of its file in sysfs. Raises ValueError.
    """
    regions = [[int(part, 0) for part in line.split()] for line in resource.splitlines()[:_BARS]]
    sizes = [end - start + 1 for start, end, flags in regions if end and flags & _ADDRESS_BITS == _BITS_64]
    return 1 << (sum(sizes) - 1).bit_length() if sizes else None


def _product_names(root: Path) -> dict[int, str]:
    """NVIDIA's products by device id. In pci.ids, a vendor's line is not indented. The lines of its devices begin with
    one tab, and lines of boards with such a device begin with two tabs.
    """
    file = next((path for path in (root / name for name in _PCI_IDS) if path.is_file()), None)
    names: dict[int, str] = {}
    if file is None:
        return names
    with file.open(encoding="utf-8", errors="replace") as lines:
        ours = False
        for line in lines:
            if line[:1] not in "\t#\n":
                if ours:
                    break
                ours = line.startswith(f"{NVIDIA_VENDOR:04x} ")
            elif ours and line.startswith("\t") and not line.startswith("\t\t"):
                number, _, name = line.strip().partition("  ")
                names[int(number, 16)] = name
    return names
