# SPDX-License-Identifier: Apache-2.0
"""The way to the hardware, which may come late or go away.

kubelet's calls are answered from the first moment, so NVML is initialized on a thread of its own, again and again
until a driver is there. Then what depends on it is made ready (`on_ready`), and only after that can claims be prepared.
The same thread looks after the node for as long as the driver is there. When sysfs shows another load of the driver, or
other GPUs with it, NVML is initialized anew: it knows no others than those of its initialization.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dra_driver.gpu.devices import device_targets
from dra_driver.gpu.inventory import Inventory, read_inventory
from dra_driver.gpu.nvml import NO_DRIVER, Nvml, NvmlError
from dra_driver.gpu.pci import read_driver

from .mig import MigInstances
from .targets import Found, PrepareError

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_LOOK_SECONDS = 5.0


class NoDriverError(Exception):
    """The GPUs cannot be used at the moment; the text says what NVML said, or what else is missing."""


class Gpus:
    """The GPUs while a driver is there: what device names stand for, and how to change MIG instances."""

    def __init__(self, nvml: Nvml, sys_root: Path) -> None:
        self._nvml = nvml
        self._sys_root = sys_root
        self._lock = threading.Lock()
        self.refresh()
        self.mig = MigInstances(nvml)

    @property
    def inventory(self) -> Inventory:
        """What was there when last looked."""
        return self._inventory

    def find(self, device: str) -> Found | None:
        """What a device name of this node's pool stood for when last looked, in whichever mode its GPU is now."""
        return self._devices.get(device)

    def refresh(self) -> None:
        """Look at the hardware anew."""
        with self._lock:
            self._inventory = read_inventory(self._nvml, self._sys_root)
            self._devices = device_targets(self._inventory)


class GpuAccess:
    """Finds the driver and keeps to it. `current` gives the GPUs or says why there are none.

    `on_ready` may raise PrepareError, OSError or NvmlError: then everything is tried again. An earlier initialization
    of NVML is given `shutdown_seconds` to end.
    """

    def __init__(
        self,
        nvml: Callable[[], Nvml],
        sys_root: Path,
        on_ready: Callable[[Gpus], None],
        shutdown_seconds: float = 5.0,
    ) -> None:
        self._make_nvml = nvml
        self._sys_root = sys_root
        self._on_ready = on_ready
        self._shutdown_seconds = shutdown_seconds
        self._attend: Callable[[Gpus], float] | None = None
        self._gpus: Gpus | None = None
        self._nvml: Nvml | None = None
        self._driver = read_driver(sys_root)
        self._problem = "the NVIDIA driver is not ready: it is being looked for"
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gpu-access", daemon=True)

    def attend(self, attend: Callable[[Gpus], float]) -> None:
        """While there is a driver, call `attend` now and then: it says in how many seconds again."""
        self._attend = attend

    def start(self) -> None:
        """Begin to look for a driver."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._woken.set()

    def wake(self) -> None:
        """There is something to attend to."""
        self._woken.set()

    def current(self) -> Gpus:
        """The GPUs. Raises NoDriverError at once when there is no driver, or nothing can be made ready with it."""
        self._look()
        gpus = self._gpus
        if gpus is None:
            raise NoDriverError(self._problem)
        return gpus

    def report(self, error: NvmlError) -> None:
        """An NVML call failed: when that says that the driver is gone, start to look for one again."""
        if error.code in NO_DRIVER:
            self._lose(str(error))
        else:
            self._look()

    def _look(self) -> None:
        """Notice a driver that NVML was not initialized with."""
        if self._gpus is not None and read_driver(self._sys_root) != self._driver:
            self._lose("it was unloaded or loaded anew, or has other GPUs now")

    def _lose(self, why: str) -> None:
        if self._gpus is not None:
            log.warning("the NVIDIA driver went away: %s", why)
            self._problem = f"the NVIDIA driver is not ready: {why}"
            self._gpus = None
            self._woken.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped:
            self._woken.clear()
            try:
                gpus = self._connect()
                self._on_ready(gpus)
            except (NvmlError, PrepareError, OSError) as error:
                self._explain(error)
                self._woken.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            self._gpus = gpus
            log.info(
                "GPUs are ready", extra={"gpus": len(gpus.inventory.gpus), "driver": gpus.inventory.driver_version}
            )
            self._stay(gpus)

    def _stay(self, gpus: Gpus) -> None:
        """Attend to the node until the driver is gone, or somebody stops it."""
        due, woken = 0.0, True
        while self._gpus is gpus and not self._stopped:
            if self._attend is not None and (woken or time.monotonic() >= due):
                due = time.monotonic() + self._attend(gpus)
            woken = self._woken.wait(max(0.0, min(due - time.monotonic(), _LOOK_SECONDS)) if due else _LOOK_SECONDS)
            if woken:  # else a wake of this moment would be lost
                self._woken.clear()
            self._look()

    def _explain(self, error: Exception) -> None:
        what = "the NVIDIA driver is not ready" if isinstance(error, NvmlError) else "the node is not ready for claims"
        problem = f"{what}: {error}"
        if problem != self._problem:
            log.warning("%s; trying again", problem)
        self._problem = problem

    def _connect(self) -> Gpus:
        self._shut_down()
        self._driver = read_driver(self._sys_root)
        nvml = self._make_nvml()
        nvml.initialize()
        self._nvml = nvml
        return Gpus(nvml, self._sys_root)

    def _shut_down(self) -> None:
        """Let go of an earlier initialization. That waits for calls under way, and one of them may hang for ever."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            thread = threading.Thread(target=_end, args=(nvml,), name="nvml-shutdown", daemon=True)
            thread.start()
            thread.join(self._shutdown_seconds)


def _end(nvml: Nvml) -> None:
    try:
        nvml.shutdown()
    except NvmlError as error:
        log.info("NVML was shut down after its driver: %s", error)
