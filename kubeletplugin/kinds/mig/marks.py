# SPDX-License-Identifier: Apache-2.0
"""The marks of MIG modes that were switched for claims: the folder `mig-modes` has the original mode of each GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.gpu.marks import NamedMarks

from ...node.node import Node

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


def mode_marks(node: Node) -> ModeMarks:
    """The marks of modes on the node."""
    return ModeMarks(node.folders.folder / "mig-modes")
