# SPDX-License-Identifier: Apache-2.0
"""The instances behind a MIG device: created for a claim, or already existing.

The mark of a placement tells whether an instance belongs to the driver. The mark is set before the GPU instance is
created, and removed after it is destroyed. So an instance without a mark was created by an administrator: it is used
unchanged, and never destroyed.
"""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from dra_driver.gpu.mig import MigDevice, MigInstance
from dra_driver.kube.resource.codec import Fields

from ...claims.call import Call
from ...claims.model import JSON, Device, Step, device_in
from ...errors import NotMadeError, PrepareError
from ...node.node import Node
from .device import MigKind, encode_instance
from .instances import MigInstances


@dataclass(frozen=True, slots=True)
class _InstanceStep(Step):
    """A step that provides the MIG device `device`, which has this name in its pool."""

    name: str
    device: MigDevice

    @property
    def key(self) -> str:
        """The GPU of the device."""
        return self.device.gpu_uuid

    def is_done(self, node: Node) -> bool:
        """Whether there is a MIG device, whoever created it."""
        return node.gpus().of(MigInstances).find(self.device) is not None

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Provide the MIG device. Returns its instances."""
        return {self.name: encode_instance(self._provide(node))}

    @abstractmethod
    def _provide(self, node: Node) -> MigInstance: ...

    def to_json(self) -> JSON:
        """See Step."""
        return {"device": self.name}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> Self:
        """See Step."""
        name, kind = device_in(fields, devices, MigKind, "a MIG device")
        return cls(name, kind.device)


@dataclass(frozen=True, slots=True)
class InstanceStep(_InstanceStep):
    """A MIG device exists at the place."""

    TAG = "instance"

    def __str__(self) -> str:
        return f"MIG device {_profile(self.device)} at {self.device.placement}"

    @property
    def mark(self) -> Hashable:
        """The place."""
        return self.device

    @property
    def remains(self) -> str:
        """See Undoable."""
        return f"the MIG instance at {self.device.placement} of GPU {self.device.gpu_uuid}"

    def _provide(self, node: Node) -> MigInstance:
        """Create what is missing: the GPU instance, and the compute instance that has all of its slices."""
        mig = node.gpus().of(MigInstances)
        handle = mig.gpu_instance(self.device)
        if handle is None:
            return self._create(node)
        if not self.is_marked(node):
            return self._foreign(node)
        return mig.complete(handle, self.device)

    def is_marked(self, node: Node) -> bool:
        """Whether an instance was created, or was about to be created, for a claim."""
        return node.instances.has(self.device)

    def undo(self, node: Node, call: Call) -> str:
        """Destroy the instances that were created. Raises NvmlError with IN_USE while a process uses them."""
        if self.is_marked(node):
            node.gpus().of(MigInstances).destroy(self.device, node.times.busy, call)
            node.instances.clear(self.device)
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator["InstanceStep"]:
        """The places of marked instances."""
        return (cls("", device) for device in node.instances.all())

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove all marks."""
        node.instances.forget()

    def _create(self, node: Node) -> MigInstance:
        node.instances.set(self.device)
        try:
            return node.gpus().of(MigInstances).create(self.device)
        except NotMadeError:
            node.instances.clear(self.device)
            raise

    def _foreign(self, node: Node) -> MigInstance:
        made = node.gpus().of(MigInstances).find(self.device)
        if made is None:
            raise PrepareError(
                f"the GPU instance {self.device} was created by hand and has no compute instance of its full size:"
                " create one (nvidia-smi mig -cci), or destroy the GPU instance"
            )
        return made


@dataclass(frozen=True, slots=True)
class LookStep(_InstanceStep):
    """An administrator inspects the MIG device at the place, if it exists. This step never changes anything."""

    TAG = "look"

    def __str__(self) -> str:
        return f"look at MIG device {_profile(self.device)} at {self.device.placement}"

    @property
    def mark(self) -> Hashable:
        """Nothing on the node."""
        return self

    def _provide(self, node: Node) -> MigInstance:
        """Find the MIG device."""
        made = node.gpus().of(MigInstances).find(self.device)
        if made is None:
            raise PrepareError(f"device {self.name} does not exist at the moment: there is nothing to look at")
        return made

    def is_marked(self, node: Node) -> bool:
        """Never."""
        return False

    def undo(self, node: Node, call: Call) -> str:
        """Do nothing."""
        return ""


def _profile(device: MigDevice) -> str:
    return device.profile or f"profile {device.profile_id}"
