# SPDX-License-Identifier: Apache-2.0
"""The owner of a MIG instance or a vGPU: this driver, which created it for a claim, or an administrator.

The hardware does not store the owner. So the driver writes a mark before it creates an instance for a claim: an empty
file named after the placement on the GPU. It deletes the mark after the instance was destroyed. An instance without a
mark belongs to an administrator. A mark does not name the claim. A mark needs no fsync, because neither MIG instances
nor vGPUs survive a reboot.
"""

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..process.files import folder_version, make_folder, names_in, remove_file
from .nvml import Placement
from .vgpus import VgpuPlace

_GPU = "(?P<gpu>GPU-[0-9a-fA-F-]+)"
_MIG = re.compile(_GPU + r"_(?P<profile>\d+)_(?P<start>\d+)_(?P<size>\d+)")
_VGPU = re.compile(_GPU + r"_(?P<address>[0-9a-f:.]+)_(?P<type>\d+)_(?P<mdev>[0-9a-f-]*)")


@dataclass(frozen=True, slots=True)
class MigPlace:
    """The place of an existing or future GPU instance. `profile_id` is the id that the NVIDIA driver uses."""

    gpu_uuid: str
    profile_id: int
    placement: Placement


Owned = MigPlace | VgpuPlace
"""The place of something that was created for a claim."""

P = TypeVar("P", MigPlace, VgpuPlace)


class _Marks(ABC, Generic[P]):
    """The marks in `folder`, which is created with the first mark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @abstractmethod
    def _name(self, place: P) -> str:
        """The name of a mark."""

    @abstractmethod
    def _place(self, name: str) -> P | None:
        """The place of the mark with this name, or None if it is no such name."""

    def set(self, place: P) -> None:
        """Mark the place, so that an instance there counts as the driver's. Raises OSError."""
        make_folder(self._folder)
        set_mark(self._folder / self._name(place))

    def clear(self, place: P) -> None:
        """Remove the mark, so that an instance there counts as an administrator's."""
        remove_file(self._folder / self._name(place))

    def has(self, place: P) -> bool:
        """Whether the place is marked. Costs one system call."""
        return os.path.lexists(self._folder / self._name(place))

    def all(self) -> frozenset[P]:
        """All marked places. Files with other names are ignored."""
        found = (self._place(name) for name in names_in(self._folder))
        return frozenset(place for place in found if place is not None)

    def version(self) -> int:
        """A number that changes when a mark is set or removed. Costs one system call."""
        return folder_version(self._folder)


class MigMarks(_Marks[MigPlace]):
    """The marks of MIG instances."""

    def _name(self, place: MigPlace) -> str:
        at = place.placement
        return f"{place.gpu_uuid}_{place.profile_id}_{at.start}_{at.size}"

    def _place(self, name: str) -> MigPlace | None:
        match = _MIG.fullmatch(name)
        if match is None:
            return None
        placement = Placement(int(match["start"]), int(match["size"]))
        return MigPlace(match["gpu"], int(match["profile"]), placement)


class VgpuMarks(_Marks[VgpuPlace]):
    """The marks of vGPUs."""

    def _name(self, place: VgpuPlace) -> str:
        return f"{place.gpu_uuid}_{place.address}_{place.type_id}_{place.mdev}"

    def _place(self, name: str) -> VgpuPlace | None:
        match = _VGPU.fullmatch(name)
        return None if match is None else VgpuPlace(match["gpu"], match["address"], int(match["type"]), match["mdev"])


def set_mark(file: Path) -> None:
    """Create an empty file unless the name exists already. Only the name matters. Raises OSError."""
    if not os.path.lexists(file):
        file.touch()
