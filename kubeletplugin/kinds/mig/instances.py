# SPDX-License-Identifier: Apache-2.0
"""MIG instances: created at an exact placement, found there again, and destroyed; and the MIG mode that they need.

The placement identifies an instance, also after a crash between creating it and recording its ids. Whether an
instance may be changed is not decided here: see `instance`.
"""

import contextlib
import logging
import os
import time

from dra_driver.gpu.mig import MigDevice, MigInstance, PartialInstance
from dra_driver.gpu.nvml import (
    ComputeInstanceHandle,
    DeviceHandle,
    GpuInstanceHandle,
    MigMode,
    NvmlError,
    Return,
)
from dra_driver.gpu.profiles import PROFILE_CONSTANTS, whole_compute_profile
from dra_driver.process.backoff import Backoff
from kubeletplugin.containers.cdi import DriverFilesError, character_majors
from kubeletplugin.containers.cdi.files import capability_node

from ...claims.call import Call
from ...errors import NotMadeError, PrepareError
from ...host.openers import names_of, openers
from ...node.gpus import Gpus

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_NOT_MADE = (Return.INSUFFICIENT_RESOURCES, Return.INVALID_ARGUMENT, Return.NOT_SUPPORTED, Return.NO_PERMISSION)


class MigInstances:
    """Changes of MIG through one initialization of NVML. Only one thread at a time may change a GPU."""

    def __init__(self, gpus: Gpus) -> None:
        self._nvml = gpus.nvml
        self._proc_root = gpus.proc_root
        self._find = gpus.device
        self._compute_profiles: dict[tuple[str, int], int] = {}

    # Instances

    def find(self, device: MigDevice) -> MigInstance | None:
        """The instances at the device's placement, or None if they do not exist or are incomplete."""
        handle = self.gpu_instance(device)
        if handle is None:
            return None
        computes = self._compute_instances(handle, device)
        return self._instance(device, handle, computes[0]) if computes else None

    def gpu_instance(self, device: MigDevice) -> GpuInstanceHandle | None:
        """The GPU instance at the device's placement, or None."""
        try:
            handles = self._nvml.gpu_instances(self._find(device.gpu_uuid), device.profile_id)
        except NvmlError as error:
            if error.code in (Return.NOT_SUPPORTED, Return.NOT_FOUND):  # MIG mode is disabled, or the GPU is gone
                return None
            raise
        return next(
            (handle for handle in handles if self._nvml.gpu_instance_info(handle).placement == device.placement), None
        )

    def create(self, device: MigDevice) -> MigInstance:
        """Create a GPU instance and the compute instance that has all of its slices. Raises NotMadeError with the
        obstacle, or NvmlError.
        """
        handle = self._create_gpu_instance(device)
        return self._instance(
            device, handle, self._nvml.create_compute_instance(handle, self._compute_profile(handle, device))
        )

    def complete(self, handle: GpuInstanceHandle, device: MigDevice) -> MigInstance:
        """The ids of a GPU instance and its compute instance, which is created if it is missing."""
        computes = self._compute_instances(handle, device)
        if computes:
            return self._instance(device, handle, computes[0])
        return self._instance(
            device, handle, self._nvml.create_compute_instance(handle, self._compute_profile(handle, device))
        )

    def destroy(self, device: MigDevice, patience: float, call: Call) -> None:
        """Destroy the instances at the device's placement, if there are any.

        While a process uses them, this is tried again for `patience` seconds, as long as `call` is wanted, because
        processes of a container take a moment to end. After that, raises NvmlError with IN_USE and the processes.
        """
        deadline, backoff = time.monotonic() + patience, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                self._destroy(device)
                return
            except NvmlError as error:
                if error.code is not Return.IN_USE:
                    raise
                pause = backoff.pause()
                if time.monotonic() + pause > deadline:
                    raise self._in_use(device, error) from None
            call.check()
            time.sleep(pause)

    def all_on(self, gpu_uuid: str) -> list[PartialInstance]:
        """All GPU instances of a GPU, whoever created them, without their compute instances."""
        device = self._find(gpu_uuid)
        instances: list[PartialInstance] = []
        for constant in PROFILE_CONSTANTS:
            try:
                profile = self._nvml.gpu_instance_profile(device, constant)
                handles = self._nvml.gpu_instances(device, profile.id)
                infos = [self._nvml.gpu_instance_info(handle) for handle in handles]
                instances += [
                    PartialInstance(MigDevice(gpu_uuid, info.profile_id, info.placement), info.id, ()) for info in infos
                ]
            except NvmlError as error:
                log.debug("GPU instances of profile constant %d: %s", constant, error)
        return sorted(instances, key=lambda instance: instance.gpu_instance)

    # MIG mode

    def mode(self, gpu_uuid: str) -> MigMode | None:
        """The MIG mode of the GPU, or None for a GPU without MIG."""
        try:
            return self._nvml.mig_mode(self._find(gpu_uuid))
        except NvmlError as error:
            if error.code is Return.NOT_SUPPORTED:
                return None
            raise

    def set_mode(self, gpu_uuid: str, enabled: bool) -> None:
        """Switch the mode. If that does not take effect at once, the previous pending mode is restored, and
        PrepareError has the reason.
        """
        gpu = self._find(gpu_uuid)
        before = self._nvml.mig_mode(gpu)
        try:
            obstacle = self._nvml.set_mig_mode(gpu, enabled)
        except NvmlError as error:
            if error.code is not Return.IN_USE:
                raise
            obstacle = error.code
        after = self._nvml.mig_mode(gpu)
        if after.current == enabled:
            return
        if after.pending != before.pending:
            self._nvml.set_mig_mode(gpu, before.pending)
        wish = "on" if enabled else "off"
        raise PrepareError(f"MIG mode of GPU {gpu_uuid} cannot be switched {wish} now: {self._why(gpu_uuid, obstacle)}")

    def _why(self, gpu_uuid: str, obstacle: Return | None) -> str:
        reason = obstacle.name if obstacle is not None else "it waits for a reset"
        if obstacle is Return.RESET_REQUIRED:
            return f"{reason}: the GPU has to be reset (nvidia-smi --gpu-reset) while nothing uses it"
        existing = ", ".join(
            f"{instance.gpu_instance} at {instance.device.placement}" for instance in self.all_on(gpu_uuid)
        )
        if existing:
            return f"{reason}: it has GPU instances ({existing})"
        pids = self._processes(self._find(gpu_uuid))
        if pids:
            return f"{reason}: it is used by {pids}"
        return f"{reason}: some client of the driver (a monitor, the persistence daemon) has it open"

    # Parts

    def _create_gpu_instance(self, device: MigDevice) -> GpuInstanceHandle:
        gpu = self._find(device.gpu_uuid)
        try:
            return self._nvml.create_gpu_instance(gpu, device.profile_id, device.placement)
        except NvmlError as error:
            if error.code not in _NOT_MADE:
                raise
            if error.code is not Return.INSUFFICIENT_RESOURCES:
                raise NotMadeError(f"no GPU instance can be made for {device}: {error}") from error
            existing = ", ".join(
                f"{instance.gpu_instance} (profile {instance.device.profile_id} at {instance.device.placement})"
                for instance in self.all_on(device.gpu_uuid)
            )
            raise NotMadeError(
                f"not enough free memory slices for {device}: the GPU instances are {existing or 'none'}; destroy those"
                " that no claim uses (nvidia-smi mig -dci, -dgi)"
            ) from error

    def _destroy(self, device: MigDevice) -> None:
        handle = self.gpu_instance(device)
        if handle is None:
            return
        for compute in self._compute_instances(handle, device):
            self._nvml.destroy_compute_instance(compute)
        self._nvml.destroy_gpu_instance(handle)

    def _in_use(self, device: MigDevice, error: NvmlError) -> NvmlError:
        users = ""
        with contextlib.suppress(NvmlError):
            handle = self.gpu_instance(device)
            if handle is not None:
                computes = [
                    self._nvml.compute_instance_info(compute) for compute in self._compute_instances(handle, device)
                ]
                ids = [compute.id for compute in computes]
                users = self._openers(device, self._nvml.gpu_instance_info(handle).id, ids) or ", ".join(
                    filter(None, (self._processes(compute.device) for compute in computes))
                )
        users = users or "something that is no compute process (a monitor, for example)"
        detail = f"{device} is used by {users}; it is destroyed as soon as it is free"
        return NvmlError(Return.IN_USE, error.call, detail)

    def _openers(self, device: MigDevice, gpu_instance: int, compute_instances: list[int]) -> str:
        """The names of the processes that have the capabilities of the instances open, which monitors have, too. Empty
        if this process does not see the processes of the node.
        """
        root = f"gpu{device.minor}/mig/gi{gpu_instance}"
        majors = character_majors(self._proc_root)
        numbers = []
        for capability in (
            f"{root}/access",
            *(f"{root}/ci{compute_instance}/access" for compute_instance in compute_instances),
        ):
            with contextlib.suppress(DriverFilesError):
                node = capability_node(self._proc_root, capability, majors)
                numbers.append(os.makedev(node.major, node.minor))
        return names_of(openers((), devices=numbers))

    def _processes(self, device: DeviceHandle) -> str:
        try:
            pids = self._nvml.compute_processes(device)
        except NvmlError:
            return ""
        return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, sorted(pids)))}" if pids else ""

    def _compute_instances(self, handle: GpuInstanceHandle, device: MigDevice) -> tuple[ComputeInstanceHandle, ...]:
        return self._nvml.compute_instances(handle, self._compute_profile(handle, device))

    def _compute_profile(self, handle: GpuInstanceHandle, device: MigDevice) -> int:
        key = device.gpu_uuid, device.profile_id
        if key not in self._compute_profiles:  # finding it takes several calls, and it never changes
            slices = device.slices or self._slices(device)
            self._compute_profiles[key] = whole_compute_profile(self._nvml, handle, slices)
        return self._compute_profiles[key]

    def _slices(self, device: MigDevice) -> int:
        """The number of slices of a device that is known only by its mark. 0 if its profile is unknown."""
        for constant in PROFILE_CONSTANTS:
            with contextlib.suppress(NvmlError):
                profile = self._nvml.gpu_instance_profile(self._find(device.gpu_uuid), constant)
                if profile.id == device.profile_id:
                    return profile.slice_count
        return 0

    def _instance(self, device: MigDevice, handle: GpuInstanceHandle, compute: ComputeInstanceHandle) -> MigInstance:
        info = self._nvml.compute_instance_info(compute)
        return MigInstance(device, self._nvml.gpu_instance_info(handle).id, info.id, self._nvml.uuid(info.device))
