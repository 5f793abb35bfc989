# SPDX-License-Identifier: Apache-2.0
"""MIG profiles of a GPU, and their names in the names of devices."""

import re

from .nvml import DeviceHandle, GpuInstanceHandle, GpuInstanceProfile, Nvml, NvmlError, Return

PROFILE_CONSTANTS = range(18)
"""NVML_GPU_INSTANCE_PROFILE_*. NVML returns NOT_SUPPORTED for profiles that the GPU or the driver does not have."""

COMPUTE_PROFILE_CONSTANTS = range(9)
"""NVML_COMPUTE_INSTANCE_PROFILE_*. Several constants may have the same number of slices. A GPU supports some of them.
"""


def supported_profiles(nvml: Nvml, gpu: DeviceHandle) -> list[GpuInstanceProfile]:
    """The GPU instance profiles of a GPU, in the order of their NVML constants."""
    profiles = []
    for constant in PROFILE_CONSTANTS:
        try:
            profiles.append(nvml.gpu_instance_profile(gpu, constant))
        except NvmlError as error:
            if error.code not in (Return.NOT_SUPPORTED, Return.INVALID_ARGUMENT):
                raise
    return profiles


def device_suffix(name: str) -> str:
    """The profile in the name of a device: `1g5gb-me` for `1g.5gb+me`."""
    return re.sub(r"[^a-z0-9-]", "-", name.lower().replace(".", ""))


def whole_compute_profile(nvml: Nvml, instance: GpuInstanceHandle, slices: int) -> int:
    """The id of the compute instance profile that has all `slices` of a GPU instance. Raises NvmlError."""
    for constant in COMPUTE_PROFILE_CONSTANTS:
        try:
            profile = nvml.compute_instance_profile(instance, constant)
        except NvmlError as error:
            if error.code not in (Return.NOT_SUPPORTED, Return.INVALID_ARGUMENT):
                raise
        else:
            if profile.slice_count == slices:
                return profile.id
    call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    raise NvmlError(Return.NOT_SUPPORTED, call, f"no compute instance profile has {slices} slices")
