# SPDX-License-Identifier: Apache-2.0
"""What would make claims fit: changes that were tried, and with which the allocator finds devices.

Each change is applied alone. Only changes that help are given, the smallest intervention first. A defect of the
scheduler is found in the same way: each one is mended alone, and the one that changes the answer is named.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

from ..allocation import ISSUES, Cluster, Features, Growing, NodeOutcome, Outcomes, Quirks, allocate, allocate_all
from ..computedomains import DRIVER as DOMAIN_DRIVER
from ..computedomains.template import is_domain_selector
from ..resource import DeviceRequirements, DeviceTaint, DeviceToleration, ResourceClaim, TaintEffect, limits
from .explain import constraint_text, taint_text
from .selectors import parts

MOST_HOLDERS = 24
"""The number of claims in use that are released one by one to find out whether one is enough."""
_OF_FABRIC: Final = f"{DOMAIN_DRIVER}/"
ENOUGH = 3
"""The number of claims that are suggested to wait for, if any one of them is enough."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a user can make, and a node where the claims fit after it."""

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
    """Changes after which `claims` fit, but they do not fit now.

    `holders` are the claims in the cluster that have devices. Claims that only this dry run has allocated are left out:
    nobody can wait for them.
    """
    found = []
    for attempt in _attempts(cluster, claims, features, holders):
        node = fits(attempt.cluster, attempt.claims, attempt.features)
        if node is not None:
            found.append(Change(attempt.text, node))
    return found


def fits(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> str | None:
    """A node where the claims fit; None if there is none."""
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
    """The claims, each time without one constraint or one part of a selector."""
    for index, claim in enumerate(claims):
        instead = partial(_instead, claims, index)
        for number, constraint in enumerate(claim.spec.constraints):
            if not (constraint.match_attribute or constraint.distinct_attribute):
                continue
            kept = claim.spec.constraints[:number] + claim.spec.constraints[number + 1 :]
            text = f"remove the constraint {constraint_text(claim, number)} of claim {claim.metadata}"
            yield text, instead(replace(claim, spec=replace(claim.spec, constraints=kept)))
        for name, required in claim.spec.requirements:
            for number, expression in enumerate(required.selectors):
                for text, kept_parts in _shortened(expression):
                    selectors = list(required.selectors)
                    selectors[number : number + 1] = [" && ".join(kept_parts)] if kept_parts else []
                    words = f"remove the selector {text} from request {name}"
                    yield words, instead(_changed(claim, name, selectors=tuple(selectors)))


def _instead(claims: Sequence[ResourceClaim], index: int, changed: ResourceClaim) -> list[ResourceClaim]:
    return [*claims[:index], changed, *claims[index + 1 :]]


def _fewer(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> Iterator[_Attempt]:
    """For each request for several devices, the largest smaller number that fits."""
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
    if is_domain_selector(expression):
        return  # no node prepares a channel for a second domain
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
    """The distinct taints that keep claims from devices. A toleration of a missing fabric would not help."""
    blocking = {TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE}
    every = (taint for one in cluster.slices for device in one.devices for taint in device.taints)
    return list(
        {
            taint_text(taint): taint
            for taint in every
            if taint.effect in blocking and not taint.key.startswith(_OF_FABRIC)
        }.values()
    )


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
    """A smallest set of claims to release: none of them can be left out.

    Halves are left out first, so that thousands of claims that do not matter are excluded after a few tries.
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


_DEFECTS: Final = {
    "refused_keep_counters": "a device that is tried in vain keeps the counters it reserved",
    "undone_shares_keep_counters": "a share that is tried in vain keeps its device's counters",
    "refused_shares_stay_in_constraints": "a share that is tried in vain still counts for the constraints",
    "counters_by_pool_name": "counters of two drivers' pools of the same name are mixed up",
    "distinct_forgets": "distinctAttribute compares only two devices of a request that asks for more",
    "shares_without_capacity_unnoticed": "shares in use that consumed nothing are not counted",
    "decimal_requests_grow": "a requested capacity that Go keeps as a decimal, such as 1Pi, grows by the shares that "
    "were picked of the same device before",
    "common_values_stay_narrow": "a device that is tried in vain narrows what matchAttribute finds common",
    "capacity_of_another_device": "the capacity that is left is looked up for another device of the same slice",
    "counter_slices_everywhere": "an unfinished pool with counters on one node stands in the way of all nodes",
}
"""The description of each defect, by the field of `Quirks`."""


def defect(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> Change | None:
    """The defect of the release without which `claims` would fit. They fit nowhere now. None if no defect matters."""
    node = fits(cluster, claims, replace(features, ideal=True)) if not features.ideal else None
    if node is None:
        return None
    return Change(_blamed(features, lambda mended: fits(cluster, claims, mended) is not None), node)


def differing(
    cluster: Cluster, claims: Sequence[ResourceClaim], given: Outcomes, node: str, features: Features
) -> Change | None:
    """The defect that gives `claims`, which fit on `node`, wrong devices or amounts, or that hides a node from them."""
    distinct = any(constraint.distinct_attribute for claim in claims for constraint in claim.spec.constraints)
    growing = any(Growing.concerns(one.capacity_requests) for claim in claims for _, one in claim.spec.requirements)
    counted = any(one.shared_counters for one in cluster.slices)
    if features.ideal or not (distinct or growing or counted):
        return None
    lawful = allocate_all(cluster, claims, replace(features, ideal=True))
    unlawful = _given(given[node])
    if lawful[node].kind != "allocated" or ((distinct or growing) and _given(lawful[node]) != unlawful):
        return Change(
            _blamed(features, lambda mended: _given(allocate(cluster, claims, node, mended)) != unlawful), node
        )
    kept = _allocated(lawful) - _allocated(given)
    if not kept:
        return None
    first = next(one.name for one in cluster.nodes if one.name in kept)
    blamed = _blamed(features, lambda mended: allocate(cluster, claims, first, mended).kind == "allocated")
    return Change(f"{blamed}; it passes over {first if len(kept) == 1 else f'{first} and {len(kept) - 1} more'}", first)


def _blamed(features: Features, decides: Callable[[Features], bool]) -> str:
    """The description of the first defect for which `decides` says that the answer differs without it."""
    release = f"kube-scheduler {features.release} errs"
    for field in fields(Quirks):
        if decides(replace(features, mended=frozenset({field.name}))):
            reported = f" ({ISSUES[field.name]})" if field.name in ISSUES else ""
            return f"{release}{reported}: {_DEFECTS.get(field.name, field.name)}"
    return f"{release}, by several defects together"


def _allocated(outcomes: Outcomes) -> set[str]:
    return {name for group in outcomes.groups if group.outcome.kind == "allocated" for name in group.nodes}


def _given(outcome: NodeOutcome) -> list[tuple[str, str, str, str]]:
    """The allocated devices, and the capacity that is consumed of each."""
    return [
        (one.driver, one.pool, one.device, " ".join(map(str, one.consumed_capacity.values())))
        for allocation in outcome.allocations
        for one in allocation.results
    ]
