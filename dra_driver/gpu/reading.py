# SPDX-License-Identifier: Apache-2.0
"""Reading one GPU through the NVML gateway.

One query that a GPU does not support, or that fails, hides nothing else: the fact is absent, and why is among the
GPU's `problems`. Only a GPU that cannot be identified, or told whole from split, is a `Failure`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from .facts import Failure, Gpu, MigInstance, MigProfile
from .nvml import (
    Architecture,
    DeviceHandle,
    Fabric,
    FabricState,
    GpuInstance,
    GpuInstanceHandle,
    GpuInstanceProfile,
    MigMode,
    Nvml,
    NvmlError,
    Return,
    VirtualizationMode,
)
from .profiles import PROFILE_CONSTANTS, profile_name, whole_compute_profile
from .topology import pci_location

P = ParamSpec("P")
T = TypeVar("T")

ABSENT = frozenset({Return.NOT_SUPPORTED, Return.FUNCTION_NOT_FOUND, Return.ARGUMENT_VERSION_MISMATCH})
"""Codes that say a GPU, or the driver, does not have what was asked for, rather than that it went wrong."""

_UNKNOWN_ARCHITECTURE = 0xFFFFFFFF  # NVML_DEVICE_ARCH_UNKNOWN
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


def read_gpu(nvml: Nvml, index: int, sys_root: Path) -> Gpu | Failure:
    """What GPU `index` is, or why that cannot be told. `sys_root` is where sysfs is mounted."""
    uuid: str | None = None
    address: str | None = None
    try:
        handle = nvml.device_by_index(index)
        reader = _Reader(nvml, handle)
        address = reader.pci_address()
        uuid = nvml.uuid(handle)
        return reader.gpu(index, uuid, address, sys_root)
    except NvmlError as error:
        return Failure(index, str(error), uuid, address)


class _Reader:
    """Reads one GPU, collecting the problems on the way: by error, with what it struck unless that is the whole GPU."""

    def __init__(self, nvml: Nvml, handle: DeviceHandle) -> None:
        self._nvml = nvml
        self._handle = handle
        self._problems: dict[str, list[str]] = {}

    def pci_address(self) -> str | None:
        """`0000:3b:00.0`."""
        pci = self._fact(self._nvml.pci)
        return None if pci is None else pci.address

    def gpu(self, index: int, uuid: str, address: str | None, sys_root: Path) -> Gpu:
        """All the rest. Raises NvmlError when what decides which devices there are, and their names, is not known."""
        nvml = self._nvml
        minor, mig_mode = nvml.minor(self._handle), self._mig_mode()
        location = None if address is None else pci_location(sys_root, address)
        memory, architecture = self._fact(nvml.memory_total), self._fact(nvml.architecture)
        brand = self._fact(nvml.brand)
        is_vgpu = self._fact(nvml.virtualization_mode) == VirtualizationMode.VGPU
        switches = architecture is not None and _switches_without_reset(architecture)
        switchable = mig_mode is not None and switches and not is_vgpu
        split = mig_mode is not None and mig_mode.current
        infos = self._profile_infos() if split or switchable else []
        return Gpu(
            index=index,
            minor=minor,
            uuid=uuid,
            product_name=self._fact(nvml.name),
            brand=None if brand is None else brand_name(brand),
            architecture=None if architecture is None else architecture_name(architecture),
            compute_capability=self._fact(nvml.compute_capability),
            memory=memory,
            pci_address=address,
            pcie_root=None if location is None else location.root_complex,
            numa_node=None if location is None else location.numa_node,
            addressing_mode=self._fact(nvml.addressing_mode),
            module_id=self._fact(nvml.module_id) or None,
            fabric=self._fabric(),
            is_vgpu=is_vgpu,
            mig_mode=mig_mode,
            mig_switchable=switchable,
            mig_profiles=self._profiles(infos, memory or 0),
            mig_instances=self._instances(infos) if split else (),
            problems=tuple(_problem(error, subjects) for error, subjects in self._problems.items()),
        )

    def _fact(self, query: Callable[[DeviceHandle], T]) -> T | None:
        return self._ask("", query, self._handle)

    def _ask(self, subject: str, query: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """What a query answers. None when it cannot; that is a problem unless there is no such thing to ask for."""
        try:
            return query(*arguments, **named)
        except NvmlError as error:
            if error.code not in ABSENT:
                subjects = self._problems.setdefault(str(error), [])
                if subject:
                    subjects.append(subject)
            return None

    def _mig_mode(self) -> MigMode | None:
        """None for a GPU that cannot be split. One whose mode is unknown must not be taken for whole."""
        try:
            return self._nvml.mig_mode(self._handle)
        except NvmlError as error:
            if error.code in ABSENT:
                return None
            raise

    def _fabric(self) -> Fabric | None:
        fabric = self._fact(self._nvml.fabric)
        return None if fabric is None or fabric.state is FabricState.NOT_SUPPORTED else fabric

    def _profile_infos(self) -> list[GpuInstanceProfile]:
        query = self._nvml.gpu_instance_profile
        subjects = {constant: f"profile constant {constant}" for constant in PROFILE_CONSTANTS}
        found = (self._ask(subject, query, self._handle, constant) for constant, subject in subjects.items())
        return [info for info in found if info is not None]

    def _profiles(self, infos: list[GpuInstanceProfile], memory: int) -> tuple[MigProfile, ...]:
        found = (self._ask(f"profile {info.name or info.id}", self._profile, info, memory) for info in infos)
        return tuple(profile for profile in found if profile is not None)

    def _profile(self, info: GpuInstanceProfile, memory: int) -> MigProfile:
        name = profile_name(info, memory)
        return MigProfile(name, info, self._nvml.gpu_instance_placements(self._handle, info.id))

    def _instances(self, infos: list[GpuInstanceProfile]) -> tuple[MigInstance, ...]:
        """The GPU instances: those of every profile, and those that MIG devices are in, should a profile be unknown."""
        nvml, handle = self._nvml, self._handle
        found: dict[int, GpuInstance] = {}
        filled: set[int] = set()
        for profile in infos:
            instances = self._ask(f"profile {profile.name or profile.id}", nvml.gpu_instances, handle, profile.id)
            for instance in instances or ():
                info = self._ask(f"an instance of {profile.name or profile.id}", nvml.gpu_instance_info, instance)
                if info is not None:
                    found[info.id] = info
                    if self._ask(f"GPU instance {info.id}", self._is_filled, instance, profile.slice_count):
                        filled.add(info.id)
        devices = self._mig_devices()
        for number in devices.keys() - found.keys():
            info = self._ask(f"GPU instance {number}", self._instance_by_id, number)
            if info is not None:
                found[number] = info
        return tuple(
            MigInstance(
                number, info.profile_id, info.placement, tuple(sorted(devices.get(number, ()))), number in filled
            )
            for number, info in sorted(found.items())
        )

    def _is_filled(self, instance: GpuInstanceHandle, slices: int) -> bool:
        whole = whole_compute_profile(self._nvml, instance, slices)
        return len(self._nvml.compute_instances(instance, whole)) == 1

    def _instance_by_id(self, number: int) -> GpuInstance:
        return self._nvml.gpu_instance_info(self._nvml.gpu_instance_by_id(self._handle, number))

    def _mig_devices(self) -> dict[int, list[tuple[int, str]]]:
        """(Compute instance, UUID) of the MIG devices, by GPU instance. Each compute instance is one, however large."""
        devices: dict[int, list[tuple[int, str]]] = {}
        for mig in self._ask("its MIG devices", self._nvml.mig_devices, self._handle) or ():
            ids = self._ask("a MIG device", self._nvml.mig_instance_ids, mig)
            if ids is None:
                continue
            instance, compute = ids
            computes = devices.setdefault(instance, [])
            uuid = self._ask(f"the MIG device in GPU instance {instance}", self._nvml.uuid, mig)
            if uuid is not None:
                computes.append((compute, uuid))
        return devices


def _problem(error: str, subjects: list[str]) -> str:
    return f"{error}, for {', '.join(subjects)}" if subjects else error


def _switches_without_reset(architecture: int) -> bool:
    return Architecture.HOPPER <= architecture != _UNKNOWN_ARCHITECTURE


def brand_name(brand: int) -> str:
    """The name of an nvmlBrandType_t, as the official driver publishes it; `Unknown` for newer ones."""
    return _BRANDS[brand] if 0 <= brand < len(_BRANDS) else "Unknown"


def architecture_name(architecture: int) -> str:
    """The name of an nvmlDeviceArchitecture_t; `Unknown` for newer ones."""
    return next((name for known, name in _ARCHITECTURES.items() if known == architecture), "Unknown")
