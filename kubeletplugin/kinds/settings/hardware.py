# SPDX-License-Identifier: Apache-2.0
"""Settings of whole GPUs that claims can request: the compute mode, and the level of time-slicing.

NVML has no call for the level, so nvidia-smi of the driver root is run. Its options, and exit code 3 for a GPU without
the setting: kubernetes-sigs/dra-driver-nvidia-gpu issue 41 and nvidia-smi's own help. It is not documented which GPUs
have the setting, so the driver tries it (the same project's pull request 1183). The output of --list is not documented
either, so it is parsed leniently, and a level that cannot be parsed is unknown.
"""

import re
from typing import Final

from dra_driver.config import TimeSlice
from dra_driver.errors import ProgramError
from dra_driver.gpu.nvml import ComputeMode, NvmlError, Return
from dra_driver.process.programs import Ended, run_program

from ...containers.cdi.files import find_program
from ...errors import UnsupportedError
from ...node.gpus import Gpus
from ...node.node import Node

LEVELS: Final = {TimeSlice.DEFAULT: 0, TimeSlice.SHORT: 1, TimeSlice.MEDIUM: 2, TimeSlice.LONG: 3}
"""The values of nvidia-smi --set-timeslice."""

_NOT_SUPPORTED_CODE: Final = 3
_TIME_SLICE: Final = re.compile(r"time[- ]?slice.*?\b(default|short|medium|long)\b", re.IGNORECASE)
_NAMES: Final = {one.lower(): level for one, level in LEVELS.items()}


class ComputeModes:
    """Compute modes through one initialization of NVML."""

    def __init__(self, gpus: Gpus) -> None:
        self._nvml = gpus.nvml
        self._find = gpus.device

    def get(self, gpu_uuid: str) -> int:
        """The mode. A GPU without compute modes has the default. Raises NvmlError."""
        try:
            return self._nvml.compute_mode(self._find(gpu_uuid))
        except NvmlError as error:
            if error.code is Return.NOT_SUPPORTED:
                return ComputeMode.DEFAULT
            raise

    def set(self, gpu_uuid: str, mode: int) -> None:
        """Set the mode. Raises UnsupportedError or NvmlError."""
        try:
            self._nvml.set_compute_mode(self._find(gpu_uuid), mode)
        except NvmlError as error:
            if error.code is Return.NOT_SUPPORTED:
                raise UnsupportedError(str(error)) from None
            raise


class TimeSlices:
    """Levels of time-slicing through the node's nvidia-smi, with the NVML library to preload if the loader would not
    find it.
    """

    def __init__(self, node: Node) -> None:
        self._root = node.folders.driver_root.files
        self._library = node.folders.hardware.nvml_library
        self._seconds = node.times.program

    def get(self, gpu_uuid: str) -> int | None:
        """The level, or None if it cannot be read. Raises ProgramError."""
        done = self._run("-i", gpu_uuid, "--list")
        if done.code not in (0, _NOT_SUPPORTED_CODE):
            raise ProgramError(f"nvidia-smi compute-policy --list for GPU {gpu_uuid} {done}")
        found = {match[1].lower() for match in _TIME_SLICE.finditer(done.output)}
        return _NAMES[found.pop()] if len(found) == 1 else None

    def set(self, gpu_uuid: str, level: int) -> None:
        """Set the level. Raises UnsupportedError or ProgramError."""
        done = self._run("-i", gpu_uuid, "--set-timeslice", str(level))
        if done.code == _NOT_SUPPORTED_CODE:
            raise UnsupportedError(f"GPU {gpu_uuid} has no time-slice setting (nvidia-smi {done})")
        if done.code:
            raise ProgramError(f"nvidia-smi compute-policy --set-timeslice {level} for GPU {gpu_uuid} {done}")

    def _run(self, *arguments: str) -> Ended:
        found = find_program(self._root, "nvidia-smi")
        if found is None:
            raise ProgramError(f"there is no nvidia-smi below {self._root.path}: install it with the driver")
        library = self._library()
        environment = {"LD_PRELOAD": str(library)} if library is not None else {}
        return run_program([str(self._root.here(found[1])), "compute-policy", *arguments], self._seconds, environment)
