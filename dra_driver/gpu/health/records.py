# SPDX-License-Identifier: Apache-2.0
"""The findings of GPUs: how they begin, stay and end. Times are passed in.

A finding says what is wrong with a GPU, or with one MIG instance of it. A finding that NVML can be queried for ends
when NVML no longer reports it. A finding from an event ends after a quiet time or with a reset of the GPU, depending
on its meaning. NVML does not report resets, so they are recognised by changes that only a reset causes: a GPU that
did not answer answers again, a recovery action is no longer requested, or a row no longer waits to be remapped. A
finding of a MIG instance ends with the instance.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from ...kube.resource import ResourceSlice, Version
from ...kube.resource.device import from_dotted
from ..inventory import Inventory
from ..nvml import Placement
from ..policy import HealthPolicy, NodePolicy
from .conditions import Condition, Reading, reading_values, switch_values, without_links
from .meanings import FABRIC, NVLINK, UNMONITORED, Lasts, Meaning, expected_links, meaning
from .taints import Finding, published_findings


@dataclass(slots=True)
class HealthEntry:
    """A reported problem of a GPU: of the memory slices of `placement`, or of the whole GPU if that is None. Times are
    in seconds of the epoch.
    """

    condition: Condition
    placement: Placement | None
    since: float
    last_seen: float

    def meaning(self, policy: HealthPolicy) -> Meaning:
        """The meaning under a policy."""
        means = meaning(self.condition.key, self.condition.value, policy)
        assert means is not None  # only taints of somebody else have none
        return means


@dataclass(slots=True)
class GpuRecord:
    """All findings of one GPU. `links` is the largest number of NVLinks that were up. `looked_at` is the time when the
    GPU was last read. `missing_since` is the time since when the inventory lacks the GPU. `switches` are the problems
    that Fabric Manager reports, see `switch_values`.
    """

    uuid: str
    pci_address: str | None = None
    switches: Set[str] | None = None
    missing_since: float | None = None
    entries: list[HealthEntry] = field(default_factory=list)
    links: int = 0
    looked_at: float | None = None

    def findings(self, policy: HealthPolicy) -> tuple[Finding, ...]:
        """The findings under a policy, sorted by key and value."""
        return tuple(self._finding(entry, policy) for entry in sorted(self.entries, key=_order))

    @property
    def confined(self) -> bool:
        """Whether a finding concerns only a MIG instance."""
        return any(entry.placement for entry in self.entries)

    def noted(self, condition: Condition, now: float, placement: Placement | None = None) -> None:
        """Note that `condition` was reported. The time since when a known condition is reported stays the same."""
        known = self._entry(condition, placement)
        if known is None:
            self.entries.append(HealthEntry(condition, placement, now, now))
        else:
            known.last_seen = now

    def looked(self, reading: Reading, now: float, policy: HealthPolicy, *, watched: bool = True) -> None:
        """Note what was read. `watched` tells whether the events of the GPU are received."""
        self.links = max(self.links, reading.links_up or 0)
        found = reading_values(reading if self.switches is None else without_links(reading), self.links)
        answers = not (reading.lost or reading.hung)
        if self.switches is not None and answers:
            found.setdefault(NVLINK, set())
            found[FABRIC] = found.get(FABRIC, set()) | self.switches
        found[UNMONITORED] = set() if watched or not answers else {""}

        def is_over(entry: HealthEntry) -> bool:
            key, value = entry.condition.key, entry.condition.value
            return entry.meaning(policy).lasts is Lasts.STATE and key in found and value not in found[key]

        over = self._end(is_over)
        if any(entry.meaning(policy).proves_reset and not found[entry.condition.key] for entry in over):
            self.reset(now if self.looked_at is None else self.looked_at, policy)
        if reading.instances is not None:
            there = {None, *reading.instances}
            self._end(lambda entry: entry.placement not in there)
        for key, values in found.items():
            for value in values:
                self.noted(Condition(key, value), now)
        self.looked_at = now

    def reset(self, until: float, policy: HealthPolicy) -> None:
        """End the findings from events up to `until`, because the GPU was reset or its driver reloaded."""
        self._end(lambda entry: entry.meaning(policy).lasts is not Lasts.STATE and entry.last_seen <= until)

    def aged(self, now: float, policy: HealthPolicy) -> None:
        """End the findings that have not been reported for long enough."""
        patience = {Lasts.QUIET: policy.quiet_after, Lasts.RESET: policy.clear_after}

        def is_old(entry: HealthEntry) -> bool:
            seconds = patience.get(entry.meaning(policy).lasts)
            return seconds is not None and now - entry.last_seen >= seconds

        self._end(is_old)

    def joined(self, findings: Iterable[Finding]) -> None:
        """Add findings of an earlier process. A finding in both keeps the earlier process's time."""
        for finding in findings:
            condition = Condition(finding.key, finding.value)
            known = self._entry(condition, finding.placement)
            if known is None:
                self.entries.append(HealthEntry(condition, finding.placement, finding.since, finding.since))
            else:
                known.since = finding.since
            if finding.key == NVLINK:
                self.links = max(self.links, expected_links(finding.value))

    def _entry(self, condition: Condition, placement: Placement | None) -> HealthEntry | None:
        found = (entry for entry in self.entries if (entry.condition, entry.placement) == (condition, placement))
        return next(found, None)

    def _finding(self, entry: HealthEntry, policy: HealthPolicy) -> Finding:
        means, condition = entry.meaning(policy), entry.condition
        effect = means.effect(policy)
        return Finding(self.uuid, condition.key, condition.value, effect, entry.since, means.text, entry.placement)

    def _end(self, is_over: Callable[[HealthEntry], bool]) -> list[HealthEntry]:
        """Remove entries, and return the removed entries."""
        over = [entry for entry in self.entries if is_over(entry)]
        self.entries = [entry for entry in self.entries if entry not in over]
        return over


def _order(entry: HealthEntry) -> tuple[str, str, int, int]:
    start, size = (-1, 0) if entry.placement is None else (entry.placement.start, entry.placement.size)
    return entry.condition.key, entry.condition.value, start, size


class HealthRecords:
    """The findings of all GPUs of a node. Not thread-safe. Findings from before `booted_at` (seconds of the epoch) are
    not restored.
    """

    def __init__(self, booted_at: float = 0.0) -> None:
        self._booted_at = booted_at
        self._policy = HealthPolicy()
        self._gpus: dict[str, GpuRecord] = {}
        self._ignored: frozenset[str] = frozenset()
        self._driver: Version | None = None

    def gpus(self) -> dict[str, bool]:
        """The UUIDs of the GPUs to watch. The value tells whether their MIG instances must be read."""
        return {uuid: gpu.confined for uuid, gpu in self._gpus.items()}

    def findings(self) -> tuple[Finding, ...]:
        """All findings, by GPU."""
        return tuple(finding for gpu in self._gpus.values() for finding in gpu.findings(self._policy))

    # What there is

    def watch(self, inventory: Inventory, policy: NodePolicy, now: float) -> None:
        """Set the GPUs of the node. A GPU that has vanished stays, unless another kernel driver is now bound to it."""
        self._policy = policy.health
        there = {gpu.uuid for gpu in inventory.gpus}
        elsewhere = {pci.address for pci in inventory.pci_gpus if pci.driver != "nvidia"}
        gpus = {}
        for gpu in inventory.gpus:
            if policy.for_gpu(gpu).health:
                record = gpus[gpu.uuid] = self._gpus.get(gpu.uuid) or GpuRecord(gpu.uuid)
                record.pci_address, record.missing_since = gpu.pci_address, None
                record.switches = switch_values(gpu, inventory.switches)
        for uuid, record in self._gpus.items():
            if uuid not in there and record.pci_address not in elsewhere:
                gpus[uuid] = record
                if record.missing_since is None:
                    record.missing_since = now
        self._gpus, self._ignored = gpus, frozenset(there - gpus.keys())
        self.age(now)

    def restore(self, slices: Sequence[ResourceSlice], now: float) -> None:
        """Take over the findings in the slices of an earlier process. If the driver has changed since, findings that a
        reset ends are left out.
        """
        before = _published_driver(slices)
        if self._driver is None:
            self._driver = before
        by_gpu: dict[str, list[Finding]] = {}
        for finding in published_findings(slices, self._policy, self._booted_at):
            by_gpu.setdefault(finding.gpu_uuid, []).append(finding)
        for uuid, found in by_gpu.items():
            if uuid in self._ignored:
                continue
            earlier = GpuRecord(uuid)
            earlier.joined(found)
            if before is not None and before != self._driver:
                earlier.reset(now, self._policy)
            gpu = self._gpus.setdefault(uuid, GpuRecord(uuid, missing_since=now))
            gpu.joined(earlier.findings(self._policy))

    def driver_runs(self, version: str, was_gone: bool, now: float) -> None:
        """NVML was initialized with this driver version. `was_gone` tells that the driver was unloaded before."""
        runs = from_dotted(version)
        if was_gone or (None not in (runs, self._driver) and runs != self._driver):
            for gpu in self._gpus.values():
                gpu.reset(now, self._policy)
        self._driver = runs or self._driver

    # What is found

    def noted(self, uuid: str, condition: Condition, now: float, placement: Placement | None) -> None:
        """An event of a GPU, see GpuRecord. Ignored if the GPU is not watched."""
        if uuid in self._gpus:
            self._gpus[uuid].noted(condition, now, placement)

    def looked(self, uuid: str, reading: Reading, now: float, *, watched: bool) -> None:
        """A GPU was read, see GpuRecord."""
        if uuid in self._gpus:
            self._gpus[uuid].looked(reading, now, self._policy, watched=watched)

    def unmonitored(self, now: float) -> None:
        """No GPU can be watched at the moment."""
        for gpu in self._gpus.values():
            gpu.noted(Condition(UNMONITORED, ""), now)

    def age(self, now: float) -> None:
        """End the findings and GPUs whose time is over."""
        for uuid, gpu in list(self._gpus.items()):
            gpu.aged(now, self._policy)
            if gpu.missing_since is not None and now - gpu.missing_since >= self._policy.withdraw_after:
                del self._gpus[uuid]


def _published_driver(slices: Sequence[ResourceSlice]) -> Version | None:
    versions = (device.attributes.get("driverVersion") for slice_ in slices for device in slice_.devices)
    return next((version for version in versions if isinstance(version, Version)), None)
