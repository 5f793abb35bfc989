# SPDX-License-Identifier: Apache-2.0
"""A step: one change that a claim needs on one GPU.

A step can be done, undone, and checked whether it is done. All three look only at the hardware and the marks, and never
at what was done before. So a step that was interrupted anywhere can be repeated or undone, by the same process or by
the next. Therefore it is enough to record the list of steps once, before the first of them. A step whose state cannot
be read from the hardware would have to record its progress; there is none so far.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..features.fabric.partitions import FabricPartitions
from ..features.mps.services import MpsServices
from ..kinds.gpu_settings import ComputeModes, TimeSlices
from ..kinds.mig import MigInstances
from ..kinds.targets import MigInstanceIds
from ..kinds.vfio.binder import VfioBinder
from ..node.marks import Marks

BUSY_SECONDS = 2.0
"""How long a step waits for a process that still uses an instance, in seconds. kubelet asks again about every 10
seconds.
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """The objects that steps use. `going_on` raises an exception if no caller waits any more."""

    mig: MigInstances
    compute_modes: ComputeModes
    time_slices: TimeSlices
    mps: MpsServices
    vfio: VfioBinder
    fabric: FabricPartitions
    marks: Marks
    busy_seconds: float = BUSY_SECONDS
    going_on: Callable[[], None] = lambda: None


class Undoable(Protocol):
    """What can be undone. It is all that is known of a step that no claim has any more."""

    @property
    def gpu_uuid(self) -> str:
        """The GPU that the step changes. No other step changes it at the same time."""

    def undo(self, tools: Tools) -> str | None:
        """Undo what `do` did, if anything. Repeating it changes nothing. Returns why something stays as it is, and its
        mark with it, if no pod should wait for that. It is tried again later.
        """


class Step(Undoable, Protocol):
    """Equal steps are the same change. Claims that share a device have equal steps, and the last claim undoes the
    change.

    Every method may raise NvmlError, FabricError, OSError, or PrepareError with a text for the user.
    """

    def is_done(self, tools: Tools) -> bool:
        """Whether the step is done."""

    def do(self, tools: Tools) -> Mapping[str, MigInstanceIds] | None:
        """Do the step, or the missing part of it. Returns the instances that it provides, by the name of their device.
        Repeating it changes nothing.
        """

    def left_something(self, marks: Marks) -> bool:
        """Whether the driver may have something to undo. Needs no NVIDIA driver."""
