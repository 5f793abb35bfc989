# SPDX-License-Identifier: Apache-2.0
"""Whether the scheduler is at fault: where its answer is not what the rules of the API give, and by which defect.

Each defect is mended alone; the one that changes the answer is named, with the issue where it was reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Final

from ..allocation import ISSUES, Cluster, Features, Growing, NodeOutcome, Outcomes, Quirks, allocate, allocate_all
from ..resource import ResourceClaim
from .changes import Change, fits

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
"""What goes wrong, by the field of `Quirks`."""


def defect(cluster: Cluster, claims: Sequence[ResourceClaim], features: Features) -> Change | None:
    """The defect of the release because of which `claims`, which fit nowhere, do not fit. None if there is none."""
    node = fits(cluster, claims, replace(features, ideal=True)) if not features.ideal else None
    if node is None:
        return None
    return Change(_blamed(features, lambda mended: fits(cluster, claims, mended) is not None), node)


def differing(
    cluster: Cluster, claims: Sequence[ResourceClaim], given: Outcomes, node: str, features: Features
) -> Change | None:
    """The defect because of which `claims`, which fit on `node`, get unlawful devices or amounts or miss a node."""
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
    """What goes wrong: the first defect of which `decides` says that the answer is another one without it."""
    release = f"kube-scheduler {features.release} errs"
    for field in fields(Quirks):
        if decides(replace(features, mended=frozenset({field.name}))):
            reported = f" ({ISSUES[field.name]})" if field.name in ISSUES else ""
            return f"{release}{reported}: {_DEFECTS.get(field.name, field.name)}"
    return f"{release}, by several defects together"


def _allocated(outcomes: Outcomes) -> set[str]:
    return {name for group in outcomes.groups if group.outcome.kind == "allocated" for name in group.nodes}


def _given(outcome: NodeOutcome) -> list[tuple[str, str, str, str]]:
    """The devices, and what is consumed of them."""
    return [
        (one.driver, one.pool, one.device, " ".join(map(str, one.consumed_capacity.values())))
        for allocation in outcome.allocations
        for one in allocation.results
    ]
