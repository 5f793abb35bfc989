# SPDX-License-Identifier: Apache-2.0
"""The NVSwitch partition of a claim's GPUs.

The step comes first, so that a GPU is in its partition before it is changed or given to a virtual machine. It is undone
last, when all GPUs are back at NVIDIA's driver. It needs no NVML.
"""

from dataclasses import dataclass

from dra_driver.gpu.fabric import modules_text
from dra_driver.gpu.fabric_marks import FabricMark

from ..node.marks import Marks
from .base import Tools


@dataclass(frozen=True, slots=True)
class FabricStep:
    """The partition is active. `modules` are the module IDs of its GPUs in ascending order, and `gpus` their UUIDs in
    the same order. Claims that share these GPUs have equal steps.
    """

    partition: int
    modules: tuple[int, ...]
    gpus: tuple[str, ...]

    def __str__(self) -> str:
        return f"NVSwitch partition {self.partition} (GPU modules {modules_text(self.modules)})"

    @property
    def gpu_uuid(self) -> str:
        """One of the GPUs. The claim's locks are held for all of them."""
        return self.gpus[0]

    def is_done(self, tools: Tools) -> bool:
        """Whether the partition is active, and marked."""
        return tools.marks.fabric.has(self.partition) and tools.fabric.is_active(self._mark)

    def do(self, tools: Tools) -> None:
        """Activate the partition. One that is active already was activated by an administrator, and stays active."""
        tools.fabric.activate(self._mark, tools.going_on)

    def left_something(self, marks: Marks) -> bool:
        """Whether the partition has a mark."""
        return marks.fabric.has(self.partition)

    def undo(self, tools: Tools) -> None:
        """Deactivate the partition, if this driver has activated it."""
        if self.left_something(tools.marks):
            tools.fabric.release(self.partition, tools.going_on)

    @property
    def _mark(self) -> FabricMark:
        return FabricMark(self.partition, self.modules, self.gpus)
