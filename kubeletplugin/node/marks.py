# SPDX-License-Identifier: Apache-2.0
"""The MIG instances that were created for claims, and the modes and settings that were changed for them.

The hardware does not store this, so small files do. `mig/` has the marks of dra_driver.gpu.ownership, which the
controller also reads. `mig-modes/` has one file for each GPU whose mode was switched, with the original mode.
`compute-modes/` and `time-slices/` are the same for these settings. `vfio/` has the GPUs that virtual machines have
(dra_driver.gpu.passthrough), which the controller reads too. `fabric/` has the NVSwitch partitions that were activated
(dra_driver.gpu.fabric_marks). `mps/` has the shares of MPS, which dra-mps serves (kubeletplugin.features.mps.shares). A
mark is set before the change, and removed after the change was undone. Marks of an earlier boot are deleted, because
the changes do not survive a reboot.
"""

import itertools
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import NotAFileError
from dra_driver.gpu.fabric_marks import FabricMarks
from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.ownership import MigMarks, set_mark
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.process.files import make_folder, names_in, read_file, remove_file, write_file
from kubeletplugin.features.mps.shares import ShareFiles

log = logging.getLogger(__name__)

_SETTING = re.compile(r"([^_]+)_([0-9])_([0-9])", re.ASCII)
_SUFFIXES = {True: "_on", False: "_off"}


class ModeMarks:
    """The original MIG modes of GPUs, in `folder`, which is created with the first mark. The mode is part of the file's
    name, because an empty file either exists or not, even if its creation is interrupted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, gpu_uuid: str, original: bool) -> None:
        """Set a mark before the GPU's mode is switched from `original`. An existing mark stays."""
        if self.get(gpu_uuid) is None:
            make_folder(self._folder)
            set_mark(self._file(gpu_uuid, original))

    def get(self, gpu_uuid: str) -> bool | None:
        """The original mode, or None if the driver has not switched it."""
        return next((mode for mode in _SUFFIXES if os.path.lexists(self._file(gpu_uuid, mode))), None)

    def clear(self, gpu_uuid: str) -> None:
        """Remove the mark, because the mode is the original one again."""
        for mode in _SUFFIXES:
            remove_file(self._file(gpu_uuid, mode))

    def all(self) -> dict[str, bool]:
        """The original modes by GPU. Files with other names are ignored."""
        names = sorted(names_in(self._folder))
        pairs = itertools.product(names, _SUFFIXES.items())
        return {name.removesuffix(suffix): mode for name, (mode, suffix) in pairs if name.endswith(suffix)}

    def _file(self, gpu_uuid: str, original: bool) -> Path:
        return self._folder / f"{gpu_uuid}{_SUFFIXES[original]}"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a GPU's setting for claims: the previous value, and the one that claims need."""

    found: int
    wanted: int


class SettingMarks:
    """The GPUs whose setting was changed, in `folder`, which is created with the first mark. The values are part of the
    file's name, as for modes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, gpu_uuid: str, change: Change) -> None:
        """Set a mark before the setting is changed. The previous value in an earlier mark stays."""
        before = self.get(gpu_uuid)
        change = change if before is None else Change(before.found, change.wanted)
        if change != before:
            make_folder(self._folder)
            set_mark(self._folder / f"{gpu_uuid}_{change.found}_{change.wanted}")
            self._remove(gpu_uuid, but=change)

    def get(self, gpu_uuid: str) -> Change | None:
        """The driver's change of the setting, or None."""
        return self.all().get(gpu_uuid)

    def clear(self, gpu_uuid: str) -> None:
        """Remove the mark, because the setting has its previous value again."""
        self._remove(gpu_uuid)

    def all(self) -> dict[str, Change]:
        """The changes by GPU. Of several marks of a GPU, the first one counts."""
        return dict(reversed(self._all()))

    def _all(self) -> list[tuple[str, Change]]:
        """All marks. Files with other names are ignored."""
        found = (_SETTING.fullmatch(name) for name in sorted(names_in(self._folder)))
        return [(one[1], Change(int(one[2]), int(one[3]))) for one in found if one is not None]

    def _remove(self, gpu_uuid: str, but: Change | None = None) -> None:
        for uuid, change in self._all():
            if uuid == gpu_uuid and change != but:
                remove_file(self._folder / f"{uuid}_{change.found}_{change.wanted}")


class Marks:
    """All marks below `folder`. `node` reads those that say what the state of the hardware means."""

    def __init__(self, folder: Path) -> None:
        self.instances = MigMarks(folder / "mig")
        self.modes = ModeMarks(folder / "mig-modes")
        self.compute_modes = SettingMarks(folder / "compute-modes")
        self.time_slices = SettingMarks(folder / "time-slices")
        self.mps = ShareFiles(folder / "mps")
        self.vfio = VfioMarks(folder / "vfio")
        self.fabric = FabricMarks(folder / "fabric")
        self.node = NodeMarks(self.instances, self.vfio)
        self._boot = folder / "boot-id"

    def are_of(self, boot_id: str) -> bool:
        """Whether the plugin was already ready in this boot of the node."""
        try:
            return read_file(self._boot) == boot_id.encode()
        except FileNotFoundError:
            return False
        except (OSError, NotAFileError) as error:  # marks of an unknown boot say nothing
            log.warning("the boot ID of the marks cannot be read: %s", error)
            return False

    def forget_other_boots(self, boot_id: str) -> None:
        """Remove the marks of earlier boots, because existing instances now belong to somebody else."""
        if self.are_of(boot_id):
            return
        for place in self.instances.all():
            self.instances.clear(place)
        for marks in (self.modes, self.compute_modes, self.time_slices):
            for gpu_uuid in marks.all():
                marks.clear(gpu_uuid)
        for mark in self.vfio.all():
            self.vfio.clear(mark.address)
        self.fabric.forget()
        for vgpu in self.vfio.vgpus.all():
            self.vfio.vgpus.clear(vgpu)
        for share in self.mps.all():
            self.mps.remove(share)  # dra-mps removes what else there is
        try:
            write_file(self._boot, boot_id.encode(), self._boot.with_suffix(".new"))
        except OSError as error:  # the next start forgets marks once more, and adopts what records tell
            log.warning("the boot ID of the marks cannot be written: %s", error)
