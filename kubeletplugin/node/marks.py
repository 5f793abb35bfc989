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

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.errors import NotAFileError
from dra_driver.gpu.fabric_marks import FabricMarks
from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.marks import NamedMarks
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.process.files import names_in, read_file, remove_file, write_file
from kubeletplugin.features.mps.shares import ShareFiles

log = logging.getLogger(__name__)

_SETTING = re.compile(r"([^_]+)_([0-9])_([0-9])", re.ASCII)
_SUFFIXES = {True: "_on", False: "_off"}


@dataclass(frozen=True, slots=True)
class ModeMark:
    """A GPU whose MIG mode was switched, and whether it was enabled originally."""

    gpu_uuid: str
    original: bool


class ModeMarks(NamedMarks[str, ModeMark]):
    """The GPUs whose MIG mode was switched, by UUID."""

    def set(self, mark: ModeMark) -> None:
        """Write a mark before the mode is switched. An existing mark stays, because it has the original mode."""
        if not self.has(mark.gpu_uuid):
            super().set(mark)

    def _name(self, mark: ModeMark) -> str:
        return f"{mark.gpu_uuid}{_SUFFIXES[mark.original]}"

    def _names(self, key: str) -> Sequence[str]:
        return [f"{key}{suffix}" for suffix in _SUFFIXES.values()]

    def _key_in(self, name: str) -> str | None:
        return next((name.removesuffix(suffix) for suffix in _SUFFIXES.values() if name.endswith(suffix)), None)

    def _load(self, key: str, name: str) -> ModeMark:
        return ModeMark(key, original=name.endswith(_SUFFIXES[True]))


@dataclass(frozen=True, slots=True)
class SettingMark:
    """A GPU whose setting was changed for claims: the previous value, and the one that claims need."""

    gpu_uuid: str
    found: int
    wanted: int


class SettingMarks(NamedMarks[str, SettingMark]):
    """The GPUs whose setting was changed, by UUID."""

    def set(self, mark: SettingMark) -> None:
        """Write a mark before the setting is changed. The previous value in an earlier mark stays. Raises OSError."""
        before = self.get(mark.gpu_uuid)
        if before is not None:
            mark = replace(mark, found=before.found)
        super().set(mark)
        for name in self._names(mark.gpu_uuid):
            if name != self._name(mark):
                remove_file(self._folder / name)

    def _name(self, mark: SettingMark) -> str:
        return f"{mark.gpu_uuid}_{mark.found}_{mark.wanted}"

    def _names(self, key: str) -> Sequence[str]:
        return [name for name in sorted(names_in(self._folder)) if self._key_in(name) == key]

    def _key_in(self, name: str) -> str | None:
        match = _SETTING.fullmatch(name)
        return None if match is None else match[1]

    def _load(self, key: str, name: str) -> SettingMark:
        _, found, wanted = name.rsplit("_", 2)
        return SettingMark(key, int(found), int(wanted))


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
        settings = (self.compute_modes, self.time_slices)
        for store in (self.instances, self.modes, *settings, self.vfio, self.fabric, self.vfio.vgpus):
            store.forget()
        for share in self.mps.all():
            self.mps.remove(share)  # dra-mps removes what else there is
        try:
            write_file(self._boot, boot_id.encode(), self._boot.with_suffix(".new"))
        except OSError as error:  # the next start forgets marks once more, and adopts what records tell
            log.warning("the boot ID of the marks cannot be written: %s", error)
