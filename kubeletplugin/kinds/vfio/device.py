# SPDX-License-Identifier: Apache-2.0
"""A GPU for a virtual machine: the kind, and how it is planned."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.config import DeviceConfig, IommuBackend, VfioDeviceConfig
from dra_driver.gpu.devices import PCI_BUS_ID, VFIO_TYPE, among_peers, passthrough_problem
from dra_driver.gpu.functions import device_folder
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.policy import NodePolicy, PassthroughMode
from dra_driver.kube.resource import AllocatedDevice, AttributeValue
from dra_driver.kube.resource.codec import Fields

from ...claims.model import JSON, Device, SpecPlace
from ...containers import cdi
from ...errors import PrepareError
from .edits import machine_edits
from .machine import MachineKind, Passthrough


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What is known about a GPU on the PCI bus. `gpu` is None while NVML does not see it. `uuid` is empty, and the
    module ID None, if no process of this driver has seen it since the node was booted.
    """

    gpu: Gpu | None = None
    uuid: str = ""
    module_id: int | None = None


@dataclass(frozen=True, slots=True)
class VfioKind(MachineKind):
    """A GPU for a virtual machine: the function at `address` on the PCI bus, in the IOMMU group `iommu_group`.

    `gpu_uuid` is the GPU's UUID. While a GPU is bound to a vfio driver, NVML does not see it. So a GPU that was bound
    before this driver saw it (by an administrator) has its PCI address instead. `minor_number` is its minor number, or
    -1 if it is unknown.
    """

    TAG = "vfio"

    gpu_uuid: str
    address: str
    iommu_group: int
    minor_number: int = field(default=-1, compare=False)

    def __str__(self) -> str:
        return f"GPU {self.address} (IOMMU group {self.iommu_group})"

    @property
    def keys(self) -> frozenset[str]:
        """The UUID of the GPU."""
        return frozenset((self.gpu_uuid,))

    @property
    def minor(self) -> int:
        """The minor number, or -1."""
        return self.minor_number

    @property
    def group(self) -> Hashable:
        """GPUs that share an IOMMU group are given by the first of them, which is the device that was allocated."""
        return self.iommu_group

    @property
    def identifier(self) -> str:
        """The address."""
        return self.address

    def sysfs(self, sys_root: Path) -> tuple[Path, int]:
        """See MachineKind."""
        return device_folder(sys_root, self.address), self.iommu_group

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The nodes of VFIO, and the variables and memory devices that follow from all devices of the claim."""
        return machine_edits(place, device) + _memory_edits(place, self)

    def attributes(self, found: JSON) -> JSON:
        """The address and the group."""
        return {"type": VFIO_TYPE, "pciBusID": self.address, "iommuGroup": self.iommu_group}

    def identity(self, found: JSON) -> Mapping[str, AttributeValue]:
        """The address. KubeVirt finds the device only by it, also if it is not published any more."""
        return {PCI_BUS_ID: self.address}

    def to_json(self) -> JSON:
        """See Kind."""
        return {
            "gpuUUID": self.gpu_uuid,
            "pciAddress": self.address,
            "group": self.iommu_group,
            "minor": self.minor_number,
            **self.access.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> "VfioKind":
        """See Kind."""
        return cls(
            fields.required_text("gpuUUID"),
            fields.required_text("pciAddress"),
            fields.required_integer("group"),
            fields.required_integer("minor"),
            access=Passthrough.from_json(fields),
        )


def _memory_edits(place: SpecPlace, kind: VfioKind) -> cdi.ContainerEdits:
    """The memory of the host that belongs to the GPUs of an IOMMU group."""
    allocated = [device.kind for device in place.record.plan.devices if isinstance(device.kind, VfioKind)]
    members = [gpu.address for gpu in allocated if gpu.iommu_group == kind.iommu_group]
    return cdi.egm_edits(place.root.sys, place.root.machine, members, [gpu.address for gpu in allocated])


def passthrough_of(config: DeviceConfig, variables: tuple[str, ...]) -> Passthrough:
    """What follows from the configuration of a device for a virtual machine."""
    if not isinstance(config, VfioDeviceConfig):
        raise TypeError(f"{config!r} is for another kind of device")
    return Passthrough(config.backend is IommuBackend.PREFER_IOMMUFD, config.api_device, variables)


def require_exclusive(result: AllocatedDevice) -> None:
    """Raises PrepareError if the device of a virtual machine was requested with adminAccess."""
    if result.admin_access:
        raise PrepareError(
            f"device {result.device} is a GPU for a virtual machine, and the request has adminAccess: a virtual machine"
            " needs the GPU for itself, so leave adminAccess out"
        )


def vfio_kind(result: AllocatedDevice, pci: PciGpu, seen: SeenGpu, policy: NodePolicy, access: Passthrough) -> VfioKind:
    """The kind of an allocated vfio device, or of another GPU in its IOMMU group. Raises PrepareError."""
    require_exclusive(result)
    goes = seen.gpu is None or policy.for_gpu(seen.gpu, pci).passthrough is PassthroughMode.ONLY
    problem = passthrough_problem(among_peers(pci, lambda _: goes))
    if problem is not None or pci.iommu_group is None:
        text = "" if problem is None else problem[1].removeprefix("its vfio device: ")
        raise PrepareError(f"device {result.device} (GPU {pci.address}) cannot be given to a virtual machine: {text}")
    uuid = seen.gpu.uuid if seen.gpu is not None else seen.uuid
    minor = -1 if seen.gpu is None else seen.gpu.minor
    return VfioKind(uuid or pci.address, pci.address, pci.iommu_group, minor, access=access)
