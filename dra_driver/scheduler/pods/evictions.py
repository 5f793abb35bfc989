# SPDX-License-Identifier: Apache-2.0
"""Device taints with the effect NoExecute: the pods that Kubernetes evicts because of them, and when.

Follows `pkg/controller/devicetainteviction` of Kubernetes 1.37. A pod is evicted if it is on a node and uses a claim
with a device whose taint the allocation does not tolerate. Tolerations count as the scheduler copied them into the
result of the allocation, and only if they name the effect NoExecute: the scheduler also accepts a toleration without an
effect. The claims that the scheduler makes for extended resources count from Kubernetes 1.38 on
(kubernetes/kubernetes#141290).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...kube.releases import has_rule
from ...kube.resource import AllocatedDevice, DeviceTaint, DeviceTaintRule, ResourceClaim, TaintEffect
from ...kube.resource.claim import ConsumerReference, tolerates
from .objects import Pod

TaintsOf = Callable[[AllocatedDevice], Iterable[DeviceTaint]]
"""The taints of a device that is allocated."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A taint of a device that a pod uses. The pod has to leave `seconds` after the taint was added."""

    claim: ResourceClaim
    device: AllocatedDevice
    taint: DeviceTaint
    seconds: float


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that is evicted, and the causes, of which there is at least one."""

    pod: Pod
    causes: tuple[Cause, ...]

    @property
    def seconds(self) -> float:
        """The seconds after which the pod is evicted, if all taints are added at the same time."""
        return min(cause.seconds for cause in self.causes)


def tolerated_seconds(result: AllocatedDevice, taint: DeviceTaint) -> float:
    """How long an allocation tolerates a taint with the effect NoExecute: 0 if it does not, infinity without a limit.

    Of several tolerations with a limit the shortest one counts.
    """
    limits: list[int] = []
    for toleration in result.tolerations:
        if toleration.effect == TaintEffect.NO_EXECUTE and tolerates(toleration, taint):
            if toleration.toleration_seconds is None:
                return math.inf
            limits.append(max(0, toleration.toleration_seconds))
    return min(limits, default=0)


def selects_device(rule: DeviceTaintRule, result: AllocatedDevice) -> bool:
    """Whether eviction by a rule concerns an allocated device. A rule without a selector evicts no pod, although up to
    Kubernetes 1.37 the scheduler applies it to every device (kubernetes/kubernetes#141620).
    """
    selector = rule.selector
    if selector is None:
        return False
    names = ((selector.driver, result.driver), (selector.pool, result.pool), (selector.device, result.device))
    return all(wanted in (None, name) for wanted, name in names)


def taints_of_rules(rules: Sequence[DeviceTaintRule]) -> TaintsOf:
    """The taints that rules give to an allocated device."""
    return lambda result: (rule.taint for rule in rules if selects_device(rule, result))


def evictions(
    pods: Iterable[Pod], claims: Iterable[ResourceClaim], taints_of: TaintsOf, release: str
) -> list[Eviction]:
    """The pods that a Kubernetes release evicts because of taints, in the order of the pods."""
    causes: dict[tuple[str, str], list[Cause]] = defaultdict(list)
    by_name: dict[tuple[str, str], ResourceClaim] = {}
    for claim in claims:
        found = list(_causes(claim, taints_of))
        if found:
            key = claim.metadata.namespace or "default", claim.metadata.name
            causes[key], by_name[key] = found, claim
    with_extended = not has_rule(release, "extended_claims_are_not_evicted")
    return list(_evictions(pods, causes, by_name, with_extended)) if causes else []


def claim_names(pod: Pod, *, with_extended: bool = True) -> list[str]:
    """The names of the claims that a pod uses, with that for its extended resources."""
    names = [reference.claim for reference in pod.claims if reference.claim is not None]
    return [*names, pod.extended_claim] if with_extended and pod.extended_claim else names


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the pod, or its PodGroup, may use the claim."""
    return any(_stands_for(consumer, pod) for consumer in claim.reserved_for)


def _stands_for(consumer: ConsumerReference, pod: Pod) -> bool:
    if consumer.resource == "podgroups":
        return bool(pod.group) and consumer.name == pod.group
    return (
        not consumer.api_group
        and consumer.resource == "pods"
        and (consumer.name, consumer.uid)
        == (
            pod.name,
            pod.uid,
        )
    )


def _causes(claim: ResourceClaim, taints_of: TaintsOf) -> Iterator[Cause]:
    for result in claim.allocation.results if claim.allocation is not None else ():
        for taint in taints_of(result):
            if taint.effect == TaintEffect.NO_EXECUTE:
                seconds = tolerated_seconds(result, taint)
                if seconds != math.inf:
                    yield Cause(claim, result, taint, seconds)


def _evictions(
    pods: Iterable[Pod],
    causes: Mapping[tuple[str, str], Sequence[Cause]],
    claims: Mapping[tuple[str, str], ResourceClaim],
    with_extended: bool,
) -> Iterator[Eviction]:
    for pod in pods:
        if not pod.node_name or pod.deleted:
            continue
        keys = [(pod.namespace, name) for name in claim_names(pod, with_extended=with_extended)]
        found = [cause for key in keys if key in claims and is_reserved_for(claims[key], pod) for cause in causes[key]]
        if found:
            yield Eviction(pod, tuple(found))
