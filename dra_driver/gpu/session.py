# SPDX-License-Identifier: Apache-2.0
"""NVML over the life of a process that outlives drivers and GPUs.

NVML enumerates the GPUs when it is initialized, and never again: one that is plugged in, or given back by a virtual
machine, is not seen before the next initialization, and one that is taken away stays in the list as lost. A driver
that was loaded anew answers no initialization of before. So a session keeps NVML initialized, and initializes it anew
when sysfs or an error says that it has become out of date. Each initialization has a gateway of its own and a number,
the generation; handles and event sets are void with the gateway that they came from.

A process should have one session: the library of an upgraded driver is loaded only when no gateway of the process is
left (see `loading`).
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

_PATIENCE = 5.0
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

    `make_nvml` makes a gateway, not initialized; for the roots see `read_inventory`. An initialization that is out of
    date lets nobody in any more and ends when those inside have left. A call may hang for ever, so they are given
    `patience` (seconds), and its shutdown as long again; then the next one begins all the same.
    """

    def __init__(
        self,
        make_nvml: Callable[[], Nvml],
        sys_root: Path,
        *,
        dev_root: Path | None = None,
        driver_root: Path | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self._make_nvml = make_nvml
        self._sys_root = sys_root
        self._dev_root = dev_root
        self._driver_root = driver_root
        self._patience = patience
        self._state = threading.Condition()  # never held during a call to NVML
        self._current: _Initialization | None = None
        self._renewing = False
        self._generation = 0
        self._uuids: dict[str, str] = {}

    @property
    def generation(self) -> int:
        """How often NVML was initialized: with another number, handles and event sets of before are void."""
        return self._generation

    def is_current(self, generation: int) -> bool:
        """Whether this initialization is up to date, as far as errors and sysfs tell. Never waits for the driver."""
        current = self._current
        return current is not None and current.generation == generation and self._is_up_to_date(current)

    def distrust(self, generation: int) -> None:
        """A call failed in a way that says that this initialization is out of date. Never waits for the driver."""
        with self._state:
            if self._current is not None and self._current.generation == generation:
                self._current.stale = True

    @contextlib.contextmanager
    def use(self, generation: int | None = None) -> Iterator[Nvml]:
        """The gateway, which stays as long as anybody is inside. To be left soon, and not to be nested: another
        initialization waits for it. With `generation` it is the gateway of that one or none: then NvmlError, at once.
        """
        with self._using(generation) as current:
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
        with self._state:
            seen = {gpu.pci_address: gpu.uuid for gpu in inventory.gpus if gpu.pci_address is not None}
            there = {gpu.address for gpu in inventory.pci_gpus}
            self._uuids = {at: uuid for at, uuid in (self._uuids | seen).items() if at in there}
            failures = (self._named(failure) for failure in inventory.failures)
            return replace(inventory, failures=tuple(failures))

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

    # Who is inside

    @contextlib.contextmanager
    def _using(self, generation: int | None = None) -> Iterator[_Initialization]:
        current = self._enter() if generation is None else self._enter_only(generation)
        try:
            yield current
        finally:
            with self._state:
                current.users -= 1
                self._state.notify_all()

    def _enter_only(self, generation: int) -> _Initialization:
        with self._state:
            current = self._current
            if current is None or current.stale or current.generation != generation:
                raise NvmlError(Return.UNINITIALIZED, "nvmlInitWithFlags", "NVML is initialized anew")
            current.users += 1
            return current

    def _enter(self) -> _Initialization:
        with self._state:
            self._state.wait_for(lambda: not self._renewing)
            current = self._current
            if current is not None and self._is_up_to_date(current):
                current.users += 1
                return current
            self._renewing = True
        try:
            if current is not None:
                self._end(current)
            return self._begin()
        finally:
            with self._state:
                self._renewing = False
                self._state.notify_all()

    def _is_up_to_date(self, current: _Initialization) -> bool:
        return not current.stale and current.driver == read_driver(self._sys_root)

    # One initialization after another, on the thread that found the last one out of date

    def _end(self, current: _Initialization) -> None:
        with self._state:
            self._current = None
            self._state.wait_for(lambda: not current.users, timeout=self._patience)
        thread = threading.Thread(target=_shut_down, args=(current.nvml,), name="nvml-shutdown", daemon=True)
        thread.start()
        thread.join(self._patience)

    def _begin(self) -> _Initialization:
        driver = read_driver(self._sys_root)
        nvml = self._make_nvml()
        nvml.initialize()
        self._generation += 1
        self._current = _Initialization(nvml, driver, self._generation, PulseTaker(nvml), users=1)
        return self._current


def _shut_down(nvml: Nvml) -> None:
    try:
        nvml.shutdown()
    except NvmlError as error:
        log.info("NVML was shut down after its driver: %s", error)
