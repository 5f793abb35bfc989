# SPDX-License-Identifier: Apache-2.0
"""Hosts of vGPUs on a simulated node: their types, and their files in /sys as NVIDIA's vGPU manager makes them.

A GPU with N GiB of memory has the types `<board>-<GiB>Q`, of which as many fit as the memory allows. Real boards have
other sizes, and further series of types (A, B, C). Only `current_vgpu_type` can be written to. The lists of types do
not change when vGPUs are created, and there are no mediated devices.
"""

from typing import Final

from ..vgpus import VgpuFramework, VgpuType, VgpuTypes
from .board import BoardModel
from .description import GpuDescription, VgpuHostDescription

_SIZES: Final = (1, 2, 4, 8, 12, 16, 24, 48)
_FIRST_TYPE: Final = 1100
_MOST: Final = 32
_GIB: Final = 1 << 30


def vgpu_types(model: BoardModel, host: VgpuHostDescription) -> VgpuTypes:
    """The types of a board. In mixed mode, the unit of placements is a GiB."""
    total = -(-model.memory_mib // 1024 // 8) * 8  # without what the driver keeps for itself
    found = []
    for number, size in enumerate(_SIZES):
        most = min(_MOST, total // size)
        starts = range(0, most * size, size) if host.mixed else range(most)
        name = f"{model.model.partition('-')[0]}-{size}Q"
        if most:
            found.append(VgpuType(_FIRST_TYPE + number, name, size * _GIB, size if host.mixed else 1, tuple(starts)))
    return VgpuTypes(host.mixed, tuple(found))


def vgpu_files(gpu: GpuDescription, host: VgpuHostDescription) -> dict[str, str]:
    """The files of a function that can have vGPUs, by path below its folder."""
    types = vgpu_types(gpu.board, host).types
    if host.framework is VgpuFramework.VFIO:
        lines = "".join(f"{kind.id} : NVIDIA {kind.name}\n" for kind in types)
        files = {"creatable_vgpu_types": f"ID    : vGPU Name\n{lines}", "current_vgpu_type": "0\n", "vgpu_params": "\n"}
        return {f"nvidia/{name}": text for name, text in files.items()}
    most = {kind.id: 1 if host.functions else len(kind.starts) for kind in types}
    return {
        f"mdev_supported_types/nvidia-{kind.id}/{name}": text
        for kind in types
        for name, text in (
            ("name", f"NVIDIA {kind.name}\n"),
            ("available_instances", f"{most[kind.id]}\n"),
            ("device_api", "vfio-pci\n"),
            ("create", ""),
        )
    }


def vgpu_addresses(gpu: GpuDescription, host: VgpuHostDescription) -> tuple[str, ...]:
    """The addresses of the functions that can have vGPUs."""
    return tuple(function_address(gpu, number) for number in range(host.functions)) or (gpu.pci_address,)


def function_address(gpu: GpuDescription, number: int) -> str:
    """The address of a virtual function. The first one is function 4 of the GPU's slot."""
    bus, _, _ = gpu.pci_address.rpartition(":")
    slot, function = divmod(number + 4, 8)
    return f"{bus}:{slot:02x}.{function}"
