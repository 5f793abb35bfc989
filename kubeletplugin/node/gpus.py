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
from typing import Final, TypeVar, cast

from dra_driver.gpu.devices import VgpuDevice, device_targets
from dra_driver.gpu.inventory import Gpu, Inventory, PciGpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import NO_DRIVER, DeviceHandle, Nvml, NvmlError
from dra_driver.gpu.session import LettingGoError, Session
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import contained
from dra_driver.process.worker import Worker

from ..errors import NoDriverError, PrepareError

log = logging.getLogger(__name__)

T = TypeVar("T")

Found = Gpu | MigDevice | VgpuDevice | PciGpu
"""The hardware of a device name of this node."""

_PROC = Path("/proc")
FIRST_PAUSE: Final = 1.0
"""The first pause between looks for a driver."""

_LONGEST_PAUSE = 10.0
_LET_GO_SECONDS = 0.5
_LOOK_SECONDS = 5.0
_RETURN_SECONDS = 10.0
_STOP_SECONDS = 1.0


class Gpus:
    """The GPUs of one initialization of NVML, and the hardware of device names. `proc_root` has the driver's /proc."""

    def __init__(self, session: Session, proc_root: Path = _PROC) -> None:
        self.proc_root = proc_root
        self._session = session
        self._tools: dict[Callable[[Gpus], object], object] = {}
        with session.use() as nvml:
            self._generation = session.generation
            self.nvml = nvml
        self.refresh()

    def of(self, tool: Callable[["Gpus"], T]) -> T:
        """A feature's own access to these GPUs, such as `MigInstances`. It is made once and kept."""
        made = self._tools.get(tool)
        if made is None:
            made = self._tools.setdefault(tool, tool(self))
        return cast(T, made)

    def device(self, gpu_uuid: str) -> DeviceHandle:
        """The handle of a GPU. Raises NvmlError."""
        return self._session.device(self.nvml, gpu_uuid)

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
    """Finds the driver and stays with it, on a thread of its own after `start`. `current` returns the GPUs or raises an
    error with the reason. `proc_root` has the NVIDIA driver's /proc. Pauses between looks for a driver begin with
    `first_pause` seconds.
    """

    def __init__(self, session: Session, proc_root: Path = _PROC, first_pause: float = FIRST_PAUSE) -> None:
        self._session = session
        self._on_ready: Callable[[], None] = _nothing_to_do
        self._new: Gpus | None = None
        self._attendants: list[tuple[Callable[[], float], float]] = []
        self._proc_root = proc_root
        self._guard = threading.Lock()
        self._gpus: Gpus | None = None
        self._problem = "the NVIDIA driver is not ready: it is being looked for"
        self._returned = threading.Event()
        self._returned.set()
        self._backoff = Backoff(first_pause, _LONGEST_PAUSE)
        self._due: list[float] = []  # when each of the attendants is called next (monotonic seconds)
        self._is_woken = False
        self._worker = Worker("look after GPUs", self._round)
        self._thread: int | None = None

    def attend(self, attend: Callable[[], float], first: float = 0.0) -> None:
        """Call `attend` regularly while there is a driver, for the first time `first` seconds after the driver was
        found. It returns the seconds until the next call. Must be called before `start`, possibly several times.
        """
        self._attendants.append((attend, first))

    def start(self, on_ready: Callable[[], None]) -> None:
        """Start to look for a driver. `on_ready` is called when there is one, before `current` returns its GPUs to
        other threads. If it raises PrepareError, OSError or NvmlError, everything is tried again.
        """
        self._on_ready = on_ready
        self._worker.start()

    def stop(self) -> None:
        """Stop the thread. One that still waits for the driver after a second is left behind."""
        self._worker.stop(_STOP_SECONDS)

    def wake(self) -> None:
        """Call the functions of `attend` now."""
        self._is_woken = True
        self._worker.wake()

    def current(self) -> Gpus:
        """The GPUs. Raises NoDriverError at once if there is no driver, or the node cannot be made ready.

        If a GPU was taken for a virtual machine, or has come back, NVML is initialized again. Callers wait for that.
        """
        if threading.get_ident() != self._thread or self._new is None:
            self._look()
        return self.known()

    def known(self) -> Gpus:
        """The GPUs like `current`, but they may be out of date (`Gpus.is_current`)."""
        is_own_thread = threading.get_ident() == self._thread
        if is_own_thread and self._new is not None:
            return self._new  # `on_ready` works with it
        gpus = self._gpus
        if gpus is None and not is_own_thread:
            gpus = self._await_return()
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

    def _await_return(self) -> Gpus | None:
        """The GPUs, which may soon be lost again. None if the driver was not found, or not in time."""
        deadline = time.monotonic() + _RETURN_SECONDS
        while self._returned.wait(max(0.0, deadline - time.monotonic())):
            with self._guard:
                if self._returned.is_set():
                    return self._gpus
        return None

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
        self._worker.wake()

    def _round(self) -> float:
        """Find the driver, or call the functions of `attend` that are due. Returns the seconds until the next round."""
        self._thread = threading.get_ident()
        woken, self._is_woken = self._is_woken, False
        with contained("look after", "the node", self._session.threads.unexpected, self._explain):
            self._look()
            return self._find() if self._gpus is None else self._attend(woken)
        return self._missed()

    def _find(self) -> float:
        try:
            gpus = self._connected()
        except LettingGoError:
            return _LET_GO_SECONDS
        except (NvmlError, PrepareError, OSError) as error:
            self._explain(error)
            return self._missed()
        self._backoff.reset()
        self._due = [time.monotonic() + first for _, first in self._attendants]
        with self._guard:  # a caller may lose them at once, and then clears this
            self._gpus = gpus
            self._returned.set()
        extra = {"gpus": len(gpus.inventory.gpus), "driver": gpus.inventory.driver_version}
        log.info("GPUs are ready", extra=extra)
        return 0.0

    def _missed(self) -> float:
        with self._guard:
            self._gpus = None
            self._returned.set()  # nobody waits for more than one attempt
        return self._backoff.pause()

    def _attend(self, woken: bool) -> float:
        for index, (attend, _) in enumerate(self._attendants):
            if woken or time.monotonic() >= self._due[index]:
                self._due[index] = time.monotonic() + attend()
        pause = min((moment - time.monotonic() for moment in self._due), default=_LOOK_SECONDS)
        return max(0.0, min(pause, _LOOK_SECONDS))

    def _connected(self) -> Gpus:
        gpus = Gpus(self._session, self._proc_root)
        self._new = gpus
        try:
            self._on_ready()
        except NvmlError:
            gpus.distrust()
            raise
        finally:
            self._new = None
        return gpus

    def _explain(self, error: Exception) -> None:
        what = "the NVIDIA driver is not ready" if isinstance(error, NvmlError) else "the node is not ready for claims"
        before, self._problem = self._problem, f"{what}: {error}"
        if self._problem != before:
            log.warning("%s; trying again", self._problem)


def _nothing_to_do() -> None:
    """Nothing has to be ready before claims."""
