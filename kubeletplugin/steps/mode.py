# SPDX-License-Identifier: Apache-2.0
"""MIG mode: enabled for a MIG device, disabled for a whole GPU.

On Hopper and later, the mode can be switched without a reset while nothing uses the GPU. Older GPUs need a reset, and
this step leaves no mode behind that waits for a reset. The administrator's policy decides which GPUs may be switched
for claims.
"""

import logging
from dataclasses import dataclass, field

from dra_driver.gpu.nvml import NvmlError

from ..errors import PrepareError
from ..node.marks import Marks, ModeMark, ModeMarks
from .base import Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MigModeStep:
    """The GPU's MIG mode is enabled (`on`) or disabled. With `may_switch` it is switched if necessary, and switched
    back after the last claim that needs it.
    """

    gpu_uuid: str
    on: bool
    may_switch: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"MIG mode {'on' if self.on else 'off'}"

    def is_done(self, tools: Tools) -> bool:
        """Whether the mode is as wanted. A GPU without MIG counts as disabled."""
        mode = tools.mig.mode(self.gpu_uuid)
        return self.on == (mode is not None and mode.current)

    def do(self, tools: Tools) -> None:
        """Switch the mode if necessary and allowed."""
        if self.is_done(tools):
            return
        if not self.may_switch:
            raise PrepareError(
                f"MIG mode of GPU {self.gpu_uuid} is {'off' if self.on else 'on'}"
                f" (nvidia-smi -i {self.gpu_uuid} -mig {int(self.on)}), and the driver does not switch it for claims:"
                " either the policy of this GPU is not dynamic, or switching it needs a reset"
            )
        marks = tools.marks.modes
        marks.set(ModeMark(self.gpu_uuid, original=not self.on))
        try:
            tools.mig.set_mode(self.gpu_uuid, self.on)
        except PrepareError:
            self._forget_if_found(not self.on, marks)
            raise
        self._forget_if_found(self.on, marks)

    def left_something(self, marks: Marks) -> bool:
        """Whether the mode was switched to what this step wants."""
        return marks.modes.get(self.gpu_uuid) == ModeMark(self.gpu_uuid, original=not self.on)

    def undo(self, tools: Tools) -> str | None:
        """Switch back, unless somebody uses the GPU in this mode. Then the mark stays."""
        if not self.left_something(tools.marks):
            return None
        try:
            if self.is_done(tools):
                tools.mig.set_mode(self.gpu_uuid, not self.on)
        except (PrepareError, NvmlError) as error:
            log.warning("the MIG mode of the GPU cannot be switched back: %s", error, extra={"gpu": self.gpu_uuid})
            return str(error)
        tools.marks.modes.clear(self.gpu_uuid)
        return None

    def _forget_if_found(self, current: bool, marks: ModeMarks) -> None:
        """Remove the mark if the mode is what it originally was."""
        if marks.get(self.gpu_uuid) == ModeMark(self.gpu_uuid, original=current):
            marks.clear(self.gpu_uuid)
