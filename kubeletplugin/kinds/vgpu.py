# SPDX-License-Identifier: Apache-2.0
"""A vGPU for a virtual machine: the kind, and the step that creates it and removes it.

A mark is set before a vGPU is created, and removed after it is gone. So a vGPU without a mark is an administrator's: it
is used unchanged, and never removed. A function that has become a vGPU of another type than that of its mark is not
ours either. If the kernel refuses to create a vGPU, the mark is removed at once, because another program may create one
there.

The kernel may wait without end for the virtual machine of a mediated device that is removed. So a vGPU that a process
has open is not removed, and the claim is tried again.
"""

import errno
import time
import uuid
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dra_driver.gpu.devices import PCI_BUS_ID, VGPU_TYPE, VgpuDevice
from dra_driver.gpu.functions import group_of, listed
from dra_driver.gpu.vgpus import (
    VgpuFramework,
    VgpuPlace,
    can_create,
    creation,
    current_type,
    pinning,
    removal,
    vgpu_folder,
)
from dra_driver.kube.resource import AllocatedDevice, AttributeValue
from dra_driver.kube.resource.codec import Fields

from ..claims.call import Call
from ..claims.model import JSON, Device, Kind, SpecPlace, Step, device_in
from ..containers import cdi
from ..errors import PrepareError, WriteError
from ..host.openers import names_of, openers
from ..node.node import Node
from .vfio.binder import VfioBinder
from .vfio.device import require_exclusive
from .vfio.edits import machine_edits
from .vfio.machine import MachineKind, Passthrough

_LOOK_SECONDS: Final = 0.05

_MDEVS: Final = uuid.UUID("6d0bb4a2-6f0f-5f4f-9d6c-6f1b0f3b8e57")
"""The namespace of the UUIDs of mediated devices."""


@dataclass(frozen=True, slots=True)
class VgpuKind(MachineKind):
    """A vGPU for a virtual machine, of the type `name` (`L40S-12Q`).

    One that is created for a claim takes `size` units of its GPU from `start` on (see dra_driver.gpu.vgpus), and is
    placed there if vGPUs of several types can be on the GPU (`mixed`). `start` is None for one that exists already.
    """

    TAG = "vgpu"

    place: VgpuPlace
    name: str
    start: int | None = None
    size: int = 1
    mixed: bool = False

    def __str__(self) -> str:
        return f"vGPU {self.name} {self.identifier}"

    @property
    def keys(self) -> frozenset[str]:
        """The UUID of the GPU."""
        return frozenset((self.place.gpu_uuid,))

    @property
    def minor(self) -> int:
        """Unknown."""
        return -1

    @property
    def identifier(self) -> str:
        """The UUID of a mediated device, or the address of the function."""
        return self.place.mdev or self.place.address

    @property
    def is_mediated(self) -> bool:
        """Whether it is a mediated device."""
        return bool(self.place.mdev)

    def excludes(self, other: Kind) -> bool:
        """vGPUs of a GPU exclude each other if they take the same units, or have other types on a GPU of one type."""
        if not isinstance(other, VgpuKind) or self.keys != other.keys:
            return Kind.excludes(self, other)
        if self.start is None or other.start is None:  # one of them is an administrator's
            return self.identifier == other.identifier
        if self.place.type_id != other.place.type_id and not self.mixed:
            return True
        return self.start < other.start + other.size and other.start < self.start + self.size

    def sysfs(self, sys_root: Path) -> tuple[Path, int]:
        """See MachineKind. A mediated device has a group only while it exists."""
        folder = vgpu_folder(sys_root, self.place)
        group = group_of(folder)
        if group is None:
            raise cdi.DriverFilesError(f"{folder} has no IOMMU group")
        return folder, group

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The nodes of VFIO, and the variables that follow from all devices of the claim."""
        return machine_edits(place, device)

    def attributes(self, found: JSON) -> JSON:
        """The type, the GPU, and what identifies the vGPU."""
        return {
            "type": VGPU_TYPE,
            "vgpuType": self.name,
            "parentUUID": self.place.gpu_uuid,
            "pciBusID": self.place.address,
            **({"mdevUUID": self.place.mdev} if self.place.mdev else {}),
        }

    def identity(self, found: JSON) -> Mapping[str, AttributeValue]:
        """The address, or the UUID of a mediated device. KubeVirt finds the device only by these."""
        address = {PCI_BUS_ID: self.place.address}
        return {**address, "mdevUUID": self.place.mdev} if self.place.mdev else address

    def to_json(self) -> JSON:
        """See Kind."""
        place = self.place
        return {
            "gpuUUID": place.gpu_uuid,
            "pciAddress": place.address,
            "typeID": place.type_id,
            "mdevUUID": place.mdev,
            "type": self.name,
            **({} if self.start is None else {"start": self.start}),
            "size": self.size,
            "mixed": self.mixed,
            **self.access.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> "VgpuKind":
        """See Kind."""
        place = VgpuPlace(
            fields.required_text("gpuUUID"),
            fields.required_text("pciAddress"),
            fields.required_integer("typeID"),
            fields.text("mdevUUID"),
        )
        return cls(
            place,
            fields.required_text("type"),
            fields.integer("start"),
            fields.required_integer("size"),
            fields.flag("mixed"),
            access=Passthrough.from_json(fields),
        )


def vgpu_kind(result: AllocatedDevice, vgpu: VgpuDevice, claim_uid: str, access: Passthrough) -> VgpuKind:
    """The kind of an allocated vGPU. The UUID of a mediated device that will be created follows from the claim and the
    device. Raises PrepareError.
    """
    require_exclusive(result)
    place = vgpu.place
    if vgpu.start is not None and vgpu.framework is VgpuFramework.MDEV:
        place = replace(place, mdev=str(uuid.uuid5(_MDEVS, f"{claim_uid}/{result.device}")))
    host = vgpu.gpu.vgpu_host
    mixed = host is not None and host.types.mixed
    return VgpuKind(place, vgpu.type.name, vgpu.start, vgpu.type.size, mixed, access=access)


@dataclass(frozen=True, slots=True)
class VgpuStep(Step):
    """A virtual machine can get the vGPU `kind`, which is the device with this name."""

    TAG = "vgpu"
    NVML = False

    device: str
    kind: VgpuKind

    def __str__(self) -> str:
        return str(self.kind)

    @property
    def key(self) -> str:
        """The GPU that has the vGPU."""
        return self.kind.place.gpu_uuid

    @property
    def mark(self) -> Hashable:
        """The place of the vGPU."""
        return self.kind.place

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"a vGPU of type {self.kind.place.type_id} on {self.kind.place.address}"

    def is_done(self, node: Node) -> bool:
        """Whether the vGPU exists."""
        place, vfio = self.kind.place, node.of(VfioBinder)
        return current_type(vfio.sys_root, place) == place.type_id and any(
            path.exists() for path in self._device_nodes(vfio)
        )

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Create the vGPU, unless it exists."""
        vgpu, place, vfio = self.kind, self.kind.place, node.of(VfioBinder)
        vfio.writes.require_none(place.address)
        found = current_type(vfio.sys_root, place)
        if vgpu.start is None:
            if found != place.type_id:
                raise PrepareError(f"there is no {vgpu} any more: delete the pod to have it scheduled again")
            return {}
        if found and not (found == place.type_id and self.is_marked(node)):
            raise PrepareError(
                f"{vgpu} cannot be created: somebody else has created a vGPU of type {found} on {place.address}; remove"
                " it, or delete the pod to have it scheduled again"
            )
        if not found:
            self._create(node, call)
        if vgpu.mixed and not openers(self._device_nodes(vfio)):
            call.check()  # the placement has an effect when the machine starts
            with vfio.writes.of(place.address) as writes:
                writes.write(*pinning(vfio.sys_root, place, vgpu.start))
        self._await_device_node(node)
        return {}

    def is_marked(self, node: Node) -> bool:
        """Whether the vGPU was created for a claim."""
        return node.taken.vgpus.has(self.kind.place)

    def undo(self, node: Node, call: Call) -> str:
        """Remove the vGPU if it was created for a claim."""
        place, vfio = self.kind.place, node.of(VfioBinder)
        if not self.is_marked(node):
            return ""
        vfio.writes.require_none(place.address)
        if current_type(vfio.sys_root, place) == place.type_id:
            if users := openers(self._device_nodes(vfio)):
                raise PrepareError(
                    f"{self.kind} is in use by {names_of(users)}: the virtual machine still runs; end them, and"
                    " kubelet tries again"
                )
            call.check()
            with vfio.writes.of(place.address) as writes:
                writes.write(*removal(vfio.sys_root, place))
            if current_type(vfio.sys_root, place) == place.type_id:
                raise PrepareError(f"{self.kind} was removed, and is still there; kubelet tries again")
        node.taken.vgpus.clear(place)
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator["VgpuStep"]:
        """The vGPUs that were created."""
        return (cls("", VgpuKind(place, f"of type {place.type_id}")) for place in node.taken.vgpus.all())

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove all marks."""
        node.taken.vgpus.forget()

    def to_json(self) -> JSON:
        """See Step."""
        return {"device": self.device}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "VgpuStep":
        """See Step."""
        return cls(*device_in(fields, devices, VgpuKind, "a vGPU"))

    def _create(self, node: Node, call: Call) -> None:
        vgpu, place, vfio, marks = self.kind, self.kind.place, node.of(VfioBinder), node.taken.vgpus
        if not can_create(vfio.sys_root, place):
            raise PrepareError(
                f"{vgpu} cannot be created on {place.address}: NVIDIA's vGPU manager does not offer the type there,"
                " because other vGPUs take the GPU, or virtual functions were disabled; kubelet tries again"
            )
        marks.set(place)
        call.check()
        try:
            with vfio.writes.of(place.address) as writes:
                writes.write(*creation(vfio.sys_root, place))
        except WriteError as error:
            if error.code != errno.EINTR:  # then it may have been made
                marks.clear(place)
            raise
        if (found := current_type(vfio.sys_root, place)) != place.type_id:
            raise PrepareError(f"{vgpu} was created, and its type is {found or 'none'} now")

    def _device_nodes(self, vfio: VfioBinder) -> list[Path]:
        """The device nodes of the vGPU, of both interfaces of VFIO."""
        folder, dev = vgpu_folder(vfio.sys_root, self.kind.place), vfio.root / "dev/vfio"
        group = group_of(folder)
        groups = [] if group is None else [dev / str(group)]
        return [*groups, *(dev / "devices" / name for name in listed(folder / "vfio-dev"))]

    def _await_device_node(self, node: Node) -> None:
        deadline = time.monotonic() + node.times.node
        while not self.is_done(node):
            if time.monotonic() >= deadline:
                paths = ", ".join(map(str, self._device_nodes(node.of(VfioBinder)))) or "IOMMU group"
                raise PrepareError(f"{self.kind} was created, but there is no {paths}: is udev running?")
            time.sleep(_LOOK_SECONDS)
