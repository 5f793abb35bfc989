# SPDX-License-Identifier: Apache-2.0
"""The way to the hardware, which may come late or go away.

kubelet's calls are answered from the first moment, so NVML is initialized on a thread of its own, again and again
until a driver is there. Then what depends on it is made ready (`on_ready`), and only after that can claims be prepared.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from dra_driver.gpu.devices import MigPlacement, gpu_name, mig_placements
from dra_driver.gpu.inventory import Gpu, Inventory, read_inventory
from dra_driver.gpu.nvml import NO_DRIVER, Nvml, NvmlError

from .mig import MigInstances
from .plan import PrepareError

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0


class NoDriverError(Exception):
    """The GPUs cannot be used at the moment; the text says what NVML said, or what else is missing."""


class Gpus:
    """The GPUs while a driver is there: what device names stand for, and how to change MIG instances."""

    def __init__(self, nvml: Nvml, sys_root: Path) -> None:
        self._nvml = nvml
        self._sys_root = sys_root
        self._lock = threading.Lock()
        self._refresh()
        self.mig = MigInstances(nvml)

    @property
    def inventory(self) -> Inventory:
        """What was there when last looked."""
        return self._inventory

    def find(self, device: str) -> Gpu | MigPlacement | None:
        """What a device name of this node's pool stands for; looks at the hardware anew before it says None."""
        found = self._devices.get(device)
        if found is None:
            self._refresh()
            found = self._devices.get(device)
        return found

    def _refresh(self) -> None:
        with self._lock:
            self._inventory = read_inventory(self._nvml, self._sys_root)
            self._devices = _by_name(self._inventory)


def _by_name(inventory: Inventory) -> Mapping[str, Gpu | MigPlacement]:
    devices: dict[str, Gpu | MigPlacement] = {}
    for gpu in inventory.gpus:
        if gpu.in_mig_mode:
            devices.update(mig_placements(gpu))
        else:
            devices[gpu_name(gpu)] = gpu
    return devices


class GpuAccess:
    """Finds the driver and keeps to it. `current` gives the GPUs or says why there are none.

    `on_ready` may raise PrepareError, OSError or NvmlError: then everything is tried again.
    """

    def __init__(self, nvml: Callable[[], Nvml], sys_root: Path, on_ready: Callable[[Gpus], None]) -> None:
        self._make_nvml = nvml
        self._sys_root = sys_root
        self._on_ready = on_ready
        self._gpus: Gpus | None = None
        self._problem = "the NVIDIA driver is not ready: it is being looked for"
        self._lost = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gpu-access", daemon=True)

    def start(self) -> None:
        """Begin to look for a driver."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._lost.set()

    def current(self) -> Gpus:
        """The GPUs. Raises NoDriverError at once when there is no driver, or nothing can be made ready with it."""
        gpus = self._gpus
        if gpus is None:
            raise NoDriverError(self._problem)
        return gpus

    def report(self, error: NvmlError) -> None:
        """An NVML call failed: when that says that the driver is gone, start to look for one again."""
        if error.code in NO_DRIVER and self._gpus is not None:
            log.warning("the NVIDIA driver went away: %s", error)
            self._problem = f"the NVIDIA driver is not ready: {error}"
            self._gpus = None
            self._lost.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped:
            self._lost.clear()
            try:
                gpus = self._connect()
                self._on_ready(gpus)
            except (NvmlError, PrepareError, OSError) as error:
                self._explain(error)
                self._lost.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            self._gpus = gpus
            log.info(
                "GPUs are ready", extra={"gpus": len(gpus.inventory.gpus), "driver": gpus.inventory.driver_version}
            )
            self._lost.wait()

    def _explain(self, error: Exception) -> None:
        what = "the NVIDIA driver is not ready" if isinstance(error, NvmlError) else "the node is not ready for claims"
        problem = f"{what}: {error}"
        if problem != self._problem:
            log.warning("%s; trying again", problem)
        self._problem = problem

    def _connect(self) -> Gpus:
        nvml = self._make_nvml()
        nvml.initialize()
        return Gpus(nvml, self._sys_root)
