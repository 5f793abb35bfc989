# SPDX-License-Identifier: Apache-2.0
"""Workloads that have pods in the cluster already. Their update or their missing pods are evaluated.

A pod belongs to a workload if its controller is the workload (for a Deployment: one of its ReplicaSets), and the
selector selects it. If such pods were made from the template, they stay, and the others are missing. Otherwise the pods
are replaced as the controllers do it: by `maxSurge` and `maxUnavailable` or all at once (`Recreate`) for a Deployment,
one after the other from the last ordinal down to `partition` for a StatefulSet, and on each node for a DaemonSet. With
`OnDelete`, and for ReplicaSets and Jobs, pods are not replaced.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from ..kube.resource import ResourceClaim
from ..kube.resource.codec import Decoded
from ..scheduler.pods import Pod, PodDecoder
from .controllers import OWNERS, Workload
from .documents import within
from .revisions import HASH, Templates, has_images_of, is_same_template, revision_of
from .workload import Demand
from .world import World

_QUARTER: Final = "25%"
"""The default of `maxSurge` and `maxUnavailable` of a Deployment."""

_Claims = Mapping[tuple[str, str], ResourceClaim]
"""Claims by namespace and name."""


def with_pods_of_cluster(
    demands: Iterable[Demand], objects: Sequence[Decoded], world: World | None, templates: Templates
) -> Iterator[Demand]:
    """The demands. For a workload that has pods in the world, the demand has these pods and the missing pods, or the
    update.

    `templates` are the templates that the pods may have been made from. Raises the exceptions of `templates`.
    """
    claims = {
        (object_.metadata.namespace or "default", object_.metadata.name): object_
        for object_ in objects
        if isinstance(object_, ResourceClaim)
    }
    for workload, group in groupby(demands, lambda demand: demand.owner):
        there = [] if workload is None or world is None else _pods_of(workload, world.around.pods)
        if workload is None or not there:
            yield from group
            continue
        running = [pod for pod in there if not pod.ended]
        if workload.kind == "DaemonSet":
            for demand in group:
                on_node = [pod for pod in running if pod.node_name == demand.daemon_node]
                yield from _rolled(workload, [demand], on_node, claims, templates)
        else:
            wanted = _wanted(workload, list(group), there)
            yield from _rolled(workload, wanted, running, claims, templates) if wanted else ()


def _pods_of(workload: Workload, pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.deleted and _belongs(pod, workload)]


def _wanted(workload: Workload, demands: list[Demand], there: Iterable[Pod]) -> list[Demand]:
    """The demands without the pods that a Job does not create any more, because enough of its pods have succeeded."""
    succeeded = sum(pod.phase == "Succeeded" for pod in there) if workload.kind == "Job" else 0
    if not succeeded:
        return demands
    completions = workload.spec.get("completions")
    active = sum(not pod.ended for pod in there)
    # Without completions, a Job makes no more pods after the first that succeeds.
    return demands[: active if completions is None else max(0, completions - succeeded)]


def _belongs(pod: Pod, workload: Workload) -> bool:
    kind, name = pod.owner
    if pod.namespace != workload.namespace or kind != OWNERS[workload.kind]:
        return False
    if workload.kind == "Deployment":
        name = name.removesuffix(f"-{pod.labels.get(HASH, name.rpartition('-')[2])}")
    return name == workload.name and (workload.selector.nothing or workload.selector.matches(pod.labels))


def _rolled(
    workload: Workload, demands: list[Demand], there: list[Pod], claims: _Claims, templates: Templates
) -> Iterator[Demand]:
    strategy, is_set = _strategy(workload), workload.kind == "StatefulSet"
    if workload.kind in ("ReplicaSet", "Job") or (strategy.get("type") == "OnDelete" and not is_set):
        yield from _with_missing(demands, there, claims, by_name=False)
    elif _are_current(there, workload, demands[0], claims, templates):
        notes = tuple(_not_compared(there, templates))
        staying = _with_missing(demands, there, claims, by_name=is_set)
        yield from (replace(demand, notes=(*demand.notes, *notes)) for demand in staying)
    elif is_set:
        yield from _one_by_one(workload, demands, there, claims)
    elif workload.kind == "DaemonSet":
        surges = (strategy.get("rollingUpdate") or {}).get("maxSurge") or 0
        gone = () if surges not in (0, "0%") else there
        replaced = replace(demands[0], replaces=tuple(pod.name for pod in gone))
        yield _updated(replaced, f"on {demands[0].daemon_node}")
    elif strategy.get("type") == "Recreate":
        first = replace(demands[0], replaces=tuple(pod.name for pod in there))
        for number, demand in enumerate((first, *demands[1:]), start=1):
            yield _updated(demand, f"{number} of {len(demands)}")
    else:
        yield from _rolling(workload, demands, there)


def _with_missing(
    demands: Sequence[Demand], there: Sequence[Pod], claims: _Claims, *, by_name: bool
) -> Iterator[Demand]:
    """The pods that stay, and then the missing pods."""
    names = {demand.pod.name for demand in demands}
    kept = [pod for pod in there if pod.name in names] if by_name else there
    taken = {pod.name for pod in kept} if by_name else set[str]()
    free = [demand for demand in demands if demand.pod.name not in taken]
    staying = [demand for demand in demands if demand.pod.name in taken] if by_name else demands[: len(kept)]
    missing = free if by_name else demands[len(kept) :]
    ordered = sorted(kept, key=lambda pod: pod.name) if by_name else kept
    for demand, pod in zip(
        sorted(staying, key=lambda copy: copy.pod.name) if by_name else staying, ordered, strict=False
    ):
        yield _as(demand, pod, claims)
    for number, demand in enumerate(missing, start=1):
        yield replace(demand, name=f"{_name(demand)}, missing pod {number} of {len(missing)}")


def _rolling(workload: Workload, demands: Sequence[Demand], there: Sequence[Pod]) -> Iterator[Demand]:
    """Each new pod, with the old pods that may go before: so many that enough pods are available."""
    settings = _strategy(workload).get("rollingUpdate") or {}
    wanted = len(demands)
    surge = _amount(settings.get("maxSurge", _QUARTER), wanted, math.ceil)
    unavailable = _amount(settings.get("maxUnavailable", _QUARTER), wanted, math.floor)
    if not surge and not unavailable:
        unavailable = 1
    leaving = sorted(there, key=lambda pod: bool(pod.node_name))
    gone = 0
    for number, demand in enumerate(demands):
        may_go = min(len(leaving), max(gone, number + unavailable + len(leaving) - wanted))
        before = tuple(pod.name for pod in leaving[gone:may_go])
        gone = may_go
        yield _updated(replace(demand, replaces=before), f"{number + 1} of {wanted}")


def _one_by_one(
    workload: Workload, demands: Sequence[Demand], there: Sequence[Pod], claims: _Claims
) -> Iterator[Demand]:
    """The pods of a StatefulSet, from the last ordinal. Pods below the partition stay. With OnDelete, all pods stay."""
    strategy = _strategy(workload)
    partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
    known = {pod.name: pod for pod in there}
    first = len(demands) if strategy.get("type") == "OnDelete" else partition
    for index in reversed(range(len(demands))):
        demand = demands[index]
        pod = known.get(demand.pod.name)
        if pod is None:
            yield replace(demand, name=f"{_name(demand)}, missing pod {demand.pod.name}")
        elif index < first:
            yield _as(demand, pod, claims)
        else:
            yield _updated(replace(demand, replaces=(pod.name,)), f"{index + 1} of {len(demands)}")


def _strategy(workload: Workload) -> Mapping[str, Any]:
    return workload.spec.get("strategy" if workload.kind == "Deployment" else "updateStrategy") or {}


def _amount(value: object, wanted: int, rounded: Any) -> int:
    """A number, or a percentage of the wanted pods."""
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        return int(rounded(wanted * int(value[:-1]) / 100))
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _name(demand: Demand) -> str:
    return demand.workload or demand.name.partition(", pod ")[0]


def _updated(demand: Demand, which: str) -> Demand:
    """The demand of a new pod of an update. `which` says which of the new pods it is."""
    return replace(demand, name=f"{_name(demand)}, update, pod {which}")


def _as(demand: Demand, pod: Pod, claims: _Claims) -> Demand:
    """The demand as the pod of the cluster, with the claims that this has."""
    assert demand.submitted is not None
    own = tuple(
        claims[pod.namespace, claim.claim]
        for claim in pod.claims
        if claim.claim and (pod.namespace, claim.claim) in claims
    )
    metadata = {**demand.submitted["metadata"], "name": pod.name}
    return replace(
        demand,
        claims=own if len(own) == len(demand.claims) else demand.claims,
        pod=replace(demand.pod, name=pod.name),
        submitted={**demand.submitted, "metadata": metadata},
    )


def _are_current(
    pods: Sequence[Pod], workload: Workload, demand: Demand, claims: _Claims, templates: Templates
) -> bool:
    """Whether the controller lets all the pods stay. Raises the exceptions of `templates`.

    The claims of a pod count, too: the template of a pod does not change with a ResourceClaimTemplate, but its user
    means the new one.
    """
    fresh = PodDecoder().decode(demand.submitted or {})
    if not all(_is_like(pod, fresh, demand, claims) for pod in pods):
        return False
    template = within(workload.spec, "template")
    stored = {each: templates(each[0], workload.namespace, each[1]) for each in set(map(revision_of, pods))}
    same = {each: is_same_template(template, made) for each, made in stored.items() if made is not None}
    return all(same.values()) and all(has_images_of(pod, template) for pod in pods if stored[revision_of(pod)] is None)


def _not_compared(pods: Sequence[Pod], templates: Templates) -> Iterator[str]:
    """Notes about pods that seem to be made from the template."""
    for pod in pods:
        kind, name = revision_of(pod)
        if templates(kind, pod.namespace, name) is None:
            compared = "images, and what" if pod.images else "what"
            said = f"{kind} {pod.namespace}/{name} is not known"
            yield f"{said}: only {compared} decides about nodes and devices was compared"
            return


def _is_like(pod: Pod, fresh: Pod, demand: Demand, claims: _Claims) -> bool:
    """Whether the pod has all that the template asks for. The API server may have added defaults and tolerations."""
    specs = [
        claims[pod.namespace, claim.claim].spec
        for claim in pod.claims
        if claim.claim and (pod.namespace, claim.claim) in claims
    ]
    alike = ("affinity", "anti_affinity", "spread", "host_ports", "extended")
    node_affinity = demand.daemon_node or pod.node_affinity == fresh.node_affinity
    return (
        fresh.requests.items() <= pod.requests.items()
        and fresh.node_selector.items() <= pod.node_selector.items()
        and set(fresh.tolerations) <= set(pod.tolerations)
        and bool(node_affinity)
        and all(getattr(pod, name) == getattr(fresh, name) for name in alike)
        and len(pod.claims) == len(fresh.claims)
        and (len(specs) < len(pod.claims) or specs == [claim.spec for claim in demand.claims])
    )
