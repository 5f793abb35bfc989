# SPDX-License-Identifier: Apache-2.0
"""The vfio driver for a device, and its kernel module.

`lib/modules/<release>/modules.alias` of the node has lines `alias vfio_pci:<pattern> <module>`. The patterns are those
of `modalias` in sysfs. vfio-pci matches every device. Drivers for some boards match only these, and a virtual machine
needs them: with plain vfio-pci, a Grace board has no coherent memory (nvgrace_gpu_vfio_pci). So the matching pattern
with the fewest wildcards is chosen, as in NVIDIA's go-nvlib (package nvpassthrough).
"""

import platform
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from dra_driver.errors import ProgramError
from dra_driver.gpu.functions import device_folder

from ..errors import PrepareError
from .programs import HostPrograms

DEFAULT_MODULE: Final = "vfio_pci"
MODPROBE_SECONDS: Final = 10.0

_PREFIX: Final = "vfio_pci:"


def best_module(modalias: str, lines: Iterable[str]) -> str:
    """The module for a device with this `modalias` (without `pci:`), from the lines of modules.alias."""
    found: list[tuple[int, str]] = []
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[0] == "alias" and words[1].startswith(_PREFIX):
            pattern = words[1].removeprefix(_PREFIX)
            if fnmatchcase(modalias, pattern):
                found.append((pattern.count("*"), words[2]))
    return min(found, default=(0, DEFAULT_MODULE))[1]


def _spellings(module: str) -> tuple[str, str]:
    """The name of a module in files and drivers has dashes or underscores. modprobe does not tell them apart."""
    return module.replace("_", "-"), module.replace("-", "_")


class VfioModules:
    """The vfio drivers of the node. `sys_root` is where sysfs is mounted. `host` has the node's modprobe, and
    `release` is the running kernel's.
    """

    def __init__(self, sys_root: Path, host: HostPrograms, release: str = "") -> None:
        self._sys_root = sys_root
        self._host = host
        self._aliases = host.root / "lib/modules" / (release or platform.release()) / "modules.alias"

    def choose(self, address: str) -> str:
        """The module for the function at `address`. Raises OSError."""
        modalias = (device_folder(self._sys_root, address) / "modalias").read_text(encoding="ascii").strip()
        try:
            lines = self._aliases.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []  # the module may be built into the kernel
        return best_module(modalias.removeprefix("pci:"), lines)

    def is_available(self, module: str) -> bool:
        """Whether the module is loaded or built in, or is a file of the running kernel."""
        if self._driver(module) is not None:
            return True
        files = {f"{name}.ko" for name in _spellings(module)}
        for listing in ("modules.dep", "modules.builtin"):
            try:
                lines = (self._aliases.parent / listing).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            if any(re.sub(r"\.(gz|xz|zst)$", "", line.partition(":")[0]).rpartition("/")[2] in files for line in lines):
                return True
        return False

    def load(self, module: str) -> str:
        """Load the module if necessary. Returns the name of its driver. Raises PrepareError."""
        driver = self._driver(module)
        if driver is None:
            self._modprobe(module)
            driver = self._driver(module)
        if driver is None:
            raise PrepareError(f"the kernel module {module} is loaded, but has no driver below {self._drivers}")
        return driver

    @property
    def _drivers(self) -> Path:
        return self._sys_root / "bus/pci/drivers"

    def _driver(self, module: str) -> str | None:
        """The driver of a module."""
        return next((name for name in _spellings(module) if (self._drivers / name).is_dir()), None)

    def _modprobe(self, module: str) -> None:
        what = f"the kernel module {module}, which gives GPUs to virtual machines,"
        try:
            ended = self._host.run("modprobe", [module], MODPROBE_SECONDS)
        except ProgramError as error:
            raise PrepareError(f"{what} cannot be loaded: {error}") from None
        if ended.code:
            raise PrepareError(f"{what} cannot be loaded: modprobe {ended}")
