# SPDX-License-Identifier: Apache-2.0
"""The NVSwitch partition of a claim's GPUs.

The step comes first, so that a GPU is in its partition before it is changed or given to a virtual machine. It is undone
last, when all GPUs are back at NVIDIA's driver. It needs no NVML.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.gpu.fabric import modules_text
from dra_driver.gpu.fabric_marks import FabricMark
from dra_driver.kube.resource.codec import Fields

from ...claims.call import Call
from ...claims.model import JSON, Device, Step
from ...node.node import Node
from .partitions import FabricPartitions


@dataclass(frozen=True, slots=True)
class FabricStep(Step):
    """The partition is active. `modules` are the module IDs of its GPUs in ascending order, and `gpus` their UUIDs in
    the same order. Claims that share these GPUs have equal steps. A stray partition that `was_active` before stays so.
    """

    TAG = "fabric"
    NVML = False
    LOOK_SECONDS = 5.0

    partition: int
    modules: tuple[int, ...]
    gpus: tuple[str, ...]
    was_active: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"NVSwitch partition {self.partition} (GPU modules {modules_text(self.modules)})"

    @property
    def key(self) -> str:
        """One of the GPUs. The claim's locks are held for all of them."""
        return self.gpus[0]

    @property
    def mark(self) -> Hashable:
        """The partition."""
        return self.TAG, self.partition

    @property
    def remains(self) -> str:
        """Nothing if the partition was active before claims needed it."""
        return "" if self.was_active else f"the NVSwitch partition {self.partition}"

    def is_done(self, node: Node) -> bool:
        """Whether the partition is active, and marked."""
        return self.is_marked(node) and node.of(FabricPartitions).is_active(self._fabric_mark)

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Activate the partition. One that is active already was activated by an administrator, and stays active."""
        node.of(FabricPartitions).activate(self._fabric_mark, call)
        return {}

    def is_marked(self, node: Node) -> bool:
        """Whether the partition has a mark."""
        return node.of(FabricPartitions).marks.has(self.partition)

    def undo(self, node: Node, call: Call) -> str:
        """Deactivate the partition, if this driver has activated it."""
        if self.is_marked(node):
            node.of(FabricPartitions).release(self.partition, call)
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator["FabricStep"]:
        """The partitions with a mark."""
        marks = node.of(FabricPartitions).marks.all()
        return (cls(mark.partition, mark.modules, mark.gpus, mark.found) for mark in marks)

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove all marks."""
        node.of(FabricPartitions).marks.forget()

    @classmethod
    def was_lost(cls, node: Node) -> bool:
        """Whether Fabric Manager was restarted since the last look."""
        return node.of(FabricPartitions).was_restarted()

    def to_json(self) -> JSON:
        """See Step."""
        return {"partition": self.partition, "modules": list(self.modules), "gpus": list(self.gpus)}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "FabricStep":
        """See Step."""
        modules, gpus = fields.array("modules"), fields.texts("gpus")
        if not modules or len(modules) != len(gpus) or any(type(module) is not int for module in modules):
            raise fields.error("modules", "must have an integer for each of gpus")
        return cls(fields.required_integer("partition"), tuple(modules), gpus)

    @property
    def _fabric_mark(self) -> FabricMark:
        return FabricMark(self.partition, self.modules, self.gpus)
