# SPDX-License-Identifier: Apache-2.0
"""The owner of a MIG instance: this driver, which created it for a claim, or an administrator.

The hardware does not store the owner. So the driver writes a mark before it creates an instance for a claim: an empty
file named after the placement on the GPU. It deletes the mark after the instance was destroyed. An instance without a
mark belongs to somebody else. A mark does not name the claim, and needs no sync, because instances do not survive a
reboot either.
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
    """Where a GPU instance is or will be. `profile_id` is the driver's."""

    gpu_uuid: str
    profile_id: int
    placement: Placement


class MigMarks:
    """The marks in `folder`, which is made when the first one is set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, place: MigPlace) -> None:
        """From now on what is there is the driver's. Raises OSError."""
        make_folder(self._folder)
        set_mark(self._file(place))

    def clear(self, place: MigPlace) -> None:
        """What is there, if anything, is not the driver's any more."""
        remove_file(self._file(place))

    def has(self, place: MigPlace) -> bool:
        """Whether what is there, if anything, is the driver's. Costs one look at a file."""
        return os.path.lexists(self._file(place))

    def all(self) -> frozenset[MigPlace]:
        """Every marked place. A name that is no mark is passed over."""
        return frozenset(_place(match) for match in map(_NAME.fullmatch, names_in(self._folder)) if match)

    def _file(self, place: MigPlace) -> Path:
        at = place.placement
        return self._folder / f"{place.gpu_uuid}_{place.profile_id}_{at.start}_{at.size}"


def set_mark(file: Path) -> None:
    """Make an empty file unless something has its name already: the name alone is the mark. Raises OSError."""
    if not os.path.lexists(file):
        file.touch()


def _place(match: re.Match[str]) -> MigPlace:
    placement = Placement(int(match["start"]), int(match["size"]))
    return MigPlace(match["gpu"], int(match["profile"]), placement)
