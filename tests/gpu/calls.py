# SPDX-License-Identifier: Apache-2.0
"""NVML calls as tests of this room make them."""

from collections.abc import Callable

import pytest

from dra_driver.gpu.nvml import DeviceHandle, GpuInstanceHandle, Nvml, NvmlError, Return
from dra_driver.gpu.profiles import whole_compute_profile


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
    nvml.destroy_compute_instance(nvml.compute_instance_by_id(instance, 0))
    nvml.destroy_gpu_instance(instance)
