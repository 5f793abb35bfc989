# SPDX-License-Identifier: Apache-2.0
"""Pulses: cheap looks at the hardware, which only tell whether the whole inventory must be read again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from .inventory import Threads, mig_mode
from .nvml import DeviceHandle, Fabric, MigMode, Nvml, NvmlError, Placement, Return
from .pci import PciBus
from .profiles import supported_profiles
from .threads import HungError
from .vgpus import VgpuPlace, existing_vgpus


@dataclass(frozen=True, slots=True)
class GpuPulse:
    """One GPU. `instances` has (id, profile id, placement) of its GPU instances, and `computes` has (GPU instance id,
    compute instance id) of its compute instances. `vgpus` are those on it. `fabric` is its NVLink fabric, without
    health, and None in MIG mode. `problem` is the reason if these values are incomplete.
    """

    index: int
    uuid: str | None = None
    mig_mode: MigMode | None = None
    instances: tuple[tuple[int, int, Placement], ...] = ()
    computes: tuple[tuple[int, int], ...] = ()
    vgpus: tuple[VgpuPlace, ...] = ()
    fabric: Fabric | None = None
    problem: Return | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The node. If two pulses are equal, no value of the inventory has changed in between, as far as NVML and sysfs
    show this cheaply. `pci_gpus` has each GPU's address and the kernel driver that it is bound to. `fabric` changes
    with a restart of Fabric Manager.
    """

    generation: int
    gpus: tuple[GpuPulse, ...]
    pci_gpus: tuple[tuple[str, str | None], ...]
    fabric: str = ""


class PulseTaker:
    """Takes pulses with an initialized NVML interface. Values that are constant for an initialization are cached."""

    def __init__(self, nvml: Nvml, threads: Threads) -> None:
        self._nvml = nvml
        self._threads = threads
        self._bus = PciBus()
        self._before: dict[int, GpuPulse] = {}
        self._handles: dict[int, DeviceHandle] = {}
        self._profiles: dict[int, tuple[int, ...]] = {}
        self._late: frozenset[int] = frozenset()
        self.uuids: dict[int, str] = {}
        """The UUIDs by index, also of GPUs of which a later call has not returned yet."""

    @property
    def silent(self) -> frozenset[int]:
        """The indexes of the GPUs that have not told their UUIDs, because a call hangs or other work is not done."""
        return self._late - self.uuids.keys()

    def take(self, generation: int, sys_root: Path, vgpu_hosts: Mapping[int, str | None]) -> Pulse:
        """Take a pulse. `vgpu_hosts` has the addresses of the GPUs with a vGPU manager, by index. Raises NvmlError if
        the NVIDIA driver as a whole fails.
        """
        count = self._threads.library(self._count)
        asks = {index: partial(self._gpu, index, sys_root, vgpu_hosts.get(index)) for index in range(count)}
        answers = self._threads.gpus(asks)
        self._late = frozenset(
            index for index, answer in answers.items() if answer is None or isinstance(answer, HungError)
        )
        self._before = {index: self._found(index, answer) for index, answer in answers.items()}
        return Pulse(generation, tuple(self._before.values()), self._bus.bound_gpus(sys_root))

    def handle(self, index: int) -> DeviceHandle:
        """The handle of a GPU, which is cached. Raises NvmlError."""
        if index not in self._handles:
            self._handles[index] = self._nvml.device_by_index(index)
        return self._handles[index]

    def _count(self) -> int:
        self._nvml.driver_version()
        return self._nvml.device_count()

    def _found(self, index: int, answer: GpuPulse | NvmlError | None) -> GpuPulse:
        if isinstance(answer, NvmlError):
            return GpuPulse(index, problem=answer.code)
        return answer or self._before.get(index) or GpuPulse(index, problem=Return.NOT_READY)

    def _gpu(self, index: int, sys_root: Path, vgpu_host: str | None) -> GpuPulse:
        nvml, pulse = self._nvml, GpuPulse(index)
        try:
            handle = self.handle(index)
            uuid = self.uuids[index] = nvml.uuid(handle)
            pulse = replace(pulse, uuid=uuid)
            if vgpu_host is not None:
                pulse = replace(pulse, vgpus=existing_vgpus(sys_root, uuid, vgpu_host))
            mode = mig_mode(nvml, handle)
            pulse = replace(pulse, mig_mode=mode)
            if mode is None or not mode.current:
                return replace(pulse, fabric=self._fabric(handle))
            pulse = replace(pulse, instances=self._instances(index, handle))
            return replace(pulse, computes=tuple(nvml.mig_instance_ids(mig) for mig in nvml.mig_devices(handle)))
        except NvmlError as error:
            return replace(pulse, problem=error.code)

    def _fabric(self, handle: DeviceHandle) -> Fabric | None:
        """The fabric of a GPU, which may join it minutes after a boot. An error is left to the inventory."""
        try:
            return replace(self._nvml.fabric(handle), health_mask=0)
        except NvmlError:
            return None

    def _instances(self, index: int, handle: DeviceHandle) -> tuple[tuple[int, int, Placement], ...]:
        if index not in self._profiles:
            self._profiles[index] = tuple(profile.id for profile in supported_profiles(self._nvml, handle))
        infos = (
            self._nvml.gpu_instance_info(instance)
            for profile in self._profiles[index]
            for instance in self._nvml.gpu_instances(handle, profile)
        )
        return tuple(sorted((info.id, info.profile_id, info.placement) for info in infos))
