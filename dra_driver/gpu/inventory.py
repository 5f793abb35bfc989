# SPDX-License-Identifier: Apache-2.0
"""Reading the GPUs of a node through the NVML interface and sysfs.

A GPU that cannot be read does not affect the others, and a query that fails does not affect other values. A value that
a GPU does not report is None, and the reason is in the GPU's `problems`. A GPU becomes a `Failure` only if it cannot be
identified, does not report its MIG mode, or its calls do not return.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from .data_direct import data_direct_nics
from .facts import Failure, Gpu, Inventory, MigProfile, PciGpu
from .memory_limits import cgroup_root
from .mig import MigDevice, MigInstance, PartialInstance
from .nvml import (
    Architecture,
    DeviceHandle,
    Fabric,
    FabricState,
    GpuInstanceHandle,
    GpuInstanceProfile,
    MigMode,
    Nvml,
    NvmlError,
    Return,
    VirtualizationMode,
)
from .pci import NVIDIA_DRIVER, pci_location, read_pci_gpus
from .profiles import PROFILE_CONSTANTS, whole_compute_profile
from .threads import HungError
from .vgpus import VgpuHost, VgpuTypes, read_vgpu_host, vgpu_functions

P = ParamSpec("P")
T = TypeVar("T")

ABSENT = frozenset({Return.NOT_SUPPORTED, Return.FUNCTION_NOT_FOUND, Return.ARGUMENT_VERSION_MISMATCH})
"""Return codes of a GPU or NVIDIA driver that does not have the queried feature; other codes are real failures."""

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
_ARCHITECTURES = {int(member): member.name.capitalize() for member in Architecture} | {
    int(Architecture.ADA): "Ada Lovelace"
}

__all__ = ["Failure", "Gpu", "Inventory", "MigProfile", "PciGpu", "Threads", "read_inventory"]


def mig_mode(nvml: Nvml, gpu: DeviceHandle) -> MigMode | None:
    """The MIG mode of a GPU, or None for a GPU without MIG. Raises NvmlError if the mode cannot be read, because such a
    GPU must not be treated as a whole GPU.
    """
    try:
        return nvml.mig_mode(gpu)
    except NvmlError as error:
        if error.code in ABSENT:
            return None
        raise


def read_gpu(nvml: Nvml, index: int, sys_root: Path) -> Gpu | Failure:
    """Read GPU `index`, or return why it cannot be read. `sys_root` is where sysfs is mounted."""
    uuid: str | None = None
    address: str | None = None
    try:
        handle = nvml.device_by_index(index)
        reader = _Reader(nvml, handle)
        address = reader.fact(nvml.pci_address)
        uuid = nvml.uuid(handle)
        return reader.gpu(index, uuid, address, sys_root)
    except NvmlError as error:
        return Failure(index, str(error), uuid, address)


class _Reader:
    """Reads one GPU. `_problems` collects failed queries: by error text, the names of the parts that were queried."""

    def __init__(self, nvml: Nvml, handle: DeviceHandle) -> None:
        self._nvml = nvml
        self._handle = handle
        self._problems: dict[str, list[str]] = {}

    def gpu(self, index: int, uuid: str, address: str | None, sys_root: Path) -> Gpu:
        """Read everything else. Raises NvmlError if a value that device names or kinds depend on cannot be read."""
        nvml = self._nvml
        minor, mode = nvml.minor(self._handle), mig_mode(nvml, self._handle)
        pcie_root, numa_node = (None, None) if address is None else pci_location(sys_root, address)
        architecture, brand = self.fact(nvml.architecture), self.fact(nvml.brand)
        virtualization = self.fact(nvml.virtualization_mode)
        is_vgpu = virtualization == VirtualizationMode.VGPU
        switches = architecture is not None and _switches_without_reset(architecture)
        switchable = mode is not None and switches and not is_vgpu
        split = mode is not None and mode.current
        infos = self._profile_infos() if split or switchable else []
        gpu = Gpu(
            index=index,
            minor=minor,
            uuid=uuid,
            product_name=self.fact(nvml.name),
            brand=None if brand is None else brand_name(brand),
            architecture=None if architecture is None else architecture_name(architecture),
            compute_capability=self.fact(nvml.compute_capability),
            memory=self.fact(nvml.memory_total),
            pci_address=address,
            pcie_root=pcie_root,
            numa_node=numa_node,
            addressing_mode=self.fact(nvml.addressing_mode),
            module_id=self.fact(nvml.module_id) or None,
            fabric=self._fabric(),
            is_vgpu=is_vgpu,
            vgpu_host=None if address is None else self._vgpu_host(virtualization, sys_root, uuid, address),
            memory_limits=self._limits_memory(str(cgroup_root(sys_root))),
            mig_mode=mode,
            mig_switchable=switchable,
            mig_profiles=self._profiles(infos),
        )
        instances = self._instances(gpu, infos) if split else []
        return replace(
            gpu,
            mig_instances=tuple(instance for instance in instances if isinstance(instance, MigInstance)),
            partial_instances=tuple(instance for instance in instances if isinstance(instance, PartialInstance)),
            problems=tuple(
                f"{error}, for {', '.join(subjects)}" if subjects else error
                for error, subjects in self._problems.items()
            ),
        )

    def fact(self, query: Callable[[DeviceHandle], T]) -> T | None:
        """The answer of a query about the GPU, or None if it fails."""
        return self._ask("", query, self._handle)

    def _ask(self, subject: str, query: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
        """The answer of a query, or None if it fails. A failure is a problem unless the GPU lacks the feature."""
        try:
            return query(*arguments, **named)
        except NvmlError as error:
            if error.code not in ABSENT:
                subjects = self._problems.setdefault(str(error), [])
                if subject:
                    subjects.append(subject)
            return None

    def _vgpu_host(self, mode: int | None, sys_root: Path, uuid: str, address: str) -> VgpuHost | None:
        """None unless NVIDIA's vGPU manager runs. Where NVML does not report the mode, its files in sysfs tell it."""
        if mode is None and not vgpu_functions(sys_root, address)[1]:
            return None
        if mode not in (None, VirtualizationMode.HOST_VGPU):
            return None
        types = self._ask("its vGPU types", self._nvml.vgpu_types, self._handle) or VgpuTypes(False, ())
        return read_vgpu_host(sys_root, uuid, address, types)

    def _limits_memory(self, cgroup: str) -> bool:
        """Whether NVML supports limits of memory on this GPU. An error about the cgroup itself means that it does."""

        def has_limits() -> bool:
            try:
                self._nvml.memory_limits(self._handle, cgroup)
            except NvmlError as error:
                if error.code not in (Return.INVALID_ARGUMENT, Return.NOT_FOUND):
                    raise
            return True

        return bool(self._ask("limits of memory", has_limits))

    def _fabric(self) -> Fabric | None:
        fabric = self.fact(self._nvml.fabric)
        return None if fabric is None or fabric.state is FabricState.NOT_SUPPORTED else fabric

    def _profile_infos(self) -> list[GpuInstanceProfile]:
        query = self._nvml.gpu_instance_profile
        subjects = {constant: f"profile constant {constant}" for constant in PROFILE_CONSTANTS}
        found = (self._ask(subject, query, self._handle, constant) for constant, subject in subjects.items())
        return [info for info in found if info is not None]

    def _profiles(self, infos: list[GpuInstanceProfile]) -> tuple[MigProfile, ...]:
        query = self._nvml.gpu_instance_placements
        found = ((info, self._ask(f"profile {info.name}", query, self._handle, info.id)) for info in infos)
        return tuple(MigProfile(info.name, info, placements) for info, placements in found if placements is not None)

    def _instances(self, gpu: Gpu, infos: list[GpuInstanceProfile]) -> list[MigInstance | PartialInstance]:
        """The GPU instances of every profile, and those of MIG devices, because a profile may be unknown to NVML."""
        found: dict[int, MigDevice] = {}
        filled: set[int] = set()
        for profile in infos:
            instances = self._ask(f"profile {profile.name}", self._nvml.gpu_instances, self._handle, profile.id)
            for instance in instances or ():
                info = self._ask(f"an instance of {profile.name}", self._nvml.gpu_instance_info, instance)
                if info is not None:
                    found[info.id] = gpu.mig_device(info.profile_id, info.placement)
                    if self._ask(f"GPU instance {info.id}", self._is_filled, instance, profile.slice_count):
                        filled.add(info.id)
        computes = self._compute_instances()
        for number in computes.keys() - found.keys():
            device = self._ask(f"GPU instance {number}", self._device_of, gpu, number)
            if device is not None:
                found[number] = device
        return [
            _instance(device, number, sorted(computes.get(number, ())), number in filled)
            for number, device in sorted(found.items())
        ]

    def _is_filled(self, instance: GpuInstanceHandle, slices: int) -> bool:
        whole = whole_compute_profile(self._nvml, instance, slices)
        return len(self._nvml.compute_instances(instance, whole)) == 1

    def _device_of(self, gpu: Gpu, number: int) -> MigDevice:
        info = self._nvml.gpu_instance_info(self._nvml.gpu_instance_by_id(self._handle, number))
        return gpu.mig_device(info.profile_id, info.placement)

    def _compute_instances(self) -> dict[int, list[tuple[int, str]]]:
        """(ID, UUID) of each compute instance, by GPU instance ID. NVML has a MIG device for each compute instance."""
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


def _switches_without_reset(architecture: int) -> bool:
    return Architecture.HOPPER <= architecture != _UNKNOWN_ARCHITECTURE


def brand_name(brand: int) -> str:
    """The name of an nvmlBrandType_t, as the official driver publishes it; `Unknown` for newer ones."""
    return _BRANDS[brand] if 0 <= brand < len(_BRANDS) else "Unknown"


def architecture_name(architecture: int) -> str:
    """The name of an nvmlDeviceArchitecture_t; `Unknown` for newer ones."""
    return _ARCHITECTURES.get(architecture, "Unknown")


class Threads:
    """Runs calls to NVML: each on the caller's thread, without a time limit, which is sufficient for simulated
    hardware. A session has threads with time limits instead.
    """

    def library(self, ask: Callable[[], T]) -> T:
        """The answer of a call that concerns no single GPU. Raises NvmlError."""
        return ask()

    def gpus(self, asks: Mapping[int, Callable[[], T]]) -> dict[int, T | NvmlError | None]:
        """The answers of several GPUs, by index. The answer of a GPU whose other work is not done is None."""
        return {index: ask() for index, ask in asks.items()}


def read_inventory(
    nvml: Nvml,
    sys_root: Path,
    *,
    dev_root: Path | None = None,
    driver_root: Path | None = None,
    threads: Threads | None = None,
    before: Mapping[int, Gpu] | None = None,
) -> Inventory:
    """Read all GPUs. Raises NvmlError if the NVIDIA driver as a whole fails.

    `sys_root` is where sysfs is mounted. `dev_root` contains dev/iommu, which shows whether the kernel has iommufd.
    `driver_root` contains the pci.ids file that names products. Without these two folders, the values are unknown. A
    GPU whose other work is not done is reported as it was `before` (by index).
    """
    threads = threads or Threads()
    driver_version, cuda_driver_version, count = threads.library(partial(_read_system, nvml))
    answers = threads.gpus({index: partial(read_gpu, nvml, index, sys_root) for index in range(count)})
    found = [_found(index, answer, before or {}) for index, answer in answers.items()]
    found = _with_nvlink_groups(nvml, found, threads)
    nics = data_direct_nics(sys_root)
    gpus = [replace(gpu, data_direct_nic=nics.get(gpu.pci_address or "")) for gpu in found if isinstance(gpu, Gpu)]
    pci_gpus = read_pci_gpus(sys_root, driver_root)
    return Inventory(
        driver_version=driver_version,
        cuda_driver_version=cuda_driver_version,
        gpus=tuple(gpus),
        failures=_located([failure for failure in found if isinstance(failure, Failure)], gpus, pci_gpus),
        pci_gpus=pci_gpus,
        iommufd=dev_root is not None and (dev_root / "dev/iommu").exists(),
    )


def _read_system(nvml: Nvml) -> tuple[str, int | None, int]:
    """The version of the driver, that of CUDA if it is known, and the number of GPUs."""
    driver_version = nvml.driver_version()
    try:
        cuda_driver_version = nvml.cuda_driver_version()
    except NvmlError:
        cuda_driver_version = None
    return driver_version, cuda_driver_version, nvml.device_count()


def _found(index: int, answer: Gpu | Failure | NvmlError | None, before: Mapping[int, Gpu]) -> Gpu | Failure:
    if isinstance(answer, NvmlError):
        return Failure(index, str(answer), hung=isinstance(answer, HungError))
    return answer or before.get(index) or Failure(index, "it is being changed, and was not read before")


def _with_nvlink_groups(nvml: Nvml, found: Sequence[Gpu | Failure], threads: Threads) -> list[Gpu | Failure]:
    """The GPUs with their NVLink groups. GPUs are in one group if they reach each other, possibly through other GPUs.
    GPUs in MIG mode have no NVLink.

    A call about two GPUs is work for the GPU with the higher index, and a failure counts against that GPU.
    """
    whole = [gpu for gpu in found if isinstance(gpu, Gpu) and not gpu.in_mig_mode]
    groups = {gpu.uuid: {gpu.uuid} for gpu in whole}
    problems: dict[str, tuple[str, ...]] = {}
    failures: dict[int, Failure] = {}
    for number, gpu in enumerate(whole[1:], start=1):
        others = [other for other in whole[:number] if other.index not in failures]
        [(_, answer)] = threads.gpus({gpu.index: partial(_linked, nvml, gpu, others, groups)}).items()
        if isinstance(answer, NvmlError):
            failures[gpu.index] = Failure(
                gpu.index, str(answer), gpu.uuid, gpu.pci_address, isinstance(answer, HungError)
            )
        elif answer is not None:
            linked, problems[gpu.uuid] = answer
            joined = set().union(groups[gpu.uuid], *(groups[uuid] for uuid in linked))
            groups |= dict.fromkeys(joined, joined)

    def with_group(gpu: Gpu | Failure) -> Gpu | Failure:
        if gpu.index in failures:
            return failures[gpu.index]
        if isinstance(gpu, Failure):
            return gpu
        group = groups.get(gpu.uuid, set())
        problem = (*gpu.problems, *problems.get(gpu.uuid, ()))
        return replace(gpu, nvlink_group=min(group) if len(group) > 1 else None, problems=problem)

    return [with_group(gpu) for gpu in found]


def _instance(
    device: MigDevice, number: int, computes: Sequence[tuple[int, str]], filled: bool
) -> MigInstance | PartialInstance:
    """The GPU instance with this number. `computes` has (ID, UUID) of its compute instances. `filled` tells whether a
    compute instance has all of its slices.
    """
    if filled and len(computes) == 1:
        return MigInstance(device, number, *computes[0])
    return PartialInstance(device, number, tuple(uuid for _, uuid in computes))


def _linked(
    nvml: Nvml, gpu: Gpu, others: Sequence[Gpu], groups: Mapping[str, set[str]]
) -> tuple[list[str], tuple[str, ...]]:
    """The UUIDs of the others that the GPU reaches, at least one of each group, and the queries that failed."""
    linked: list[str] = []
    problems: list[str] = []
    reached: set[str] = set()
    for other in others:
        if other.uuid in reached:
            continue
        try:
            if nvml.nvlink_peers(nvml.device_by_index(other.index), nvml.device_by_index(gpu.index)):
                linked.append(other.uuid)
                reached |= groups[other.uuid]
        except NvmlError as error:
            if error.code not in ABSENT:
                problems.append(f"{error}, for the NVLink to {other.uuid}")
    return linked, tuple(problems)


def _located(failures: Sequence[Failure], gpus: Sequence[Gpu], pci_gpus: Sequence[PciGpu]) -> tuple[Failure, ...]:
    """The failures with their PCI addresses. NVML lists GPUs in the order of their addresses. So if the number of
    addresses that no GPU has reported equals the number of failures without an address, they are matched in order.
    """
    taken = {gpu.pci_address for gpu in gpus} | {failure.pci_address for failure in failures}
    left = [pci_gpu.address for pci_gpu in pci_gpus if pci_gpu.driver == NVIDIA_DRIVER and pci_gpu.address not in taken]
    missing = [failure for failure in failures if failure.pci_address is None]
    if len(left) != len(missing):
        return tuple(failures)
    addresses = iter(left)
    return tuple(
        failure if failure.pci_address else replace(failure, pci_address=next(addresses)) for failure in failures
    )
