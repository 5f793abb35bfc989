# SPDX-License-Identifier: Apache-2.0
"""The current state of the node: hardware, policy, marks and health, put together.

The controller publishes this state, and the plugin reports it to kubelet. Each process has its own view, with a thread
that looks at the hardware. Every call to NVML has a time limit, so a driver that hangs does not prevent reports. A look
is cheap. The view reads all GPUs again only if a look differs from the previous one, and once a minute.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from ..kube.resource import ResourceSlice
from ..kube.resource.device import SliceFeatures
from ..process.worker import Worker
from .devices import Description, GpuDevices, describe, without_tainted
from .fabric_marks import FabricTrouble, FabricTroubles
from .health import Finding, HealthMonitor, LostGpus, activation_findings, taint
from .inventory import Failure, Inventory
from .marked import Marked, NodeMarks
from .mig import MigDevice
from .nvml import NvmlError, Return
from .ownership import Owned
from .passthrough import VfioMark
from .policy import NodePolicy
from .pulse import GpuPulse, Pulse
from .session import LettingGoError, Session
from .threads import HungError

log = logging.getLogger(__name__)

Published = tuple[tuple[GpuDevices, ...], tuple[Finding, ...]]
"""The devices without taints, and the findings that taint them."""

_LOOK_NOW_SECONDS = 2.0

_NOTHING = Inventory(driver_version="", cuda_driver_version=None, gpus=())
_NO_MARKS = Marked()


@dataclass(frozen=True, slots=True)
class Looks:
    """Intervals of looks at the hardware, in seconds."""

    first: float = 1.0  # between looks until a driver is found
    poll: float = 5.0
    everything: float = 60.0
    patience: float = 10.0  # for a driver that stops answering, before its GPUs are treated as lost


@dataclass(frozen=True, slots=True)
class _Seen:
    """An inventory, the marks of the same moment, and the partitions that could not be activated. `pulled_out` are the
    addresses of GPUs of virtual machines that are not on the PCI bus any more.
    """

    inventory: Inventory
    marked: Marked = _NO_MARKS
    pulled_out: frozenset[str] = frozenset()
    troubles: tuple[FabricTrouble, ...] = ()


_Basis = tuple[_Seen, NodePolicy, SliceFeatures]
"""The values from which a description is made."""


class UnreadError(NvmlError):
    """The hardware was not read yet, as in the first moments of a process. This is no failure."""

    def __init__(self) -> None:
        super().__init__(Return.UNINITIALIZED, "nvmlInitWithFlags", "the hardware was not read yet")


class HardwareView:
    """Looks at the hardware between `start` and `stop`, and tells the health monitor which GPUs to watch. Calls
    `on_change` when the results of `describe`, `published` or `problem` may have changed.

    Only the view's own thread waits for the driver. All other calls return at once, or after a given time.
    """

    def __init__(  # noqa: PLR0913  # optional parts, all by keyword
        self,
        session: Session,
        *,
        marks: NodeMarks,
        troubles: FabricTroubles | None = None,
        policy: Callable[[], NodePolicy],
        health: HealthMonitor,
        on_change: Callable[[], None] = lambda: None,
        looks: Looks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._marks = marks
        self._troubles = troubles
        self._policy = policy
        self._health = health
        self.on_change = on_change
        self._looks = looks or Looks()
        self._clock = clock
        self._lock = threading.Lock()
        self._lost = LostGpus()
        self._seen: _Seen | None = None
        self._described: tuple[_Basis, Description] | None = None  # kept, because describing takes long
        self._problem: NvmlError = UnreadError()
        self._failing = True
        self._worker = Worker("read hardware", self._round)
        session.threads.listen(lambda _key: self.look_soon())
        # Only used by the view's thread:
        self._pulse: Pulse | None = None
        self._wanted: NodePolicy | None = None
        self._read_at = 0.0
        self._answered_at = time.monotonic()
        self._reported: frozenset[str] = frozenset()

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """Stop the thread. A look that is under way ends by itself."""
        self._worker.stop()

    @property
    def problem(self) -> str | None:
        """Why the state of the hardware is unknown, or None."""
        return str(self._problem) if self._failing else None

    def unready(self) -> str | None:
        """Why the state of the hardware or of a part of it is unknown: a call that hangs, or a failure. Or None."""
        return self._session.threads.problem() or self.problem

    def hanging(self) -> int:
        """The number of calls to the driver that have exceeded their time limit."""
        return len(self._session.threads.hangs())

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Take over the GPUs and the findings in the slices of an earlier process."""
        slices = list(slices)
        with self._lock:
            self._lost.adopt(slices)
        self._health.restore(slices)

    # What the node has

    def describe(self, features: SliceFeatures) -> Description:
        """The node's devices with their taints, for an API server with these features. Raises NvmlError until the
        driver has answered for the first time.
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
        """The node's devices for an API server with every feature. Empty before the first successful look."""
        found = self._found(SliceFeatures())
        return ((), ()) if found is None else (found[0].gpus, found[1])

    @property
    def hardware(self) -> tuple[Inventory, Set[object]] | None:
        """The inventory, and the places of what was created for claims; None while the hardware cannot be read."""
        seen = self._seen
        return None if self._failing or seen is None else (seen.inventory, seen.marked.owned)

    def last_inventory(self) -> Inventory:
        """The latest inventory, also while the hardware cannot be read. Raises NvmlError until the driver has answered
        for the first time.
        """
        seen = self._seen
        if seen is None:
            raise self._problem
        return seen.inventory

    @property
    def described(self) -> Sequence[GpuDevices]:
        """The devices of the latest description. Reads nothing."""
        return () if self._described is None else self._described[1].gpus

    def _found(self, features: SliceFeatures) -> tuple[Description, tuple[Finding, ...]] | None:
        """The devices, including those of GPUs that have vanished, and all findings.

        Findings are newer than the inventory. So a GPU that was given to a virtual machine since the last look is away,
        too.
        """
        now = self._marks.read()
        with self._lock:
            seen = self._seen
            if seen is None:
                return None
            policy = self._policy()
            basis = (seen, policy, features)
            if self._described is None or self._described[0] != basis:
                made = describe(seen.inventory, policy, seen.marked.owned, features, self._session.threads.unexpected)
                self._described = basis, made
            description, away = self._described[1], _away(seen, now)
            every = (*self._health.findings(), *activation_findings(seen.troubles, policy.health))
            findings = tuple(finding for finding in every if finding.gpu_uuid not in away)
            withdraw_after = policy.health.withdraw_after
            lost, missed = self._lost.update(
                description.gpus, seen.inventory, findings, self._clock(), withdraw_after, away
            )
            kept = {away[gpu.key].address for gpu in lost if gpu.key in away}
            gpus = (*(gpu for gpu in description.gpus if gpu.key not in kept), *lost)
            return replace(description, gpus=gpus), (*findings, *missed)

    # Looking

    def look_soon(self) -> None:
        """Look as soon as possible, because something has changed."""
        self._worker.wake()

    def look_now(self, seconds: float = _LOOK_NOW_SECONDS) -> bool:
        """Look, and wait for the result. Whether a look that began after this call has ended within the time."""
        return self._worker.complete_round(seconds)

    def _round(self) -> float:
        self.look()
        return self._looks.first if self._seen is None else self._looks.poll

    def look(self) -> None:
        """Look once, and call `on_change` if something is different."""
        failed_before = self._failing
        try:
            changed = self._read()
        except LettingGoError:
            return  # NVML is used again in a moment, and the state is as before until then
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
        """Read the hardware. Whether the result differs from the previous one."""
        now = time.monotonic()
        taken, marked = self._marks.around(self._session.pulse)
        pulse = _without(taken, marked.owned)
        self._answered_at = now
        since = self._clock() - self._policy().health.quiet_after
        troubles = () if self._troubles is None else self._troubles.recent(since)
        known = self._seen is not None and (self._seen.marked.away, self._seen.troubles) == (marked.away, troubles)
        if known and pulse == self._pulse and now - self._read_at < self._looks.everything:
            self._failing = False
            return False
        inventory, marked = self._marks.around(self._session.inventory)
        on_bus = {gpu.address for gpu in inventory.pci_gpus}
        pulled_out = frozenset(mark.address for mark in marked.away) - on_bus
        seen = _Seen(inventory, marked, pulled_out, troubles)
        self._report(inventory)
        changed = seen != self._seen
        if changed:
            self._seen = seen
        self._pulse, self._read_at, self._failing = pulse, now, False
        return changed

    def _failed(self, error: NvmlError) -> bool:
        """Handle a driver that does not answer: keep the last state for a while, then treat its GPUs as lost."""
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
        self._seen = _Seen(gone) if self._seen is None else replace(self._seen, inventory=gone)
        log.error("the NVIDIA driver does not answer: its GPUs are treated as lost")
        return True

    def _report(self, inventory: Inventory) -> None:
        left_out = [failure for failure in inventory.failures if not failure.hung]  # calls that hang are already logged
        switches = inventory.switches.problem
        problems = [f"the NVSwitch partitions may be out of date: {switches}"] if switches else []
        problems += [f"GPU {failure.index} is left out: {failure.reason}" for failure in left_out]
        problems += [f"GPU {gpu.index} ({gpu.uuid}): {problem}" for gpu in inventory.gpus for problem in gpu.problems]
        for problem in problems:
            if problem not in self._reported:
                log.warning("%s", problem)
        self._reported = frozenset(problems)


def _away(seen: _Seen, now: Marked) -> dict[str, VfioMark]:
    """The GPUs of virtual machines by UUID, of the last look and of now. One that was pulled out is lost."""
    marks = seen.marked.joined(now).away
    return {mark.gpu_uuid: mark for mark in marks if mark.address not in seen.pulled_out}


def _without(pulse: Pulse, owned: Set[Owned]) -> Pulse:
    """The pulse without MIG instances and vGPUs of claims, because they do not change the published devices."""
    return replace(pulse, gpus=tuple(_without_owned(gpu, owned) for gpu in pulse.gpus))


def _without_owned(gpu: GpuPulse, owned: Set[Owned]) -> GpuPulse:
    if gpu.vgpus:
        gpu = replace(gpu, vgpus=tuple(place for place in gpu.vgpus if place not in owned))
    if gpu.uuid is None or not gpu.instances:
        return gpu
    foreign = tuple(
        instance for instance in gpu.instances if MigDevice(gpu.uuid, instance[1], instance[2]) not in owned
    )
    ids = {instance for instance, _, _ in foreign}
    return replace(gpu, instances=foreign, computes=tuple(compute for compute in gpu.computes if compute[0] in ids))
