# SPDX-License-Identifier: Apache-2.0
"""The GPUs that the simulation knows (boards.yaml)."""

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from ..nvml import Architecture, GpuInstanceProfile, Placement


@dataclass(frozen=True, slots=True)
class ProfileModel:
    """A MIG profile: what NVML says of it and where it can go."""

    info: GpuInstanceProfile
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class BoardModel:
    """One kind of GPU. `pci_name` is how pci.ids calls it, `bar1_mib` the size of the window on its memory. Boards that
    cannot be split have neither memory slices nor profiles.
    """

    model: str
    product_name: str
    architecture: Architecture
    compute_capability: tuple[int, int]
    memory_mib: int
    pci_device_id: int
    pci_subsystem_id: int
    pci_name: str
    bar1_mib: int
    nvlinks: int
    memory_slices: int
    profiles: tuple[ProfileModel, ...]

    def profile_by_id(self, profile_id: int) -> ProfileModel | None:
        """The profile with the driver's id."""
        return next((profile for profile in self.profiles if profile.info.id == profile_id), None)

    def profile_by_name(self, name: str) -> ProfileModel | None:
        """The profile called `1g.10gb` or the like."""
        return next((profile for profile in self.profiles if profile.info.name == name), None)


@functools.cache
def boards() -> dict[str, BoardModel]:
    """Every board, by model."""
    text = resources.files(__package__).joinpath("boards.yaml").read_bytes()
    return {board.model: board for board in map(_board, yaml.load(text, yaml.CSafeLoader)["boards"])}


def _board(row: dict[str, Any]) -> BoardModel:
    major, minor = row["computeCapability"]
    return BoardModel(
        model=row["model"],
        product_name=row["productName"],
        architecture=Architecture[row["architecture"]],
        compute_capability=(major, minor),
        memory_mib=row["memoryMiB"],
        pci_device_id=row["pciDeviceId"],
        pci_subsystem_id=row["pciSubsystemId"],
        pci_name=row["pciName"],
        bar1_mib=row["bar1MiB"],
        nvlinks=row["nvlinks"],
        memory_slices=row.get("memorySlices", 0),
        profiles=tuple(_profile(name, profile) for name, profile in row.get("profiles", {}).items()),
    )


def _profile(name: str, row: dict[str, Any]) -> ProfileModel:
    copy, decode, encode, jpeg, ofa = row["engines"]
    info = GpuInstanceProfile(
        constant=row["constant"],
        id=row["id"],
        name=name,
        slice_count=row["slices"],
        instance_count=row["instances"],
        memory_mib=row["memoryMiB"],
        multiprocessors=row["multiprocessors"],
        copy_engines=copy,
        decoders=decode,
        encoders=encode,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
    )
    return ProfileModel(info, tuple(Placement(start, row["size"]) for start in row["starts"]))
