# SPDX-License-Identifier: Apache-2.0
"""Binding a GPU to a vfio driver for a virtual machine.

The mark has the driver of each function before, the override and the persistence mode. It is written before the first
change, and the first mark stays until the GPU is back. A GPU that is already on a vfio driver, with all functions of
its group, was bound by an administrator: it gets no mark, and is left as it is.

GPUs that share an IOMMU group have a step each, and the claim has the steps of all of them. The first of these steps
begins only if all of the GPUs can be taken. NVML cannot be used while a GPU is taken, so everything that can be checked
before is checked before.

This step needs no NVML. It runs while no process of this driver uses NVML, because the kernel does not take a GPU from
NVIDIA's driver while NVML has it open.
"""

import logging
from dataclasses import dataclass, field

from dra_driver.errors import ProgramError
from dra_driver.gpu.functions import bound_driver
from dra_driver.gpu.passthrough import VfioMark
from dra_driver.gpu.pci import NVIDIA_DRIVER

from ..errors import PrepareError, StuckError
from ..kinds.targets import VfioGpu
from ..kinds.vfio.binder import VfioAccess
from ..node.marks import Marks
from .base import Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VfioStep:
    """The GPU and all functions of its slot are bound to vfio drivers, and the nodes for `access` exist. The claim also
    has the `others` of its IOMMU group.
    """

    target: VfioGpu
    others: tuple[VfioGpu, ...] = ()
    access: VfioAccess = field(default=VfioAccess(), compare=False)

    def __str__(self) -> str:
        return f"vfio driver of {self.target}"

    @property
    def gpu_uuid(self) -> str:
        """The GPU that is bound."""
        return self.target.gpu_uuid

    def is_done(self, tools: Tools) -> bool:
        """Whether a virtual machine can get the GPU."""
        return tools.vfio.is_taken(self.target)

    def do(self, tools: Tools) -> None:
        """Take the GPU from its driver, and wait for its nodes."""
        gpu, vfio = self.target, tools.vfio
        vfio.writes.require_none(gpu.address)
        if not self.is_done(tools):
            self._take(tools)
        vfio.await_nodes(gpu, self.access)

    def _take(self, tools: Tools) -> None:
        gpu, vfio, marks = self.target, tools.vfio, tools.marks.vfio
        group = (gpu, *(one for one in self.others if not vfio.is_taken(one)))
        for one in group:
            vfio.check(one, (gpu, *self.others))
        tools.going_on()
        wanted = vfio.wanted(vfio.functions(gpu))
        vfio.await_interface(self.access)
        for one in group:
            self._begin(one, tools)
        try:
            with marks.letting_go(vfio.release_seconds):
                vfio.take(gpu, wanted, tools.going_on, group[1:])
        except StuckError as error:
            marks.stick(gpu.address, str(error))
            raise
        marks.stick(gpu.address, "")

    def _begin(self, gpu: VfioGpu, tools: Tools) -> None:
        """Write the mark of a GPU, and disable its persistence mode."""
        vfio, marks = tools.vfio, tools.marks.vfio
        functions = vfio.functions(gpu)
        tools.going_on()
        try:
            mode = vfio.persistence.get(gpu.address) if functions[0].driver == NVIDIA_DRIVER else None
            if not marks.has(gpu.address):
                marks.set(VfioMark(gpu.address, gpu.gpu_uuid, functions, mode))
            tools.going_on()
            if mode:
                vfio.persistence.set(gpu.address, False)
        except ProgramError as error:
            raise PrepareError(f"the persistence mode of {gpu} cannot be disabled: {error}") from None

    def has_changed(self, tools: Tools) -> bool:
        """Whether a function of the GPU has another driver than before the claim."""
        mark = tools.marks.vfio.get(self.target.address)
        before = () if mark is None else mark.functions
        return any(bound_driver(tools.vfio.sys_root, one.address) != one.driver for one in before)

    def left_something(self, marks: Marks) -> bool:
        """Whether the GPU was taken."""
        return marks.vfio.has(self.target.address)

    def undo(self, tools: Tools) -> str | None:
        """Bring all functions back, and then the persistence mode. If only the latter fails, the mark stays."""
        gpu, vfio, marks = self.target, tools.vfio, tools.marks.vfio
        mark = marks.get(gpu.address)
        if mark is None:
            marks.clear(gpu.address)
            return None
        try:
            vfio.give_back(gpu, mark.functions, tools.going_on)
        except StuckError as error:
            marks.stick(gpu.address, str(error))
            raise
        marks.stick(gpu.address, "")
        try:
            self._restore_persistence(mark.persistence, tools)
        except ProgramError as error:
            log.warning("the persistence mode of %s is not as it was: %s", gpu, error, extra={"gpu": gpu.gpu_uuid})
            return str(error)
        marks.clear(gpu.address)
        return None

    def _restore_persistence(self, found: bool | None, tools: Tools) -> None:
        address, modes = self.target.address, tools.vfio.persistence
        if found is None or bound_driver(tools.vfio.sys_root, address) != NVIDIA_DRIVER:
            return
        if modes.get(address) is not found:
            tools.going_on()
            modes.set(address, found)
