# SPDX-License-Identifier: Apache-2.0
"""The marks of settings of GPUs that were changed for claims: the folders `compute-modes` and `time-slices`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dra_driver.gpu.marks import NamedMarks
from dra_driver.process.files import names_in, remove_file

from ...node.node import Node

_SETTING = re.compile(r"([^_]+)_([0-9])_([0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class SettingMark:
    """A GPU whose setting was changed for claims: the previous value, and the value that claims need."""

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


def compute_mode_marks(node: Node) -> SettingMarks:
    """The marks of compute modes on the node."""
    return SettingMarks(node.folders.folder / "compute-modes")


def time_slice_marks(node: Node) -> SettingMarks:
    """The marks of time-slice intervals on the node."""
    return SettingMarks(node.folders.folder / "time-slices")
