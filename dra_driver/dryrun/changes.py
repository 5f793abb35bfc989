# SPDX-License-Identifier: Apache-2.0
"""Changes that make claims fit. Each change was tried, and the allocator finds devices with it.

Each change is applied alone. Only changes that help are given, the smallest intervention first. A defect of the
scheduler is found in the same way: each defect is corrected alone, and the defect that changes the answer is named.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Final

from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..domains.template import is_domain_selector
from ..gpu.health.meanings import Gravity
from ..kube.resource import DeviceRequirements, DeviceTaint, DeviceToleration, ResourceClaim, TaintEffect, limits
from ..scheduler.allocator import (
    ISSUES,
    Cluster,
    Defects,
    Features,
    Group,
    Growing,
    NodeOutcome,
    Outcomes,
    allocate,
    allocate_all,
)
from .explain import constraint_text, health_of, taint_text
from .selectors import parts

MOST_HOLDERS = 24
"""The number of claims in use that are released one by one to find out whether one is enough."""
_OF_FABRIC: Final = f"{DOMAIN_DRIVER}/"
ENOUGH = 3
"""The number of claims that are suggested to wait for, if any one of them is enough."""

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
"""The description of each defect, by the field of `Defects`."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that a user can make, and a node where the claims fit after it."""

    text: str
    node: str


@dataclass(frozen=True, eq=False)
class Trial:
    """Claims to allocate, and the cluster in which this is tried. All `claims` are without an allocation."""

    cluster: Cluster
    claims: Sequence[ResourceClaim]
    features: Features

    @cached_property
    def outcomes(self) -> Outcomes:
        """The answer of each node."""
        return allocate_all(self.cluster, self.claims, self.features)

    @property
    def fitting(self) -> Sequence[Group]:
        """The nodes on which the claims fit. There is none if an error ends the scheduling of the pod."""
        groups = self.outcomes.groups
        fatal = any(group.outcome.fatal for group in groups)
        return [] if fatal else [group for group in groups if group.outcome.kind == "allocated"]

    @property
    def node(self) -> str | None:
        """A node where the claims fit; None if there is none."""
        return next((group.nodes[0] for group in self.outcomes.groups if group.outcome.kind == "allocated"), None)

    def only_on(self, node: str) -> NodeOutcome:
        """The answer of one node, without that of the others."""
        return allocate(self.cluster, self.claims, node, self.features)

    def allocated(self, outcome: NodeOutcome) -> list[ResourceClaim]:
        """The claims with the devices that a node gives to them."""
        pairs = zip(self.claims, outcome.allocations, strict=True)
        return [replace(claim, allocation=allocation) for claim, allocation in pairs]

    def instead(self, index: int, claim: ResourceClaim) -> "Trial":
        """The trial with another claim in place of the one with this index."""
        return replace(self, claims=[*self.claims[:index], claim, *self.claims[index + 1 :]])

    def released(self, claims: Collection[ResourceClaim]) -> "Trial":
        """The trial after claims of the cluster are gone."""
        return replace(self, cluster=self.cluster.after(released=claims))


def helpful_changes(trial: Trial, holders: Sequence[ResourceClaim]) -> list[Suggestion]:
    """Changes after which the claims fit, but they do not fit now.

    `holders` are the claims in the cluster that have devices. Claims that only this dry run has allocated are left out:
    no pod can wait for them.
    """
    tried = (*_gentler(trial), *_fewer(trial), *_tolerant(trial), *_without_holders(trial, holders))
    return [Suggestion(text, node) for text, changed in tried if (node := changed.node) is not None]


def _gentler(trial: Trial) -> Iterator[tuple[str, Trial]]:
    """The claims, each time without one constraint or one part of a selector."""
    for index, claim in enumerate(trial.claims):
        for number, constraint in enumerate(claim.spec.constraints):
            if not (constraint.match_attribute or constraint.distinct_attribute):
                continue
            kept = claim.spec.constraints[:number] + claim.spec.constraints[number + 1 :]
            text = f"remove the constraint {constraint_text(claim, number)} of claim {claim.metadata}"
            yield text, trial.instead(index, replace(claim, spec=replace(claim.spec, constraints=kept)))
        for name, required in claim.spec.requirements:
            for number, expression in enumerate(required.selectors):
                for text, kept_parts in _shortened(expression):
                    selectors = list(required.selectors)
                    selectors[number : number + 1] = [" && ".join(kept_parts)] if kept_parts else []
                    words = f"remove the selector {text} from request {name}"
                    yield words, trial.instead(index, _changed(claim, name, selectors=tuple(selectors)))


def _fewer(trial: Trial) -> Iterator[tuple[str, Trial]]:
    """For each request for several devices, the largest smaller number that fits."""
    for index, claim in enumerate(trial.claims):
        for name, required in claim.spec.requirements:
            enough, too_many = 0, min(required.count, limits.RESULTS_PER_CLAIM + 1)
            while too_many - enough > 1:
                middle = (enough + too_many) // 2
                if trial.instead(index, _changed(claim, name, count=middle)).node is None:
                    too_many = middle
                else:
                    enough = middle
            if enough:
                text = f"ask for {enough} instead of {required.count} devices in request {name}"
                yield text, trial.instead(index, _changed(claim, name, count=enough))


def _shortened(expression: str) -> Iterator[tuple[str, list[str]]]:
    if is_domain_selector(expression):
        return  # no node prepares a channel for a second domain
    every = parts(expression)
    for index, text in enumerate(every):
        yield text, [f"({part})" if len(every) > 2 else part for part in every[:index] + every[index + 1 :]]


def _changed(claim: ResourceClaim, name: str, **changes: object) -> ResourceClaim:
    def change(slot: str, required: DeviceRequirements) -> DeviceRequirements:
        return replace(required, **changes) if slot == name else required  # type: ignore[arg-type]

    return replace(claim, spec=claim.spec.with_requirements(change))


def _tolerant(trial: Trial) -> Iterator[tuple[str, Trial]]:
    """The claims with a toleration of one of the taints that keep claims from devices.

    A toleration of a missing fabric would not help, and a GPU that cannot be trusted must not be used.
    """
    blocking = {TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE}
    every = (taint for slice_ in trial.cluster.slices for device in slice_.devices for taint in device.taints)
    relevant = (
        taint
        for taint in every
        if taint.effect in blocking and not taint.key.startswith(_OF_FABRIC) and health_of(taint) is not Gravity.FATAL
    )
    for text, taint in {taint_text(taint): taint for taint in relevant}.items():
        tolerate = partial(_tolerate, tolerating(taint))
        claims = [replace(claim, spec=claim.spec.with_requirements(tolerate)) for claim in trial.claims]
        yield f"tolerate taint {text}", replace(trial, claims=claims)


def _tolerate(toleration: DeviceToleration, _: str, required: DeviceRequirements) -> DeviceRequirements:
    return replace(required, tolerations=(*required.tolerations, toleration))


def tolerating(taint: DeviceTaint) -> DeviceToleration:
    """A toleration of only this taint."""
    return DeviceToleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _without_holders(trial: Trial, holders: Sequence[ResourceClaim]) -> Iterator[tuple[str, Trial]]:
    """The cluster after claims in use are gone: one alone, or else as few as do of those on one node."""
    if not holders or trial.released(holders).node is None:
        return
    enough = 0
    for holder in holders[:MOST_HOLDERS]:
        smaller = trial.released([holder])
        if smaller.node is not None:
            enough += 1
            yield f"wait for claim {holder.metadata}", smaller
            if enough == ENOUGH:
                return
    if not enough:
        gone = _fewest(trial, holders)
        yield f"wait for claims {', '.join(str(claim.metadata) for claim in gone)}", trial.released(gone)


def _fewest(trial: Trial, holders: Sequence[ResourceClaim]) -> list[ResourceClaim]:
    """A smallest set of claims to release: none of them can be left out.

    Halves are left out first, so that thousands of claims that do not matter are excluded after a few tries.
    """
    gone = list(holders)
    size = max(1, len(gone) // 2)
    while True:
        start = 0
        while start < len(gone):
            rest = gone[:start] + gone[start + size :]
            if rest and trial.released(rest).node is not None:
                gone = rest
            else:
                start += size
        if size == 1:
            return gone
        size = max(1, size // 2)


def defect(trial: Trial) -> Suggestion | None:
    """The defect of the release without which the claims would fit. They fit nowhere now. None if no defect matters."""
    node = _lawful(trial).node if not trial.features.as_specified else None
    return None if node is None else Suggestion(_blamed(trial, lambda corrected: corrected.node is not None), node)


def differing(trial: Trial, outcomes: Outcomes, node: str) -> Suggestion | None:
    """The defect that gives claims, which fit on `node`, wrong devices or amounts, or that hides a node from them.

    `outcomes` has the answers of all nodes, with every defect of the release.
    """
    cluster, claims, features = trial.cluster, trial.claims, trial.features
    distinct = any(constraint.distinct_attribute for claim in claims for constraint in claim.spec.constraints)
    growing = any(Growing.concerns(one.capacity_requests) for claim in claims for _, one in claim.spec.requirements)
    counted = any(slice_.shared_counters for slice_ in cluster.slices)
    if features.as_specified or not (distinct or growing or counted):
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
        f"{blamed}; it passes over {first if len(kept) == 1 else f'{first} and {len(kept) - 1} more'}", first
    )


def _lawful(trial: Trial) -> Trial:
    """The trial without any defect of the release."""
    return replace(trial, features=replace(trial.features, as_specified=True))


def _blamed(trial: Trial, decides: Callable[[Trial], bool]) -> str:
    """The description of the first defect for which `decides` says that the answer differs without it."""
    release = f"kube-scheduler {trial.features.release} errs"
    for field in fields(Defects):
        if decides(replace(trial, features=replace(trial.features, without_defects=frozenset({field.name})))):
            reported = f" ({ISSUES[field.name]})" if field.name in ISSUES else ""
            return f"{release}{reported}: {_DEFECTS.get(field.name, field.name)}"
    return f"{release}, by several defects together"


def _allocated(outcomes: Outcomes) -> set[str]:
    return {name for group in outcomes.groups if group.outcome.kind == "allocated" for name in group.nodes}


def _given(outcome: NodeOutcome) -> list[tuple[str, str, str, str]]:
    """The allocated devices, and the capacity that is consumed of each."""
    return [
        (result.driver, result.pool, result.device, " ".join(map(str, result.consumed_capacity.values())))
        for allocation in outcome.allocations
        for result in allocation.results
    ]
