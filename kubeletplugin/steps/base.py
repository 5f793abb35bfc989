# SPDX-License-Identifier: Apache-2.0
"""A step: one change that a claim needs on one GPU.

A step can be done, undone, and checked whether it is done. All three look at the hardware and at the marks, and never
at what was done before. So a step that was interrupted anywhere can be repeated or undone, by the same process or by
the next. Therefore it is enough to record the list of steps once, before the first of them. A step whose state cannot
be read from the hardware would have to record its progress; there is none so far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..hardware.marks import Marks
from ..hardware.mig import MigInstances
from ..hardware.mps import MpsServices
from ..hardware.settings import ComputeModes, TimeSlices
from ..hardware.targets import MigInstanceIds

BUSY_SECONDS = 2.0
"""How long an instance that a process still holds is waited for. kubelet asks again every 10 seconds or so."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What steps work with. `going_on` raises when nobody waits any more."""

    mig: MigInstances
    compute_modes: ComputeModes
    time_slices: TimeSlices
    mps: MpsServices
    marks: Marks
    busy_seconds: float = BUSY_SECONDS
    going_on: Callable[[], None] = lambda: None


class Step(Protocol):
    """Equal steps are the same change: claims that share a device have equal steps, and the last one undoes it.

    Every method may raise NvmlError, OSError, or PrepareError with a text for the user.
    """

    @property
    def gpu_uuid(self) -> str:
        """The GPU that it changes; no other step changes it at the same time."""
        raise NotImplementedError

    @property
    def device(self) -> str | None:
        """The device whose instances it provides, None when it provides none."""
        raise NotImplementedError

    def is_done(self, tools: Tools) -> bool:
        """Whether there is nothing to do."""
        raise NotImplementedError

    def do(self, tools: Tools) -> MigInstanceIds | None:
        """Do it, or what is missing of it, and give the instances of `device`. Doing it again changes nothing."""
        raise NotImplementedError

    def left_something(self, marks: Marks) -> bool:
        """Whether there may be something of ours to undo. Needs no driver."""
        raise NotImplementedError

    def undo(self, tools: Tools) -> None:
        """Take away what `do` made, if anything. Undoing it again changes nothing."""
        raise NotImplementedError
