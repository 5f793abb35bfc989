# SPDX-License-Identifier: Apache-2.0
"""Suggestions: changes of a pod, of nodes or of claims that make a demand fit, and their texts.

Each change is tried alone. Only changes that help are suggested, the smallest intervention first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..domains.template import is_domain_selector
from ..gpu.health.meanings import Gravity
from ..kube.resource import DeviceRequirements, DeviceTaint, DeviceToleration, ResourceClaim, TaintEffect, limits
from ..scheduler.pods import Site
from ..scheduler.pods.node_filters import untolerated
from .amounts import amount, is_bytes
from .explain import constraint_text, health_of, taint_text
from .selectors import parts
from .trial import MOST_SITES, ClaimTrial, PodTrial

MOST_HOLDERS = 24
"""The number of claims in use that are released one by one to find out whether one is enough."""
_OF_FABRIC: Final = f"{DOMAIN_DRIVER}/"
ENOUGH = 3
"""The number of claims that are suggested to wait for, if any one of them is enough."""
_MEBI: Final = 1 << 20
_CORDONED: Final = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that a user can make, and a node where the claims fit after it."""

    text: str
    node: str


class Change(NamedTuple):
    """A change in words, and the trial of the demand with this change alone."""

    text: str
    trial: ClaimTrial | PodTrial


def helpful_changes(trial: ClaimTrial | PodTrial, holders: Sequence[ResourceClaim]) -> list[Suggestion]:
    """Changes after which a node accepts the demand, which none does now: of the pod, then of nodes, then of claims.

    `holders` are the claims in the cluster that have devices. Claims that only this dry run has allocated are left out:
    no pod can wait for them.
    """
    found: list[Suggestion] = []
    for alternatives in _candidates(trial, holders):
        tried = ((change.text, change.trial.node) for change in alternatives)
        found += [Suggestion(text, node) for text, node in tried if node is not None][:1]
    return found


def _candidates(trial: ClaimTrial | PodTrial, holders: Sequence[ResourceClaim]) -> Iterator[Iterable[Change]]:
    """All changes. Of alternatives, only the first that helps is suggested."""
    if isinstance(trial, PodTrial):
        yield from _fewer_resources(trial)
        yield from _tolerated_nodes(trial)
        yield from _selected_nodes(trial)
        yield _uncordoned(trial)
    claims = trial.without_devices
    if claims.claims:
        for change in (*_gentler(claims), *_fewer(claims), *_tolerant(claims), *_without_holders(claims, holders)):
            yield [change]


def _fewer_resources(trial: PodTrial) -> Iterator[Iterable[Change]]:
    """For each resource that some nodes have too little of and lack nothing else: the pod with the largest amount that
    a node has.
    """
    attempt = trial.attempt
    lacking: dict[str, list[tuple[int, Site]]] = {}
    for site in trial.refused_by("NodeResourcesFit"):
        shortages = attempt.resources.shortages(site)
        if len(shortages) == 1 and shortages[0].resource != "pods":
            resource, free = shortages[0].resource, shortages[0].free
            less = free // _MEBI * _MEBI if is_bytes(resource) else free
            if less > 0:
                lacking.setdefault(resource, []).append((less, site))
    for resource, amounts in lacking.items():
        amounts.sort(key=lambda amount_and_site: -amount_and_site[0])
        yield (_smaller(trial, resource, less, site) for less, site in amounts[:MOST_SITES])


def _smaller(trial: PodTrial, resource: str, less: int, site: Site) -> Change:
    pod = trial.attempt.pod
    asked = f"{less // _MEBI}Mi" if is_bytes(resource) else amount(resource, less)
    smaller = replace(pod, amounts={**pod.amounts, resource: less})
    text = f"ask for {asked} {resource} instead of {amount(resource, pod.amounts[resource])}"
    return Change(text, trial.changed(replace(trial.attempt, pod=smaller), [site]))


def _tolerated_nodes(trial: PodTrial) -> Iterator[Iterable[Change]]:
    """The pod with a toleration of one of the taints of nodes."""
    pod = trial.attempt.pod
    tainted: dict[DeviceTaint, list[Site]] = {}
    for site in trial.refused_by("TaintToleration"):
        taint = untolerated(site.node.taints, pod.tolerations)
        if taint is not None:
            tainted.setdefault(taint, []).append(site)
    for taint, sites in tainted.items():
        tolerant = replace(pod, tolerations=(*pod.tolerations, tolerating(taint)))
        changed = trial.changed(replace(trial.attempt, pod=tolerant), sites)
        yield [Change(f"tolerate the node's taint {taint_text(taint)}", changed)]


def _selected_nodes(trial: PodTrial) -> Iterator[Iterable[Change]]:
    """The pod without one label of its node selector."""
    pod = trial.attempt.pod
    sites = list(trial.refused_by("NodeAffinity"))
    for key, value in pod.node_selector.items():
        rest = {name: wanted for name, wanted in pod.node_selector.items() if name != key}
        changed = trial.changed(replace(trial.attempt, pod=replace(pod, node_selector=rest)), sites)
        yield [Change(f"remove nodeSelector {key}={value}", changed)]


def _uncordoned(trial: PodTrial) -> Iterator[Change]:
    """The nodes that are cordoned, each of them without that."""
    for site in islice(trial.refused_by("NodeUnschedulable"), MOST_SITES):
        taints = tuple(taint for taint in site.node.taints if taint.key != _CORDONED)
        node = replace(site.node, unschedulable=False, taints=taints)
        yield Change(f"uncordon {node.name}", trial.changed(trial.attempt, [replace(site, node=node)]))


def _gentler(trial: ClaimTrial) -> Iterator[Change]:
    """The claims, each time without one constraint or one part of a selector."""
    for index, claim in enumerate(trial.claims):
        for number, constraint in enumerate(claim.spec.constraints):
            if not (constraint.match_attribute or constraint.distinct_attribute):
                continue
            kept = claim.spec.constraints[:number] + claim.spec.constraints[number + 1 :]
            text = f"remove the constraint {constraint_text(claim, number)} of claim {claim.metadata}"
            yield Change(text, trial.instead(index, replace(claim, spec=replace(claim.spec, constraints=kept))))
        for name, required in claim.spec.requirements:
            for number, expression in enumerate(required.selectors):
                for text, kept_parts in _shortened(expression):
                    selectors = list(required.selectors)
                    selectors[number : number + 1] = [" && ".join(kept_parts)] if kept_parts else []
                    words = f"remove the selector {text} from request {name}"
                    yield Change(words, trial.instead(index, _changed(claim, name, selectors=tuple(selectors))))


def _fewer(trial: ClaimTrial) -> Iterator[Change]:
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
                yield Change(text, trial.instead(index, _changed(claim, name, count=enough)))


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


def _tolerant(trial: ClaimTrial) -> Iterator[Change]:
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
        yield Change(f"tolerate taint {text}", replace(trial, claims=claims))


def _tolerate(toleration: DeviceToleration, _: str, required: DeviceRequirements) -> DeviceRequirements:
    return replace(required, tolerations=(*required.tolerations, toleration))


def tolerating(taint: DeviceTaint) -> DeviceToleration:
    """A toleration of only this taint."""
    return DeviceToleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _without_holders(trial: ClaimTrial, holders: Sequence[ResourceClaim]) -> Iterator[Change]:
    """The cluster after claims in use are gone: one alone, or else as few as do of those on one node."""
    if not holders or trial.released(holders).node is None:
        return
    enough = 0
    for holder in holders[:MOST_HOLDERS]:
        smaller = trial.released([holder])
        if smaller.node is not None:
            enough += 1
            yield Change(f"wait for claim {holder.metadata}", smaller)
            if enough == ENOUGH:
                return
    if not enough:
        gone = _fewest(trial, holders)
        names = ", ".join(str(claim.metadata) for claim in gone)
        yield Change(f"wait for claims {names}", trial.released(gone))


def _fewest(trial: ClaimTrial, holders: Sequence[ResourceClaim]) -> list[ResourceClaim]:
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
