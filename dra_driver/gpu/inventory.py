# SPDX-License-Identifier: Apache-2.0
"""What a node has, as plain facts: read through the NVML gateway and sysfs, once over.

One bad GPU, or one query that a GPU does not support, hides nothing else: a GPU that cannot be identified, or
told whole from split, becomes a `Failure`; any other fact that cannot be had is absent, and why is among the
GPU's `problems`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .nvml import Architecture, DeviceHandle, Fabric, GpuInstanceProfile, MigMode, Nvml, NvmlError, Placement, Return
from .profiles import profile_name, supported_profiles
from .topology import pci_location

T = TypeVar("T")

_ABSENT = frozenset({Return.NOT_SUPPORTED, Return.FUNCTION_NOT_FOUND, Return.ARGUMENT_VERSION_MISMATCH})

_BRANDS = (
    "Unknown",
    "Quadro",
    "Tesla",
    "NVS",
    "Grid",
    "GeForce",
    "Titan",
    "NvidiaVApps",
    "NvidiaVPC",
    "NvidiaVCS",
    "NvidiaVWS",
    "NvidiaCloudGaming",
    "QuadroRTX",
    "NvidiaRTX",
    "Nvidia",
    "GeForceRTX",
    "TitanRTX",
)
_ARCHITECTURES = {
    Architecture.KEPLER: "Kepler",
    Architecture.MAXWELL: "Maxwell",
    Architecture.PASCAL: "Pascal",
    Architecture.VOLTA: "Volta",
    Architecture.TURING: "Turing",
    Architecture.AMPERE: "Ampere",
    Architecture.ADA: "Ada Lovelace",
    Architecture.HOPPER: "Hopper",
    Architecture.BLACKWELL: "Blackwell",
    Architecture.RUBIN: "Rubin",
}


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A profile of one GPU and every place on its memory slices where an instance of it can be."""

    name: str
    info: GpuInstanceProfile
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance that exists, with the UUIDs of the MIG devices in it by compute instance id."""

    id: int
    profile_id: int
    placement: Placement
    devices: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. What NVML or sysfs did not tell is None; `memory` is in bytes.

    `nvlink_group` is the same for all GPUs of the node that reach each other over NVLink, None for one that reaches no
    other. `mig_switchable` says that MIG mode can be switched without a reset (Hopper and later); the profiles of
    such a GPU are known in both modes, those of others only while the mode is on.
    """

    index: int
    minor: int
    uuid: str
    product_name: str | None
    brand: str | None
    architecture: str | None
    compute_capability: tuple[int, int] | None
    memory: int | None
    pci_address: str | None
    pcie_root: str | None
    numa_node: int | None
    addressing_mode: str | None
    module_id: int | None = None
    nvlink_group: str | None = None
    fabric: Fabric | None = None
    mig_mode: MigMode | None = None
    mig_switchable: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_instances: tuple[MigInstance, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def in_mig_mode(self) -> bool:
        """Whether it is split, or ready to be, rather than usable whole."""
        return self.mig_mode is not None and self.mig_mode.current


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU as the PCI bus sees it, whichever kernel driver has it. `position` counts the node's GPUs in the order of
    their addresses; `driver` is `nvidia`, `vfio-pci` or the like, None when no driver is bound; `addressable_memory`
    is the size of its BARs in bytes.
    """

    position: int
    address: str
    vendor_id: int
    device_id: int
    product_name: str | None
    driver: str | None
    iommu_group: int | None
    addressable_memory: int | None
    pcie_root: str | None
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A GPU that NVML counts but does not tell enough about to publish it. Its UUID and address, where known."""

    index: int
    reason: str
    uuid: str | None = None
    pci_address: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All GPUs of the node, in NVML's order, and in `pci_gpus` those on the bus. `iommufd` says that the kernel offers
    /dev/iommu.
    """

    driver_version: str
    cuda_driver_version: int | None
    gpus: tuple[Gpu, ...]
    failures: tuple[Failure, ...] = ()
    pci_gpus: tuple[PciGpu, ...] = ()
    iommufd: bool = False


def read_inventory(nvml: Nvml, sys_root: Path) -> Inventory:
    """Everything there is. `sys_root` is where sysfs is mounted. Raises NvmlError when the driver as a whole fails."""
    driver_version = nvml.driver_version()
    try:
        cuda_driver_version = nvml.cuda_driver_version()
    except NvmlError:
        cuda_driver_version = None
    gpus: list[Gpu] = []
    failures: list[Failure] = []
    for index in range(nvml.device_count()):
        try:
            gpus.append(_Reader(nvml, nvml.device_by_index(index)).gpu(index, sys_root))
        except NvmlError as error:
            failures.append(Failure(index, str(error)))
    return Inventory(driver_version, cuda_driver_version, tuple(gpus), tuple(failures))


class _Reader:
    """Reads one GPU, collecting the problems on the way."""

    def __init__(self, nvml: Nvml, handle: DeviceHandle) -> None:
        self._nvml = nvml
        self._handle = handle
        self._problems: list[str] = []

    def gpu(self, index: int, sys_root: Path) -> Gpu:
        nvml, handle = self._nvml, self._handle
        # What decides which devices there are, and their names, must be known: let these raise.
        uuid, minor, mig_mode = nvml.uuid(handle), nvml.minor(handle), self._mig_mode()
        pci = self._optional(lambda: nvml.pci(handle))
        location = None if pci is None else pci_location(sys_root, pci.address)
        memory = self._optional(lambda: nvml.memory_total(handle))
        split = mig_mode is not None and mig_mode.current
        profiles = (self._optional(lambda: self._profiles(memory or 0)) or ()) if split else ()
        instances = (self._optional(lambda: self._instances(profiles)) or ()) if split else ()
        return Gpu(
            index=index,
            minor=minor,
            uuid=uuid,
            product_name=self._optional(lambda: nvml.name(handle)),
            brand=self._optional(lambda: brand_name(nvml.brand(handle))),
            architecture=self._optional(lambda: architecture_name(nvml.architecture(handle))),
            compute_capability=self._optional(lambda: nvml.compute_capability(handle)),
            memory=memory,
            pci_address=None if pci is None else pci.address,
            pcie_root=None if location is None else location.root_complex,
            numa_node=None if location is None else location.numa_node,
            addressing_mode=self._optional(lambda: nvml.addressing_mode(handle)),
            mig_mode=mig_mode,
            mig_profiles=profiles,
            mig_instances=instances,
            problems=tuple(self._problems),
        )

    def _optional(self, query: Callable[[], T]) -> T | None:
        try:
            return query()
        except NvmlError as error:
            if error.code not in _ABSENT:
                self._problems.append(str(error))
            return None

    def _mig_mode(self) -> MigMode | None:
        """None for a GPU that cannot be split. One whose mode is unknown must not be taken for whole."""
        try:
            return self._nvml.mig_mode(self._handle)
        except NvmlError as error:
            if error.code in _ABSENT:
                return None
            raise

    def _profiles(self, memory: int) -> tuple[MigProfile, ...]:
        nvml, handle = self._nvml, self._handle
        return tuple(
            MigProfile(profile_name(info, memory), info, nvml.gpu_instance_placements(handle, info.id))
            for info in supported_profiles(nvml, handle)
        )

    def _instances(self, profiles: tuple[MigProfile, ...]) -> tuple[MigInstance, ...]:
        nvml, handle = self._nvml, self._handle
        devices: dict[int, list[tuple[int, str]]] = {}
        for mig in nvml.mig_devices(handle):
            instance, compute = nvml.mig_instance_ids(mig)
            devices.setdefault(instance, []).append((compute, nvml.uuid(mig)))
        infos = (
            nvml.gpu_instance_info(instance)
            for profile in profiles
            for instance in nvml.gpu_instances(handle, profile.info.id)
        )
        return tuple(
            MigInstance(info.id, info.profile_id, info.placement, tuple(sorted(devices.get(info.id, ()))))
            for info in sorted(infos, key=lambda info: info.id)
        )


def brand_name(brand: int) -> str:
    """The name of an nvmlBrandType_t, as the official driver publishes it; `Unknown` for newer ones."""
    return _BRANDS[brand] if 0 <= brand < len(_BRANDS) else "Unknown"


def architecture_name(architecture: int) -> str:
    """The name of an nvmlDeviceArchitecture_t; `Unknown` for newer ones."""
    return next((name for known, name in _ARCHITECTURES.items() if known == architecture), "Unknown")
