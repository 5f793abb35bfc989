# SPDX-License-Identifier: Apache-2.0
"""Limits of the memory that cgroups use on a GPU."""

from collections.abc import Callable

from dra_driver.gpu.memory_limits import MemoryLimits
from dra_driver.gpu.nvml import DeviceHandle, Nvml, NvmlError, Return


class GpuMemory:
    """Limits through one NVML interface. `find` returns the handle of the GPU with a UUID."""

    def __init__(self, nvml: Nvml, find: Callable[[str], DeviceHandle]) -> None:
        self._nvml = nvml
        self._find = find

    def limit(self, gpu_uuid: str, cgroup: str, size: int) -> None:
        """Limit the memory of the cgroup with this path to `size` bytes, and guarantee it nothing, so that nothing has
        to be undone when the cgroup ends. Raises NvmlError, also if the limit is not set afterwards.
        """
        gpu = self._find(gpu_uuid)
        self._nvml.set_memory_limits(gpu, cgroup, MemoryLimits(hard=size))
        found = self._nvml.memory_limits(gpu, cgroup)
        if found.hard > size:
            detail = f"the limit of {cgroup} is {found.hard} after it was set to {size} bytes"
            raise NvmlError(Return.UNKNOWN, "nvmlDeviceGetMemoryLimits_v1", detail)
