# SPDX-License-Identifier: Apache-2.0
"""Access to the GPUs, which may become available late or disappear.

kubelet's calls are answered as soon as the process runs. A separate thread looks for the NVIDIA driver until one is
available. Then everything that depends on the driver is made ready (`on_ready`), and only after that claims can be
prepared. The same thread repeats periodic work on the node while the driver is available. `dra_driver.gpu.session`
keeps NVML initialized; all of this starts again with every new initialization.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from dra_driver.gpu.devices import device_targets
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.nvml import NO_DRIVER, Nvml, NvmlError
from dra_driver.gpu.session import LettingGoError, Session
from dra_driver.process.containment import contained

from ..errors import NoDriverError, PrepareError
from ..kinds.gpu_settings import ComputeModes, GpuMemory
from ..kinds.mig import MigInstances
from ..kinds.targets import Found

log = logging.getLogger(__name__)

_PROC = Path("/proc")
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_LOOK_SECONDS = 5.0
_RETURN_SECONDS = 10.0
_STOP_SECONDS = 1.0


class Gpus:
    """The GPUs of one initialization of NVML: the hardware of device names, and changes of MIG instances, compute modes
    and limits of memory.
    """

    def __init__(self, session: Session, proc_root: Path = _PROC) -> None:
        self._session = session
        with session.use() as nvml:
            self._generation = session.generation
            self.mig = MigInstances(nvml, lambda uuid: session.device(nvml, uuid), proc_root)
            self.compute_modes = ComputeModes(nvml, lambda uuid: session.device(nvml, uuid))
            self.memory = GpuMemory(nvml, lambda uuid: session.device(nvml, uuid))
        self.refresh()

    @property
    def is_current(self) -> bool:
        """Whether the initialization is up to date, as far as that can be found out at once."""
        return self._session.is_current(self._generation)

    def distrust(self) -> None:
        """Mark the initialization as out of date, because NVML reported that its driver is gone."""
        self._session.distrust(self._generation)

    def in_use(self) -> AbstractContextManager[Nvml]:
        """A context for changes of a GPU, in which NVML is not initialized again. Raises NvmlError if this already
        happened.
        """
        return self._session.use(self._generation)

    @property
    def inventory(self) -> Inventory:
        """The inventory when the hardware was last read."""
        return self._inventory

    def find(self, device: str) -> Found | None:
        """The hardware of a device name of this node's pool, independent of the current mode of its GPU."""
        return self._devices.get(device)

    def refresh(self) -> None:
        """Read the hardware again. Raises NvmlError."""
        inventory = self._session.inventory()
        self._inventory, self._devices = inventory, device_targets(inventory)


class GpuAccess:
    """Finds the driver and stays with it. `current` returns the GPUs or raises an error with the reason. `proc_root`
    has the NVIDIA driver's /proc.

    If `on_ready` raises PrepareError, OSError or NvmlError, everything is tried again.
    """

    def __init__(self, session: Session, on_ready: Callable[[Gpus], None], proc_root: Path = _PROC) -> None:
        self.calls = session.calls
        self.fabric = session.fabric
        self._session = session
        self._on_ready = on_ready
        self._attendants: list[Callable[[Gpus], float]] = []
        self._proc_root = proc_root
        self._guard = threading.Lock()
        self._gpus: Gpus | None = None
        self._problem = "the NVIDIA driver is not ready: it is being looked for"
        self._returned = threading.Event()
        self._returned.set()
        self._woken = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gpu-access", daemon=True)

    def attend(self, attend: Callable[[Gpus], float]) -> None:
        """Call `attend` regularly while there is a driver. It returns the seconds until the next call. Must be called
        before `start`, possibly several times.
        """
        self._attendants.append(attend)

    def start(self) -> None:
        """Start to look for a driver."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. One that still waits for the driver after a second is left behind."""
        self._stopped = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def wake(self) -> None:
        """Call the functions of `attend` now."""
        self._woken.set()

    def current(self) -> Gpus:
        """The GPUs. Raises NoDriverError at once if there is no driver, or the node cannot be made ready.

        If a GPU was taken for a virtual machine, or has come back, NVML is initialized anew. Callers wait for that.
        """
        self._look()
        if self._gpus is None and threading.current_thread() is not self._thread:
            self._returned.wait(_RETURN_SECONDS)
        gpus = self._gpus
        if gpus is None:
            raise NoDriverError(self._problem)
        return gpus

    def report(self, error: NvmlError) -> None:
        """Handle a failed NVML call. If it means that the driver is gone, the search for a driver starts again."""
        gpus = self._gpus
        if gpus is not None and error.code in NO_DRIVER:
            self._lose(gpus, str(error))
        else:
            self._look()

    def _look(self) -> None:
        """Find out whether NVML was, or must be, initialized again."""
        gpus = self._gpus
        if gpus is not None and not gpus.is_current:
            self._lose(gpus, "it was unloaded or loaded anew, or has other GPUs now")

    def _lose(self, gpus: Gpus, why: str) -> None:
        with self._guard:
            if self._gpus is not gpus:  # another caller noticed it first, and there may be new ones by now
                return
            self._problem = f"the NVIDIA driver is not ready: {why}"
            if self._session.driver_load() is not None:
                self._returned.clear()
            self._gpus = None
        log.warning("the NVIDIA driver is no longer available: %s", why)
        gpus.distrust()
        self._woken.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped:
            self._woken.clear()
            with contained("look after", "the node", self.calls.unexpected, self._explain):
                try:
                    gpus = self._connected()
                except LettingGoError:
                    self._woken.wait(_FIRST_PAUSE)
                    continue
                except (NvmlError, PrepareError, OSError) as error:
                    self._explain(error)
                else:
                    pause = _FIRST_PAUSE
                    self._gpus = gpus
                    self._returned.set()
                    extra = {"gpus": len(gpus.inventory.gpus), "driver": gpus.inventory.driver_version}
                    log.info("GPUs are ready", extra=extra)
                    self._stay(gpus)
                    continue
            self._gpus = None
            self._returned.set()  # nobody waits for more than one attempt
            self._woken.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _connected(self) -> Gpus:
        gpus = Gpus(self._session, self._proc_root)
        try:
            self._on_ready(gpus)
        except NvmlError:
            gpus.distrust()
            raise
        return gpus

    def _stay(self, gpus: Gpus) -> None:
        """Call the functions of `attend` until the driver is gone or the thread is stopped."""
        due, woken = [0.0] * len(self._attendants), True
        while self._gpus is gpus and not self._stopped:
            for index, attend in enumerate(self._attendants):
                if woken or time.monotonic() >= due[index]:
                    due[index] = time.monotonic() + attend(gpus)
            pause = min((moment - time.monotonic() for moment in due), default=_LOOK_SECONDS)
            woken = self._woken.wait(max(0.0, min(pause, _LOOK_SECONDS)))
            if woken:  # otherwise a wake at this moment would be lost
                self._woken.clear()
            self._look()

    def _explain(self, error: Exception) -> None:
        what = "the NVIDIA driver is not ready" if isinstance(error, NvmlError) else "the node is not ready for claims"
        problem = f"{what}: {error}"
        if problem != self._problem:
            log.warning("%s; trying again", problem)
        self._problem = problem
