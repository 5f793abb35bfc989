# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kube-scheduler, as far as devices are concerned.

A pod's claims are allocated by the project's own allocator on the first node that can have all of them, reserved for
the pod, and the pod is bound there. CPU, memory, affinity and node taints are not considered.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..allocation import Cluster, Features, allocate
from ..allocation.nodes import is_at
from ..cluster import NODES, ApiClient, NotFoundError
from ..resource import AllocationResult, Node, ResourceClaim
from ..resource.codec import V1, decode, decode_claim, encode_allocation
from .pods import CLAIMS, CLASSES, FINALIZER, JSON, PODS, SLICES, claim_names, is_alive

log = logging.getLogger(__name__)


class Scheduler:
    """One step places every pod that waits and can be placed."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def step(self) -> None:
        """Look at all pods. Raises ApiError."""
        for pod in self._client.list(PODS).items:
            if is_alive(pod) and not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
                try:
                    self._schedule(pod)
                except NotFoundError as error:
                    self._report(pod, str(error))

    def _schedule(self, pod: JSON) -> None:
        names = claim_names(pod)
        if names is None:
            return  # its claims are still being made
        namespace = pod["metadata"]["namespace"]
        values = [self._client.get(CLAIMS, name, namespace) for name in names]
        claims = [decode_claim(value, V1, strict=False) for value in values]
        placement = self._place(claims)
        if placement.node is None:
            self._report(pod, placement.reason)
            return
        for value, claim in zip(values, claims, strict=True):
            self._reserve(value, placement.allocations.get(claim.metadata.uid), pod)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"], "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
        }
        self._client.create(PODS, binding, namespace, name=pod["metadata"]["name"], subresource="binding")
        log.info("bound", extra={"pod": f"{namespace}/{pod['metadata']['name']}", "node": placement.node})

    def _place(self, claims: Sequence[ResourceClaim]) -> "_Placement":
        """The first node where all claims can be had."""
        objects = [
            decode({"apiVersion": kind.api_version, "kind": name, **value}, strict=False)
            for kind, name in (
                (SLICES, "ResourceSlice"),
                (CLASSES, "DeviceClass"),
                (CLAIMS, "ResourceClaim"),
                (NODES, "Node"),
            )
            for value in self._client.list(kind).items
        ]
        cluster = Cluster.of(objects)
        pending = [claim for claim in claims if claim.allocation is None]
        reason = "there are no nodes"
        for node in cluster.nodes:
            if not all(_usable_on(claim, node) for claim in claims):
                reason = "resourceclaim not available on the node"
                continue
            outcome = allocate(cluster, pending, node.name, Features())
            if outcome.kind == "allocated":
                allocations = zip((claim.metadata.uid for claim in pending), outcome.allocations, strict=True)
                return _Placement(node.name, dict(allocations))
            reason = outcome.message or "cannot allocate all claims"
            if outcome.fatal:
                break
        return _Placement(None, {}, f"0/{len(cluster.nodes)} nodes are available: {reason}")

    def _reserve(self, claim: JSON, allocation: AllocationResult | None, pod: JSON) -> None:
        """Write the allocation, when there is a new one, and that the pod may use the claim."""
        meta = claim["metadata"]
        if FINALIZER not in (meta.get("finalizers") or []):
            protected = {**meta, "finalizers": [*(meta.get("finalizers") or []), FINALIZER]}
            claim = self._client.update(CLAIMS, {**claim, "metadata": protected})
        status = dict(claim.get("status") or {})
        if allocation is not None:
            status["allocation"] = encode_allocation(allocation)
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        others = [one for one in status.get("reservedFor") or [] if one["uid"] != consumer["uid"]]
        status["reservedFor"] = [*others, consumer]
        self._client.update(CLAIMS, {**claim, "status": status}, subresource="status")

    def _report(self, pod: JSON, message: str) -> None:
        """Say in the pod's status why it is not scheduled, as kube-scheduler does."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        conditions = pod.get("status", {}).get("conditions") or []
        same = [one for one in conditions if one["type"] == "PodScheduled" and one.get("message") == message]
        if same:
            return
        others = [one for one in conditions if one["type"] != "PodScheduled"]
        status = {**pod.get("status", {}), "conditions": [*others, condition]}
        self._client.update(PODS, {**pod, "status": status}, subresource="status")


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where a pod goes, and the new allocations by claim UID; or why it goes nowhere."""

    node: str | None
    allocations: Mapping[str, AllocationResult]
    reason: str = ""


def _usable_on(claim: ResourceClaim, node: Node) -> bool:
    """Whether an allocated claim may be used on the node; a pending one may everywhere."""
    selector = claim.allocation.node_selector if claim.allocation is not None else None
    return selector is None or is_at(selector, node)
