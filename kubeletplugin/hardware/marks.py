# SPDX-License-Identifier: Apache-2.0
"""Which MIG instances were created for claims, and which MIG modes were switched for them.

The hardware does not store this, so small files do. `mig/` has the marks of dra_driver.gpu.ownership, which the
controller also reads. `mig-modes/` has one file for each GPU whose mode was switched, with the original mode;
`compute-modes/` and `time-slices/` are the same for these settings. `mps/` has the shares of MPS, which are the wishes
that dra-mps fulfils (dra_driver.mps.shares). A mark is set before the change, and removed after
the change was undone. Marks of an earlier boot are deleted, because the changes do not survive a reboot.
"""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dra_driver.files import NotAFileError, make_folder, names_in, read_file, remove_file, write_file
from dra_driver.gpu.ownership import MigMarks, MigPlace, set_mark
from dra_driver.mps.shares import ShareFiles

log = logging.getLogger(__name__)

_SETTING = re.compile(r"([^_]+)_([0-9])_([0-9])", re.ASCII)
_SUFFIXES = {True: "_on", False: "_off"}


class ModeMarks:
    """The MIG modes to go back to, in `folder`, which is made when the first mark is set. The mode is in the file's
    name: an empty file is there or not, whatever happens while it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, gpu_uuid: str, original: bool) -> None:
        """The GPU's mode is about to be switched, and `original` is what it was. A mark that exists stays."""
        if self.get(gpu_uuid) is None:
            make_folder(self._folder)
            set_mark(self._file(gpu_uuid, original))

    def get(self, gpu_uuid: str) -> bool | None:
        """The mode to go back to; None when nobody of ours switched it."""
        return next((mode for mode in _SUFFIXES if os.path.lexists(self._file(gpu_uuid, mode))), None)

    def clear(self, gpu_uuid: str) -> None:
        """The mode is as it was."""
        for mode in _SUFFIXES:
            remove_file(self._file(gpu_uuid, mode))

    def all(self) -> frozenset[str]:
        """The GPUs whose mode was switched. A name that is no mark is passed over."""
        suffixes = tuple(_SUFFIXES.values())
        return frozenset(name.rpartition("_")[0] for name in names_in(self._folder) if name.endswith(suffixes))

    def _file(self, gpu_uuid: str, original: bool) -> Path:
        return self._folder / f"{gpu_uuid}{_SUFFIXES[original]}"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of a GPU that claims changed: its value before, and the one that they want."""

    found: int
    wanted: int


class SettingMarks:
    """The GPUs whose setting was changed, in `folder`, which is made when the first mark is set. The values are in the
    file's name, as for modes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, gpu_uuid: str, change: Change) -> None:
        """The GPU's setting is about to be changed. What an earlier mark says was found stays so."""
        before = self.get(gpu_uuid)
        change = change if before is None else Change(before.found, change.wanted)
        if change != before:
            make_folder(self._folder)
            set_mark(self._folder / f"{gpu_uuid}_{change.found}_{change.wanted}")
            self._remove(gpu_uuid, but=change)

    def get(self, gpu_uuid: str) -> Change | None:
        """The change, None when there is none of ours."""
        return next((change for uuid, change in self._all() if uuid == gpu_uuid), None)

    def clear(self, gpu_uuid: str) -> None:
        """The setting is as it was."""
        self._remove(gpu_uuid)

    def all(self) -> frozenset[str]:
        """The GPUs whose setting was changed."""
        return frozenset(uuid for uuid, _ in self._all())

    def _all(self) -> list[tuple[str, Change]]:
        """Every mark. A name that is none is passed over."""
        found = (_SETTING.fullmatch(name) for name in sorted(names_in(self._folder)))
        return [(one[1], Change(int(one[2]), int(one[3]))) for one in found if one is not None]

    def _remove(self, gpu_uuid: str, but: Change | None = None) -> None:
        for uuid, change in self._all():
            if uuid == gpu_uuid and change != but:
                remove_file(self._folder / f"{uuid}_{change.found}_{change.wanted}")


class Marks:
    """All marks below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.instances = MigMarks(folder / "mig")
        self.modes = ModeMarks(folder / "mig-modes")
        self.compute_modes = SettingMarks(folder / "compute-modes")
        self.time_slices = SettingMarks(folder / "time-slices")
        self.mps = ShareFiles(folder / "mps")
        self._boot = folder / "boot-id"

    def gpus(self) -> frozenset[str]:
        """The GPUs with any mark."""
        placed = frozenset(place.gpu_uuid for place in self.instances.all())
        served = frozenset(share.gpu for share in self.mps.all())
        return placed | served | self.modes.all() | self.compute_modes.all() | self.time_slices.all()

    def made(self, place: MigPlace) -> bool:
        """Whether what stands there, if anything, was made for a claim."""
        return self.instances.has(place)

    def are_of(self, boot_id: str) -> bool:
        """Whether the plugin was ready before in this boot of the machine."""
        try:
            return read_file(self._boot) == boot_id.encode()
        except FileNotFoundError:
            return False
        except (OSError, NotAFileError) as error:  # marks of an unknown boot say nothing
            log.warning("the boot ID of the marks cannot be read: %s", error)
            return False

    def forget_other_boots(self, boot_id: str) -> None:
        """Drop the marks of before the machine was last started: what stands there now is somebody else's."""
        if self.are_of(boot_id):
            return
        for place in self.instances.all():
            self.instances.clear(place)
        for marks in (self.modes, self.compute_modes, self.time_slices):
            for gpu_uuid in marks.all():
                marks.clear(gpu_uuid)
        for share in self.mps.all():
            self.mps.remove(share)  # dra-mps removes what else there is
        try:
            write_file(self._boot, boot_id.encode(), self._boot.with_suffix(".new"))
        except OSError as error:  # the next start forgets marks once more, and adopts what records tell
            log.warning("the boot ID of the marks cannot be written: %s", error)
