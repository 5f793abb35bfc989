# SPDX-License-Identifier: Apache-2.0
"""A look at the hardware that costs little: just enough to tell whether everything must be read anew."""

from dataclasses import dataclass, replace
from pathlib import Path

from .nvml import DeviceHandle, MigMode, Nvml, NvmlError, Placement, Return
from .pci import PciBus
from .profiles import supported_profiles
from .reading import ABSENT


@dataclass(frozen=True, slots=True)
class GpuPulse:
    """One GPU: `instances` are its GPU instances (id, profile id, placement), `computes` the compute instances in them
    (GPU instance, compute instance). `problem` is why not all of it is known.
    """

    index: int
    uuid: str | None = None
    mig_mode: MigMode | None = None
    instances: tuple[tuple[int, int, Placement], ...] = ()
    computes: tuple[tuple[int, int], ...] = ()
    problem: Return | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The node. Two that are equal mean that nothing of what an inventory depends on has changed in between, as far as
    NVML and sysfs tell cheaply. `pci_gpus` are addresses with the kernel driver bound to each.
    """

    generation: int
    gpus: tuple[GpuPulse, ...]
    pci_gpus: tuple[tuple[str, str | None], ...]


class PulseTaker:
    """Takes pulses through an initialized gateway. What cannot change before the next initialization is asked once."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._bus = PciBus()
        self._handles: dict[int, DeviceHandle] = {}
        self._profiles: dict[int, tuple[int, ...]] = {}

    def take(self, generation: int, sys_root: Path) -> Pulse:
        """How it is now. Raises NvmlError when the driver as a whole fails."""
        self._nvml.driver_version()
        gpus = tuple(self._gpu(index) for index in range(self._nvml.device_count()))
        return Pulse(generation, gpus, self._bus.bound_gpus(sys_root))

    def _gpu(self, index: int) -> GpuPulse:
        nvml, pulse = self._nvml, GpuPulse(index)
        try:
            handle = self._handle(index)
            pulse = replace(pulse, uuid=nvml.uuid(handle))
            mode = self._mig_mode(handle)
            pulse = replace(pulse, mig_mode=mode)
            if mode is None or not mode.current:
                return pulse
            pulse = replace(pulse, instances=self._instances(index, handle))
            return replace(pulse, computes=tuple(nvml.mig_instance_ids(mig) for mig in nvml.mig_devices(handle)))
        except NvmlError as error:
            return replace(pulse, problem=error.code)

    def _handle(self, index: int) -> DeviceHandle:
        if index not in self._handles:
            self._handles[index] = self._nvml.device_by_index(index)
        return self._handles[index]

    def _mig_mode(self, handle: DeviceHandle) -> MigMode | None:
        try:
            return self._nvml.mig_mode(handle)
        except NvmlError as error:
            if error.code in ABSENT:
                return None
            raise

    def _instances(self, index: int, handle: DeviceHandle) -> tuple[tuple[int, int, Placement], ...]:
        if index not in self._profiles:
            self._profiles[index] = tuple(profile.id for profile in supported_profiles(self._nvml, handle))
        infos = (
            self._nvml.gpu_instance_info(instance)
            for profile in self._profiles[index]
            for instance in self._nvml.gpu_instances(handle, profile)
        )
        return tuple(sorted((info.id, info.profile_id, info.placement) for info in infos))
