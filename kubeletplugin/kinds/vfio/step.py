# SPDX-License-Identifier: Apache-2.0
"""Binding a GPU to a vfio driver for a virtual machine.

The mark has the driver of each function before, the override and the persistence mode. It is written before the first
change, and the first mark stays until the GPU is back. A GPU that is already on a vfio driver, with all functions of
its group, was bound by an administrator: it gets no mark, and is not changed.

GPUs that share an IOMMU group have a step each, and the claim has the steps of all of them. The first of these steps
begins only if all of the GPUs can be taken. NVML cannot be used while a GPU is taken, so everything that can be checked
before is checked before.

This step needs no NVML. It runs while no process of this driver uses NVML, because the kernel does not take a GPU from
NVIDIA's driver while NVML has it open.
"""

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_driver.errors import ProgramError
from dra_driver.gpu.functions import bound_driver
from dra_driver.gpu.passthrough import VfioMark
from dra_driver.gpu.pci import NVIDIA_DRIVER
from dra_driver.kube.resource.codec import Fields

from ...claims.call import Call
from ...claims.model import JSON, Device, Step, device_in
from ...errors import PrepareError, StuckError
from ...node.node import Node
from .binder import RELEASE_SECONDS, VfioBinder
from .device import VfioKind

log = logging.getLogger(__name__)


def vfio_step(name: str, devices: Iterable[Device]) -> "VfioStep":
    """The step for the GPU with this device name, of a claim with these devices."""
    kinds = {device.name: device.kind for device in devices if isinstance(device.kind, VfioKind)}
    own = kinds[name]
    others = (kind for kind in kinds.values() if kind.iommu_group == own.iommu_group and kind != own)
    return VfioStep(name, own, tuple(dict.fromkeys(others)))


@dataclass(frozen=True, slots=True)
class VfioStep(Step):
    """The GPU `kind`, which is the device with this name, and all functions of its slot are bound to vfio drivers, and
    its nodes exist. The claim also has the `others` of its IOMMU group.
    """

    TAG = "vfio"
    NVML = False

    device: str
    kind: VfioKind
    others: tuple[VfioKind, ...] = ()

    def __str__(self) -> str:
        return f"vfio driver of {self.kind}"

    @property
    def key(self) -> str:
        """The GPU that is bound."""
        return self.kind.gpu_uuid

    @property
    def mark(self) -> Hashable:
        """The address of the GPU."""
        return self.TAG, self.kind.address

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the vfio driver of GPU {self.kind.address}"

    def is_done(self, node: Node) -> bool:
        """Whether a virtual machine can get the GPU."""
        return node.of(VfioBinder).is_taken(self.kind)

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Take the GPU from its driver, and wait for its nodes."""
        vfio = node.of(VfioBinder)
        vfio.writes.require_none(self.kind.address)
        if not self.is_done(node):
            self._take(node, call)
        vfio.await_nodes(self.kind, self.kind.access)
        return {}

    def _take(self, node: Node, call: Call) -> None:
        gpu, vfio, marks = self.kind, node.of(VfioBinder), node.taken
        group = (gpu, *(other for other in self.others if not vfio.is_taken(other)))
        for member in group:
            vfio.check(member, (gpu, *self.others))
        call.check()
        wanted = vfio.wanted(vfio.functions(gpu))
        vfio.await_interface(gpu.access)
        for member in group:
            self._begin(member, node, call)
        try:
            with marks.letting_go(RELEASE_SECONDS):
                vfio.take(gpu, wanted, call, group[1:])
        except StuckError as error:
            marks.stick(gpu.address, str(error))
            raise
        marks.stick(gpu.address, "")

    def _begin(self, gpu: VfioKind, node: Node, call: Call) -> None:
        """Write the mark of a GPU, and disable its persistence mode."""
        vfio, marks = node.of(VfioBinder), node.taken
        functions = vfio.functions(gpu)
        call.check()
        try:
            mode = vfio.persistence.get(gpu.address) if functions[0].driver == NVIDIA_DRIVER else None
            if not marks.has(gpu.address):
                marks.set(VfioMark(gpu.address, gpu.gpu_uuid, functions, mode))
            call.check()
            if mode:
                vfio.persistence.set(gpu.address, False)
        except ProgramError as error:
            raise PrepareError(f"the persistence mode of {gpu} cannot be disabled: {error}") from None

    def is_disruptive(self, node: Node) -> bool:
        """Whether a function of the GPU has another driver than before the claim. No claim of the node can use NVML
        while a GPU is taken or given back.
        """
        mark = node.taken.get(self.kind.address)
        before = () if mark is None else mark.functions
        sys_root = node.of(VfioBinder).sys_root
        return any(bound_driver(sys_root, function.address) != function.driver for function in before)

    def is_marked(self, node: Node) -> bool:
        """Whether the GPU was taken."""
        return node.taken.has(self.kind.address)

    def undo(self, node: Node, call: Call) -> str:
        """Bring all functions back, and then the persistence mode. If only the latter fails, the mark stays."""
        gpu, vfio, marks = self.kind, node.of(VfioBinder), node.taken
        mark = marks.get(gpu.address)
        if mark is None:
            marks.clear(gpu.address)
            return ""
        try:
            vfio.give_back(gpu, mark.functions, call)
        except StuckError as error:
            marks.stick(gpu.address, str(error))
            raise
        marks.stick(gpu.address, "")
        try:
            self._restore_persistence(mark.persistence, vfio, call)
        except ProgramError as error:
            log.warning("the persistence mode of %s is not as it was: %s", gpu, error, extra={"gpu": gpu.gpu_uuid})
            return str(error)
        marks.clear(gpu.address)
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator["VfioStep"]:
        """The GPUs that were taken."""
        return (cls("", VfioKind(mark.gpu_uuid, mark.address, -1)) for mark in node.taken.all())

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove all marks."""
        node.taken.forget()

    def to_json(self) -> JSON:
        """See Step."""
        return {"device": self.device}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "VfioStep":
        """See Step."""
        name, _ = device_in(fields, devices, VfioKind, "a GPU for a virtual machine")
        return vfio_step(name, devices.values())

    def _restore_persistence(self, found: bool | None, vfio: VfioBinder, call: Call) -> None:
        address, modes = self.kind.address, vfio.persistence
        if found is None or bound_driver(vfio.sys_root, address) != NVIDIA_DRIVER:
            return
        if modes.get(address) is not found:
            call.check()
            modes.set(address, found)
