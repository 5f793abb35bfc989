# SPDX-License-Identifier: Apache-2.0
"""Settings of a GPU that a claim may request: the compute mode, and the level of time-slicing.

The previous value is in a mark. It is restored after the last claim that needs the setting, unless somebody else has
changed the setting since.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dra_driver.errors import ProgramError
from dra_driver.gpu.nvml import NvmlError

from ..errors import PrepareError, UnsupportedError
from ..kinds.gpu_settings import LEVELS
from ..node.marks import Marks, SettingMark, SettingMarks
from .base import Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _SettingStep(ABC):
    """A setting of the GPU has the value `wanted`. 0 is the driver's default, which every GPU has."""

    gpu_uuid: str
    wanted: int

    @abstractmethod
    def marks(self, marks: Marks) -> SettingMarks:
        """The marks of this setting."""

    @abstractmethod
    def read(self, tools: Tools) -> int | None:
        """The current value, or None if it cannot be read."""

    @abstractmethod
    def write(self, tools: Tools, value: int) -> None:
        """Change the setting. Raises UnsupportedError if the GPU does not have it."""

    def is_done(self, tools: Tools) -> bool:
        """Whether the setting is as wanted. If it cannot be read, the mark decides."""
        with self._explained():
            found = self.read(tools)
        return self.left_something(tools.marks) if found is None else found == self.wanted

    def do(self, tools: Tools) -> None:
        """Change the setting if necessary. A setting that cannot be read is written, and its previous value counts as
        the default.
        """
        with self._explained():
            found = self.read(tools)
            if found == self.wanted:
                return
            marks = self.marks(tools.marks)
            marks.set(SettingMark(self.gpu_uuid, found or 0, self.wanted))
            try:
                self.write(tools, self.wanted)
            except UnsupportedError:
                marks.clear(self.gpu_uuid)
                if self.wanted:
                    raise
                log.warning("%s was asked of a GPU without this setting", self, extra={"gpu": self.gpu_uuid})
        change = marks.get(self.gpu_uuid)
        if change is not None and change.found == change.wanted:
            marks.clear(self.gpu_uuid)

    def left_something(self, marks: Marks) -> bool:
        """Whether the setting was changed to what this step wants."""
        change = self.marks(marks).get(self.gpu_uuid)
        return change is not None and change.wanted == self.wanted

    def undo(self, tools: Tools) -> str | None:
        """Restore the previous value. If that fails, the mark stays, and the GPU is for no claim that expects the
        previous value.
        """
        marks = self.marks(tools.marks)
        change = marks.get(self.gpu_uuid)
        if change is None or change.wanted != self.wanted:
            return None
        try:
            if self.read(tools) in (self.wanted, None):
                self.write(tools, change.found)
        except (ProgramError, NvmlError) as error:
            log.warning("%s stays after its last claim: %s", self, error, extra={"gpu": self.gpu_uuid})
            return str(error)
        marks.clear(self.gpu_uuid)
        return None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ProgramError as error:
            raise PrepareError(f"{self} of GPU {self.gpu_uuid} cannot be set: {error}") from None


@dataclass(frozen=True, slots=True)
class ComputeModeStep(_SettingStep):
    """The GPU's compute mode is `wanted`."""

    def __str__(self) -> str:
        return f"compute mode {self.wanted}"

    def marks(self, marks: Marks) -> SettingMarks:
        """The marks of compute modes."""
        return marks.compute_modes

    def read(self, tools: Tools) -> int | None:
        """The mode in NVML."""
        return tools.compute_modes.get(self.gpu_uuid)

    def write(self, tools: Tools, value: int) -> None:
        """Set the mode with NVML."""
        tools.compute_modes.set(self.gpu_uuid, value)


@dataclass(frozen=True, slots=True)
class TimeSliceStep(_SettingStep):
    """The GPU's level of time-slicing is `wanted`, as in LEVELS."""

    def __str__(self) -> str:
        return f"time-slice interval {self.interval}"

    @property
    def interval(self) -> str:
        """The name of the level in configurations."""
        return next(str(name) for name, level in LEVELS.items() if level == self.wanted)

    def marks(self, marks: Marks) -> SettingMarks:
        """The marks of time-slice intervals."""
        return marks.time_slices

    def read(self, tools: Tools) -> int | None:
        """The level that nvidia-smi reports."""
        return tools.time_slices.get(self.gpu_uuid)

    def write(self, tools: Tools, value: int) -> None:
        """Set the level with nvidia-smi."""
        tools.time_slices.set(self.gpu_uuid, value)


def changed_settings(marks: Marks) -> Iterator[TimeSliceStep | ComputeModeStep]:
    """A step for each setting of a GPU that was changed for claims, whether a claim still needs it or not."""
    yield from (TimeSliceStep(mark.gpu_uuid, mark.wanted) for mark in marks.time_slices.all())
    yield from (ComputeModeStep(mark.gpu_uuid, mark.wanted) for mark in marks.compute_modes.all())
