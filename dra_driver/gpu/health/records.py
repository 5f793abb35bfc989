# SPDX-License-Identifier: Apache-2.0
"""The findings of one GPU: how they begin, stay and end. Values and pure functions; times are passed in.

A finding says what is wrong with a GPU, or with one MIG instance of it. A finding that NVML can be queried for ends
when NVML no longer reports it. A finding from an event ends after a quiet time or with a reset of the GPU, depending
on its meaning. NVML does not report resets, so they are recognised by changes that only a reset causes: a GPU that
did not answer answers again, a recovery action is no longer requested, or a row no longer waits to be remapped. A
finding of a MIG instance ends with the instance.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...resource import TaintEffect
from ..fabric_marks import FabricTrouble
from ..nvml import Placement
from ..policy import HealthPolicy
from .conditions import Condition, Reading, reading_conditions, without_links
from .meanings import FABRIC, MEANINGS, NVLINK, UNMONITORED, Lasts, Meaning, expected_links, meaning


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a GPU, in the form of the taint that reports it.

    `key` is the taint's key (`gpu.nvidia.com/xid`), and `value` the details (the XID). `since` is in seconds of the
    epoch. `placement` has the memory slices of the affected MIG instance, and is None for the whole GPU. `message`
    tells people what is wrong and what to do.
    """

    gpu_uuid: str
    key: str
    value: str
    effect: TaintEffect
    since: float
    message: str
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding with its meaning, and when it was last reported (seconds of the epoch)."""

    finding: Finding
    meaning: Meaning
    last_seen: float


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """All findings of one GPU. `links` is the largest number of NVLinks that were up. `looked_at` is the time when the
    GPU was last read.
    """

    uuid: str
    entries: tuple[Entry, ...] = ()
    links: int = 0
    looked_at: float | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, sorted by key and value."""
        return tuple(sorted((entry.finding for entry in self.entries), key=_order))

    @property
    def confined(self) -> bool:
        """Whether a finding concerns only a MIG instance."""
        return any(entry.finding.placement for entry in self.entries)


def noted(
    record: GpuRecord, condition: Condition, now: float, policy: HealthPolicy, placement: Placement | None = None
) -> GpuRecord:
    """The record after `condition` was reported for the memory slices of `placement`, or for the whole GPU if that is
    None. The time of a known finding stays the same.
    """
    known = {_identity(entry.finding): entry for entry in record.entries}
    fresh = Finding(record.uuid, condition.key, condition.value, TaintEffect.NONE, now, "", placement)
    before = known.get(_identity(fresh))
    since = now if before is None else before.finding.since
    known[_identity(fresh)] = _entry(replace(fresh, since=since), now, policy)
    return replace(record, entries=tuple(known.values()))


def looked(
    record: GpuRecord,
    reading: Reading,
    now: float,
    policy: HealthPolicy,
    *,
    watched: bool = True,
    switches: frozenset[Condition] | None = None,
) -> GpuRecord:
    """The record after the GPU was read. `watched` tells whether its events are received. `switches` are the problems
    that Fabric Manager reports, see `switch_conditions`.
    """
    links = max(record.links, reading.links_up or 0)
    conditions = reading_conditions(reading if switches is None else without_links(reading), links)
    found, known = set(conditions.found), {*conditions.known, UNMONITORED}
    if switches is not None and not (reading.lost or reading.hung):
        found |= switches
        known |= {FABRIC, NVLINK}
    if not (watched or reading.lost or reading.hung):
        found.add(Condition(UNMONITORED, ""))

    over = [
        entry
        for entry in record.entries
        if entry.meaning.lasts is Lasts.STATE and entry.finding.key in known and _condition(entry) not in found
    ]
    still = {condition.key for condition in found}
    was_reset = any(entry.meaning.proves_reset and entry.finding.key not in still for entry in over)
    after = _without(record, lambda entry: entry in over)
    if was_reset:
        after = reset(after, now if record.looked_at is None else record.looked_at)
    if reading.instances is not None:
        there = {None, *reading.instances}
        after = _without(after, lambda entry: entry.finding.placement not in there)
    for condition in sorted(found, key=lambda one: (one.key, one.value)):
        after = noted(after, condition, now, policy)
    return replace(after, links=links, looked_at=now)


def reset(record: GpuRecord, until: float) -> GpuRecord:
    """The record after a reset of the GPU or a reload of the driver, which ends findings from events up to `until`."""
    return _without(record, lambda entry: entry.meaning.lasts is not Lasts.STATE and entry.last_seen <= until)


def aged(record: GpuRecord, now: float, policy: HealthPolicy) -> GpuRecord:
    """The record without findings that have not been reported for long enough."""
    patience = {Lasts.QUIET: policy.quiet_after, Lasts.RESET: policy.clear_after}

    def old(entry: Entry) -> bool:
        seconds = patience.get(entry.meaning.lasts)
        return seconds is not None and now - entry.last_seen >= seconds

    return _without(record, old)


def judged(record: GpuRecord, policy: HealthPolicy) -> GpuRecord:
    """The record under another policy. The findings stay, but their effects may change."""
    return replace(record, entries=tuple(_entry(one.finding, one.last_seen, policy) for one in record.entries))


def activation_findings(troubles: Iterable[FabricTrouble], policy: HealthPolicy) -> tuple[Finding, ...]:
    """The findings of the GPUs whose NVSwitch partition could not be activated."""
    value = "activation-failed"
    means = MEANINGS[FABRIC, value]
    since = {gpu: one.since for one in troubles for gpu in one.gpus}
    return tuple(Finding(gpu, FABRIC, value, means.effect(policy), at, means.text) for gpu, at in sorted(since.items()))


def joined(record: GpuRecord, findings: Iterable[Finding], policy: HealthPolicy) -> GpuRecord:
    """The record together with findings of an earlier process. A finding in both keeps the earlier process's time."""
    entries = {_identity(entry.finding): entry for entry in record.entries}
    links = record.links
    for finding in findings:
        earlier = _entry(finding, finding.since, policy)
        known = entries.get(_identity(finding))
        if known is not None:
            earlier = replace(earlier, last_seen=known.last_seen)
        entries[_identity(finding)] = earlier
        if finding.key == NVLINK:
            links = max(links, expected_links(finding.value))
    return replace(record, entries=tuple(entries.values()), links=links)


def _entry(finding: Finding, last_seen: float, policy: HealthPolicy) -> Entry:
    means = meaning(finding.key, finding.value, policy)
    if means is None:
        raise ValueError(f"there is no meaning for taint {finding.key}={finding.value}")
    return Entry(replace(finding, effect=means.effect(policy), message=means.text), means, last_seen)


def _without(record: GpuRecord, gone: Callable[[Entry], bool]) -> GpuRecord:
    """Without the entries that are gone. Returns the same object if there are none, because this runs every few
    seconds.
    """
    entries = tuple(entry for entry in record.entries if not gone(entry))
    return record if len(entries) == len(record.entries) else replace(record, entries=entries)


def _condition(entry: Entry) -> Condition:
    return Condition(entry.finding.key, entry.finding.value)


def _identity(finding: Finding) -> tuple[str, str, Placement | None]:
    return finding.key, finding.value, finding.placement


def _order(finding: Finding) -> tuple[str, str, int, int]:
    where = finding.placement
    return (
        (finding.key, finding.value, -1, 0) if where is None else (finding.key, finding.value, where.start, where.size)
    )
