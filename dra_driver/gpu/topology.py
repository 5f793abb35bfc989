# SPDX-License-Identifier: Apache-2.0
"""Where a PCI device sits in the machine, from sysfs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PciLocation:
    """`root_complex` like `pci0000:3a`, `numa_node` of the CPUs next to it; None for what sysfs does not tell."""

    root_complex: str | None
    numa_node: int | None


def pci_location(sys_root: Path, address: str) -> PciLocation:
    """The location of the device at `address` (`0000:3b:00.0`). `sys_root` is where sysfs is mounted."""
    device = sys_root / "bus/pci/devices" / address
    return PciLocation(_root_complex(device), _numa_node(device / "numa_node"))


def _root_complex(device: Path) -> str | None:
    try:
        parts = device.readlink().parts
    except OSError:
        return None
    return next((part for part in parts if part.startswith("pci")), None)


def _numa_node(file: Path) -> int | None:
    try:
        node = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the machine has no NUMA, or the firmware does not say
