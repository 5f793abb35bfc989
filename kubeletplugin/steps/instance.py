# SPDX-License-Identifier: Apache-2.0
"""The instances behind a MIG device: created for a claim, or already existing.

The mark of a placement tells whether an instance belongs to the driver. The mark is set before the GPU instance is
created, and removed after it is destroyed. So an instance without a mark was created by an administrator: it is used
as it is, and never destroyed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import NotMadeError, PrepareError
from ..kinds.targets import MigInstanceIds, MigSlot
from ..node.marks import Marks
from .base import Tools


@dataclass(frozen=True, slots=True)
class _SlotStep(ABC):
    """A step that provides `device`, which is the MIG device at `slot`."""

    device: str
    slot: MigSlot

    @property
    def gpu_uuid(self) -> str:
        """The GPU of the slot."""
        return self.slot.gpu_uuid

    def is_done(self, tools: Tools) -> bool:
        """Whether there is a MIG device, whoever created it."""
        return tools.mig.find(self.slot) is not None

    def do(self, tools: Tools) -> Mapping[str, MigInstanceIds]:
        """Provide the MIG device."""
        return {self.device: self._provide(tools)}

    @abstractmethod
    def _provide(self, tools: Tools) -> MigInstanceIds: ...


@dataclass(frozen=True, slots=True)
class InstanceStep(_SlotStep):
    """A MIG device exists at the slot."""

    def __str__(self) -> str:
        return f"MIG device {self.slot.profile} at {self.slot.placement}"

    def _provide(self, tools: Tools) -> MigInstanceIds:
        """Create what is missing: the GPU instance, and the compute instance that has all of its slices."""
        handle = tools.mig.gpu_instance(self.slot)
        if handle is None:
            return self._create(tools)
        if not tools.marks.instances.has(self.slot.place):
            return self._foreign(tools)
        return tools.mig.complete(handle, self.slot)

    def left_something(self, marks: Marks) -> bool:
        """Whether an instance was created, or was about to be created, for a claim."""
        return marks.instances.has(self.slot.place)

    def undo(self, tools: Tools) -> None:
        """Destroy the instances that were created. Raises NvmlError with IN_USE while a process uses them."""
        if self.left_something(tools.marks):
            tools.mig.destroy(self.slot, tools.busy_seconds, tools.going_on)
            tools.marks.instances.clear(self.slot.place)

    def _create(self, tools: Tools) -> MigInstanceIds:
        tools.marks.instances.set(self.slot.place)
        try:
            return tools.mig.create(self.slot)
        except NotMadeError:
            tools.marks.instances.clear(self.slot.place)
            raise

    def _foreign(self, tools: Tools) -> MigInstanceIds:
        ids = tools.mig.find(self.slot)
        if ids is None:
            raise PrepareError(
                f"the GPU instance {self.slot} was created by hand and has no compute instance of its full size: create"
                " one (nvidia-smi mig -cci), or destroy the GPU instance"
            )
        return replace(ids, made=False)


@dataclass(frozen=True, slots=True)
class LookStep(_SlotStep):
    """An administrator inspects the MIG device at the slot, if it exists. This step never changes anything."""

    def __str__(self) -> str:
        return f"look at MIG device {self.slot.profile} at {self.slot.placement}"

    def _provide(self, tools: Tools) -> MigInstanceIds:
        """Find the MIG device."""
        ids = tools.mig.find(self.slot)
        if ids is None:
            raise PrepareError(f"device {self.device} does not exist at the moment: there is nothing to look at")
        return replace(ids, made=False)

    def left_something(self, marks: Marks) -> bool:
        """Never."""
        return False

    def undo(self, tools: Tools) -> None:
        """Do nothing."""
