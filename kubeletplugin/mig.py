# SPDX-License-Identifier: Apache-2.0
"""MIG instances: made at an exact placement, found again there, and destroyed.

A placement identifies what was made, also after a crash between making it and noting its ids. Every method can be
repeated: making what exists finds it, destroying what is gone does nothing.
"""

import logging

from dra_driver.gpu.nvml import (
    ComputeInstanceHandle,
    DeviceHandle,
    GpuInstance,
    GpuInstanceHandle,
    Nvml,
    NvmlError,
    Return,
)
from dra_driver.gpu.profiles import PROFILE_CONSTANTS, whole_compute_profile

from .plan import MigInstanceIds, MigSlot, PrepareError

log = logging.getLogger(__name__)


class MigInstances:
    """MIG changes through one NVML gateway. One GPU must be changed by one thread at a time: see lifecycle's locks."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._gpus: dict[str, DeviceHandle] = {}

    def find(self, slot: MigSlot) -> MigInstanceIds | None:
        """The instances at the slot's placement, if there are any; None also when only half of them is there."""
        handle = self._find_gpu_instance(slot)
        if handle is None:
            return None
        computes = self._compute_instances(handle, slot)
        return self._ids(handle, computes[0]) if computes else None

    def make(self, slot: MigSlot) -> MigInstanceIds:
        """Make the GPU instance and the compute instance in it; what an earlier attempt left is completed.

        When a part fails, what this call made is undone. Raises NvmlError, or PrepareError with what stands in the way.
        """
        handle = self._find_gpu_instance(slot)
        found = handle is not None
        if handle is None:
            handle = self._create_gpu_instance(slot)
        try:
            computes = self._compute_instances(handle, slot)
            compute = computes[0] if computes else self._create_compute_instance(handle, slot)
            return self._ids(handle, compute)
        except NvmlError:
            if not found:
                self._undo(slot)
            raise

    def destroy(self, slot: MigSlot) -> None:
        """Destroy the instances at the slot's placement. Raises NvmlError with IN_USE while a process runs there."""
        handle = self._find_gpu_instance(slot)
        if handle is None:
            return
        for compute in self._compute_instances(handle, slot):
            self._nvml.destroy_compute_instance(compute)
        self._nvml.destroy_gpu_instance(handle)

    def _undo(self, slot: MigSlot) -> None:
        try:
            self.destroy(slot)
        except NvmlError as error:
            log.error("a MIG instance could not be destroyed after it was half made: %s", error)

    def _gpu(self, slot: MigSlot) -> DeviceHandle:
        # Looking a GPU up by UUID walks all of them, which takes seconds while instances are being made.
        if slot.gpu_uuid not in self._gpus:
            self._gpus[slot.gpu_uuid] = self._nvml.device_by_uuid(slot.gpu_uuid)
        return self._gpus[slot.gpu_uuid]

    def _find_gpu_instance(self, slot: MigSlot) -> GpuInstanceHandle | None:
        try:
            handles = self._nvml.gpu_instances(self._gpu(slot), slot.profile_id)
        except NvmlError as error:
            if error.code is Return.NOT_SUPPORTED:  # MIG mode is off: there are none
                return None
            raise
        return next((one for one in handles if self._nvml.gpu_instance_info(one).placement == slot.placement), None)

    def _create_gpu_instance(self, slot: MigSlot) -> GpuInstanceHandle:
        gpu = self._gpu(slot)
        if not self._nvml.mig_mode(gpu).current:
            raise PrepareError(f"MIG mode of GPU {slot.gpu_uuid} is off (nvidia-smi -i {slot.gpu_uuid} -mig 1)")
        try:
            return self._nvml.create_gpu_instance(gpu, slot.profile_id, slot.placement)
        except NvmlError as error:
            if error.code is not Return.INSUFFICIENT_RESOURCES:
                raise
            existing = ", ".join(
                f"{one.id} (profile {one.profile_id} at {one.placement})" for one in self._existing(gpu)
            )
            raise PrepareError(
                f"no room for {slot.profile} at {slot.placement} of GPU {slot.gpu_uuid}: its GPU instances are"
                f" {existing or 'none'}; destroy those that no claim uses (nvidia-smi mig -dci, -dgi)"
            ) from error

    def _existing(self, gpu: DeviceHandle) -> list[GpuInstance]:
        instances = []
        for constant in PROFILE_CONSTANTS:
            try:
                profile = self._nvml.gpu_instance_profile(gpu, constant)
                handles = self._nvml.gpu_instances(gpu, profile.id)
                instances += [self._nvml.gpu_instance_info(handle) for handle in handles]
            except NvmlError as error:
                log.debug("GPU instances of profile constant %d: %s", constant, error)
        return sorted(instances, key=lambda one: one.id)

    def _compute_instances(self, handle: GpuInstanceHandle, slot: MigSlot) -> tuple[ComputeInstanceHandle, ...]:
        return self._nvml.compute_instances(handle, self._compute_profile(handle, slot))

    def _create_compute_instance(self, handle: GpuInstanceHandle, slot: MigSlot) -> ComputeInstanceHandle:
        return self._nvml.create_compute_instance(handle, self._compute_profile(handle, slot))

    def _compute_profile(self, handle: GpuInstanceHandle, slot: MigSlot) -> int:
        return whole_compute_profile(self._nvml, handle, slot.slices)

    def _ids(self, handle: GpuInstanceHandle, compute: ComputeInstanceHandle) -> MigInstanceIds:
        info = self._nvml.compute_instance_info(compute)
        return MigInstanceIds(self._nvml.gpu_instance_info(handle).id, info.id, self._nvml.uuid(info.device))
