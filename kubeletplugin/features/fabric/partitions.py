# SPDX-License-Identifier: Apache-2.0
"""NVSwitch partitions for claims: activated, deactivated, and kept when Fabric Manager is restarted.

A Fabric Manager that was restarted with FABRIC_MODE_RESTART=1 knows no partition until it is told which ones are
active. One that was restarted without it has deactivated all of them, so recovery activates those of claims again. A
restart is recognized by the socket, which is another file then, or by the code NOT_CONFIGURED.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dra_driver.gpu.fabric import TEMPORARY, FabricCode, FabricError, Partition, modules_text
from dra_driver.gpu.fabric_access import FabricAccess
from dra_driver.gpu.fabric_marks import FabricMark, FabricMarks, FabricTrouble, SeenManager

from ...claims.call import Call
from ...errors import PrepareError
from ...node.node import Node

log = logging.getLogger(__name__)


class FabricPartitions:
    """The partitions of the node. All methods raise FabricError, PrepareError or OSError. A call is checked while they
    wait, and before each change.
    """

    def __init__(self, node: Node) -> None:
        self.marks = FabricMarks(node.folders.folder / "fabric")
        self._node = node
        self._problem = ""

    @property
    def _access(self) -> FabricAccess:
        return self._node.session.fabric

    def is_active(self, wanted: FabricMark) -> bool:
        """Whether the partition is active."""
        return _find(wanted, self._access.partitions()).active

    def activate(self, wanted: FabricMark, call: Call) -> None:
        """Activate the partition, after marking it."""
        with self._current(call) as partitions:
            found = _find(wanted, partitions)
            if not self.marks.has(wanted.partition):
                self.marks.set(FabricMark(wanted.partition, wanted.modules, wanted.gpus, found=found.active))
            if not found.active:
                call.check()
                self._activate(wanted, partitions)
                self._note([found.id, *_active(partitions)])
            self.marks.troubles.clear(found.id)

    def release(self, partition: int, call: Call) -> None:
        """Deactivate the partition, unless it was active before it was marked, and remove the mark."""
        mark = self.marks.get(partition)
        if mark is not None and not mark.found:
            with self._current(call) as partitions:
                active = _active(partitions)
                if partition in active:
                    call.check()
                    self._access.deactivate(partition)
                    self._note(other for other in active if other != partition)
        self.marks.clear(partition)

    def was_restarted(self) -> bool:
        """Whether Fabric Manager was restarted since the last look. Then it was told the partitions. If that fails, the
        reason is logged, and the next look tries it again.
        """
        identity, before = self._access.identity, self.marks.seen()
        if not identity or (before is not None and before.identity == identity):
            return False
        try:
            if not self._access.has_switches():
                return False
            with self._current(_brief_call(self._node.times.look)):
                self._problem = ""
        except (FabricError, OSError) as error:
            if isinstance(error, FabricError) and error.code is FabricCode.NOT_SUPPORTED:
                self._note([])  # there are no partitions in this mode
            elif str(error) != self._problem:
                log.warning("the NVSwitch partitions are unknown: %s", error)
            self._problem = str(error)
            return False
        return before is not None

    # Parts

    @contextmanager
    def _current(self, call: Call) -> Iterator[tuple[Partition, ...]]:
        """A context with the current partitions, in which no other process of this plugin changes them."""
        with self.marks.locked(call.check):
            identity, before = self._access.identity, self.marks.seen()
            if before is not None and identity and before.identity != identity:
                self._tell()
            try:
                partitions = self._access.partitions()
            except FabricError as error:
                if error.code is not FabricCode.NOT_CONFIGURED:
                    raise
                self._tell()
                partitions = self._access.partitions()
            self._note(_active(partitions))
            yield partitions

    def _tell(self) -> None:
        """Tell a Fabric Manager that was restarted which partitions are active."""
        before = self.marks.seen()
        active = sorted([mark.partition for mark in self.marks.all()] if before is None else before.active)
        try:
            self._access.set_activated(active)
        except FabricError as error:
            if error.code in TEMPORARY:
                raise
            log.warning("%s; the partitions of claims are activated again", error)
        else:
            log.info("Fabric Manager was restarted, and was told the active partitions", extra={"partitions": active})

    def _note(self, active: Iterable[int]) -> None:
        self.marks.see(SeenManager(self._access.identity, tuple(sorted(active))))

    def _activate(self, wanted: FabricMark, partitions: tuple[Partition, ...]) -> None:
        try:
            self._access.activate(wanted.partition)
        except FabricError as error:
            if error.code is FabricCode.NVLINK_ERROR:
                self.marks.troubles.set(FabricTrouble(wanted.partition, wanted.gpus, time.time()))
            others = [
                partition
                for partition in partitions
                if partition.active and not set(partition.modules).isdisjoint(wanted.modules)
            ]
            if error.code is not FabricCode.IN_USE or not others:
                raise
            raise PrepareError(
                f"partition {_find(wanted, partitions)} of the NVSwitches cannot be activated, because these partitions"
                f" are active: {'; '.join(map(str, others))}; kubelet tries again"
            ) from None


def _brief_call(seconds: float) -> Call:
    """A call that ends with FabricError if it waits for longer, because no caller waits for the result."""
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise FabricError(FabricCode.TIMEOUT, "a look", "another process of this plugin is changing a partition")

    return Call(check)


def _active(partitions: tuple[Partition, ...]) -> list[int]:
    return [partition.id for partition in partitions if partition.active]


def _find(wanted: FabricMark, partitions: tuple[Partition, ...]) -> Partition:
    found = next(
        (
            partition
            for partition in partitions
            if partition.id == wanted.partition and partition.modules == wanted.modules
        ),
        None,
    )
    if found is None:
        raise PrepareError(
            f"Fabric Manager no longer has a partition {wanted.partition} with the GPU modules"
            f" {modules_text(wanted.modules)}; delete the pod to have it scheduled again"
        )
    return found
