# SPDX-License-Identifier: Apache-2.0
"""The files of a simulated node: those of an installed driver, and those of the kernel in /sys.

The driver's files (device nodes, /proc entries, libraries) are below one folder with the layout of a host's root.
Device nodes are real character devices if the process may create them, and empty files otherwise. Nothing opens them.
/sys has the devices on the PCI bus, and the kernel drivers to which they are bound.
"""

import os
import shutil
import stat
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

from ..nvml import Architecture
from ..vgpus import VgpuFramework
from .board import BoardModel
from .description import GpuDescription, NodeDescription
from .smi import nvidia_smi_script
from .vgpu import function_address, vgpu_addresses, vgpu_files

MAJORS = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510, "nvidia-caps": 235}
"""The major numbers in /proc/devices of the simulated node."""

_FIRST_CHANNEL_MAJOR, _CHANNEL_MAJORS = 384, 100
_IMEX_MINOR = 4323  # as on a real GB200
_CTL_MINOR, _MODESET_MINOR = 255, 254
_CONTROLLERS = "cpuset cpu io memory pids dmem\n"  # of cgroup version 2 in Linux 6.14
_VFIO = 510
_IOMMU = (10, 126)  # a miscellaneous device of the kernel
_LIBRARIES = {
    "libcuda.so": "libcuda.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so": "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so": "libnvidia-opencl.so.1",
    "libnvidia-encode.so": "libnvidia-encode.so.1",
    "libnvidia-allocator.so": "libnvidia-allocator.so.1",
    "libcudadebugger.so": "libcudadebugger.so.1",
}
_BINARIES = ("nvidia-debugdump", "nvidia-persistenced")
_PROGRAMS = {
    "nvidia-cuda-mps-control": "mps_control",
    "nvidia-cuda-mps-server": "mps_server",
    "nvidia-imex": "imex_daemon",
    "nvidia-imex-ctl": "imex_control",
}
"""The stand-ins of NVIDIA's programs, by the names of the programs."""
_STAND_INS = Path(__file__).parents[2] / "sandbox/standins"
"""A package of programs that run on their own: neither does the driver import them, nor do they import the driver."""
_INSTANCES_PER_GPU = 15
_COMPUTES_PER_INSTANCE = 8

_FIRST_IOMMU_GROUP = 16
_FIRST_FUNCTIONS_GROUP, _MOST_FUNCTIONS = 1000, 64
_LINES = 13  # six BARs, the expansion ROM, and the windows that only bridges and virtual functions have
_MEMORY_32, _MEMORY_64 = 0x40200, 0x14220C  # flags: plain memory; prefetchable memory with 64-bit addresses
_WINDOWS = 0x2000_0000_0000  # where the BARs of the first GPU are mapped
_MIB = 1 << 20


def capability_minor(minor: int, instance: int, compute: int | None = None) -> int:
    """The minor number of a MIG capability, as in /proc/driver/nvidia-caps/mig-minors."""
    per_instance = 1 + _COMPUTES_PER_INSTANCE
    base = 3 + (minor * _INSTANCES_PER_GPU + instance) * per_instance
    return base if compute is None else base + 1 + compute


def iommu_group(position: int) -> int:
    """The IOMMU group of the GPU at this position."""
    return _FIRST_IOMMU_GROUP + position


def product_names(node: NodeDescription) -> dict[int, str]:
    """The names in pci.ids of the node's GPUs, by device ID."""
    return {gpu.board.pci_device_id >> 16: gpu.board.pci_name for gpu in node.gpus}


def channel_major(identity: str) -> int:
    """The major number of the IMEX channels on a node. It differs between nodes, as on real ones."""
    return _FIRST_CHANNEL_MAJOR + zlib.crc32(identity.encode()) % _CHANNEL_MAJORS


def install_programs(root: Path) -> None:
    """Install the programs of MPS and IMEX in a driver root, whose parent folder contains their `state`."""
    for name, module in _PROGRAMS.items():
        start = f"#!{sys.executable} -IS\nimport sys\nsys.path.append({str(_STAND_INS.parent)!r})\n"
        _text(root / "usr/bin" / name, f"{start}from {_STAND_INS.name} import {module}\n{module}.main()\n", 0o755)


class DriverFiles:
    """The driver's files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._dev = root / "dev"
        self._capabilities = root / "proc/driver/nvidia/capabilities"

    def create(self, node: NodeDescription, identity: str) -> None:
        """Create all files that do not depend on MIG instances."""
        for position, gpu in enumerate(node.gpus):
            _device_node(self._dev / f"nvidia{gpu.minor}", MAJORS["nvidia"], gpu.minor)
            for number in range(gpu.virtual_functions):
                _device_node(self._dev / f"vfio/{_function_group(position, number)}", _VFIO, number)
        _device_node(self._dev / "nvidiactl", MAJORS["nvidiactl"], _CTL_MINOR)
        _device_node(self._dev / "nvidia-modeset", MAJORS["nvidia"], _MODESET_MINOR)
        _device_node(self._dev / "nvidia-uvm", MAJORS["nvidia-uvm"], 0)
        _device_node(self._dev / "nvidia-uvm-tools", MAJORS["nvidia-uvm"], 1)
        _device_node(self._dev / "iommu", *_IOMMU)
        majors = MAJORS | ({"nvidia-caps-imex-channels": channel_major(identity)} if node.imex_channels else {})
        lines = "".join(f"{major:3} {name}\n" for name, major in majors.items())
        _text(self.root / "proc/devices", f"Character devices:\n{lines}\nBlock devices:\n")
        for name, minor in (("config", 1), ("monitor", 2)):
            self._add_capability(Path("mig") / name, minor)
        if node.imex_channels:
            self._add_capability(Path("fabric-imex-mgmt"), _IMEX_MINOR, 0o400)
        parameters = f"ImexChannelCount: {node.imex_channels}\nCreateImexChannel0: 0\n"
        _text(self.root / "proc/driver/nvidia/params", parameters)
        lines = "".join(f"\t{number:04x}  {name}\n" for number, name in sorted(product_names(node).items()))
        _text(self.root / "usr/share/misc/pci.ids", f"10de  NVIDIA Corporation\n{lines}")
        _text(self.root / "sys/fs/cgroup/cgroup.controllers", _CONTROLLERS)
        self.install(node.driver_version)

    def install(self, version: str) -> None:
        """Install this version of the driver, and remove any other version."""
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        for old in libraries.glob("lib*"):
            if old.name.partition(".so")[0] + ".so" in _LIBRARIES:
                old.unlink()
        for name, soname in _LIBRARIES.items():
            _text(libraries / f"{name}.{version}", f"simulated {name}\n", 0o755)
            for link, target in ((soname, f"{name}.{version}"), (name, soname)):
                (libraries / link).symlink_to(target)
        for name in _BINARIES:
            _text(self.root / "usr/bin" / name, f"#!/bin/sh\necho '{name}, simulated, driver {version}'\n", 0o755)
        _text(self.root / "usr/bin/nvidia-smi", nvidia_smi_script(version), 0o755)
        install_programs(self.root)
        shutil.rmtree(self.root / "lib/firmware/nvidia", ignore_errors=True)
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
            _text(self.root / "lib/firmware/nvidia" / version / name, "simulated firmware\n")
        _text(self.root / "proc/driver/nvidia/version", f"NVRM version: simulated Kernel Module {version}\n")

    def add_instance(self, minor: int, instance: int, compute: int | None = None) -> None:
        """Create the access file and device node of a GPU instance, or of a compute instance in it."""
        self._add_capability(_folder(minor, instance, compute) / "access", capability_minor(minor, instance, compute))

    def remove_instance(self, minor: int, instance: int, compute: int | None = None) -> None:
        """Remove the access file and device node of a GPU instance, or of a compute instance in it."""
        shutil.rmtree(self._capabilities / _folder(minor, instance, compute), ignore_errors=True)
        number = capability_minor(minor, instance, compute)
        (self._dev / f"nvidia-caps/nvidia-cap{number}").unlink(missing_ok=True)

    def _add_capability(self, path: Path, minor: int, mode: int = 0o444) -> None:
        _text(self._capabilities / path, f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
        _device_node(self._dev / f"nvidia-caps/nvidia-cap{minor}", MAJORS["nvidia-caps"], minor, mode)


def _folder(minor: int, instance: int, compute: int | None) -> Path:
    """The folder of an instance below the capabilities."""
    folder = Path(f"gpu{minor}/mig/gi{instance}")
    return folder if compute is None else folder / f"ci{compute}"


def _text(path: Path, text: str, mode: int = 0o644) -> None:
    try:
        _write(f"{path}", text)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(f"{path}", text)
    path.chmod(mode)


def _write(path: str, text: str) -> None:
    """Write a file. `open` takes twice as long."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _device_node(path: Path, major: int, minor: int, mode: int = 0o666) -> None:
    try:
        os.mknod(path, mode | stat.S_IFCHR, os.makedev(major, minor))
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _device_node(path, major, minor, mode)
    except FileExistsError:
        return None
    except PermissionError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path.chmod(mode)  # mknod is subject to the umask
    return None


def _function_group(position: int, number: int) -> int:
    """The IOMMU group of a virtual function of the GPU at this position."""
    return _FIRST_FUNCTIONS_GROUP + position * _MOST_FUNCTIONS + number


class SysFiles:
    """The files of /sys, which are in the folder `sys`."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys

    def plug(self, position: int, gpu: GpuDescription) -> None:
        """Add a GPU to the bus, bound to no driver."""
        host, functions = gpu.vgpu_host, gpu.virtual_functions
        texts = {
            "sriov_totalvfs": str(functions),
            "sriov_numvfs": str(functions),
            "resource": resource_text(position, gpu.board),
        }
        self._add(gpu, gpu.pci_address, iommu_group(position), texts)
        for number in range(functions):
            address = function_address(gpu, number)
            self._add(gpu, address, _function_group(position, number), {})
            device, physical = self._device(gpu, address), self._device(gpu, gpu.pci_address)
            self._link(f"{physical}/virtfn{number}", device)
            self._link(f"{device}/physfn", physical)
            self._link(f"{device}/driver", self.add_driver("nvidia"))
        if host is not None:
            for address in vgpu_addresses(gpu, host):
                device = self._device(gpu, address)
                for name, text in vgpu_files(gpu, host).items():
                    _text(Path(device, name), text)
                if host.framework is VgpuFramework.MDEV:
                    self._link(f"{self._sys}/class/mdev_bus/{address}", device)

    def _add(self, gpu: GpuDescription, address: str, number: int, texts: Mapping[str, str]) -> None:
        """Add a function of a GPU to the bus, in the IOMMU group `number`."""
        board, device, group = gpu.board, self._device(gpu, address), f"{self._sys}/kernel/iommu_groups/{number}"
        texts = {
            "class": "0x030200",
            "vendor": f"0x{board.pci_device_id & 0xFFFF:04x}",
            "device": f"0x{board.pci_device_id >> 16:04x}",
            "subsystem_vendor": f"0x{board.pci_subsystem_id & 0xFFFF:04x}",
            "subsystem_device": f"0x{board.pci_subsystem_id >> 16:04x}",
            "numa_node": str(gpu.numa_node),
            "driver_override": "(null)",
            "modalias": _modalias(board),
            **texts,
        }
        os.makedirs(device, exist_ok=True)
        for name, text in texts.items():
            _write(f"{device}/{name}", f"{text}\n")
        self._link(f"{self._sys}/bus/pci/devices/{address}", device)
        self._link(f"{group}/devices/{address}", device)
        self._link(f"{device}/iommu_group", group)

    def _device(self, gpu: GpuDescription, address: str) -> str:
        """The folder of a GPU or of one of its functions."""
        return f"{self._sys}/devices/{gpu.pcie_root}/{address}"

    def bind(self, gpu: GpuDescription, driver: str) -> None:
        """Bind a GPU, which has no driver, to this one."""
        device, folder = self._device(gpu, gpu.pci_address), self.add_driver(driver)
        self._link(f"{folder}/{gpu.pci_address}", device)
        self._link(f"{device}/driver", folder)

    def add_driver(self, name: str) -> str:
        """The folder of a driver, which is made when it is missing."""
        folder = self._sys / "bus/pci/drivers" / name
        if not (folder / "unbind").exists():
            folder.mkdir(parents=True, exist_ok=True)
            for file in ("bind", "unbind"):
                (folder / file).touch(0o200)
        return str(folder)

    def load_module(self, version: str) -> None:
        """Load the NVIDIA module."""
        module = self._sys / "module/nvidia"
        module.mkdir(parents=True, exist_ok=True)
        (module / "version").write_text(f"{version}\n", encoding="ascii")
        self.add_driver("nvidia")

    def _link(self, link: str, target: str) -> None:
        """Create a relative link, so that the folder can be mounted elsewhere."""
        root = f"{self._sys}/"
        text = link.removeprefix(root).count("/") * "../" + target.removeprefix(root)
        try:
            os.symlink(text, link)
        except FileNotFoundError:
            os.makedirs(link.rpartition("/")[0], exist_ok=True)
            os.symlink(text, link)
        except FileExistsError:
            os.unlink(link)
            os.symlink(text, link)


def _modalias(board: BoardModel) -> str:
    """As the kernel writes it: the two halves of the device id and of the subsystem id, and the class."""
    device, vendor = divmod(board.pci_device_id, 1 << 16)
    model, maker = divmod(board.pci_subsystem_id, 1 << 16)
    return f"pci:v{vendor:08X}d{device:08X}sv{maker:08X}sd{model:08X}bc03sc02i00"


def resource_text(position: int, board: BoardModel) -> str:
    """A GPU's file `resource`, with start, end and flags on each line: its registers, the window to its memory, and one
    more.

    A BAR with 64-bit addresses takes two lines, and the second one is empty. From Hopper on, all three BARs are such.
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
    return "\n".join(lines)
