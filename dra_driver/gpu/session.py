# SPDX-License-Identifier: Apache-2.0
"""NVML during the life of a process, while GPUs and NVIDIA drivers come and go.

NVML lists the GPUs only when it is initialized. A GPU that is plugged in, or returned by a virtual machine, appears
with the next initialization. A GPU that is removed stays in the list as lost. After the NVIDIA driver was reloaded,
older initializations no longer work. So a session keeps NVML initialized, and initializes it again when sysfs or an
error shows that this is necessary. Each initialization has its own NVML interface and a number, the generation. Handles
and event sets become invalid together with their interface.

A process should have one session, because the library of an upgraded driver is loaded only when the process has no
interface left (see `nvml_library`). Calls run on `threads`, so a call that hangs does not block callers.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..process.worker import Worker
from .fabric import FabricManager
from .fabric_access import FabricAccess
from .facts import Failure, Gpu, Inventory
from .inventory import Threads, read_inventory
from .nvml import NO_DRIVER, DeviceHandle, Nvml, NvmlError, Return
from .passthrough import VfioMarks
from .pci import KernelDriver, read_driver
from .pulse import Pulse, PulseTaker
from .threads import LIBRARY, CallLimits, HungError, Job, NvmlThreads

log = logging.getLogger(__name__)

T = TypeVar("T")

GpuQuestion = Callable[[Nvml, DeviceHandle], T]
"""A query about one GPU, which is work for this GPU."""

_PATIENCE = 5.0
_WATCH_SECONDS = 0.5
_SELDOM_SECONDS = 3.0  # twice this is less than what a claim waits for (RELEASE_SECONDS of kubeletplugin)
_TRIES = 3
_OUT_OF_DATE = NO_DRIVER | {Return.LIB_RM_VERSION_MISMATCH, Return.UNKNOWN}
"""Codes that a call which concerns no GPU fails with after the driver was unloaded or reloaded."""


class LettingGoError(NvmlError):
    """NVML is not used at the moment, because a GPU is being taken from NVIDIA's driver for a virtual machine."""

    def __init__(self) -> None:
        text = "a GPU is being given to a virtual machine, and NVML is used again in a moment"
        super().__init__(Return.IN_USE, "nvmlInitWithFlags", text)


class _Initialization(Threads):
    """One initialization of NVML, with the work for its GPUs. Its key is the GPU's UUID as soon as that is known.
    `users` is the number of running uses, and `stale` tells that it is out of date. `held` is closed when it
    is over. `lost` are the GPUs that were lost when the first pulse was taken. `before` are the GPUs as they were last
    read.

    Work on the threads counts as a use of the initialization. Waiting for the work does not, because otherwise the
    initialization could not be ended while a call hangs.
    """

    def __init__(self, session: "Session", nvml: Nvml, driver: KernelDriver, held: contextlib.ExitStack) -> None:
        self.nvml = nvml
        self.driver = driver
        self.held = held
        self.generation = session.generation
        self.taker = PulseTaker(nvml, self)
        self.users = 0
        self.stale = False
        self.lost: frozenset[int] | None = None
        self.before: dict[int, Gpu] = {}
        self._session = session
        self._keys: dict[int, str] = {}

    def library(self, ask: Callable[[], T]) -> T:
        """See Threads."""
        return self._session.ask(LIBRARY, self.generation, _of_nvml(ask))

    def gpus(self, asks: Mapping[int, Callable[[], T]]) -> dict[int, T | NvmlError | None]:
        """See Threads."""
        keys = {index: self._key(index) for index in asks}
        answers = self._session.gather({keys[index]: _of_nvml(ask) for index, ask in asks.items()}, self.generation)
        for answer in answers.values():
            if isinstance(answer, NvmlError) and answer.code is Return.UNINITIALIZED:  # no GPU's fault
                raise answer
        return {index: answers[key] for index, key in keys.items()}

    def name(self, index: int, uuid: str) -> None:
        """Use the UUID as the key of the work for the GPU."""
        if self._keys.get(index) != uuid:
            self._session.threads.rename(self._key(index), uuid)
            self._keys[index] = uuid

    def index(self, uuid: str) -> int | None:
        """The index of this GPU, if it is known."""
        known = self.taker.uuids.copy() | self._keys.copy()
        return next((index for index, other in known.items() if other == uuid), None)

    def silent(self) -> list[str]:
        """The keys of the GPUs that have not told their UUIDs yet."""
        return [self._key(index) for index in self.taker.silent if index not in self._keys]

    def keep(self, count: int) -> None:
        """Forget GPUs whose index is `count` or higher."""
        self._session.threads.keep(map(self._key, range(count)))

    def _key(self, index: int) -> str:
        return self._keys.get(index, f"GPU {index}")


class Session:
    """Keeps NVML initialized. All methods may be called from several threads. They raise NvmlError while no driver is
    loaded, and the next call tries again.

    `make_nvml` creates an NVML interface that is not initialized. For the roots see `read_inventory`. An initialization
    that is out of date accepts no new uses, and ends when the running ones have ended. Because a call may hang for
    ever, the session waits for uses only `patience` seconds, and as long again for the shutdown. Then the next
    initialization begins.

    A call that hangs raises HungError, an NvmlError. A hanging call for one GPU affects only this GPU.

    `fabric` has the partitions of NVSwitches, from `fabric_manager`.

    While this driver takes one of the GPUs `taken`, the session ends NVML and raises LettingGoError. See `passthrough`.
    """

    def __init__(  # noqa: PLR0913  # optional parts, all by keyword
        self,
        make_nvml: Callable[[], Nvml],
        sys_root: Path,
        *,
        dev_root: Path | None = None,
        driver_root: Path | None = None,
        patience: float = _PATIENCE,
        limits: CallLimits | None = None,
        taken: VfioMarks | None = None,
        fabric_manager: FabricManager | None = None,
    ) -> None:
        self._taken = taken
        self._make_nvml = make_nvml
        self._sys_root = sys_root
        self._dev_root = dev_root
        self._driver_root = driver_root
        self._patience = patience
        self._limits = limits or CallLimits()
        self.threads = NvmlThreads()
        self.fabric = FabricAccess(self.threads, fabric_manager, self._limits)
        self._state = threading.Condition()  # never held during a call to NVML
        self._current: _Initialization | None = None
        self._generation = 0
        self._uuids: dict[str, str] = {}
        self._letting_go = Worker("close NVML", self._let_go)
        if taken is not None:
            self._letting_go.start()

    @property
    def generation(self) -> int:
        """The number of initializations so far. If it has changed, older handles and event sets are invalid."""
        return self._generation

    @property
    def watch_seconds(self) -> float:
        """The interval of looking whether NVML must be ended for a virtual machine, and the longest time that a call
        may wait for events. It is longer on a node that has not given a GPU to a virtual machine yet.
        """
        return _WATCH_SECONDS if self._taken is not None and self._taken.has_let_go() else _SELDOM_SECONDS

    def is_current(self, generation: int) -> bool:
        """Whether this initialization is up to date, as far as errors and sysfs tell. Never waits for the driver."""
        current = self._current
        return current is not None and current.generation == generation and self._is_up_to_date(current)

    def driver_load(self) -> int | None:
        """A value that changes with every load of the NVIDIA driver. None if it is not loaded. Never waits for it."""
        return read_driver(self._sys_root).module

    def distrust(self, generation: int) -> None:
        """Mark this initialization as out of date, after a call failed for that reason. Never waits for the driver."""
        with self._state:
            if self._current is not None and self._current.generation == generation:
                self._current.stale = True

    @contextlib.contextmanager
    def use(self, generation: int | None = None) -> Iterator[Nvml]:
        """The NVML interface, which stays initialized inside of the context. Leave the context soon and do not nest it,
        because the next initialization waits for it. With `generation`, raises NvmlError if this initialization is
        over.
        """
        current = self._enter() if generation is None else self._enter_only(generation)
        try:
            yield current.nvml
        finally:
            with self._state:
                current.users -= 1
                self._state.notify_all()

    def close(self) -> None:
        """End the initialization and the threads, except threads with a call that hangs."""
        self._letting_go.stop()
        current = self._current
        if current is not None:
            self._end(current)
        self.threads.end()

    def reach(self) -> int:
        """Initialize NVML if necessary. Returns the generation."""
        return self._reach().generation

    def ask(self, key: str, generation: int, ask: Callable[[Nvml], T], idle: float = 0.0) -> T:
        """Run a query as work for `key` (LIBRARY or EVENTS), and wait for its answer. The query may wait for events
        for `idle` seconds in addition to its time limit.
        """
        return self.threads.wait(self.begin(key, generation, ask, idle))

    def begin(self, key: str, generation: int, ask: Callable[[Nvml], T], idle: float = 0.0) -> Job[T]:
        """Start a query like `ask`, without waiting for its answer."""
        return self.threads.start(key, lambda _beat: self._ask(generation, ask), self._limits.look + idle)

    def gpus(self, asks: Mapping[str, GpuQuestion[T]], generation: int) -> dict[str, T | NvmlError | None]:
        """The answers of several GPUs, by UUID. The answer of a GPU whose other work is not done is None.

        While a GPU has not told its UUID, NVML is not asked for unknown GPUs, for which it would wait as well.
        """

        def question(uuid: str) -> Callable[[Nvml], T]:
            return lambda nvml: asks[uuid](nvml, self.device(nvml, uuid))

        unknown: dict[str, HungError | None] = {}
        current = self._current
        if current is not None and current.generation == generation and (silent := current.silent()):
            unknown = dict.fromkeys((uuid for uuid in asks if current.index(uuid) is None), self._hang_of(silent))
        return self.gather({uuid: question(uuid) for uuid in asks if uuid not in unknown}, generation) | unknown

    def _hang_of(self, keys: Iterable[str]) -> HungError | None:
        try:
            self.threads.check(keys)
        except HungError as error:
            return error
        return None

    def gather(self, asks: Mapping[str, Callable[[Nvml], T]], generation: int) -> dict[str, T | NvmlError | None]:
        """The answers of several queries, by their keys; see NvmlThreads.gather."""
        work = {key: partial(self._ask, generation, ask) for key, ask in asks.items()}
        return self.threads.gather(work, self._limits.look)

    def device(self, nvml: Nvml, uuid: str) -> DeviceHandle:
        """A GPU's handle for this NVML interface. Raises NvmlError.

        NVML searches all GPUs for a UUID, including GPUs whose calls hang. So a GPU whose index is known is found by
        its index.
        """
        current = self._current
        if current is not None and current.nvml is nvml and (index := current.index(uuid)) is not None:
            return current.taker.handle(index)
        return nvml.device_by_uuid(uuid)

    def pulse(self) -> Pulse:
        """A cheap look at the hardware, to compare with the previous one."""
        pulse, newly_lost = self._read(self._take)
        # A GPU that was quickly unplugged and plugged in again is lost now, but the next initialization finds it.
        return self._read(self._take)[0] if newly_lost else pulse

    def inventory(self) -> Inventory:
        """Read all GPUs. A GPU that fails gets the UUID that was last read at its PCI address."""
        inventory = replace(self._undisturbed(), switches=self.fabric.read())
        with self._state:
            seen = {gpu.pci_address: gpu.uuid for gpu in inventory.gpus if gpu.pci_address is not None}
            there = {gpu.address for gpu in inventory.pci_gpus}
            self._uuids = {at: uuid for at, uuid in (self._uuids | seen).items() if at in there}
            failures = (self._named(failure) for failure in inventory.failures)
            return replace(inventory, failures=tuple(failures))

    def _undisturbed(self) -> Inventory:
        """An inventory during which no GPU was bound to NVIDIA's driver, or taken from it. Otherwise, NVML and sysfs
        could contradict each other. After a few attempts, the last one counts, and the next pulse is different.
        """
        for _ in range(_TRIES - 1):
            before = read_driver(self._sys_root)
            inventory = self._read(self._inventory)
            if read_driver(self._sys_root) == before:
                return inventory
        return self._read(self._inventory)

    def _inventory(self, current: _Initialization) -> Inventory:
        inventory = read_inventory(
            current.nvml,
            self._sys_root,
            dev_root=self._dev_root,
            driver_root=self._driver_root,
            threads=current,
            before=current.before,
        )
        current.before = {gpu.index: gpu for gpu in inventory.gpus}
        for gpu in inventory.gpus:
            current.name(gpu.index, gpu.uuid)
        current.keep(len(inventory.gpus) + len(inventory.failures))
        return inventory

    def _named(self, failure: Failure) -> Failure:
        if failure.uuid is not None or failure.pci_address is None:
            return failure
        return replace(failure, uuid=self._uuids.get(failure.pci_address))

    def _take(self, current: _Initialization) -> tuple[Pulse, bool]:
        """Take a pulse. Also tells whether GPUs are lost that were not lost when this initialization began."""
        hosts = {index: gpu.pci_address for index, gpu in current.before.items() if gpu.vgpu_host is not None}
        taken = current.taker.take(current.generation, self._sys_root, hosts)
        pulse = replace(taken, fabric=self.fabric.identity)
        for gpu in pulse.gpus:
            if gpu.uuid is not None:
                current.name(gpu.index, gpu.uuid)
        lost = frozenset(gpu.index for gpu in pulse.gpus if gpu.problem is Return.GPU_IS_LOST)
        if current.lost is None:
            current.lost = lost
        newly_lost = not lost <= current.lost
        current.stale |= newly_lost
        return pulse, newly_lost

    def _read(self, read: Callable[[_Initialization], T]) -> T:
        """The result of `read`. An initialization that turns out to be out of date is replaced, but only once."""
        tried = False
        while True:
            current = self._reach()
            try:
                return read(current)
            except NvmlError as error:
                replaced = current is not self._current
                if error.code not in _OUT_OF_DATE or (tried and not replaced):
                    raise
                tried = tried or not replaced
                log.info("NVML must be initialized again: %s", error)
                current.stale = True

    def _ask(self, generation: int, ask: Callable[[Nvml], T]) -> T:
        with self.use(generation) as nvml:
            return ask(nvml)

    # Uses of an initialization

    def _enter_only(self, generation: int) -> _Initialization:
        with self._state:
            current = self._current
            if current is None or current.stale or current.generation != generation:
                raise NvmlError(Return.UNINITIALIZED, "nvmlInitWithFlags", "NVML was initialized again")
            current.users += 1
            return current

    def _enter(self) -> _Initialization:
        while True:
            current = self._reach()
            with self._state:
                if current is self._current and not current.stale:
                    current.users += 1
                    return current

    def _reach(self) -> _Initialization:
        """The current initialization. Begins one if there is none."""
        while True:
            current = self._current
            if current is not None and self._is_up_to_date(current):
                return current
            self.threads.run(LIBRARY, lambda _beat: self._renew(), self._limits.initialize)

    def _is_up_to_date(self, current: _Initialization) -> bool:
        return not (current.stale or self._must_let_go()) and current.driver == read_driver(self._sys_root)

    # Ending and beginning initializations, as work for LIBRARY

    def _renew(self) -> None:
        current = self._current
        if current is not None:
            if self._is_up_to_date(current):
                return
            self._end(current)
        self._begin()

    def _end(self, current: _Initialization) -> None:
        with self._state:
            self._current = None
            self._state.wait_for(lambda: not current.users, timeout=self._patience)
        thread = threading.Thread(target=_shut_down, args=(current.nvml,), name="nvml-shutdown", daemon=True)
        thread.start()
        thread.join(self._patience)
        current.held.close()

    def _must_let_go(self) -> bool:
        return self._taken is not None and self._taken.must_let_go()

    def _let_go(self) -> float:
        """End NVML when that is necessary, even if no caller uses it at the moment. Returns the seconds until the next
        look.
        """
        if self._current is not None and self._must_let_go():
            with contextlib.suppress(NvmlError):
                self._reach()
        return self.watch_seconds

    def _begin(self) -> None:
        if self._must_let_go():
            raise LettingGoError
        driver = read_driver(self._sys_root)
        nvml = self._make_nvml()
        with contextlib.ExitStack() as held:
            if self._taken is not None:
                held.enter_context(self._taken.using())
            nvml.initialize()
            self._generation += 1
            self._current = _Initialization(self, nvml, driver, held.pop_all())


def _of_nvml(ask: Callable[[], T]) -> Callable[[Nvml], T]:
    """The same query as a function of an NVML interface, which it ignores."""
    return lambda _nvml: ask()


def _shut_down(nvml: Nvml) -> None:
    try:
        nvml.shutdown()
    except NvmlError as error:
        log.info("NVML could not be shut down, because its driver is gone: %s", error)
