# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kube-scheduler: `dra_driver.scheduler.pods` decides, and this module writes the decision.

A pod is bound to the first node, by name, that fits. Its claims, and one claim for its extended resources, are
allocated and reserved before. Nothing is preempted, and volumes are ignored, because no controller binds them. If no
node fits, the pod's condition and its Event have the text of kube-scheduler 1.36.

The pods of a PodGroup are scheduled together, as kube-scheduler 1.37 does it (`dra_driver.scheduler.gangs`).
"""

import logging
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..kube.api import ApiClient, Kind, NotFoundError
from ..kube.api.events import EventRecorder
from ..kube.kinds import NAMESPACES, NODES, POD_GROUPS, PODS
from ..kube.releases import has_rule
from ..kube.resource import AllocationResult, ObjectMeta, OwnerReference, ResourceClaim
from ..kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from ..kube.resource.codec import V1, encode_allocation, encode_claim_spec, encode_meta
from ..scheduler.allocator import Features, with_taint_rules
from ..scheduler.gangs import Gang, GangMember, GangStatus, decode_pod_group, schedule
from ..scheduler.pods import Attempt, ClusterNode, Given, Pod, PodDecoder, Snapshot
from ..scheduler.pods.load import Reader
from ..scheduler.pods.node_resources import NodeResourceUse
from ..scheduler.pods.objects import ExtendedRequest
from .claimwrites import update_claim
from .kubelet.podstatus import timestamp
from .loop import (
    CLAIMS,
    CLASSES,
    FINALIZER,
    JSON,
    SLICES,
    claim_names,
    controlled_by,
    is_alive,
    reference,
    with_condition,
    without_protection,
)
from .podgroups import PodGroups, group_consumer
from .taintevictions import taint_rules

log = logging.getLogger(__name__)

_KINDS: Mapping[str, Kind] = {
    "ResourceSlice": SLICES,
    "DeviceClass": CLASSES,
    "ResourceClaim": CLAIMS,
    "Node": NODES,
    "Pod": PODS,
    "Namespace": NAMESPACES,
}


def decode_pod(pod: JSON) -> Pod:
    """Return the pod as `dra_driver.scheduler.pods` knows it, without its volumes."""
    spec = {name: value for name, value in pod["spec"].items() if name != "volumes"}
    return PodDecoder().decode({**pod, "spec": spec})


class Scheduler:
    """Each step binds all pods that wait for a node and fit somewhere."""

    def __init__(
        self,
        client: ApiClient,
        features: Features | None = None,
        *,
        extended_resources: bool = True,
        taint_rules: Kind | None = None,
    ) -> None:
        """`features` and `extended_resources` (feature gate DRAExtendedResource) have the defaults of release 1.36.

        `taint_rules` are the DeviceTaintRules. None if the server does not have the kind.
        """
        self._client = client
        self._features = features or Features()
        self._extended_resources = extended_resources
        self._taint_rules = taint_rules
        self._events = EventRecorder(client, "default-scheduler")
        self._decoded: dict[int, tuple[JSON, object]] = {}
        """By the identity of an object: the object, and what it was decoded to."""

    def step(self) -> None:
        """Try each pod that has no node yet. Raises ApiError."""
        waiting = [pod for pod in self._client.list(PODS).items if is_alive(pod) and not pod["spec"].get("nodeName")]
        groups: dict[tuple[str, str], list[JSON]] = {}
        for pod in waiting:
            if key := group_of(pod):
                groups.setdefault(key, []).append(pod)
            elif claim_names(pod) is not None:
                self._try(pod, partial(self._schedule, pod))
        for key, pods in groups.items():
            self._try(pods[0], partial(self._schedule_group, key, pods))

    def _try(self, pod: JSON, schedule: Callable[[], None]) -> None:
        """Schedule a pod, or a group with the pod."""
        try:
            schedule()
        except NotFoundError as error:
            # The pod, its group or one of its claims has been deleted in the meantime.
            log.debug("pod %s waits: %s", reference(pod), error)

    def close(self) -> None:
        """Write the Events that are still queued."""
        self._events.close()

    def _schedule_group(self, key: tuple[str, str], pods: Sequence[JSON]) -> None:
        """Schedule the waiting pods of a PodGroup, whose namespace and name are given, as a whole."""
        group = PodGroups.read(self._client).by_name.get(key)
        objects = self._read()
        if any(claim_names(pod) is None for pod in pods) or self._discard_stale(pods, objects):
            return  # there will be a change, so the group gets another attempt
        snapshot = self._with_taints(self._snapshot(objects))
        claims = {claim.metadata.name: claim for claim in snapshot.cluster.claims if claim.metadata.namespace == key[0]}
        if lacking := [pod for pod in pods if not claims.keys() >= {*(claim_names(pod) or ())}]:
            for pod in lacking:
                self._refuse(pod, Attempt(decode_pod(pod), snapshot, self._features))
            return
        by_age = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        by_uid = {pod["metadata"]["uid"]: pod for pod in by_age}
        members = tuple(
            GangMember(decode_pod(pod), tuple(claims[name] for name in claim_names(pod) or ())) for pod in by_age
        )
        running = tuple(pod for pod in snapshot.pods if pod.node_name and (pod.namespace, pod.group) == key)
        decoded = decode_pod_group(group) if group is not None else None
        verdict = schedule(Gang(key[1], decoded, members, running), snapshot, self._features)
        if group is None or verdict.condition is None:
            return  # like kube-scheduler, without an Event
        reason = "Unschedulable" if verdict.status is not GangStatus.ERROR else "SchedulerError"
        for result in verdict.results:
            pod = by_uid[result.member.pod.uid]
            if not verdict.is_scheduled or result.node is None:
                self._report(pod, reason, result.text or verdict.message)
                continue
            held = {claim.metadata.uid: claim for claim in snapshot.cluster.allocated}
            given = [held.get(claim.metadata.uid, claim) for claim in result.member.claims]
            attempt = Attempt(result.member.pod, snapshot, self._features, given)
            stored = [self._client.get(CLAIMS, claim.metadata.name, key[0]) for claim in given]
            self._bind(pod, list(zip(stored, self._consumers(pod), strict=True)), attempt, result.node)
            cluster = snapshot.cluster.after(attempt.allocated(result.node))
            snapshot = snapshot.placed(attempt.placed(result.node), result.node, cluster)
        self._write_condition(group, verdict.condition)

    def _write_condition(self, group: JSON, condition: Mapping[str, str]) -> None:
        """Write the group's condition. Once it is true, it stays so."""
        meta = group["metadata"]
        before = (group.get("status") or {}).get("conditions") or []
        if any(known["type"] == condition["type"] and known["status"] == "True" for known in before):
            return
        is_true = condition["status"] == "True"
        after = with_condition(before, condition["type"], is_true, condition["reason"], condition["message"])
        if after != before:
            change = {"status": {"conditions": after}}
            self._client.patch(POD_GROUPS, meta["name"], change, namespace=meta["namespace"], subresource="status")

    def _read(self) -> dict[str, Sequence[JSON]]:
        return {kind: self._client.list(where).items for kind, where in _KINDS.items()}

    def _discard_stale(self, pods: Sequence[JSON], objects: Mapping[str, Sequence[JSON]]) -> bool:
        """Delete claims that earlier attempts made for the pods. Return whether there were any."""
        stale = [claim for claim in objects["ResourceClaim"] for pod in pods if is_special_claim(claim, pod)]
        for claim in stale:
            self._discard(claim)
        return bool(stale)

    def _schedule(self, pod: JSON) -> None:
        objects = self._read()
        if self._discard_stale([pod], objects):
            return  # the deletion is a change, so the pod gets another attempt
        attempt = Attempt(decode_pod(pod), self._with_taints(self._snapshot(objects)), self._features)
        if attempt.gates:
            return  # like kube-scheduler, without an Event
        if not attempt.fits:
            self._refuse(pod, attempt)
            return
        stored = {
            (object_["metadata"]["namespace"], object_["metadata"]["name"]): object_
            for object_ in objects["ResourceClaim"]
        }
        claims = [stored[pod["metadata"]["namespace"], name] for name in claim_names(pod) or ()]
        self._bind(pod, list(zip(claims, self._consumers(pod), strict=True)), attempt, attempt.fits[0])

    def _consumers(self, pod: JSON) -> list[JSON]:
        """Return for each claim of the pod for whom it is reserved: the pod, or the PodGroup that shares the claim."""
        entries = pod["spec"].get("resourceClaims") or []
        groups = PodGroups.read(self._client) if entries and pod["spec"].get("schedulingGroup") else PodGroups({})
        shared = [groups.sharing(pod, entry) for entry in entries]
        return [_pod_consumer(pod) if group is None else group_consumer(group) for group in shared]

    def _snapshot(self, objects: Mapping[str, Sequence[JSON]]) -> Snapshot:
        """Return the cluster with these objects. Objects of the last snapshot are not decoded again."""
        reader, decoded = Reader(), {}
        for kind, values in objects.items():
            for value in values:
                known = self._decoded.get(id(value))
                if known is None:
                    known = value, reader.decode({**value, "apiVersion": _KINDS[kind].api_version, "kind": kind})
                decoded[id(value)] = known
                reader.keep(kind, known[1])
        self._decoded = decoded
        return replace(reader.snapshot(), extended_resources=self._extended_resources)

    def _with_taints(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the taints of the DeviceTaintRules."""
        rules = taint_rules(self._client, self._taint_rules) if self._features.device_taint_rules else []
        if not rules:
            return snapshot
        every = has_rule(self._features.release, "rule_without_selector_taints_all")
        slices = with_taint_rules(snapshot.cluster.slices, rules, without_selector=every)
        return snapshot.with_cluster(replace(snapshot.cluster, slices=tuple(slices)))

    def _bind(self, pod: JSON, claims: Sequence[tuple[JSON, JSON]], attempt: Attempt, node: str) -> None:
        """Write the allocations and reservations of claims with their consumers, then the pod's node."""
        meta = pod["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        given = attempt.gives(node)
        allocations = {
            given_devices.claim.metadata.uid: given_devices.allocation
            for given_devices in given
            if not given_devices.special
        }
        for claim, consumer in claims:
            self._reserve(claim, allocations.get(claim["metadata"]["uid"]), consumer)
        for given_devices in given:
            if given_devices.special and given_devices.requests:
                self._create_special_claim(pod, given_devices, attempt, node)
        if uses := attempt.uses(node):
            entries = {str(entry["name"]): str(claim["metadata"]["name"]) for entry, claim in _entries(pod, claims)}
            statuses = [_use_status(use, pod, entries) for use in uses]
            change = {"status": {"nodeAllocatableResourceClaimStatuses": statuses}}
            self._client.patch(PODS, name, change, namespace=namespace, subresource="status")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._client.create(PODS, binding, namespace, name=name, subresource="binding")
        self._events.normal(reference(pod), "Scheduled", f"Successfully assigned {namespace}/{name} to {node}")
        log.info("bound", extra={"pod": f"{namespace}/{name}", "node": node})

    def _create_special_claim(self, pod: JSON, given: Given, attempt: Attempt, node: str) -> None:
        """Create, allocate and reserve the claim for extended resources, and record it in the pod's status."""
        meta = pod["metadata"]
        metadata = ObjectMeta(
            namespace=meta["namespace"],
            generate_name=f"{meta['name']}-extended-resources-",
            annotations={EXTENDED_CLAIM_ANNOTATION: "true"},
            owner_references=(OwnerReference("v1", "Pod", meta["name"], meta["uid"], controller=True),),
        )
        value = {
            "apiVersion": V1.api_version,
            "kind": "ResourceClaim",
            "metadata": encode_meta(metadata),
            "spec": encode_claim_spec(given.claim.spec, V1),
        }
        created = self._client.create(CLAIMS, value, meta["namespace"])
        self._reserve(created, given.allocation, _pod_consumer(pod))
        claimed = claimed_on(attempt.pod, attempt.snapshot.sites[node].node, attempt.snapshot.served)
        status = claim_status(pod, created["metadata"]["name"], given.claim, claimed)
        change = {"metadata": {"uid": meta["uid"]}, "status": {"extendedResourceClaimStatus": status}}
        self._client.patch(PODS, meta["name"], change, namespace=meta["namespace"], subresource="status")

    def _reserve(self, claim: JSON, allocation: AllocationResult | None, consumer: JSON) -> None:
        """Reserve the claim for the consumer, and write its allocation if it is new."""
        meta = claim["metadata"]
        if FINALIZER not in (meta.get("finalizers") or []):
            protected = {**meta, "finalizers": [*(meta.get("finalizers") or []), FINALIZER]}
            claim = update_claim(self._client, {**claim, "metadata": protected})
        status = dict(claim.get("status") or {})
        if allocation is not None:
            status["allocation"] = encode_allocation(allocation)
            if self._features.binding:
                status["allocation"]["allocationTimestamp"] = timestamp(time.time())
        others = [other for other in status.get("reservedFor") or [] if other["uid"] != consumer["uid"]]
        status["reservedFor"] = [*others, consumer]
        update_claim(self._client, {**claim, "status": status}, "status")

    def _discard(self, claim: JSON) -> None:
        """Delete a claim that an earlier attempt made for the pod. The pod was not bound, so nothing uses the claim."""
        meta = claim["metadata"]
        update_claim(self._client, without_protection(claim))
        self._client.delete(CLAIMS, meta["name"], meta["namespace"], uid=meta["uid"])

    def _refuse(self, pod: JSON, attempt: Attempt) -> None:
        """Write why the pod is not scheduled: into its status, and as an Event that counts the attempts."""
        message = attempt.event or "; ".join(sorted(attempt.errors))
        self._report(pod, "SchedulerError" if attempt.errors else "Unschedulable", message)

    def _report(self, pod: JSON, reason: str, message: str) -> None:
        self._events.warning(reference(pod), "FailedScheduling", message)
        before = pod.get("status", {}).get("conditions") or []
        conditions = with_condition(before, "PodScheduled", False, reason, message)
        if conditions[-1] not in before:
            status = {**pod.get("status", {}), "conditions": conditions}
            self._client.update(PODS, {**pod, "status": status}, subresource="status")


def _entries(pod: JSON, claims: Sequence[tuple[JSON, JSON]]) -> Iterator[tuple[JSON, JSON]]:
    """Yield the entries of the pod's claims with their claims."""
    yield from zip(pod["spec"].get("resourceClaims") or (), [claim for claim, _ in claims], strict=True)


def _use_status(use: NodeResourceUse, pod: JSON, entries: Mapping[str, str]) -> JSON:
    """Return what a claim takes of its node's resources, as the pod's status records it."""
    containers = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    using = [
        container["name"]
        for container in containers
        if any(
            entries.get(claim["name"]) == use.claim for claim in (container.get("resources") or {}).get("claims") or ()
        )
    ]
    overhead = [
        {"name": name, "perPod": str(use.per_pod[name]), "perContainer": str(use.per_container[name])}
        for name in sorted(use.per_pod)
    ]
    mapping = [{"name": name, "quantity": str(amount)} for name, amount in sorted(use.mapping.items())]
    found = {"resourceClaimName": use.claim, "containers": using, "mapping": mapping, "overhead": overhead}
    return {name: value for name, value in found.items() if value}


def _pod_consumer(pod: JSON) -> JSON:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def group_of(pod: JSON) -> tuple[str, str] | None:
    """Return namespace and name of the pod's PodGroup, or None if it has none."""
    name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return (pod["metadata"]["namespace"], name) if name else None


def is_special_claim(claim: JSON, pod: JSON) -> bool:
    """Return whether the scheduler made the claim for the pod."""
    annotations = claim["metadata"].get("annotations") or {}
    return annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true" and controlled_by(claim) == pod["metadata"]["uid"]


def claimed_on(pod: Pod, node: ClusterNode, served: Container[str]) -> list[ExtendedRequest]:
    """Return the requests that the claim serves on the node. Device plugins of the node serve the others."""
    return [
        request for request in pod.extended if request.resource in served and not node.allocatable.get(request.resource)
    ]


def claim_status(pod: JSON, name: str, claim: ResourceClaim, claimed: Sequence[ExtendedRequest]) -> JSON:
    """Return `status.extendedResourceClaimStatus` of a pod whose special claim has the name `name`."""
    containers = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    made = {request.name for request in claim.spec.requests}
    mappings = [
        {"containerName": containers[mapped.index]["name"], "resourceName": resource, "requestName": request}
        for resource in sorted({request.resource for request in claimed})
        for mapped, request in _mappings([request for request in claimed if request.resource == resource], made)
    ]
    return {"resourceClaimName": name, "requestMappings": mappings}


def _mappings(requests: Sequence[ExtendedRequest], made: set[str]) -> Iterator[tuple[ExtendedRequest, str]]:
    """Yield the requests of the claim that serve each container, for one resource.

    Init containers use devices of later containers. If an init container needs more, the claim has one request for
    the rest.
    """
    lasting = [request for request in requests if not request.short_lived]
    passing = [request for request in requests if request.short_lived]
    yield from ((request, request.request) for request in lasting)
    on_top = [request.request for request in passing if request.request in made]
    for init_request in passing:
        missing = init_request.count
        for later in lasting:
            if later.index >= init_request.index and missing > 0:
                yield init_request, later.request
                missing -= later.count
        if missing > 0:
            yield from ((init_request, name) for name in on_top)
