# SPDX-License-Identifier: Apache-2.0
"""The rules of cluster-autoscaler: the utilization of a node, the pods that keep a node, and the template of a group.

Follows kubernetes-sigs/cluster-autoscaler (commit 33c3f97) with its default options: `pkg/simulator/utilization` and
`dynamicresources/utils` for the utilization, `pkg/simulator/drainability` for the pods,
`pkg/core/scaledown/eligibility` for nodes, and `pkg/simulator/node_info_utils.go` for templates.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...kube.resource import DeviceTaint, Node, ResourceClaim, ResourceSlice
from ...scheduler.pods import ClusterNode, Pod
from ...scheduler.pods.objects import DisruptionBudget
from ..documents import each, within

JSON = Mapping[str, Any]

THRESHOLD: Final = 0.5
"""The default of --scale-down-utilization-threshold."""
SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_SAFE_VOLUMES: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
_MIRROR: Final = "kubernetes.io/config.mirror"
_REPLICATED: Final = ("ReplicationController", "Job", "ReplicaSet", "StatefulSet")
GROUP_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
)
"""Labels that clouds give to the nodes of a group."""
_TEMPORARY: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/pid-pressure",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cloudprovider.kubernetes.io/shutdown",
)
"""Taints, or beginnings of their keys, that a template does not have: a new node has them only for some time."""
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Utilization:
    """The part of a node that is in use, between 0 and 1, and of what: `cpu`, `memory`, or DRIVER/POOL."""

    value: float
    resource: str


def pool_utilization(slices: Sequence[ResourceSlice], held: Collection[str]) -> float:
    """The utilization of a pool: `slices` are those of its newest generation, and `held` the names of devices in use.

    Without counters, it is the part of the devices in use. With counters, it is the mean of all counter sets, of which
    the counter with the largest part in use counts; then devices without counters do not count.
    """
    devices = [device for slice_ in slices for device in slice_.devices]
    used = [device for device in devices if device.name in held]
    sets = [counter_set for slice_ in slices for counter_set in slice_.shared_counters]
    if not sets:
        return len(used) / len(devices) if devices else 0.0
    consumed: dict[tuple[str, str], int] = defaultdict(int)
    for device in used:
        for consumption in device.consumes_counters:
            for name, amount in consumption.counters.items():
                consumed[consumption.counter_set, name] += amount.nanos
    count = len({consumption.counter_set for device in devices for consumption in device.consumes_counters})
    if not count:
        return 0.0
    highest = (
        max(
            (
                consumed[counter_set.name, name] / amount.nanos
                for name, amount in counter_set.counters.items()
                if amount.nanos
            ),
            default=0.0,
        )
        for counter_set in sets
    )
    return sum(highest) / count


def utilization(
    node: ClusterNode, pods: Iterable[Pod], slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]
) -> Utilization:
    """The utilization of a node with these pods. With slices of the node, cpu and memory do not count. `claims` are all
    claims: a device counts if its claim is reserved, and does not if the claim only administrates it.
    """
    pools: dict[tuple[str, str], list[ResourceSlice]] = defaultdict(list)
    for slice_ in slices:
        if slice_.node_name == node.name:
            pools[slice_.driver, slice_.pool.name].append(slice_)
    if not pools:
        requested = dict.fromkeys(("cpu", "memory"), 0)
        for pod in pods:
            for name in requested:
                requested[name] += pod.amounts.get(name, 0)
        parts = {
            name: amount / node.allocatable[name] for name, amount in requested.items() if node.allocatable.get(name)
        }
        return max(
            (Utilization(part, name) for name, part in parts.items()),
            key=lambda found: found.value,
            default=Utilization(0.0, "cpu"),
        )
    held: dict[tuple[str, str], set[str]] = defaultdict(set)
    for claim in claims:
        for result in claim.allocation.results if claim.allocation is not None and claim.reserved_for else ():
            if not result.admin_access:
                held[result.driver, result.pool].add(result.device)
    found = []
    for key, members in pools.items():
        newest = max(slice_.pool.generation for slice_ in members)
        current = [slice_ for slice_ in members if slice_.pool.generation == newest]
        found.append(Utilization(pool_utilization(current, held[key]), "/".join(key)))
    return max(found, key=lambda part: part.value)


def is_skipped(pod: JSON) -> bool:
    """Whether a pod does not keep a node, and needs no other place: mirror pods, and pods of DaemonSets."""
    return _MIRROR in _annotations(pod) or _controller(pod) == "DaemonSet"


def blocker(pod: JSON, budgets: Iterable[DisruptionBudget]) -> str:
    """Why a pod (JSON) keeps its node; empty if it may be moved. The first reason counts."""
    annotations, spec = _annotations(pod), within(pod, "spec")
    namespace = str(within(pod, "metadata").get("namespace") or "default")
    labels = within(pod, "metadata", "labels")
    protecting = [budget for budget in budgets if budget.namespace == namespace and budget.selector.matches(labels)]
    if is_skipped(pod) or annotations.get(SAFE_TO_EVICT) == "true" or _has_ended(pod):
        return ""
    if annotations.get(SAFE_TO_EVICT) == "on-completion":
        return f"it has the annotation {SAFE_TO_EVICT}: on-completion"
    kind = _controller(pod)
    if kind not in _REPLICATED:
        return f"its controller is a {kind}" if kind else "it has no controller"
    if namespace == "kube-system" and not protecting:
        return "it is a pod of kube-system without a PodDisruptionBudget (for an hour after its creation)"
    if annotations.get(SAFE_TO_EVICT) == "false":
        return f'it has the annotation {SAFE_TO_EVICT}: "false"'
    safe = annotations.get(_SAFE_VOLUMES, "").split(",")
    local = [volume for volume in each(spec, "volumes") if _is_local(volume) and volume.get("name") not in safe]
    if local:
        return f"its volume {local[0].get('name')} is on the node (hostPath or emptyDir)"
    if any(budget.allowed < 1 for budget in protecting):
        return "a PodDisruptionBudget allows no disruption"
    return ""


def _annotations(pod: JSON) -> Mapping[str, str]:
    return within(pod, "metadata", "annotations")


def _controller(pod: JSON) -> str:
    """The kind of the controller of a pod, empty if it has none."""
    owners = each(pod, "metadata", "ownerReferences")
    return next((str(owner.get("kind")) for owner in owners if owner.get("controller")), "")


def _has_ended(pod: JSON) -> bool:
    phase, policy = within(pod, "status").get("phase"), within(pod, "spec").get("restartPolicy")
    return phase == "Failed" or (phase == "Succeeded" and policy in ("Never", "OnFailure"))


def _is_local(volume: JSON) -> bool:
    empty = volume.get("emptyDir")
    return volume.get("hostPath") is not None or (isinstance(empty, dict) and empty.get("medium") != "Memory")


@dataclass(frozen=True, slots=True)
class Template:
    """A new node of a group: the node with its allocatable resources, its slices, and the pods that run on every node
    of the group, with their claims.
    """

    node: ClusterNode
    slices: tuple[ResourceSlice, ...]
    pods: tuple[Pod, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()


def copied(
    name: str,
    node: ClusterNode,
    slices: Iterable[ResourceSlice],
    pods: Iterable[Pod] = (),
    claims: Iterable[ResourceClaim] = (),
) -> Template:
    """The template of a group that has the node: a node `name` with pools of other names and without temporary taints.
    The devices keep their taints. Pods of DaemonSets run on it, too, and hold the same devices of the new node.
    """
    own = [slice_ for slice_ in slices if slice_.node_name == node.name]
    pools = {slice_.pool.name: f"{slice_.pool.name}-{name}" for slice_ in own}
    new_slices = tuple(
        replace(
            slice_,
            metadata=replace(slice_.metadata, name=f"{slice_.metadata.name}-{name}"),
            pool=replace(slice_.pool, name=pools[slice_.pool.name]),
            node_name=name,
        )
        for slice_ in own
    )
    daemons = [pod for pod in pods if pod.node_name == node.name and pod.owner[0] == "DaemonSet" and not pod.deleted]
    by_pod = {
        pod.uid: replace(pod, name=f"{pod.name}-{name}", uid=f"{pod.uid}-{name}", node_name=name) for pod in daemons
    }
    new_claims = tuple(
        _moved(claim, pools, name)
        for claim in claims
        if any(owner.controller and owner.uid in by_pod for owner in claim.metadata.owner_references)
    )
    labels = {**node.labels, _HOSTNAME: name}
    new_node = Node(replace(node.node.metadata, name=name, labels=labels), node.node.plugin_resources)
    taints = tuple(taint for taint in node.taints if not is_temporary(taint))
    return Template(
        replace(node, node=new_node, taints=taints, unschedulable=False), new_slices, tuple(by_pod.values()), new_claims
    )


def is_temporary(taint: DeviceTaint) -> bool:
    """Whether a node has a taint only for some time, so that a template does not have it."""
    return taint.key.startswith(_TEMPORARY)


def _moved(claim: ResourceClaim, pools: Mapping[str, str], name: str) -> ResourceClaim:
    allocation = claim.allocation
    if allocation is not None:
        results = tuple(replace(result, pool=pools.get(result.pool, result.pool)) for result in allocation.results)
        allocation = replace(allocation, results=results, node_selector=None)
    metadata = replace(claim.metadata, name=f"{claim.metadata.name}-{name}", owner_references=())
    return replace(claim, metadata=metadata, allocation=allocation, reserved_for=())


def group_of(node: ClusterNode) -> str:
    """The group of a node by the label of its cloud; empty if it has none."""
    return next((node.labels[label] for label in GROUP_LABELS if label in node.labels), "")


def groups_of(nodes: Iterable[ClusterNode]) -> Iterator[tuple[str, ClusterNode]]:
    """The groups by the labels of clouds, each with a node that is not cordoned as its template."""
    found: dict[str, ClusterNode] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        group = group_of(node)
        if group and not node.unschedulable:
            found.setdefault(group, node)
    yield from found.items()
