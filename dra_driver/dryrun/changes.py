# SPDX-License-Identifier: Apache-2.0
"""What would make claims fit: changes that were tried, and with which the allocator does find devices.

Each change is applied alone; only those that help are given, the smallest intervention first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..allocation import Cluster, Features, allocate_all
from ..resource import (
    DeviceRequirements,
    DeviceTaint,
    DeviceToleration,
    ResourceClaim,
    TaintEffect,
    limits,
)
from .conjuncts import parts
from .explain import constraint_text, taint_text

MOST_HOLDERS = 24
"""Claims in use that are taken away one by one to see whether that is enough."""
ENOUGH = 3
"""Claims to wait for that are named when any one of them is enough."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that somebody could do, and a node where the claims fit after it."""

    text: str
    node: str


@dataclass(frozen=True, slots=True)
class _Attempt:
    text: str
    claims: Sequence[ResourceClaim]
    cluster: Cluster
    features: Features


def helpful_changes(
    cluster: Cluster, claims: Sequence[ResourceClaim], features: Features, holders: Sequence[ResourceClaim]
) -> list[Change]:
    """Changes after which `claims` fit, which they do not now.

    `holders` are the claims with devices that one may wait for: not those that only the dry run has allocated.
    """
    found = []
    for attempt in _attempts(cluster, claims, features, holders):
        node = fits(attempt.cluster, attempt.claims, attempt.features)
        if node is not None:
            found.append(Change(attempt.text, node))
    return found


def fits(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> str | None:
    """A node where the claims fit."""
    outcomes = allocate_all(cluster, claims, features)
    return next((group.nodes[0] for group in outcomes.groups if group.outcome.kind == "allocated"), None)


def _attempts(
    cluster: Cluster, claims: Sequence[ResourceClaim], features: Features, holders: Sequence[ResourceClaim]
) -> Iterator[_Attempt]:
    for text, changed in _gentler(claims):
        yield _Attempt(text, changed, cluster, features)
    yield from _fewer(cluster, claims, features)
    for taint in _taints(cluster):
        changed = [_with_requirements(claim, lambda _, one, t=taint: _tolerating(one, t)) for claim in claims]  # type: ignore[misc]
        yield _Attempt(f"tolerate taint {taint_text(taint)}", changed, cluster, features)
    yield from _without_holders(cluster, claims, features, holders)


def _gentler(claims: Sequence[ResourceClaim]) -> Iterator[tuple[str, list[ResourceClaim]]]:
    """The claims with one demand less."""
    for index, claim in enumerate(claims):
        instead = partial(_instead, claims, index)
        for number, constraint in enumerate(claim.spec.constraints):
            if not (constraint.match_attribute or constraint.distinct_attribute):
                continue
            kept = claim.spec.constraints[:number] + claim.spec.constraints[number + 1 :]
            text = f"drop the constraint {constraint_text(claim, number)} of claim {claim.metadata}"
            yield text, instead(replace(claim, spec=replace(claim.spec, constraints=kept)))
        for name, required in claim.spec.requirements:
            for number, expression in enumerate(required.selectors):
                for text, kept_parts in _shortened(expression):
                    selectors = list(required.selectors)
                    selectors[number : number + 1] = [" && ".join(kept_parts)] if kept_parts else []
                    words = f"do without {text} in request {name}"
                    yield words, instead(_changed(claim, name, selectors=tuple(selectors)))


def _instead(claims: Sequence[ResourceClaim], index: int, changed: ResourceClaim) -> list[ResourceClaim]:
    return [*claims[:index], changed, *claims[index + 1 :]]


def _fewer(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> Iterator[_Attempt]:
    """For each request of several devices the largest smaller number that can be had."""
    for index, claim in enumerate(claims):
        for name, required in claim.spec.requirements:
            enough, too_many = 0, min(required.count, limits.RESULTS_PER_CLAIM + 1)
            while too_many - enough > 1:
                middle = (enough + too_many) // 2
                if fits(cluster, _instead(claims, index, _changed(claim, name, count=middle)), features) is None:
                    too_many = middle
                else:
                    enough = middle
            if enough:
                text = f"ask for {enough} instead of {required.count} devices in request {name}"
                changed = _instead(claims, index, _changed(claim, name, count=enough))
                yield _Attempt(text, changed, cluster, features)


def _shortened(expression: str) -> Iterator[tuple[str, list[str]]]:
    every = parts(expression)
    for index, text in enumerate(every):
        yield text, [f"({part})" if len(every) > 2 else part for part in every[:index] + every[index + 1 :]]


def _changed(claim: ResourceClaim, name: str, **changes: object) -> ResourceClaim:
    def change(slot: str, required: DeviceRequirements) -> DeviceRequirements:
        return replace(required, **changes) if slot == name else required  # type: ignore[arg-type]

    return _with_requirements(claim, change)


def _with_requirements(
    claim: ResourceClaim, change: Callable[[str, DeviceRequirements], DeviceRequirements]
) -> ResourceClaim:
    return replace(claim, spec=claim.spec.with_requirements(change))


def _taints(cluster: Cluster) -> list[DeviceTaint]:
    """The distinct taints that keep devices from somebody."""
    blocking = {TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE}
    every = (taint for one in cluster.slices for device in one.devices for taint in device.taints)
    return list({taint_text(taint): taint for taint in every if taint.effect in blocking}.values())


def _tolerating(required: DeviceRequirements, taint: DeviceTaint) -> DeviceRequirements:
    toleration = DeviceToleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
    return replace(required, tolerations=(*required.tolerations, toleration))


def _without_holders(
    cluster: Cluster, claims: Sequence[ResourceClaim], features: Features, holders: Sequence[ResourceClaim]
) -> Iterator[_Attempt]:
    """The cluster after claims in use are gone: one alone, or else as few as do of those on one node."""
    if not holders or fits(cluster.after(released=holders), claims, features) is None:
        return
    enough = 0
    for holder in holders[:MOST_HOLDERS]:
        smaller = cluster.after(released=[holder])
        if fits(smaller, claims, features) is not None:
            enough += 1
            yield _Attempt(f"wait for claim {holder.metadata}", claims, smaller, features)
            if enough == ENOUGH:
                return
    if not enough:
        gone = _fewest(cluster, holders, claims, features)
        names = ", ".join(str(one.metadata) for one in gone)
        yield _Attempt(f"wait for claims {names}", claims, cluster.after(released=gone), features)


def _fewest(
    cluster: Cluster, holders: Sequence[ResourceClaim], claims: Sequence[ResourceClaim], features: Features
) -> list[ResourceClaim]:
    """Claims that all have to go: giving back any one of them makes the others not enough.

    Halves are given back first, so that thousands of claims that do not matter are gone after a few tries.
    """
    gone = list(holders)
    size = max(1, len(gone) // 2)
    while True:
        start = 0
        while start < len(gone):
            rest = gone[:start] + gone[start + size :]
            if rest and fits(cluster.after(released=rest), claims, features) is not None:
                gone = rest
            else:
                start += size
        if size == 1:
            return gone
        size = max(1, size // 2)
