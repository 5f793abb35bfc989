# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kube-scheduler, as far as devices are concerned.

A pod's claims, and one for its extended resources, are allocated by the project's own allocator on the first node that
can have all of them (`placement`), reserved for the pod, and the pod is bound there. Of the rest of a pod only its
nodeSelector and its required node affinity count: CPU, memory, other affinity and node taints are not considered.
"""

import logging
import time

from ..allocation import Cluster, Features
from ..cluster import NODES, ApiClient, NotFoundError
from ..cluster.events import EventRecorder
from ..resource import AllocationResult
from ..resource.codec import V1, decode, decode_claim, encode_allocation, encode_claim_spec, encode_meta
from .extended import claim_status, is_special_claim
from .kubelet.podstatus import timestamp
from .placement import Placement, Refusal, Seen, place
from .pods import (
    CLAIMS,
    CLASSES,
    FINALIZER,
    JSON,
    PODS,
    SLICES,
    claim_names,
    is_alive,
    reference,
    without_protection,
)

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
