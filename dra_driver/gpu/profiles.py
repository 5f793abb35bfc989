# SPDX-License-Identifier: Apache-2.0
"""MIG profiles of a GPU, and their names.

Newer drivers name their profiles. For older ones, the name is computed as NVIDIA's tools do, from the slices, the
memory, and the variant that the NVML constant stands for.
"""

import math
import re

from .nvml import DeviceHandle, GpuInstanceHandle, GpuInstanceProfile, Nvml, NvmlError, Return

PROFILE_CONSTANTS = range(18)
"""NVML_GPU_INSTANCE_PROFILE_*. NVML returns NOT_SUPPORTED for profiles that the GPU or the driver does not have."""

COMPUTE_PROFILE_CONSTANTS = range(9)
"""NVML_COMPUTE_INSTANCE_PROFILE_*. Several constants may have the same number of slices. A GPU supports some of them.
"""

_VARIANTS = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}


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


def profile_name(profile: GpuInstanceProfile, gpu_memory: int) -> str:
    """The name of a profile, such as `1g.10gb` or `1g.5gb+me`.

    `gpu_memory` is the memory of the whole GPU in bytes, or 0 if unknown. Raises NvmlError if neither the driver's name
    of the profile nor the memory is known.
    """
    if profile.name:
        return profile.name
    if not gpu_memory:
        raise NvmlError(Return.NO_DATA, "nvmlDeviceGetMemoryInfo", "needed to name MIG profiles")
    total_gib = math.ceil(gpu_memory / 2**30)
    eighths = math.ceil((profile.memory_mib << 20) * 8 / gpu_memory)
    gigabytes = math.floor(eighths / 8 * total_gib + 0.5)  # not round(), which turns 22.5 into 22
    return f"{profile.slice_count}g.{gigabytes}gb{_VARIANTS.get(profile.constant, '')}"


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
