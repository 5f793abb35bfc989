# SPDX-License-Identifier: Apache-2.0
"""Settings of a GPU that a claim may request: the compute mode, and the level of time-slicing.

The previous value is in a mark. It is restored after the last claim that needs the setting, unless another program has
changed the setting since.
"""

import logging
from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from dra_driver.errors import ProgramError
from dra_driver.gpu.nvml import ComputeMode, NvmlError
from dra_driver.kube.resource.codec import Fields

from ...claims.call import Call
from ...claims.model import JSON, Device, Plan, Step
from ...errors import PrepareError, UnsupportedError
from ...node.node import Node
from .hardware import LEVELS, ComputeModes, TimeSlices
from .marks import SettingMark, SettingMarks, compute_mode_marks, time_slice_marks

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _SettingStep(Step):
    """A setting of the GPU has the value `wanted`. 0 is the driver's default, which every GPU has."""

    DISTURBS = True

    gpu_uuid: str
    wanted: int

    @classmethod
    @abstractmethod
    def marks(cls, node: Node) -> SettingMarks:
        """The marks of this setting."""

    @abstractmethod
    def read(self, node: Node) -> int | None:
        """The current value, or None if it cannot be read."""

    @abstractmethod
    def write(self, node: Node, value: int) -> None:
        """Change the setting. Raises UnsupportedError if the GPU does not have it."""

    @property
    def key(self) -> str:
        """The GPU."""
        return self.gpu_uuid

    @property
    def mark(self) -> Hashable:
        """The GPU and the value that claims need."""
        return self.TAG, self.gpu_uuid, self.wanted

    def is_done(self, node: Node) -> bool:
        """Whether the setting is as wanted. If it cannot be read, the mark decides."""
        with self._explained():
            found = self.read(node)
        return self.is_marked(node) if found is None else found == self.wanted

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Change the setting if necessary. A setting that cannot be read is written, and its previous value counts as
        the default.
        """
        marks = self.marks(node)
        with self._explained():
            found = self.read(node)
            if found == self.wanted:
                return {}
            marks.set(SettingMark(self.gpu_uuid, found or 0, self.wanted))
            try:
                self.write(node, self.wanted)
            except UnsupportedError:
                marks.clear(self.gpu_uuid)
                if self.wanted:
                    raise
                log.warning("%s was asked of a GPU without this setting", self, extra={"gpu": self.gpu_uuid})
        change = marks.get(self.gpu_uuid)
        if change is not None and change.found == change.wanted:
            marks.clear(self.gpu_uuid)
        return {}

    def is_marked(self, node: Node) -> bool:
        """Whether the setting was changed to what this step wants."""
        change = self.marks(node).get(self.gpu_uuid)
        return change is not None and change.wanted == self.wanted

    def undo(self, node: Node, call: Call) -> str:
        """Restore the previous value. If that fails, the mark stays, and the GPU is for no claim that expects the
        previous value.
        """
        marks = self.marks(node)
        change = marks.get(self.gpu_uuid)
        if change is None or change.wanted != self.wanted:
            return ""
        try:
            if self.read(node) in (self.wanted, None):
                self.write(node, change.found)
        except (ProgramError, NvmlError) as error:
            log.warning("%s stays after its last claim: %s", self, error, extra={"gpu": self.gpu_uuid})
            return str(error)
        marks.clear(self.gpu_uuid)
        return ""

    def disturbs(self, plan: Plan) -> bool:
        """A claim with the GPU expects the previous value, unless it sets the value itself."""
        if any(type(step) is type(self) and step.key == self.key for step in plan.steps):
            return False
        return any(
            device.kind.NEEDS_DRIVER_FILES and not device.admin and self.key in device.kind.keys
            for device in plan.devices
        )

    @classmethod
    def strays(cls, node: Node) -> Iterator[Self]:
        """The settings that were changed."""
        return (cls(mark.gpu_uuid, mark.wanted) for mark in cls.marks(node).all())

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove all marks."""
        cls.marks(node).forget()

    def to_json(self) -> JSON:
        """See Step."""
        return {"gpuUUID": self.gpu_uuid, "value": self.wanted}

    @classmethod
    def _decode(cls, fields: Fields, known: Collection[int]) -> Self:
        value = fields.required_integer("value")
        if value not in known:
            raise fields.error("value", f"{value} is unknown")
        return cls(fields.required_text("gpuUUID"), value)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ProgramError as error:
            raise PrepareError(f"{self} of GPU {self.gpu_uuid} cannot be set: {error}") from None


@dataclass(frozen=True, slots=True)
class ComputeModeStep(_SettingStep):
    """The GPU's compute mode is `wanted`."""

    TAG = "computeMode"

    def __str__(self) -> str:
        return f"compute mode {self.wanted}"

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the compute mode that GPU {self.gpu_uuid} was switched to"

    @classmethod
    def marks(cls, node: Node) -> SettingMarks:
        """The marks of compute modes."""
        return node.of(compute_mode_marks)

    def read(self, node: Node) -> int | None:
        """The mode in NVML."""
        return node.gpus().of(ComputeModes).get(self.gpu_uuid)

    def write(self, node: Node, value: int) -> None:
        """Set the mode with NVML."""
        node.gpus().of(ComputeModes).set(self.gpu_uuid, value)

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "ComputeModeStep":
        """See Step."""
        return cls._decode(fields, tuple(ComputeMode))


@dataclass(frozen=True, slots=True)
class TimeSliceStep(_SettingStep):
    """The GPU's level of time-slicing is `wanted`, as in LEVELS."""

    TAG = "timeSlice"

    def __str__(self) -> str:
        return f"time-slice interval {self.interval}"

    @property
    def interval(self) -> str:
        """The name of the level in configurations."""
        return next(str(name) for name, level in LEVELS.items() if level == self.wanted)

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the time-slice interval of GPU {self.gpu_uuid}"

    def clash(self, owner: Plan, other: Plan) -> str:
        """A GPU has one interval."""
        for step in other.steps:
            if not isinstance(step, TimeSliceStep) or step.gpu_uuid != self.gpu_uuid or step == self:
                continue
            if owner is other:
                return (
                    f"the claim asks for two time-slice intervals of GPU {self.gpu_uuid}, {self.interval} and"
                    f" {step.interval}: a GPU has one"
                )
            return (
                f"claim {owner.claim} asks for time-slice interval {self.interval} of GPU {self.gpu_uuid}, and claim"
                f" {other.claim}, which has a share of it, for {step.interval}: a GPU has one interval, so use the"
                " same, or leave sharing out of one of them"
            )
        return ""

    @classmethod
    def marks(cls, node: Node) -> SettingMarks:
        """The marks of time-slice intervals."""
        return node.of(time_slice_marks)

    def read(self, node: Node) -> int | None:
        """The level that nvidia-smi reports."""
        return node.of(TimeSlices).get(self.gpu_uuid)

    def write(self, node: Node, value: int) -> None:
        """Set the level with nvidia-smi."""
        node.of(TimeSlices).set(self.gpu_uuid, value)

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "TimeSliceStep":
        """See Step."""
        return cls._decode(fields, tuple(LEVELS.values()))
