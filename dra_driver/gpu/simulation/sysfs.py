# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a simulated node shows of its GPUs in /sys: the devices on the PCI bus, and the drivers that they
are bound to.
"""

import contextlib
import shutil
from pathlib import Path

from ..nvml import Architecture
from .description import GpuDescription
from .models import BoardModel

_DRIVERS = ("nvidia", "vfio-pci")
_FIRST_IOMMU_GROUP = 16
_LINES = 13  # six BARs, the expansion ROM, and the windows that only bridges and virtual functions have
_MEMORY_32, _MEMORY_64 = 0x40200, 0x14220C  # flags: plain memory; prefetchable memory with 64-bit addresses
_WINDOWS = 0x2000_0000_0000  # where the BARs of the first GPU are mapped
_MIB = 1 << 20
_UNLOADED = "module/.unloaded"
"""Where a module's folder stays until the next one is there, so that the two never have the same inode, as in sysfs."""


class SysFiles:
    """The files below `root`, which stands for the host's root."""

    def __init__(self, root: Path) -> None:
        self._sys = root / "sys"

    def plug(self, position: int, gpu: GpuDescription) -> None:
        """A GPU is on the bus, bound to no driver yet."""
        address, board = gpu.pci_address, gpu.board
        device = self._sys / "devices" / gpu.pcie_root / address
        group = self._sys / "kernel/iommu_groups" / str(_FIRST_IOMMU_GROUP + position)
        texts = {
            "class": "0x030200",
            "vendor": f"0x{board.pci_device_id & 0xFFFF:04x}",
            "device": f"0x{board.pci_device_id >> 16:04x}",
            "subsystem_vendor": f"0x{board.pci_subsystem_id & 0xFFFF:04x}",
            "subsystem_device": f"0x{board.pci_subsystem_id >> 16:04x}",
            "numa_node": str(gpu.numa_node),
            "driver_override": "(null)",
            "resource": "\n".join(_resource(position, board)),
        }
        device.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (device / name).write_text(f"{text}\n", encoding="ascii")
        self._link(self._sys / "bus/pci/devices" / address, device)
        self._link(group / "devices" / address, device)
        self._link(device / "iommu_group", group)

    def unplug(self, gpu: GpuDescription) -> None:
        """A GPU is gone from the bus."""
        address = gpu.pci_address
        self.bind(gpu, None)
        group = (self._sys / "bus/pci/devices" / address / "iommu_group").resolve()
        shutil.rmtree(group)
        (self._sys / "bus/pci/devices" / address).unlink()
        shutil.rmtree(self._sys / "devices" / gpu.pcie_root / address)

    def bind(self, gpu: GpuDescription, driver: str | None) -> None:
        """A GPU belongs to this driver and no other."""
        address = gpu.pci_address
        device = self._sys / "devices" / gpu.pcie_root / address
        for name in _DRIVERS:
            (self._sys / "bus/pci/drivers" / name / address).unlink(missing_ok=True)
        (device / "driver").unlink(missing_ok=True)
        if driver is not None:
            folder = self._sys / "bus/pci/drivers" / driver
            folder.mkdir(parents=True, exist_ok=True)
            self._link(folder / address, device)
            self._link(device / "driver", folder)

    def load_module(self, version: str) -> None:
        """The NVIDIA module is loaded."""
        module = self._sys / "module/nvidia"
        module.mkdir(parents=True, exist_ok=True)
        (module / "version").write_text(f"{version}\n", encoding="ascii")
        (self._sys / "bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._sys / _UNLOADED, ignore_errors=True)

    def unload_module(self) -> None:
        """It is not loaded; no GPU may be bound to it."""
        shutil.rmtree(self._sys / "bus/pci/drivers/nvidia", ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self._sys / "module/nvidia").rename(self._sys / _UNLOADED)

    def _link(self, link: Path, target: Path) -> None:
        """A relative link, so that the folder can be mounted elsewhere."""
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        up = len(link.parent.relative_to(self._sys).parts)
        link.symlink_to(Path(*[".."] * up) / target.relative_to(self._sys))


def _resource(position: int, board: BoardModel) -> list[str]:
    """The lines of a GPU's `resource`: start, end and flags of its registers, the window on its memory, and another.

    A BAR with 64-bit addresses takes two lines, the second one empty. From Hopper on all three have them.
    """
    wide = board.architecture >= Architecture.HOPPER
    at = _WINDOWS + position * (1 << 40)
    bars = {
        0: (16 * _MIB, _MEMORY_64) if wide else (16 * _MIB, _MEMORY_32),
        2 if wide else 1: (board.bar1_mib * _MIB, _MEMORY_64),
        4 if wide else 3: (32 * _MIB, _MEMORY_64),
    }
    lines = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * _LINES
    for line, (size, flags) in bars.items():
        start = 0xC000_0000 + position * 16 * _MIB if flags == _MEMORY_32 else at + line * (1 << 38)
        lines[line] = f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"
    return lines
