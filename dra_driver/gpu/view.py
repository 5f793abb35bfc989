# SPDX-License-Identifier: Apache-2.0
"""The current state of the node: hardware, policy, marks and health, put together.

The controller publishes it, and the plugin reports it to kubelet. Each process has a view of its own. A thread of its
own looks at the hardware, and every call to NVML has a time limit, so that a driver that hangs prevents no report. A
look is cheap. Everything is read again only if the look differs from the last one, and once in a while.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from ..resource import ResourceSlice
from ..resource.device import SliceFeatures
from .calls import HungError
from .devices import Description, GpuDevices, describe, without_tainted
from .health import Finding, HealthMonitor, LostGpus, taint
from .inventory import Failure, Inventory
from .nvml import NvmlError, Return
from .ownership import MigMarks, MigPlace
from .policy import NodePolicy
from .pulse import GpuPulse, Pulse
from .session import Session

log = logging.getLogger(__name__)

Published = tuple[tuple[GpuDevices, ...], tuple[Finding, ...]]
"""Devices without taints, and all that is held against them."""

_LOOK_NOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Looks:
    """When the hardware is looked at, in seconds."""

    first: float = 1.0  # until a driver is there
    poll: float = 5.0
    everything: float = 60.0
    patience: float = 10.0  # for a driver that stops answering, before its GPUs are treated as lost


_NOTHING = Inventory(driver_version="", cuda_driver_version=None, gpus=())


@dataclass(frozen=True, slots=True)
class _Seen:
    """What there was, with the places of MIG instances made for claims."""

    inventory: Inventory
    owned: Set[MigPlace]


@dataclass(frozen=True, slots=True)
class _Described:
    """A description, and of what: it takes long enough to be made once."""

    seen: _Seen
    policy: NodePolicy
    features: SliceFeatures
    description: Description

    def is_of(self, seen: _Seen, policy: NodePolicy, features: SliceFeatures) -> bool:
        """Whether it is of these."""
        return seen is self.seen and (policy, features) == (self.policy, self.features)


class NodeView:
    """Looks from `start` to `stop`, tells the monitor which GPUs to watch, and calls `on_change` when what `describe`,
    `published` or `problem` give may have changed.

    Only the thread waits for the driver; everything else answers at once, or after a given time, on any thread.
    """

    def __init__(
        self,
        session: Session,
        *,
        marks: MigMarks,
        policy: Callable[[], NodePolicy],
        health: HealthMonitor,
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
        self._lock = threading.Lock()
        self._lost = LostGpus()
        self._seen: _Seen | None = None
        self._described: _Described | None = None
        self._problem = NvmlError(Return.UNINITIALIZED, "nvmlInitWithFlags", "the hardware was not looked at yet")
        self._failing = True
        self._turns = threading.Condition()
        self._begun = self._ended = 0
        self._asked = self._stopped = False
        session.calls.listen(lambda _key: self.look_soon())
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        # Of the thread only:
        self._pulse: Pulse | None = None
        self._wanted: NodePolicy | None = None
        self._read_at = 0.0
        self._answered_at = time.monotonic()
        self._reported: frozenset[str] = frozenset()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A look under way ends by itself."""
        with self._turns:
            self._stopped = True
            self._turns.notify_all()

    @property
    def problem(self) -> str | None:
        """Why nothing is known of the hardware at the moment."""
        return str(self._problem) if self._failing else None

    def unready(self) -> str | None:
        """Why the hardware, or a part of it, is not known: which call hangs for how long, or what fails."""
        return self._session.calls.problem() or self.problem

    def hanging(self) -> int:
        """How many calls to the driver have not returned in time."""
        return len(self._session.calls.hangs())

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Learn from the slices of an earlier process which GPUs there were, and what was wrong with them."""
        slices = list(slices)
        with self._lock:
            self._lost.adopt(slices)
        self._health.restore(slices)

    # What the node has

    def describe(self, features: SliceFeatures) -> Description:
        """The node's devices with their taints, for a server with these features. Raises NvmlError as long as no driver
        answered.
        """
        found = self._found(features)
        if found is None:
            raise self._problem
        description, findings = found
        gpus = taint(description.gpus, findings, features)
        if features.device_taints:
            return replace(description, gpus=gpus)
        kept = without_tainted(gpus)
        return Description(kept.gpus, description.left_out + kept.left_out)

    def published(self) -> Published:
        """The node's devices on a server with every feature: none before the first look that succeeds."""
        found = self._found(SliceFeatures())
        return ((), ()) if found is None else (found[0].gpus, found[1])

    @property
    def described(self) -> Sequence[GpuDevices]:
        """The devices as they were described last, which costs nothing."""
        return () if self._described is None else self._described.description.gpus

    def _found(self, features: SliceFeatures) -> tuple[Description, tuple[Finding, ...]] | None:
        """The devices, with those of GPUs that are missed, and all that is held against them."""
        with self._lock:
            seen = self._seen
            if seen is None:
                return None
            policy = self._policy()
            described = self._described
            if described is None or not described.is_of(seen, policy, features):
                described = _Described(
                    seen,
                    policy,
                    features,
                    describe(seen.inventory, policy, seen.owned, features, self._session.calls.unexpected),
                )
                self._described = described
            description, findings = described.description, self._health.findings()
            withdraw_after = policy.health.withdraw_after
            lost, missed = self._lost.update(description.gpus, seen.inventory, findings, self._clock(), withdraw_after)
            return replace(description, gpus=(*description.gpus, *lost)), (*findings, *missed)

    # Looking

    def look_soon(self) -> None:
        """Something is different for sure."""
        with self._turns:
            self._asked = True
            self._turns.notify_all()

    def look_now(self, seconds: float = _LOOK_NOW_SECONDS) -> bool:
        """Look, and wait for it. Whether a look that began after this call has ended within the time."""
        with self._turns:
            due = self._begun + 1
            self._asked = True
            self._turns.notify_all()
            return self._turns.wait_for(lambda: self._ended >= due, seconds)

    def _run(self) -> None:
        while self._begin():
            self.look()
            with self._turns:
                self._ended = self._begun
                self._turns.notify_all()
                pause = self._looks.first if self._seen is None else self._looks.poll
                self._turns.wait_for(lambda: self._asked or self._stopped, pause)

    def _begin(self) -> bool:
        with self._turns:
            self._asked = False
            self._begun += 1
            return not self._stopped

    def look(self) -> None:
        """Look once, and say so if something is different."""
        failed_before = self._failing
        try:
            changed = self._read()
        except NvmlError as error:
            changed = self._failed(error)
        policy = self._policy()
        changed |= policy != self._wanted
        if changed and self._seen is not None:
            self._health.watch(self._seen.inventory, policy)
        self._wanted = policy
        with self._lock:
            missed = self._lost.since
        overdue = any(self._clock() - since >= policy.health.withdraw_after for since in missed)
        if changed or overdue or self._failing != failed_before:
            self.on_change()

    def _read(self) -> bool:
        """Whether there is something else than before."""
        now = time.monotonic()
        marks = self._marks.all()
        pulse = _without(self._session.pulse(), marks | self._marks.all())
        self._answered_at = now
        if pulse == self._pulse and now - self._read_at < self._looks.everything:
            self._failing = False
            return False
        inventory = self._session.inventory()
        # Claims come and go meanwhile: what was marked before or is marked now is the driver's.
        seen = _Seen(inventory, marks | self._marks.all())
        self._report(inventory)
        changed = seen != self._seen
        if changed:
            self._seen = seen
        self._pulse, self._read_at, self._failing = pulse, now, False
        return changed

    def _failed(self, error: NvmlError) -> bool:
        """The driver does not answer. What it said last holds for a while; then its GPUs are gone."""
        if not isinstance(error, HungError) and not (self._failing and str(error) == str(self._problem)):
            log.warning("%s", error)
        self._problem, self._failing, self._pulse = error, True, None
        if time.monotonic() - self._answered_at < self._looks.patience:
            return False
        known = _NOTHING if self._seen is None else self._seen.inventory
        with self._lock:
            missed = self._lost.knows_any
        hung = isinstance(error, HungError)
        if not (known.gpus or (known.failures and not hung) or (missed and self._seen is None)):
            return False
        failures = tuple(Failure(gpu.index, str(error), gpu.uuid, gpu.pci_address, hung=True) for gpu in known.gpus)
        gone = replace(known, gpus=(), failures=failures if hung else (), pci_gpus=())
        self._seen = _Seen(gone, frozenset() if self._seen is None else self._seen.owned)
        log.error("the NVIDIA driver does not answer: its GPUs are treated as lost")
        return True

    def _report(self, inventory: Inventory) -> None:
        left_out = [one for one in inventory.failures if not one.hung]  # of calls that hang, the log tells already
        problems = [f"GPU {one.index} is left out: {one.reason}" for one in left_out]
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
