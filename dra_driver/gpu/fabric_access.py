# SPDX-License-Identifier: Apache-2.0
"""Fabric Manager during the life of a process, on a thread of its own with time limits.

Fabric Manager may be started late, restarted or stopped. The partitions that it listed last stay known in between, so
that devices keep their attributes. A node without switches, library or socket costs a few system calls, and nothing is
logged.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TypeVar

from .fabric import NO_SWITCHES, FabricCode, FabricError, FabricManager, Partition, SwitchFacts
from .threads import FABRIC, CallLimits, HungError, NvmlThreads

T = TypeVar("T")


class FabricAccess:
    """The Fabric Manager of the node, or None for a process without one. All methods may be called from several
    threads, and raise FabricError.
    """

    def __init__(self, threads: NvmlThreads, manager: FabricManager | None, limits: CallLimits) -> None:
        self._threads = threads
        self._manager = manager
        self._limits = limits
        self._guard = threading.Lock()
        self._facts = NO_SWITCHES

    @property
    def identity(self) -> str:
        """See FabricManager. Costs a few system calls."""
        return "" if self._manager is None else self._manager.identity

    def has_switches(self) -> bool:
        """Whether the node has NVSwitches."""
        manager = self._manager
        return manager is not None and self._run(manager.has_switches, self._limits.look)

    def read(self) -> SwitchFacts:
        """What Fabric Manager reports, or reported last. Never raises an error."""
        manager = self._manager
        if manager is None or not manager.identity:
            return self._facts
        with self._guard:
            try:
                self._facts = self._run(partial(_read, manager), self._limits.look)
            except FabricError as error:
                self._facts = replace(self._facts, problem=str(error))
            return self._facts

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions as they are now."""
        return self._run(self._reached().supported_partitions, self._limits.look)

    def activate(self, partition: int) -> None:
        """Activate a partition."""
        self._run(partial(self._reached().activate, partition), self._limits.partition)

    def deactivate(self, partition: int) -> None:
        """Deactivate a partition."""
        self._run(partial(self._reached().deactivate, partition), self._limits.partition)

    def set_activated(self, partitions: Collection[int]) -> None:
        """Tell a Fabric Manager that was restarted which partitions are active."""
        self._run(partial(self._reached().set_activated, partitions), self._limits.partition)

    def _reached(self) -> FabricManager:
        if self._manager is None or not self._manager.identity:
            raise FabricError(FabricCode.CONNECTION_NOT_VALID, "fmConnect")
        return self._manager

    def _run(self, work: Callable[[], T], seconds: float) -> T:
        try:
            return self._threads.run(FABRIC, lambda _beat: work(), seconds)
        except HungError as error:
            text = f"{error.hang}; restart nvidia-fabricmanager.service if it does not return"
            raise FabricError(FabricCode.TIMEOUT, error.hang.call, text) from None


def _read(manager: FabricManager) -> SwitchFacts:
    if not manager.has_switches():
        return NO_SWITCHES
    try:
        partitions = manager.supported_partitions()
    except FabricError as error:
        if error.code is FabricCode.NOT_SUPPORTED:
            return SwitchFacts(shared=False)
        raise
    failed = _optional(manager.failed_gpus, frozenset[str]())
    return SwitchFacts(partitions, True, "", failed, _optional(manager.unsupported_partitions, ()))


def _optional(query: Callable[[], T], default: T) -> T:
    """The answer, or the default while Fabric Manager does not support the query (as after a restart)."""
    try:
        return query()
    except FabricError as error:
        if error.code not in (FabricCode.NOT_SUPPORTED, FabricCode.NOT_CONFIGURED):
            raise
        return default
