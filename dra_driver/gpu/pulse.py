# SPDX-License-Identifier: Apache-2.0
"""A pulse: a cheap look at the hardware, which only tells whether the whole inventory must be read again."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from .inventory import Threads, mig_mode
from .nvml import DeviceHandle, MigMode, Nvml, NvmlError, Placement, Return
from .pci import PciBus
from .profiles import supported_profiles


@dataclass(frozen=True, slots=True)
class GpuPulse:
    """One GPU. `instances` has (id, profile id, placement) of its GPU instances, and `computes` has (GPU instance id,
    compute instance id) of its compute instances. `problem` is the reason if these values are incomplete.
    """

    index: int
    uuid: str | None = None
    mig_mode: MigMode | None = None
    instances: tuple[tuple[int, int, Placement], ...] = ()
    computes: tuple[tuple[int, int], ...] = ()
    problem: Return | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The node. If two pulses are equal, no value of the inventory has changed in between, as far as NVML and sysfs
    show this cheaply. `pci_gpus` has each GPU's address and the kernel driver that it is bound to.
    """

    generation: int
    gpus: tuple[GpuPulse, ...]
    pci_gpus: tuple[tuple[str, str | None], ...]


class PulseTaker:
    """Takes pulses with an initialized NVML interface. Values that are constant for an initialization are cached."""

    def __init__(self, nvml: Nvml, threads: Threads) -> None:
        self._nvml = nvml
        self._threads = threads
        self._bus = PciBus()
        self._before: dict[int, GpuPulse] = {}
        self._handles: dict[int, DeviceHandle] = {}
        self._profiles: dict[int, tuple[int, ...]] = {}

    def take(self, generation: int, sys_root: Path) -> Pulse:
        """Take a pulse. Raises NvmlError if the NVIDIA driver as a whole fails."""
        count = self._threads.library(self._count)
        answers = self._threads.gpus({index: partial(self._gpu, index) for index in range(count)})
        self._before = {index: self._found(index, answer) for index, answer in answers.items()}
        return Pulse(generation, tuple(self._before.values()), self._bus.bound_gpus(sys_root))

    def handle(self, index: int) -> DeviceHandle:
        """The handle of a GPU, which is cached. Raises NvmlError."""
        if index not in self._handles:
            self._handles[index] = self._nvml.device_by_index(index)
        return self._handles[index]

    def index(self, device: DeviceHandle) -> int | None:
        """The index of the GPU with this handle, or None if `handle` never returned this handle."""
        wanted = self._nvml.identity(device)
        return next((index for index, one in self._handles.items() if self._nvml.identity(one) == wanted), None)

    def _count(self) -> int:
        self._nvml.driver_version()
        return self._nvml.device_count()

    def _found(self, index: int, answer: GpuPulse | NvmlError | None) -> GpuPulse:
        if isinstance(answer, NvmlError):
            return GpuPulse(index, problem=answer.code)
        return answer or self._before.get(index) or GpuPulse(index, problem=Return.NOT_READY)

    def _gpu(self, index: int) -> GpuPulse:
        nvml, pulse = self._nvml, GpuPulse(index)
        try:
            handle = self.handle(index)
            pulse = replace(pulse, uuid=nvml.uuid(handle))
            mode = mig_mode(nvml, handle)
            pulse = replace(pulse, mig_mode=mode)
            if mode is None or not mode.current:
                return pulse
            pulse = replace(pulse, instances=self._instances(index, handle))
            return replace(pulse, computes=tuple(nvml.mig_instance_ids(mig) for mig in nvml.mig_devices(handle)))
        except NvmlError as error:
            return replace(pulse, problem=error.code)

    def _instances(self, index: int, handle: DeviceHandle) -> tuple[tuple[int, int, Placement], ...]:
        if index not in self._profiles:
            self._profiles[index] = tuple(profile.id for profile in supported_profiles(self._nvml, handle))
        infos = (
            self._nvml.gpu_instance_info(instance)
            for profile in self._profiles[index]
            for instance in self._nvml.gpu_instances(handle, profile)
        )
        return tuple(sorted((info.id, info.profile_id, info.placement) for info in infos))
