# SPDX-License-Identifier: Apache-2.0
"""MIG mode: enabled for a MIG device, disabled for a whole GPU.

On Hopper and later, the mode can be switched without a reset while nothing uses the GPU. Older GPUs need a reset, and
this step leaves no mode behind that waits for a reset. The administrator's policy decides which GPUs may be switched
for claims.
"""

import logging
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.policy import MigPolicy, NodePolicy
from dra_driver.kube.resource.codec import Fields

from ...claims.call import Call
from ...claims.model import JSON, Device, Step
from ...errors import PrepareError
from ...node.node import Node
from .instances import MigInstances
from .marks import ModeMark, mode_marks

log = logging.getLogger(__name__)


def may_switch(gpu: Gpu, policy: NodePolicy) -> bool:
    """Whether the MIG mode of a GPU can be switched for claims, and the policy wants that."""
    return gpu.mig_switchable and policy.for_gpu(gpu).mig is MigPolicy.DYNAMIC


def whole_gpu_steps(gpu: Gpu, policy: NodePolicy) -> tuple["MigModeStep", ...]:
    """The step that makes a GPU one whole GPU. None for a GPU without MIG."""
    return () if gpu.mig_mode is None else (MigModeStep(gpu.uuid, False, may_switch(gpu, policy)),)


@dataclass(frozen=True, slots=True)
class MigModeStep(Step):
    """The GPU's MIG mode is enabled (`on`) or disabled. With `may_switch` it is switched if necessary, and switched
    back after the last claim that needs it.
    """

    TAG = "migMode"
    QUICK = True

    gpu_uuid: str
    on: bool
    may_switch: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"MIG mode {'on' if self.on else 'off'}"

    @property
    def key(self) -> str:
        """The GPU."""
        return self.gpu_uuid

    @property
    def mark(self) -> Hashable:
        """The GPU and the mode that claims need."""
        return self.TAG, self.gpu_uuid, self.on

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the MIG mode that GPU {self.gpu_uuid} was switched to"

    def is_done(self, node: Node) -> bool:
        """Whether the mode is as wanted. A GPU without MIG counts as disabled, and so does a GPU that a virtual machine
        has, which NVML does not see: its mode was set before it was taken.
        """
        if any(mark.gpu_uuid == self.gpu_uuid for mark in node.taken.all()):
            return True
        mode = node.gpus().of(MigInstances).mode(self.gpu_uuid)
        return self.on == (mode is not None and mode.current)

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Switch the mode if necessary and allowed."""
        if self.is_done(node):
            return {}
        if not self.may_switch:
            raise PrepareError(
                f"MIG mode of GPU {self.gpu_uuid} is {'off' if self.on else 'on'}"
                f" (nvidia-smi -i {self.gpu_uuid} -mig {int(self.on)}), and the driver does not switch it for claims:"
                " either the policy of this GPU is not dynamic, or switching it needs a reset"
            )
        node.of(mode_marks).set(ModeMark(self.gpu_uuid, original=not self.on))
        try:
            node.gpus().of(MigInstances).set_mode(self.gpu_uuid, self.on)
        except PrepareError:
            self._forget_if_original(not self.on, node)
            raise
        self._forget_if_original(self.on, node)
        return {}

    def is_marked(self, node: Node) -> bool:
        """Whether the mode was switched to what this step wants."""
        return node.of(mode_marks).get(self.gpu_uuid) == ModeMark(self.gpu_uuid, original=not self.on)

    def undo(self, node: Node, call: Call) -> str:
        """Switch back, unless the GPU is in use in this mode. Then the mark stays."""
        if not self.is_marked(node):
            return ""
        try:
            if self.is_done(node):
                node.gpus().of(MigInstances).set_mode(self.gpu_uuid, not self.on)
        except (PrepareError, NvmlError) as error:
            log.warning("the MIG mode of the GPU cannot be switched back: %s", error, extra={"gpu": self.gpu_uuid})
            return str(error)
        node.of(mode_marks).clear(self.gpu_uuid)
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator["MigModeStep"]:
        """The modes that were switched."""
        return (cls(mark.gpu_uuid, not mark.original) for mark in node.of(mode_marks).all())

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove all marks."""
        node.of(mode_marks).forget()

    def to_json(self) -> JSON:
        """See Step."""
        return {"gpuUUID": self.gpu_uuid, "on": self.on, "maySwitch": self.may_switch}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "MigModeStep":
        """See Step."""
        return cls(fields.required_text("gpuUUID"), fields.flag("on"), fields.flag("maySwitch"))

    def _forget_if_original(self, current: bool, node: Node) -> None:
        """Remove the mark if the mode is what it originally was."""
        if node.of(mode_marks).get(self.gpu_uuid) == ModeMark(self.gpu_uuid, original=current):
            node.of(mode_marks).clear(self.gpu_uuid)
