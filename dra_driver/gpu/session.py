# SPDX-License-Identifier: Apache-2.0
"""NVML over the life of a process that outlives drivers and GPUs.

NVML enumerates the GPUs when it is initialized, and never again: one that is plugged in, or given back by a virtual
machine, is not seen before the next initialization, and one that is taken away stays in the list as lost. A driver
that was loaded anew answers no initialization of before. So a session keeps NVML initialized, and initializes it anew
when sysfs or an error says that it has become out of date. Each initialization has a gateway of its own and a number,
the generation; handles and event sets are void with the gateway that they came from.

A process should have one session: the library of an upgraded driver is loaded only when no gateway of the process is
left (see `loading`). While NVML is initialized, the kernel module cannot be unloaded nor a GPU be reset; `close` is
for that.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from .facts import Failure, Inventory
from .inventory import read_inventory
from .nvml import NO_DRIVER, Nvml, NvmlError, Return
from .pci import KernelDriver, read_driver
from .pulse import Pulse, PulseTaker

__all__ = ["Pulse", "Session"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_OUT_OF_DATE = NO_DRIVER | {Return.LIB_RM_VERSION_MISMATCH, Return.UNKNOWN}
"""What a call that concerns no GPU fails with when the driver went away or was loaded anew."""


@dataclass(slots=True)
class _Initialization:
    """A gateway that is initialized. `users` are in the midst of something, `stale` says that it is out of date, and
    `lost` which GPUs were lost when a pulse was first taken.
    """

    nvml: Nvml
    driver: KernelDriver
    generation: int
    taker: PulseTaker
    users: int = 0
    stale: bool = False
    lost: frozenset[int] | None = None


class Session:
    """Keeps NVML initialized. Everything here may be called from several threads, and raises NvmlError while there is
    no driver; the next call tries again.

    `make_nvml` makes a gateway, not initialized; for the roots see `read_inventory`.
    """

    def __init__(
        self,
        make_nvml: Callable[[], Nvml],
        sys_root: Path,
        *,
        dev_root: Path | None = None,
        driver_root: Path | None = None,
    ) -> None:
        self._make_nvml = make_nvml
        self._sys_root = sys_root
        self._dev_root = dev_root
        self._driver_root = driver_root
        self._lock = threading.Lock()
        self._current: _Initialization | None = None
        self._generation = 0
        self._uuids: dict[str, str] = {}

    @property
    def generation(self) -> int:
        """How often NVML was initialized: with another number, handles and event sets of before are void."""
        return self._generation

    @property
    def nvml(self) -> Nvml:
        """The gateway of now. It ends with the next initialization, in the midst of whatever; then it answers
        UNINITIALIZED. What must not be interrupted goes into `use`.
        """
        with self.use() as nvml:
            return nvml

    @contextlib.contextmanager
    def use(self) -> Iterator[Nvml]:
        """The gateway, which stays as long as anybody is inside. To be left soon: the inventory is out of date until
        then when the set of GPUs changes.
        """
        with self._using() as current:
            yield current.nvml

    def pulse(self) -> Pulse:
        """A look that costs little, to be compared with the last one."""
        pulse, newly_lost = self._read(self._take)
        # A GPU that was taken out and put in again quickly is lost to this initialization, and there for the next one.
        return self._read(self._take)[0] if newly_lost else pulse

    def inventory(self) -> Inventory:
        """Everything there is. A GPU that fails has the UUID that it had when it was last read at that address."""
        inventory = self._read(
            lambda current: read_inventory(
                current.nvml, self._sys_root, dev_root=self._dev_root, driver_root=self._driver_root
            )
        )
        with self._lock:
            seen = {gpu.pci_address: gpu.uuid for gpu in inventory.gpus if gpu.pci_address is not None}
            there = {gpu.address for gpu in inventory.pci_gpus}
            self._uuids = {at: uuid for at, uuid in (self._uuids | seen).items() if at in there}
            failures = (self._named(failure) for failure in inventory.failures)
            return replace(inventory, failures=tuple(failures))

    def close(self) -> None:
        """Shut NVML down, also under those who use it. The next use initializes it again."""
        with self._lock:
            self._end()

    def _named(self, failure: Failure) -> Failure:
        if failure.uuid is not None or failure.pci_address is None:
            return failure
        return replace(failure, uuid=self._uuids.get(failure.pci_address))

    def _take(self, current: _Initialization) -> tuple[Pulse, bool]:
        """A pulse, and whether GPUs are lost that were not before."""
        pulse = current.taker.take(current.generation, self._sys_root)
        lost = frozenset(gpu.index for gpu in pulse.gpus if gpu.problem is Return.GPU_IS_LOST)
        if current.lost is None:
            current.lost = lost
        newly_lost = not lost <= current.lost
        current.stale |= newly_lost
        return pulse, newly_lost

    def _read(self, read: Callable[[_Initialization], T]) -> T:
        with self._using() as current:
            try:
                return read(current)
            except NvmlError as error:
                if error.code not in _OUT_OF_DATE:
                    raise
                log.info("NVML is to be initialized anew: %s", error)
                current.stale = True
        with self._using() as current:
            return read(current)

    @contextlib.contextmanager
    def _using(self) -> Iterator[_Initialization]:
        with self._lock:
            driver = read_driver(self._sys_root)
            current = self._current
            if current is not None:
                current.stale |= current.driver != driver
                if current.stale and not current.users:
                    self._end()
            current = self._current or self._begin(driver)
            current.users += 1
        try:
            yield current
        finally:
            with self._lock:
                current.users -= 1

    def _begin(self, driver: KernelDriver) -> _Initialization:
        nvml = self._make_nvml()
        nvml.initialize()
        self._generation += 1
        self._current = _Initialization(nvml, driver, self._generation, PulseTaker(nvml))
        return self._current

    def _end(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            try:
                current.nvml.shutdown()
            except NvmlError as error:
                log.info("NVML was shut down after its driver: %s", error)
