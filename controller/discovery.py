# SPDX-License-Identifier: Apache-2.0
"""What the node has at the moment: hardware, policy, marks and health, put together.

The hardware is looked at on a thread of its own, so that a driver that hangs cannot keep taints from being written. A
look is cheap; everything is read anew only when the look differs from the last one, and once in a while.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Protocol

from dra_driver.gpu.devices import Description, describe, without_tainted
from dra_driver.gpu.health import Finding, LostGpus, taint
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.ownership import MigMarks, MigPlace
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.pulse import GpuPulse, Pulse
from dra_driver.gpu.session import Session
from dra_driver.resource import ResourceSlice
from dra_driver.resource.features import SliceFeatures

log = logging.getLogger(__name__)


class Health(Protocol):
    """Who knows what is wrong with the GPUs."""

    def findings(self) -> tuple[Finding, ...]:
        """All of it, at once."""

    def watch(self, inventory: Inventory, policy: NodePolicy) -> None:
        """From now on, these GPUs are the node's and this is what is wanted of them."""

    def restore(self, slices: Iterable[ResourceSlice]) -> None:
        """Remember what an earlier process found, from the taints it published."""


@dataclass(frozen=True, slots=True)
class Looks:
    """When the hardware is looked at, in seconds."""

    first: float = 1.0  # until a driver is there
    poll: float = 5.0
    everything: float = 60.0
    patience: float = 10.0  # for a driver that stops answering, before its GPUs are taken for lost


class Discovery:
    """Looks from `start` to `stop`, and calls `on_change` when what `describe` gives may have changed."""

    def __init__(
        self,
        session: Session,
        *,
        marks: MigMarks,
        policy: Callable[[], NodePolicy],
        health: Health,
        on_change: Callable[[], None] = lambda: None,
        looks: Looks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._marks = marks
        self._policy = policy
        self._health = health
        self.on_change = on_change
        self._looks = looks or Looks()
        self._clock = clock
        self._lost = LostGpus()
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self._owned: frozenset[MigPlace] = frozenset()
        self._problem = NvmlError(Return.UNINITIALIZED, "nvmlInitWithFlags", "the hardware was not looked at yet")
        self._pulse: Pulse | None = None
        self._wanted: NodePolicy | None = None
        self._failing = True
        self._read_at = self._answered_at = 0.0
        self._reported: frozenset[str] = frozenset()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A look under way ends by itself."""
        self._stopped.set()

    @property
    def problem(self) -> str | None:
        """Why the hardware is not known at the moment."""
        return str(self._problem) if self._failing else None

    # For the publisher

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Learn from the slices of an earlier process which GPUs there were, and what was wrong with them."""
        slices = list(slices)
        self._lost.adopt(slices)
        self._health.restore(slices)

    def describe(self, features: SliceFeatures) -> Description:
        """The node's devices for a server with these features. Raises NvmlError as long as no driver answered."""
        with self._lock:
            inventory, owned = self._inventory, self._owned
        if inventory is None:
            raise self._problem
        policy = self._policy()
        description = describe(inventory, policy, owned, features)
        findings = self._health.findings()
        withdraw_after = policy.health.withdraw_after
        lost, missed = self._lost.update(description.gpus, inventory, findings, self._clock(), withdraw_after)
        gpus = taint((*description.gpus, *lost), (*findings, *missed), features)
        if features.device_taints:
            return replace(description, gpus=gpus)
        kept = without_tainted(gpus)
        return Description(kept.gpus, description.left_out + kept.left_out)

    # Looking

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.look()
            self._stopped.wait(self._looks.first if self._inventory is None else self._looks.poll)

    def look(self) -> None:
        """Look once, and say so if something is different."""
        try:
            changed = self._read()
        except NvmlError as error:
            changed = self._failed(error)
        policy = self._policy()
        changed |= policy != self._wanted
        if changed and self._inventory is not None:
            self._health.watch(self._inventory, policy)
        self._wanted = policy
        overdue = any(self._clock() - since >= policy.health.withdraw_after for since in self._lost.since)
        if changed or overdue:
            self.on_change()

    def _read(self) -> bool:
        now = time.monotonic()
        marks = self._marks.all()
        pulse = _without(self._session.pulse(), marks | self._marks.all())
        self._answered_at = now
        if pulse == self._pulse and now - self._read_at < self._looks.everything:
            self._failing = False
            return False
        inventory = self._session.inventory()
        # Claims come and go meanwhile: what was marked before or is marked now is the driver's.
        owned = marks | self._marks.all()
        self._report(inventory)
        with self._lock:
            changed = (inventory, owned) != (self._inventory, self._owned)
            self._inventory, self._owned = inventory, owned
        self._pulse, self._read_at, self._failing = pulse, now, False
        return changed

    def _failed(self, error: NvmlError) -> bool:
        """The driver does not answer. What it said last holds for a while; then its GPUs are gone."""
        if not self._failing or str(error) != str(self._problem):
            log.warning("%s", error)
        self._problem, self._failing, self._pulse = error, True, None
        with self._lock:
            known = self._inventory
            if known is None or not (known.gpus or known.failures):
                return False
            if time.monotonic() - self._answered_at < self._looks.patience:
                return False
            self._inventory = replace(known, gpus=(), failures=(), pci_gpus=())
        log.error("the NVIDIA driver does not answer: its GPUs are taken for lost")
        return True

    def _report(self, inventory: Inventory) -> None:
        problems = [f"GPU {one.index} is left out: {one.reason}" for one in inventory.failures]
        problems += [f"GPU {gpu.index} ({gpu.uuid}): {problem}" for gpu in inventory.gpus for problem in gpu.problems]
        for problem in problems:
            if problem not in self._reported:
                log.warning("%s", problem)
        self._reported = frozenset(problems)


def _without(pulse: Pulse, owned: Set[MigPlace]) -> Pulse:
    """The pulse without the instances made for claims: these come and go, and nothing is published differently."""
    return replace(pulse, gpus=tuple(_without_owned(gpu, owned) for gpu in pulse.gpus))


def _without_owned(gpu: GpuPulse, owned: Set[MigPlace]) -> GpuPulse:
    if gpu.uuid is None or not gpu.instances:
        return gpu
    foreign = tuple(one for one in gpu.instances if MigPlace(gpu.uuid, one[1], one[2]) not in owned)
    ids = {instance for instance, _, _ in foreign}
    return replace(gpu, instances=foreign, computes=tuple(one for one in gpu.computes if one[0] in ids))
