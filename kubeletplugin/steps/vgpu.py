# SPDX-License-Identifier: Apache-2.0
"""Creating a vGPU for a virtual machine, and removing it.

A mark is set before a vGPU is created, and removed after it is gone. So a vGPU without a mark is an administrator's: it
is used as it is, and never removed. A function that has become a vGPU of another type than that of its mark is not ours
either. If the kernel refuses to create a vGPU, the mark is removed at once, because somebody else may create one there.

The kernel may wait without end for the virtual machine of a mediated device that is removed. So a vGPU that a process
has open is not removed, and the claim is tried again.
"""

import errno
import time
from dataclasses import dataclass
from pathlib import Path

from dra_driver.gpu.functions import group_of, listed
from dra_driver.gpu.vgpus import can_create, creation, current_type, pinning, removal, vgpu_folder

from ..errors import PrepareError, WriteError
from ..host.openers import names_of, openers
from ..kinds.targets import Vgpu
from ..kinds.vfio.binder import NODE_SECONDS
from ..node.marks import Marks
from .base import Tools

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class VgpuStep:
    """A virtual machine can get the vGPU."""

    target: Vgpu

    def __str__(self) -> str:
        return str(self.target)

    @property
    def gpu_uuid(self) -> str:
        """The GPU that has the vGPU."""
        return self.target.gpu_uuid

    def is_done(self, tools: Tools) -> bool:
        """Whether the vGPU exists."""
        place = self.target.place
        return current_type(tools.vfio.sys_root, place) == place.type_id and any(
            node.exists() for node in self._nodes(tools)
        )

    def do(self, tools: Tools) -> None:
        """Create the vGPU, unless it exists."""
        vgpu, place, vfio, marks = self.target, self.target.place, tools.vfio, tools.marks.vfio.vgpus
        vfio.writes.require_none(place.address)
        found = current_type(vfio.sys_root, place)
        if vgpu.start is None:
            if found != place.type_id:
                raise PrepareError(f"there is no {vgpu} any more: delete the pod to have it scheduled again")
            return
        if found and not (found == place.type_id and marks.has(place)):
            raise PrepareError(
                f"{vgpu} cannot be created: somebody else has created a vGPU of type {found} on {place.address}; remove"
                " it, or delete the pod to have it scheduled again"
            )
        if not found:
            self._create(tools)
        if vgpu.mixed and not openers(self._nodes(tools)):  # the placement has an effect when the machine starts
            tools.going_on()
            vfio.writes.write(place.address, *pinning(vfio.sys_root, place, vgpu.start))
        self._await_node(tools)

    def left_something(self, marks: Marks) -> bool:
        """Whether the vGPU was created for a claim."""
        return marks.vfio.vgpus.has(self.target.place)

    def undo(self, tools: Tools) -> None:
        """Remove the vGPU if it was created for a claim."""
        place, vfio, marks = self.target.place, tools.vfio, tools.marks.vfio.vgpus
        if not marks.has(place):
            return
        vfio.writes.require_none(place.address)
        if current_type(vfio.sys_root, place) == place.type_id:
            if users := openers(self._nodes(tools)):
                raise PrepareError(
                    f"{self.target} is in use by {names_of(users)}: the virtual machine still runs; end them, and"
                    " kubelet tries again"
                )
            tools.going_on()
            vfio.writes.write(place.address, *removal(vfio.sys_root, place))
            if current_type(vfio.sys_root, place) == place.type_id:
                raise PrepareError(f"{self.target} was removed, and is still there; kubelet tries again")
        marks.clear(place)

    def _create(self, tools: Tools) -> None:
        vgpu, place, vfio, marks = self.target, self.target.place, tools.vfio, tools.marks.vfio.vgpus
        if not can_create(vfio.sys_root, place):
            raise PrepareError(
                f"{vgpu} cannot be created on {place.address}: NVIDIA's vGPU manager does not offer the type there,"
                " because other vGPUs take the GPU, or virtual functions were disabled; kubelet tries again"
            )
        marks.set(place)
        tools.going_on()
        try:
            vfio.writes.write(place.address, *creation(vfio.sys_root, place))
        except WriteError as error:
            if error.code != errno.EINTR:  # then it may have been made
                marks.clear(place)
            raise
        if (found := current_type(vfio.sys_root, place)) != place.type_id:
            raise PrepareError(f"{vgpu} was created, and its type is {found or 'none'} now")

    def _nodes(self, tools: Tools) -> list[Path]:
        """The device nodes of the vGPU, of both interfaces of VFIO."""
        folder, dev = vgpu_folder(tools.vfio.sys_root, self.target.place), tools.vfio.root / "dev/vfio"
        group = group_of(folder)
        groups = [] if group is None else [dev / str(group)]
        return [*groups, *(dev / "devices" / name for name in listed(folder / "vfio-dev"))]

    def _await_node(self, tools: Tools) -> None:
        deadline = time.monotonic() + NODE_SECONDS
        while not self.is_done(tools):
            if time.monotonic() >= deadline:
                nodes = ", ".join(map(str, self._nodes(tools))) or "IOMMU group"
                raise PrepareError(f"{self.target} was created, but there is no {nodes}: is udev running?")
            time.sleep(_LOOK_SECONDS)
