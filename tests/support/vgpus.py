# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU manager in a simulated kernel: writes to sysfs create and remove vGPUs, and what still fits shrinks.

As the manager does, it refuses a type that no longer fits, a second vGPU on a virtual function, and the removal of a
vGPU that a machine uses. The nodes of a vGPU in /dev/vfio exist as long as the vGPU.
"""

import errno
import itertools
import os
import shutil
from pathlib import Path

from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.gpu.vgpus import VgpuFramework, VgpuPlace, VgpuType, VgpuTypes, existing_vgpus, vgpu_functions

_FILES = ("create", "remove", "current_vgpu_type", "vgpu_params")
_FIRST_GROUP = 5000


class VgpuManager:
    """The manager of a node with this /sys and /dev. `used` has the UUIDs and addresses of vGPUs that machines use, and
    `params` what was written to `vgpu_params`, by the same names.
    """

    def __init__(self, sys: Path, dev: Path, node: SimulatedNode) -> None:
        self._sys = sys
        self._dev = dev
        self._types: dict[str, VgpuTypes] = {}
        self._groups = itertools.count(_FIRST_GROUP)
        self._cdevs = itertools.count(100)
        self.used: set[str] = set()
        self.params: dict[str, str] = {}
        for group in (dev / "vfio").glob("*"):  # here they exist as long as their vGPUs
            group.unlink()
        nvml = node.nvml()
        nvml.initialize()
        for gpu in map(nvml.device_by_index, range(nvml.device_count())):
            try:
                self._types[nvml.pci_address(gpu)] = nvml.vgpu_types(gpu)
            except NvmlError:
                continue

    def vgpus(self, gpu: str) -> tuple[VgpuPlace, ...]:
        """The vGPUs of the GPU at this address."""
        return existing_vgpus(self._sys, "", gpu)

    def answers(self, name: str) -> bool:
        """Whether it answers writes to files of this name."""
        return name in _FILES

    def write(self, path: str, word: str) -> None:
        """Answer a write."""
        parts = path.split("/")
        match parts[-1]:
            case "create":
                self._create_mdev(parts[-4], int(parts[-2].removeprefix("nvidia-")), word)
            case "remove":
                self._remove_mdev(parts[-2])
            case "current_vgpu_type":
                self._set_type(parts[-3], int(word))
            case "vgpu_params":
                self.params[parts[-3]] = word
        for gpu in self._types:
            self._offer(gpu)

    # Vendor-specific VFIO

    def _set_type(self, function: str, wanted: int) -> None:
        folder = self._sys / "bus/pci/devices" / function
        current = int((folder / "nvidia/current_vgpu_type").read_text())
        if function in self.used:
            raise OSError(errno.EBUSY, "a machine uses it")
        if wanted and current:
            raise OSError(errno.EPERM, "it is a vGPU")
        if wanted and wanted not in {one.id for one in self._fitting(self._gpu_of(function))}:
            raise OSError(errno.EINVAL, "the type does not fit")
        (folder / "nvidia/current_vgpu_type").write_text(f"{wanted}\n")
        self._show(folder, bool(wanted))

    # Mediated devices

    def _create_mdev(self, function: str, wanted: int, uuid: str) -> None:
        parent = (self._sys / "bus/pci/devices" / function).resolve()
        types = parent / "mdev_supported_types" / f"nvidia-{wanted}"
        mdev, link = parent / uuid, self._sys / "bus/mdev/devices" / uuid
        if mdev.exists():
            raise OSError(errno.EEXIST, "it exists")
        if not int((types / "available_instances").read_text()):
            raise OSError(errno.EUSERS, "no more of this type")
        (mdev / "nvidia").mkdir(parents=True)
        for name in ("remove", "nvidia/vgpu_params"):
            (mdev / name).touch(0o200)
        (mdev / "mdev_type").symlink_to(os.path.relpath(types, mdev))
        group = self._sys / "kernel/iommu_groups" / str(next(self._groups))
        (group / "devices").mkdir(parents=True)
        (group / "devices" / uuid).symlink_to(os.path.relpath(mdev, group / "devices"))
        (mdev / "iommu_group").symlink_to(os.path.relpath(group, mdev))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(mdev, link.parent))
        self._show(mdev, True)

    def _remove_mdev(self, uuid: str) -> None:
        link = self._sys / "bus/mdev/devices" / uuid
        if uuid in self.used:
            raise OSError(errno.EBUSY, "a machine uses it")
        mdev = link.resolve()
        self._show(mdev, False)
        shutil.rmtree((mdev / "iommu_group").resolve())
        link.unlink()
        shutil.rmtree(mdev)

    # Both

    def _show(self, folder: Path, exists: bool) -> None:
        """Create or remove the nodes of a vGPU."""
        cdevs, group = folder / "vfio-dev", self._dev / "vfio" / (folder / "iommu_group").readlink().name
        if exists:
            group.touch()
            (cdevs / f"vfio{next(self._cdevs)}").mkdir(parents=True)
        else:
            group.unlink(missing_ok=True)
            shutil.rmtree(cdevs, ignore_errors=True)

    def _gpu_of(self, function: str) -> str:
        physical = self._sys / "bus/pci/devices" / function / "physfn"
        return physical.readlink().name if physical.is_symlink() else function

    def _fitting(self, gpu: str) -> list[VgpuType]:
        """The types of which one more vGPU fits."""
        types, there = self._types[gpu], [place.type_id for place in self.vgpus(gpu)]
        if not types.mixed:
            return [one for one in types.types if not set(there) - {one.id} and len(there) < len(one.starts)]
        sizes = {one.id: one.size for one in types.types}
        free = max(one.size * len(one.starts) for one in types.types) - sum(sizes[one] for one in there)
        return [one for one in types.types if one.size <= free]

    def _offer(self, gpu: str) -> None:
        """Update the files that tell which types fit."""
        fitting, there = self._fitting(gpu), self.vgpus(gpu)
        framework, functions = vgpu_functions(self._sys, gpu)
        for function in functions:
            folder = self._sys / "bus/pci/devices" / function
            if framework is VgpuFramework.VFIO:
                lines = "".join(f"{one.id} : NVIDIA {one.name}\n" for one in fitting)
                (folder / "nvidia/creatable_vgpu_types").write_text(f"ID    : vGPU Name\n{lines}")
                continue
            for one in self._types[gpu].types:
                left = len(one.starts) - len(there) if one in fitting else 0
                if functions != (gpu,):
                    left = min(left, int(all(place.address != function for place in there)))
                (folder / f"mdev_supported_types/nvidia-{one.id}/available_instances").write_text(f"{left}\n")
