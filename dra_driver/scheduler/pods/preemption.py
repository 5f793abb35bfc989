# SPDX-License-Identifier: Apache-2.0
"""DefaultPreemption: which pods of lower priority would be removed to make room, and from which node.

Follows `pkg/scheduler/framework/preemption` and `plugins/defaultpreemption` of Kubernetes 1.36. In a large
cluster, the scheduler checks some of the nodes, beginning with a random one. Here, all nodes are checked. Claims stay
allocated in this calculation, so removing a pod frees no device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...kube.resource.meta import empty
from .objects import DisruptionBudget, Pod
from .outcome import Code, Filter, Refusal, aggregated, counted, none_available
from .snapshot import Site, Snapshot

_NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
_NO_VICTIMS: Final = Refusal("DefaultPreemption", ("No preemption victims found for incoming pod",))
_NEVER: Final = "not eligible due to preemptionPolicy=Never."
_WAITING: Final = "not eligible due to a terminating pod on the nominated node."
_NOT_STARTED: Final = "~"
"""The start of pods that have none recorded: after every time."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to remove from one node, the most important first, and how many of them a disruption budget protects."""

    pods: tuple[Pod, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True)
class Preemption:
    """The result of preemption. `message`: why it does nothing. `nominated`: the best nodes, of which one is chosen.

    If it `failed`, a filter ended with an error on a node without its victims, and no node can be chosen. The scheduler
    then reports this message without the messages of other plugins.
    """

    message: str = ""
    failed: bool = False
    nominated: tuple[str, ...] = ()
    candidates: Mapping[str, Victims] = field(default_factory=empty)


def preempt(pod: Pod, snapshot: Snapshot, refusals: Mapping[str, Refusal | None], refuses: Filter) -> Preemption:
    """Preemption for a pod that every node refuses. `refuses` runs the filters on a changed site."""
    problem = _not_eligible(pod, snapshot, refusals)
    if problem:
        return Preemption(problem)
    candidates: dict[str, Victims] = {}
    remaining: list[str] = []
    errors: list[str] = []
    for name, site in snapshot.sites.items():
        refusal = refusals.get(name)
        if refusal is None or refusal.code is not Code.UNSCHEDULABLE:
            remaining.append(_NOT_HELPFUL)
            continue
        found = _victims(pod, site, snapshot.budgets, refuses)
        if isinstance(found, Victims):
            candidates[name] = found
            continue
        remaining.extend(found.reasons)
        if found.code is Code.ERROR:
            errors.append(found.message)
    if candidates:
        return Preemption(nominated=_best(candidates), candidates=candidates)
    if errors:
        return Preemption(aggregated(errors), failed=True)
    return Preemption(none_available(len(snapshot.sites), counted(remaining)))


def _not_eligible(pod: Pod, snapshot: Snapshot, refusals: Mapping[str, Refusal | None]) -> str:
    if not pod.preempts:
        return _NEVER
    site = snapshot.sites.get(pod.nominated_node)
    if site is None:
        return ""
    refusal = refusals.get(pod.nominated_node)
    if refusal is not None and refusal.code is Code.UNRESOLVABLE:
        return ""
    leaving = any(other.priority < pod.priority and other.preempted for other in site.pods)
    return _WAITING if leaving else ""


def _victims(pod: Pod, site: Site, budgets: Sequence[DisruptionBudget], refuses: Filter) -> Victims | Refusal:
    """The fewest and least important pods to remove, or why removing pods does not help."""
    potential = sorted((other for other in site.pods if other.priority < pod.priority), key=_importance)
    if not potential:
        return _NO_VICTIMS
    left = site.without(potential)
    refusal = refuses(left)
    if refusal is not None:
        return refusal
    protected = _protected(potential, budgets)
    victims: list[Pod] = []
    for other in sorted(potential, key=lambda victim: id(victim) not in protected):
        spared = left.with_pods([other])
        if refuses(spared) is None:
            left = spared
        else:
            left = spared.without([other])
            victims.append(other)
    if not victims:
        problem = f'expected at least one victim pod on node "{site.node.name}"'
        return Refusal(_NO_VICTIMS.plugin, (problem,), Code.ERROR)
    violations = sum(id(victim) in protected for victim in victims)
    return Victims(tuple(sorted(victims, key=_importance)), violations)


def _importance(pod: Pod) -> tuple[int, str]:
    """Sorts the most important pod first: by priority, then by how long it runs."""
    return -pod.priority, pod.started or _NOT_STARTED


def _protected(pods: Sequence[Pod], budgets: Sequence[DisruptionBudget]) -> set[int]:
    """Ids of the pods whose removal would violate a disruption budget, if they are removed in this order."""
    left = [budget.allowed for budget in budgets]
    protected = set()
    for pod in pods:
        if not pod.labels:
            continue
        for index, budget in enumerate(budgets):
            selector = budget.selector
            if budget.namespace != pod.namespace or selector.everything or not selector.matches(pod.labels):
                continue
            if pod.name in budget.disrupted:
                continue
            left[index] -= 1
            if left[index] < 0:
                protected.add(id(pod))
    return protected


def _best(candidates: Mapping[str, Victims]) -> tuple[str, ...]:
    """The best nodes for preemption: those with the least important victims."""

    def cost(victims: Victims) -> tuple[int, int, int, int]:
        pods = victims.pods
        return victims.violations, pods[0].priority, sum(pod.priority + 2**31 for pod in pods), len(pods)

    def earliest(victims: Victims) -> str:
        highest = max(pod.priority for pod in victims.pods)
        return min(pod.started or _NOT_STARTED for pod in victims.pods if pod.priority == highest)

    least = min(cost(victims) for victims in candidates.values())
    cheapest = {name: victims for name, victims in candidates.items() if cost(victims) == least}
    latest = max(earliest(victims) for victims in cheapest.values())
    return tuple(sorted(name for name, victims in cheapest.items() if earliest(victims) == latest))
