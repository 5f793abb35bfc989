# SPDX-License-Identifier: Apache-2.0
"""Defects of the scheduler's release that change an answer. Each defect is corrected alone, and the first correction
that changes the answer names the defect.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Final

from ..scheduler.allocator import ISSUES, Defects, Growing, NodeOutcome, Outcomes
from .changes import Suggestion
from .trial import ClaimTrial, Trial

_DEFECTS: Final = {
    "refused_keep_counters": "counters reserved for a rejected device are not released",
    "undone_shares_keep_counters": "counters reserved for a rejected share are not released",
    "refused_shares_stay_in_constraints": "a rejected share still counts for the constraints",
    "counters_by_pool_name": "counters of two drivers' pools of the same name are mixed up",
    "distinct_forgets": "distinctAttribute compares only two devices of a request that asks for more",
    "shares_without_capacity_unnoticed": "shares in use that consumed nothing are not counted",
    "decimal_requests_grow": "a requested capacity that Go keeps as a decimal, such as 1Pi, grows by the shares that "
    "were picked of the same device before",
    "common_values_stay_narrow": "a rejected device narrows the common values of matchAttribute",
    "capacity_of_another_device": "the capacity that is left is looked up for another device of the same slice",
    "counter_slices_everywhere": "an unfinished pool with counters on one node blocks all nodes",
}
"""The description of each defect, by the field of `Defects`."""


def defect_of_refusals(trial: Trial) -> Suggestion | None:
    """The defect without which the demand, which fits nowhere, would fit. None if no defect matters, or if a node
    refuses it for another reason than devices.
    """
    claims = trial.without_devices
    if not claims.claims or len(claims.cluster.nodes) < len(trial.cluster.nodes):
        return None
    return defect(claims)


def defect_of_fit(trial: Trial, node: str) -> Suggestion | None:
    """The defect that gives a demand, which fits on `node`, wrong devices, or that hides nodes from it."""
    if trial.binding_errors:
        return defect_of_binding(trial)
    decided = trial.decided_by_devices(node)
    return None if decided is None else differing(*decided, node)


def defect_of_binding(trial: Trial) -> Suggestion:
    """The defect that keeps pods from nodes whose device plugins have everything that the pods ask for."""
    first, *others = trial.binding_errors
    more = f" and {len(others)} more" if others else ""
    text = "a claim for extended resources that device plugins serve prevents the binding of the pod to"
    return Suggestion(f"known defect of kube-scheduler {trial.features.release}: {text} {first}{more}", first)


def defect(trial: ClaimTrial) -> Suggestion | None:
    """The defect of the release without which the claims would fit. They fit nowhere now. None if no defect matters."""
    node = _lawful(trial).node if trial.features.defects != Defects() else None
    return None if node is None else Suggestion(_blamed(trial, lambda corrected: corrected.node is not None), node)


def differing(trial: ClaimTrial, outcomes: Outcomes, node: str) -> Suggestion | None:
    """The defect that gives claims, which fit on `node`, wrong devices or amounts, or that hides a node from them.

    `outcomes` has the answers of all nodes, with every defect of the release.
    """
    cluster, claims, features = trial.cluster, trial.claims, trial.features
    distinct = any(constraint.distinct_attribute for claim in claims for constraint in claim.spec.constraints)
    growing = any(
        Growing.concerns(required.capacity_requests) for claim in claims for _, required in claim.spec.requirements
    )
    counted = any(slice_.shared_counters for slice_ in cluster.slices)
    if features.defects == Defects() or not (distinct or growing or counted):
        return None
    lawful = _lawful(trial).outcomes
    unlawful = _given(outcomes[node])
    if lawful[node].kind != "allocated" or ((distinct or growing) and _given(lawful[node]) != unlawful):
        return Suggestion(_blamed(trial, lambda corrected: _given(corrected.only_on(node)) != unlawful), node)
    kept = _allocated(lawful) - _allocated(outcomes)
    if not kept:
        return None
    first = next(node.name for node in cluster.nodes if node.name in kept)
    blamed = _blamed(trial, lambda corrected: corrected.only_on(first).kind == "allocated")
    return Suggestion(
        f"{blamed}; it does not use {first if len(kept) == 1 else f'{first} and {len(kept) - 1} more'}", first
    )


def _lawful(trial: ClaimTrial) -> ClaimTrial:
    """The trial without any defect of the release."""
    return replace(trial, features=replace(trial.features, as_specified=True))


def _blamed(trial: ClaimTrial, decides: Callable[[ClaimTrial], bool]) -> str:
    """The description of the first defect for which `decides` says that the answer differs without it."""
    known = f"known defect of kube-scheduler {trial.features.release}"
    for field in fields(Defects):
        if decides(replace(trial, features=replace(trial.features, without_defects=frozenset({field.name})))):
            reported = f" ({ISSUES[field.name]})" if field.name in ISSUES else ""
            return f"{known}{reported}: {_DEFECTS.get(field.name, field.name)}"
    return f"several known defects of kube-scheduler {trial.features.release} together"


def _allocated(outcomes: Outcomes) -> set[str]:
    return {name for group in outcomes.groups if group.outcome.kind == "allocated" for name in group.nodes}


def _given(outcome: NodeOutcome) -> list[tuple[str, str, str, str]]:
    """The allocated devices, and the capacity that is consumed of each."""
    return [
        (result.driver, result.pool, result.device, " ".join(map(str, result.consumed_capacity.values())))
        for allocation in outcome.allocations
        for result in allocation.results
    ]
