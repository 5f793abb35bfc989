# SPDX-License-Identifier: Apache-2.0
"""NVML calls as tests of this package make them."""

from collections.abc import Callable

import pytest

from dra_driver.gpu.nvml import ComputeInstanceHandle, DeviceHandle, GpuInstanceHandle, Nvml, NvmlError, Return
from dra_driver.gpu.profiles import whole_compute_profile
from dra_driver.gpu.simulated.board import COMPUTE_PROFILES


def refusal(call: Callable[..., object], *arguments: object) -> Return:
    """The code that the call fails with."""
    with pytest.raises(NvmlError) as raised:
        call(*arguments)
    return raised.value.code


def make_instance(nvml: Nvml, gpu: DeviceHandle, constant: int, start: int) -> tuple[GpuInstanceHandle, DeviceHandle]:
    """A GPU instance of the profile with a compute instance that fills it, and the MIG device in it."""
    profile = nvml.gpu_instance_profile(gpu, constant)
    (placement,) = (one for one in nvml.gpu_instance_placements(gpu, profile.id) if one.start == start)
    instance = nvml.create_gpu_instance(gpu, profile.id, placement)
    compute = nvml.create_compute_instance(instance, whole_compute_profile(nvml, instance, profile.slice_count))
    return instance, nvml.compute_instance_info(compute).device


def destroy_instance(nvml: Nvml, instance: GpuInstanceHandle) -> None:
    """Destroy a GPU instance with the one compute instance in it."""
    nvml.destroy_compute_instance(the_compute_instance(nvml, instance))
    nvml.destroy_gpu_instance(instance)


def the_compute_instance(nvml: Nvml, instance: GpuInstanceHandle) -> ComputeInstanceHandle:
    """The one compute instance of a GPU instance."""
    (found,) = (one for profile in COMPUTE_PROFILES.values() for one in nvml.compute_instances(instance, profile))
    return found
