# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kube-scheduler, as far as devices are concerned.

The project's own allocator allocates a pod's claims, and one for its extended resources, on the first node that has all
devices. Then the claims are reserved for the pod, and the pod is bound. Of the rest of a pod only its nodeSelector and
its required node affinity count: CPU, memory, other affinity and node taints are not considered. If no node fits, the
text is that of kube-scheduler 1.36.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..allocation import Cluster, Features, allocate
from ..allocation.nodes import is_at
from ..kubeapi import NODES, ApiClient, NotFoundError
from ..kubeapi.events import EventRecorder
from ..resource import AllocationResult, Node, ObjectMeta, ResourceClaim
from ..resource.codec import V1, Fields, decode, decode_claim, encode_allocation, encode_claim_spec, encode_meta
from ..resource.codec.fields import node_selector
from ..scheduling.extended import ExtendedRequest, served
from .extended import claim_status, is_special_claim, requests_of, sources, special_claim
from .kubelet.podstatus import timestamp
from .loop import (
    CLAIMS,
    CLASSES,
    FINALIZER,
    JSON,
    PODS,
    SLICES,
    claim_names,
    is_alive,
    is_finished,
    reference,
    without_protection,
)

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


log = logging.getLogger(__name__)

_KINDS = {"ResourceSlice": SLICES, "DeviceClass": CLASSES, "ResourceClaim": CLAIMS, "Node": NODES}


class Scheduler:
    """One step places every pod that waits and can be placed."""

    def __init__(self, client: ApiClient, features: Features | None = None, *, extended_resources: bool = True) -> None:
        """`features` and `extended_resources` (the gate DRAExtendedResource) are the release's; both 1.36's if left."""
        self._client = client
        self._features = features or Features()
        self._extended_resources = extended_resources
        self._events = EventRecorder(client, "default-scheduler")

    def step(self) -> None:
        """Look at all pods. Raises ApiError."""
        for pod in self._client.list(PODS).items:
            if is_alive(pod) and not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
                try:
                    self._schedule(pod)
                except NotFoundError as error:
                    # its claim or itself: kube-scheduler, too, waits for a claim without a word to the user
                    log.debug("pod %s waits: %s", reference(pod), error)

    def close(self) -> None:
        """Write the Events that wait."""
        self._events.close()

    def _schedule(self, pod: JSON) -> None:
        names = claim_names(pod)
        if names is None:
            return  # its claims are still being made
        values = [self._client.get(CLAIMS, name, pod["metadata"]["namespace"]) for name in names]
        objects = {kind: self._client.list(where).items for kind, where in _KINDS.items()}
        if stale := [claim for claim in objects["ResourceClaim"] if is_special_claim(claim, pod)]:
            for claim in stale:
                self._discard(claim)
            return  # their going is a change, so there is a next step
        decoded = (
            decode({"apiVersion": _KINDS[kind].api_version, "kind": kind, **value}, strict=False)
            for kind, values in objects.items()
            for value in values
        )
        nodes = {node["metadata"]["name"]: node for node in objects["Node"]}
        found = place(
            pod,
            [decode_claim(value, V1, strict=False) for value in values],
            Seen(Cluster.of(decoded), nodes, self._client.list(PODS).items),
            self._features,
            extended_resources=self._extended_resources,
        )
        if isinstance(found, Refusal):
            self._refuse(pod, found)
        else:
            self._bind(pod, values, found)

    def _bind(self, pod: JSON, claims: list[JSON], found: Placement) -> None:
        """Write the allocations and reservations, then where the pod goes."""
        meta = pod["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        allocations = {
            claim.metadata.uid: allocation
            for claim, allocation in zip(found.pending, found.allocations, strict=True)
            if claim.metadata.uid
        }
        for claim in claims:
            self._reserve(claim, allocations.get(claim["metadata"]["uid"]), pod)
        if found.claimed:
            made = found.pending[-1]
            value = {
                "apiVersion": V1.api_version,
                "kind": "ResourceClaim",
                "metadata": encode_meta(made.metadata),
                "spec": encode_claim_spec(made.spec, V1),
            }
            created = self._client.create(CLAIMS, value, namespace)
            self._reserve(created, found.allocations[-1], pod)
            extended = claim_status(pod, created["metadata"]["name"], made, found.claimed)
            change = {"metadata": {"uid": meta["uid"]}, "status": {"extendedResourceClaimStatus": extended}}
            self._client.patch(PODS, name, change, namespace=namespace, subresource="status")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": found.node},
        }
        self._client.create(PODS, binding, namespace, name=name, subresource="binding")
        self._events.normal(reference(pod), "Scheduled", f"Successfully assigned {namespace}/{name} to {found.node}")
        log.info("bound", extra={"pod": f"{namespace}/{name}", "node": found.node})

    def _reserve(self, claim: JSON, allocation: AllocationResult | None, pod: JSON) -> None:
        """Write the allocation, when there is a new one, and that the pod may use the claim."""
        meta = claim["metadata"]
        if FINALIZER not in (meta.get("finalizers") or []):
            protected = {**meta, "finalizers": [*(meta.get("finalizers") or []), FINALIZER]}
            claim = self._client.update(CLAIMS, {**claim, "metadata": protected})
        status = dict(claim.get("status") or {})
        if allocation is not None:
            status["allocation"] = encode_allocation(allocation)
            if self._features.binding:
                status["allocation"]["allocationTimestamp"] = timestamp(time.time())
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        others = [one for one in status.get("reservedFor") or [] if one["uid"] != consumer["uid"]]
        status["reservedFor"] = [*others, consumer]
        self._client.update(CLAIMS, {**claim, "status": status}, subresource="status")

    def _discard(self, claim: JSON) -> None:
        """Delete a claim that was made for a pod which then could not be bound; nobody uses it."""
        meta = claim["metadata"]
        self._client.update(CLAIMS, without_protection(claim))
        self._client.delete(CLAIMS, meta["name"], meta["namespace"], uid=meta["uid"])

    def _refuse(self, pod: JSON, refusal: Refusal) -> None:
        """Say why the pod is not scheduled: in its status, and in an Event that counts the attempts."""
        self._events.warning(reference(pod), "FailedScheduling", refusal.message)
        conditions = pod.get("status", {}).get("conditions") or []
        before: JSON = next((one for one in conditions if one["type"] == "PodScheduled"), {})
        said = {"status": "False", "reason": refusal.reason, "message": refusal.message}
        if said.items() <= before.items():
            return
        since = before.get("lastTransitionTime") if before.get("status") == "False" else None
        condition = {"type": "PodScheduled", **said, "lastTransitionTime": since or timestamp(time.time())}
        others = [one for one in conditions if one["type"] != "PodScheduled"]
        status = {**pod.get("status", {}), "conditions": [*others, condition]}
        self._client.update(PODS, {**pod, "status": status}, subresource="status")
