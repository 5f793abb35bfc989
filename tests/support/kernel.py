# SPDX-License-Identifier: Apache-2.0
"""The part of a kernel that binds drivers to PCI devices, for a simulated node: its /sys behaves like a real one.

Writes to `bind`, `unbind`, `driver_override`, `drivers_probe` and `sriov_numvfs` have the effects and errors of
drivers/base/bus.c and drivers/pci/pci-driver.c. `vgpus` answers writes that concern vGPUs. A GPU that leaves NVIDIA's
driver is gone from NVML. The nodes in
/dev/vfio appear with a delay, as udev makes them. Slots can have further functions, and groups further members. A test
can let a write fail or block, a driver refuse a device, and look at every write.
"""

import errno
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dra_driver.gpu.nvml import NvmlError

from .fuse import Fuse
from .hardware import ControlledNode
from .vgpus import VgpuManager

VFIO, NVIDIA, AUDIO = "vfio-pci", "nvidia", "snd_hda_intel"
NODE_DELAY = 0.2
LASTING = re.compile("/(bus(/pci(/devices|/drivers)?)?|devices(/pci[^/]*)?|kernel(/iommu_groups)?)")
"""The folders of /sys that no device or driver is, and that are there as long as the machine runs. GPUs last too,
as long as they are not unplugged.
"""
LOAD = ".load"
"""The file below /sys through which the simulated modprobe reaches this kernel."""

_MODPROBE = """#!/bin/sh
case $1 in vfio_pci|nvgrace_gpu_vfio_pci) echo "$1" > "${0%/usr/sbin/modprobe}/sys/.load" ;;
*) echo "modprobe: FATAL: Module $1 not found."; exit 1 ;; esac
"""
_ALIASES = """# Aliases extracted from modules themselves.
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000010DEd00002941sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
"""

Picture = dict[str, tuple[str | None, str]]
"""The driver and override of each function, by address."""

Strike = Callable[[int, str, str], None]
"""Called before each write with its number, the path and the text. May raise OSError, block, or kill."""


@dataclass(frozen=True)
class Function:
    """What a function is, as lspci would show it."""

    address: str
    kind: str
    driver: str | None
    vendor: str = "0x10de"


class Kernel:
    """The kernel of a simulated node in `root`. Its GPUs have the IOMMU groups of the node, one each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.driver_root = root / "driver"
        self.sys = root / "sysfs"
        self.dev = self.driver_root / "dev"
        (self.driver_root / "sys").rename(self.sys)
        (self.driver_root / "sys").mkdir()
        self.node = ControlledNode(root, self.sys)
        self.strike: Strike = lambda *_: None
        self.node_delay = NODE_DELAY
        self.makes_function_nodes = False
        """Whether udev also makes the nodes of iommufd, later than those of the groups."""
        self.refusing: dict[str, int] = {}
        """By address, the errno with which every driver refuses the device."""
        self.writes: list[str] = []
        self._lock = threading.RLock()
        self._held: dict[str, threading.Event] = {}
        self._numbers = itertools.count()
        self._cdevs = itertools.count()
        devices = (self.sys / "bus/pci/devices").iterdir()
        physical = sorted(one.name for one in devices if not (one / "physfn").exists())
        self._positions = {name: index for index, name in enumerate(physical)}
        gpus = "|".join(map(re.escape, physical))
        lasting = re.compile(f"{LASTING.pattern}|/(bus/pci/devices|devices/pci[^/]*)/({gpus})")
        self._fuse = Fuse(self.sys, self.driver_root / "sys", self._write, lasting)
        self.vgpus = VgpuManager(self.sys, self.dev, self.node)
        for file in ("bus/pci/drivers_probe", LOAD):
            (self.sys / file).touch(0o200)
        for path, text, mode in (
            (self.driver_root / "usr/sbin/modprobe", _MODPROBE, 0o755),
            (self.driver_root / "lib/modules" / os.uname().release / "modules.alias", _ALIASES, 0o644),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(mode)
        (self.dev / "vfio").mkdir(exist_ok=True)

    @contextmanager
    def running(self) -> Iterator["Kernel"]:
        """Answer system calls inside of the context."""
        self._fuse.mount()
        try:
            yield self
        finally:
            for held in list(self._held.values()):
                held.set()
            self._fuse.unmount()

    # The machine

    @property
    def gpus(self) -> list[str]:
        """The addresses of the GPUs."""
        return list(self._positions)

    def add(self, function: Function, group: int | None) -> None:
        """A function that is no GPU, in a group."""
        device = self.sys / "devices/pci0000:00" / function.address
        device.mkdir(parents=True)
        texts = {
            "class": function.kind,
            "vendor": function.vendor,
            "device": "0x22ba",
            "driver_override": "(null)",
            "modalias": f"pci:v000010DEd000022BAsv00000000sd00000000bc{function.kind[2:4]}sc03i00",
        }
        for name, text in texts.items():
            (device / name).write_text(f"{text}\n")
        _link(self.sys / "bus/pci/devices" / function.address, device)
        if group is not None:
            self.join(function.address, group)
        if function.driver is not None:
            self._folder(function.driver)
            self._attach(function.address, function.driver)

    def join(self, address: str, group: int) -> None:
        """The function is in another group now."""
        device = self._device(address).resolve()
        folder = self.sys / "kernel/iommu_groups" / str(group)
        if (device / "iommu_group").is_symlink():
            (device / "iommu_group/devices" / address).unlink()
        (folder / "devices").mkdir(parents=True, exist_ok=True)
        _link(folder / "devices" / address, device)
        _link(device / "iommu_group", folder)

    def group(self, address: str) -> int:
        """The number of a function's group."""
        return int((self._device(address) / "iommu_group").readlink().name)

    def driver(self, address: str) -> str | None:
        """The driver that a function is bound to."""
        try:
            return (self._device(address) / "driver").readlink().name
        except FileNotFoundError:
            return None

    def override(self, address: str) -> str:
        """The override of a function as it reads."""
        return (self._device(address) / "driver_override").read_text().strip()

    def picture(self) -> Picture:
        """The driver and override of every function."""
        names = sorted(one.name for one in (self.sys / "bus/pci/devices").iterdir())
        return {name: (self.driver(name), self.override(name)) for name in names}

    def unplug(self, address: str) -> None:
        """A GPU is pulled out."""
        with self._lock:
            if self.driver(address) is not None:
                self._detach(address)
            folder = self._device(address).resolve().relative_to(self.sys)
            self.node.unplug(self._positions[address])
        for path in (f"/bus/pci/devices/{address}", f"/{folder}"):
            self._fuse.forget(path)

    def hold(self, address: str) -> None:
        """Let an unbind of the device block from now on, until `release`."""
        self._held[address] = threading.Event()

    def release(self, address: str) -> None:
        """Let it go on."""
        self._held.pop(address).set()

    def force(self, address: str, driver: str | None) -> None:
        """What an administrator does by hand."""
        with self._lock:
            if self.driver(address) is not None:
                self._detach(address)
            if driver is not None:
                self._folder(driver)
                self._attach(address, driver)

    # Writes

    def _write(self, path: str, text: str) -> None:
        self.writes.append(f"{path} {text.strip()}")
        self.strike(next(self._numbers), path, text.strip())
        word, name = text.strip(), path.rpartition("/")[2]
        if path == LOAD:
            self._folder(word.replace("_", "-") if word == "vfio_pci" else word)
        elif name == "unbind":
            self._unbind(word, path.split("/")[-2])
        elif name == "bind":
            self._bind(word, path.split("/")[-2])
        elif name == "drivers_probe":
            self._probe(word)
        elif self.vgpus.answers(name):
            with self._lock:
                self.vgpus.write(path, word)
        elif name == "driver_override":
            (self.sys / path).write_text(f"{word or '(null)'}\n")
        else:
            raise OSError(errno.EACCES, "read only")

    def _unbind(self, address: str, driver: str) -> None:
        if self.driver(address) != driver:
            raise OSError(errno.ENODEV, "it is not bound to this driver")
        if (held := self._held.get(address)) is not None:
            held.wait()
        with self._lock:
            if self.driver(address) == driver:
                self._detach(address)

    def _bind(self, address: str, driver: str) -> None:
        with self._lock:
            if not self._device(address).exists():
                raise OSError(errno.ENODEV, "no such device")
            if not self._matches(address, driver):
                raise OSError(errno.ENODEV, "the driver does not match")
            if self.driver(address) is not None:
                raise OSError(errno.EBUSY, "it has a driver")
            if address in self.refusing:
                raise OSError(self.refusing[address], "the driver refuses it")
            self._attach(address, driver)

    def _probe(self, address: str) -> None:
        for driver in sorted(one.name for one in (self.sys / "bus/pci/drivers").iterdir()):
            if self.driver(address) is None and self._matches(address, driver):
                self._bind(address, driver)

    def _matches(self, address: str, driver: str) -> bool:
        override = self.override(address)
        if override != "(null)":
            return override == driver
        if address in self._positions:
            return driver == NVIDIA
        kind = (self._device(address) / "class").read_text()[:6]
        return driver == {"0x0403": AUDIO, "0x0c03": "xhci_hcd"}.get(kind)

    def _attach(self, address: str, driver: str) -> None:
        if address in self._positions:
            self.node.bind_driver(self._positions[address], driver)
        else:
            device = self._device(address).resolve()
            _link(self.sys / "bus/pci/drivers" / driver / address, device)
            _link(device / "driver", self.sys / "bus/pci/drivers" / driver)
        if "vfio" in driver:
            (self._device(address) / f"vfio-dev/vfio{next(self._cdevs)}").mkdir(parents=True)
            threading.Thread(target=self._make_nodes, args=(address,), daemon=True).start()

    def _detach(self, address: str) -> None:
        driver = self.driver(address)
        if address in self._positions:
            try:
                self.node.bind_driver(self._positions[address], None)
            except NvmlError:
                raise OSError(errno.EBUSY, "it is in use") from None
        else:
            (self.sys / "bus/pci/drivers" / str(driver) / address).unlink()
            (self._device(address) / "driver").unlink()
        if "vfio" in str(driver):
            cdevs = self._device(address) / "vfio-dev"
            for one in list(cdevs.iterdir()):
                one.rmdir()
            cdevs.rmdir()
            members = [one.name for one in (self._device(address) / "iommu_group/devices").iterdir()]
            if not any("vfio" in str(self.driver(one)) for one in members):
                (self.dev / f"vfio/{self.group(address)}").unlink(missing_ok=True)

    def _make_nodes(self, address: str) -> None:
        time.sleep(self.node_delay)
        with self._lock:
            if "vfio" in str(self.driver(address)):
                (self.dev / f"vfio/{self.group(address)}").touch()
        if self.makes_function_nodes:
            time.sleep(self.node_delay)
            self.make_function_nodes(address)

    def make_function_nodes(self, address: str) -> None:
        """udev makes the nodes of a function that is bound to a vfio driver."""
        with self._lock:
            cdevs = self._device(address) / "vfio-dev"
            (self.dev / "vfio/devices").mkdir(exist_ok=True)
            for one in cdevs.iterdir() if cdevs.is_dir() else ():
                (self.dev / "vfio/devices" / one.name).touch()

    def _device(self, address: str) -> Path:
        return self.sys / "bus/pci/devices" / address

    def _folder(self, driver: str) -> None:
        folder = self.sys / "bus/pci/drivers" / driver
        folder.mkdir(exist_ok=True)
        for name in ("bind", "unbind"):
            (folder / name).touch(0o200)


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
