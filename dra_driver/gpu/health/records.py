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
from ..nvml import Placement
from ..policy import HealthPolicy
from .meanings import NVLINK, UNMONITORED, Lasts, Meaning, expected_links, meaning
from .queries import Reading
from .rules import Condition, reading_conditions


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, as the taint that says so.

    `key` is the taint's (`gpu.nvidia.com/xid`), `value` what was seen (the XID), `since` in seconds of the epoch.
    `placement` is the memory slices of the MIG instance concerned, None when it is the whole GPU. `message` is for
    people: what it is and what to do.
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
    """A finding, what it means, and when it was seen last (seconds of the epoch)."""

    finding: Finding
    meaning: Meaning
    last_seen: float


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """Everything held against one GPU. `links` is how many NVLinks were up at best, `looked_at` when it was last
    looked at.
    """

    uuid: str
    entries: tuple[Entry, ...] = ()
    links: int = 0
    looked_at: float | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """In the order of keys and values, wherever they came from."""
        return tuple(sorted((entry.finding for entry in self.entries), key=_order))

    @property
    def confined(self) -> bool:
        """Whether anything is held against a MIG instance only."""
        return any(entry.finding.placement for entry in self.entries)


def noted(
    record: GpuRecord, condition: Condition, now: float, policy: HealthPolicy, placement: Placement | None = None
) -> GpuRecord:
    """The record after `condition` was seen, on the memory slices of `placement` or the whole GPU. What is known
    already keeps the time it began.
    """
    known = {_identity(entry.finding): entry for entry in record.entries}
    fresh = Finding(record.uuid, condition.key, condition.value, TaintEffect.NONE, now, "", placement)
    before = known.get(_identity(fresh))
    since = now if before is None else before.finding.since
    known[_identity(fresh)] = _entry(replace(fresh, since=since), now, policy)
    return replace(record, entries=tuple(known.values()))


def looked(record: GpuRecord, reading: Reading, now: float, policy: HealthPolicy, *, watched: bool = True) -> GpuRecord:
    """The record after a look at the GPU. `watched`: its events come through."""
    links = max(record.links, reading.links_up or 0)
    conditions = reading_conditions(reading, links)
    found, known = set(conditions.found), {*conditions.known, UNMONITORED}
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
    """The record after a reset of the GPU or a reload of the driver: events seen up to `until` don't count any more."""
    return _without(record, lambda entry: entry.meaning.lasts is not Lasts.STATE and entry.last_seen <= until)


def aged(record: GpuRecord, now: float, policy: HealthPolicy) -> GpuRecord:
    """The record without what has been quiet for long enough."""
    patience = {Lasts.QUIET: policy.quiet_after, Lasts.RESET: policy.clear_after}

    def old(entry: Entry) -> bool:
        seconds = patience.get(entry.meaning.lasts)
        return seconds is not None and now - entry.last_seen >= seconds

    return _without(record, old)


def judged(record: GpuRecord, policy: HealthPolicy) -> GpuRecord:
    """The record under another policy: what is held stays, what it means may change."""
    return replace(record, entries=tuple(_entry(one.finding, one.last_seen, policy) for one in record.entries))


def joined(record: GpuRecord, findings: Iterable[Finding], policy: HealthPolicy) -> GpuRecord:
    """The record together with what an earlier process found; what both know began when the earlier one says."""
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
    """The same record when nothing is gone: time passes for every GPU once a second."""
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
