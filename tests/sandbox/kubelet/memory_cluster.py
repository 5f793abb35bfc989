# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory, behind the protocol that the kubelet's API access has."""

import copy
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.api import ApiError, ConflictError, NotFoundError
from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
    DeviceClaim,
    ObjectMeta,
    OwnerReference,
    ResourceClaim,
)
from dra_driver.process.worker import Worker
from dra_driver.sandbox.kubelet import BackoffRange
from dra_driver.sandbox.kubelet.apiclient import HandlePods, KubernetesCluster, PodWatch
from dra_driver.sandbox.kubelet.model import KubeletPod, decode_pod

from .scripted_plugin import DRIVER

NODE = "node-1"


def make_claim(
    name: str,
    *,
    pods: Sequence[str] = (),
    drivers: Sequence[str] = (DRIVER,),
    uid: str | None = None,
    owner: str | None = None,
    allocated: bool = True,
) -> ResourceClaim:
    """A claim in namespace `default`, reserved for these pods (uids), controlled by the pod `owner` (uid)."""
    owners = () if owner is None else (OwnerReference("v1", "Pod", "owner", owner, controller=True),)
    results = tuple(AllocatedDevice("gpu", driver, NODE, f"dev-{name}") for driver in drivers)
    return ResourceClaim(
        ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}", owner_references=owners),
        DeviceClaim(),
        AllocationResult(results) if allocated else None,
        tuple(ConsumerReference("pods", "pod", pod) for pod in pods),
    )


def make_pod(name: str, *claims: str, request: str = "", uid: str | None = None) -> dict[str, Any]:
    """A bound pod with one container `main` that uses all the named claims (by reference)."""
    return {
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"uid-{name}"},
        "spec": {
            "nodeName": NODE,
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "resources": {"claims": [{"name": c} | ({"request": request} if request else {}) for c in claims]},
                }
            ],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


@dataclass(frozen=True)
class EventSeen:
    """An Event as it was sent."""

    pod: str
    reason: str
    message: str


class MemoryCluster(KubernetesCluster):
    """Pods and claims, and a log of every write: ("status", pod, phase), ("delete", pod), ("event", ...)."""

    def __init__(self) -> None:
        self.claims: dict[str, ResourceClaim] = {}
        self.events: list[EventSeen] = []
        self.writes: list[tuple[str, ...]] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, float] = {}
        self.failing: ApiError | None = None
        self._pods: dict[str, dict[str, Any]] = {}
        self._changed = threading.RLock()
        self._watches: list[Worker] = []

    # what a test does

    def add_claim(self, claim: ResourceClaim) -> None:
        self.claims[claim.metadata.name] = claim

    def add_pod(self, raw: Mapping[str, Any]) -> None:
        with self._changed:
            self._pods[raw["metadata"]["name"]] = copy.deepcopy(dict(raw))
            self._tell()

    def run_pod(self, name: str, *claims: str, **options: Any) -> None:
        """Add a pod, and the claims that it refers to, reserved for it."""
        raw = make_pod(name, *claims, **options)
        for claim in claims:
            pods = [ref.uid for ref in self.claims[claim].reserved_for] if claim in self.claims else []
            self.add_claim(make_claim(claim, pods=[*pods, raw["metadata"]["uid"]]))
        self.add_pod(raw)

    def touch_pod(self, name: str) -> None:
        """Change an annotation, which makes kubelet look at the pod."""
        with self._changed:
            self._pods[name]["metadata"].setdefault("annotations", {})["touched"] = uuid.uuid4().hex
            self._tell()

    def ask_to_delete(self, name: str) -> None:
        """What `kubectl delete` does to a bound pod."""
        with self._changed:
            metadata = self._pods[name]["metadata"]
            metadata.update(deletionTimestamp="2030-01-01T00:00:00Z", deletionGracePeriodSeconds=1)
            self._tell()

    def force_delete(self, name: str) -> None:
        """What `kubectl delete --force` does."""
        with self._changed:
            del self._pods[name]
            self._tell()

    def status(self, name: str) -> Mapping[str, Any]:
        with self._changed:
            status: Mapping[str, Any] = copy.deepcopy(self._pods[name]["status"])
        return status

    def has_pod(self, name: str) -> bool:
        with self._changed:
            return name in self._pods

    def _tell(self) -> None:
        for watch in self._watches:
            watch.wake()

    # what kubelet does

    def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        if name not in self.claims:
            raise NotFoundError("GET", 404, "NotFound", f'resourceclaims.resource.k8s.io "{name}" not found')
        return self.claims[name]

    def watch_pods(self, node: str, pauses: BackoffRange, handle: HandlePods) -> PodWatch:
        def read() -> None:
            with self._changed:
                pods = [decode_pod(copy.deepcopy(raw)) for raw in self._pods.values()]
            handle({pod.uid: pod for pod in pods})

        watch = Worker("watch pods", read)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        """There are no Events to write."""

    def patch_pod_status(self, pod: KubeletPod, status: Mapping[str, Any]) -> None:
        with self._changed:
            raw = self._pods.get(pod.name)
            if raw is None:
                raise NotFoundError("PATCH", 404, "NotFound", f'pods "{pod.name}" not found')
            if raw["metadata"]["uid"] != pod.uid:
                raise ConflictError("PATCH", 409, "Conflict", "Precondition failed: UID in precondition")
            raw["status"].update(copy.deepcopy(dict(status)))
            self.writes.append(("status", pod.name, status["phase"]))
            self._tell()

    def delete_pod(self, pod: KubeletPod) -> None:
        with self._changed:
            if self._pods.get(pod.name, {}).get("metadata", {}).get("uid") == pod.uid:
                self.writes.append(("delete", pod.name))
                self.force_delete(pod.name)

    def record_event(self, pod: KubeletPod, reason: str, message: str) -> None:
        self.events.append(EventSeen(pod.name, reason, message))

    def apply_node(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        if self.failing:
            raise self.failing
        self.nodes[name] = {"labels": dict(labels), "status": dict(status)}

    def renew_lease(self, name: str, now: float) -> None:
        self.leases[name] = now

    def delete_slices(self, node: str, driver: str) -> None:
        if self.failing:
            raise self.failing
        self.writes.append(("wipe", node, driver or "*"))
