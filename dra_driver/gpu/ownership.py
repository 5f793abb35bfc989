# SPDX-License-Identifier: Apache-2.0
"""The owner of a MIG instance: this driver, which created it for a claim, or an administrator.

The hardware does not store the owner. So the driver writes a mark before it creates an instance for a claim: an empty
file named after the placement on the GPU. It deletes the mark after the instance was destroyed. An instance without a
mark belongs to an administrator. A mark does not name the claim. A mark needs no fsync, because MIG instances do not
survive a reboot either.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..files import make_folder, names_in, remove_file
from .nvml import Placement

_NAME = re.compile(r"(?P<gpu>GPU-[0-9a-fA-F-]+)_(?P<profile>\d+)_(?P<start>\d+)_(?P<size>\d+)")


@dataclass(frozen=True, slots=True)
class MigPlace:
    """The place of an existing or future GPU instance. `profile_id` is the id that the NVIDIA driver uses."""

    gpu_uuid: str
    profile_id: int
    placement: Placement


class MigMarks:
    """The marks in `folder`, which is created with the first mark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, place: MigPlace) -> None:
        """Mark the place, so that an instance there counts as the driver's. Raises OSError."""
        make_folder(self._folder)
        set_mark(self._file(place))

    def clear(self, place: MigPlace) -> None:
        """Remove the mark, so that an instance there counts as an administrator's."""
        remove_file(self._file(place))

    def has(self, place: MigPlace) -> bool:
        """Whether the place is marked. Costs one system call."""
        return os.path.lexists(self._file(place))

    def all(self) -> frozenset[MigPlace]:
        """All marked places. Files with other names are ignored."""
        return frozenset(_place(match) for match in map(_NAME.fullmatch, names_in(self._folder)) if match)

    def _file(self, place: MigPlace) -> Path:
        at = place.placement
        return self._folder / f"{place.gpu_uuid}_{place.profile_id}_{at.start}_{at.size}"


def set_mark(file: Path) -> None:
    """Create an empty file unless the name exists already. Only the name matters. Raises OSError."""
    if not os.path.lexists(file):
        file.touch()


def _place(match: re.Match[str]) -> MigPlace:
    placement = Placement(int(match["start"]), int(match["size"]))
    return MigPlace(match["gpu"], int(match["profile"]), placement)
