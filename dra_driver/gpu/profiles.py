# SPDX-License-Identifier: Apache-2.0
"""MIG profiles: which there are, and what they are called.

Newer drivers name a profile themselves; for older ones the name is computed as NVIDIA's tools do, from
slices, memory and the variant that the NVML constant stands for.
"""

import math
import re

from .nvml import DeviceHandle, GpuInstanceProfile, Nvml, NvmlError, Return

PROFILE_CONSTANTS = range(18)
"""NVML_GPU_INSTANCE_PROFILE_*: a driver answers NOT_SUPPORTED for those that a GPU, or the driver, lacks."""

COMPUTE_PROFILE_CONSTANTS = {1: 0, 2: 1, 3: 2, 4: 3, 6: 6, 7: 4, 8: 5}
"""Slices -> NVML_COMPUTE_INSTANCE_PROFILE_* of the compute instance that has that many."""

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
    """`1g.10gb`, `1g.5gb+me` and so on. `gpu_memory` is the whole GPU's, in bytes."""
    if profile.name:
        return profile.name
    total_gib = math.ceil(gpu_memory / 2**30)
    eighths = math.ceil((profile.memory_mib << 20) * 8 / gpu_memory)
    gigabytes = round(eighths / 8 * total_gib)
    return f"{profile.slice_count}g.{gigabytes}gb{_VARIANTS.get(profile.constant, '')}"


def device_suffix(name: str) -> str:
    """The profile's part of a device name: `1g5gb-me` for `1g.5gb+me`."""
    return re.sub(r"[^a-z0-9-]", "-", name.lower().replace(".", ""))
