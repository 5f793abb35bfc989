# SPDX-License-Identifier: Apache-2.0
"""Where a pod goes by its devices, nodeSelector and node affinity; or why nowhere, as kube-scheduler 1.36 says it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..allocation import Cluster, Features, allocate
from ..allocation.nodes import is_at
from ..resource import AllocationResult, Node, ObjectMeta, ResourceClaim
from ..resource.codec import Fields
from ..resource.codec.decode_parts import node_selector
from ..scheduling.extended import ExtendedRequest, served
from .extended import requests_of, sources, special_claim
from .pods import JSON, is_finished

_HELD_ELSEWHERE = "resourceclaim not available on the node"
_NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
_NO_DEVICES = "cannot allocate all claims"
_NO_VICTIMS = "No preemption victims found for incoming pod"
_NOT_PREEMPTED = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class Seen:
    """What decides: `nodes` and `pods` are all there are, as stored."""

    cluster: Cluster
    nodes: Mapping[str, JSON]
    pods: Sequence[JSON]


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod's node, and one new allocation for each of `pending`, in order.

    With `claimed`, extended resources, the last of `pending` is a claim that is to be made for them.
    """

    node: str
    pending: tuple[ResourceClaim, ...]
    allocations: tuple[AllocationResult, ...]
    claimed: tuple[ExtendedRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod goes nowhere: the message and reason of its condition."""

    message: str
    reason: str = "Unschedulable"


def place(
    pod: JSON, claims: Sequence[ResourceClaim], seen: Seen, features: Features, *, extended_resources: bool
) -> Placement | Refusal:
    """The first node on which the pod can have its `claims` and its extended resources.

    Without `extended_resources`, DeviceClasses serve none.
    """
    if not seen.nodes:
        return Refusal("no nodes available to schedule pods")
    cluster, count = seen.cluster, len(seen.nodes)
    pending = tuple(claim for claim in claims if claim.allocation is None)
    if missing := _missing_class(pending, cluster):
        return _refused(count, missing, uses_devices=False)
    by_classes = served(cluster.classes) if extended_resources else {}
    uses_devices = bool(claims) or any(one.resource in by_classes for one in requests_of(pod))
    reasons: Counter[str] = Counter()
    preemptable = 0
    for node in cluster.nodes:
        if not selects(pod["spec"], seen.nodes[node.name]):
            reasons[_NOT_SELECTED] += 1
            continue
        split = sources(pod, seen.nodes[node.name], _running_on(node, seen.pods), by_classes)
        if split.lacking:
            preemptable += split.others_hold
            reasons.update(f"Insufficient {name}" for name in split.lacking)
            continue
        if not all(_usable_on(claim, node) for claim in claims):
            reasons[_HELD_ELSEWHERE] += 1
            continue
        wanted = (*pending, special_claim(pod, split.claimed, cluster.classes)) if split.claimed else pending
        outcome = allocate(cluster, wanted, node.name, features)
        if outcome.kind == "allocated":
            return Placement(node.name, wanted, outcome.allocations, split.claimed)
        if outcome.fatal:
            return Refusal(f'running "DynamicResources" filter plugin: {outcome.message}', "SchedulerError")
        reasons[outcome.message or _NO_DEVICES] += 1
    counted = sorted(f"{times} {reason}" for reason, times in reasons.items())
    return _refused(count, ", ".join(counted), uses_devices=uses_devices, preemptable=preemptable)


def _refused(nodes: int, why: str, *, uses_devices: bool, preemptable: int = 0) -> Refusal:
    """`preemptable` are the nodes where other pods hold what this one lacks; none is preempted."""
    after = "still not schedulable" if uses_devices else "no new claims to deallocate"
    verdicts = ((preemptable, _NO_VICTIMS), (nodes - preemptable, _NOT_PREEMPTED))
    preemption = ", ".join(f"{count} {verdict}" for count, verdict in verdicts if count)
    none = f"0/{nodes} nodes are available"
    return Refusal(f"{none}: {why}. {after}, preemption: {none}: {preemption}.")


def _missing_class(claims: Sequence[ResourceClaim], cluster: Cluster) -> str:
    """What is said of the first DeviceClass that a claim names and that is not there; else empty."""
    for claim in claims:
        for name, required in claim.spec.requirements:
            if required.device_class_name not in cluster.class_by_name:
                return f"request {name}: device class {required.device_class_name} does not exist"
    return ""


def selects(spec: JSON, node: JSON) -> bool:
    """Whether a pod's nodeSelector and required node affinity, in its `spec`, allow the node."""
    wanted = spec.get("nodeSelector") or {}
    labels = node["metadata"].get("labels") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not all(labels.get(key) == value for key, value in wanted.items()):
        return False
    where = Node(ObjectMeta(node["metadata"]["name"], labels=labels))
    return required is None or is_at(node_selector(Fields(required, strict=False)), where)


def _running_on(node: Node, pods: Sequence[JSON]) -> list[JSON]:
    return [pod for pod in pods if pod["spec"].get("nodeName") == node.name and not is_finished(pod)]


def _usable_on(claim: ResourceClaim, node: Node) -> bool:
    """Whether an allocated claim may be used on the node; a pending one may everywhere."""
    selector = claim.allocation.node_selector if claim.allocation is not None else None
    return selector is None or is_at(selector, node)
