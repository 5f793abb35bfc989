# SPDX-License-Identifier: Apache-2.0
"""The calls of kubelet to the API server. Tests use a cluster in memory instead.

Objects are parsed JSON, except claims, which are decoded to the project's types.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlencode

from dra_driver.kube.api import ApiClient, ConflictError, NotFoundError, Watcher
from dra_driver.kube.api.events import EventLimits, EventRecorder, ObjectReference
from dra_driver.kube.kinds import LEASES, NODES, PODS, claims_of, slices_of
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim

from .model import KubeletPod, decode_pod
from .options import BackoffRange

_CLAIMS = claims_of(V1)
_SLICES = slices_of(V1)
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 40
_STRATEGIC = "application/strategic-merge-patch+json"
_EVENT_LIMITS = EventLimits(repeat=1.0)
"""Repeated Events are counted soon, because kubelet has few pods here and people watch them."""

HandlePods = Callable[[Mapping[str, KubeletPod]], None]
"""A function that gets all pods of a node by UID."""


class PodWatch(Protocol):
    """A watch on the pods of a node, on a thread of its own."""

    def start(self) -> None:
        """Start the thread."""

    def stop(self) -> None:
        """End the watch soon. Does not wait for the thread."""


class KubernetesCluster:
    """The requests of kubelet. Every method may raise ApiError."""

    def __init__(self, client: ApiClient, *, node_name: str) -> None:
        """`node_name` is the source of Events."""
        self._client = client
        self._events = EventRecorder(client, "kubelet", node_name, _EVENT_LIMITS)

    def close(self) -> None:
        """Write the Events that are still queued."""
        self._events.close()

    def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        """Return a ResourceClaim."""
        return decode_claim(self._client.get(_CLAIMS, name, namespace), V1, strict=False)

    def watch_pods(self, node: str, pauses: BackoffRange, handle: HandlePods) -> PodWatch:
        """Return a watch that calls `handle` with the pods bound to `node`, and again after each change."""
        pods: dict[str, KubeletPod] = {}

        def replace_all(items: list[dict[str, Any]]) -> None:
            pods.clear()
            pods.update((pod.uid, pod) for pod in map(decode_pod, items))
            handle(pods)

        def change(event: str, item: dict[str, Any]) -> None:
            pod = decode_pod(item)
            if event == "DELETED":
                pods.pop(pod.uid, None)
            else:
                pods[pod.uid] = pod
            handle(pods)

        return Watcher(
            self._client,
            PODS,
            on_list=replace_all,
            on_event=change,
            first_pause=pauses.first,
            longest_pause=pauses.longest,
            field_selector=f"spec.nodeName={node}",
        )

    def patch_pod_status(self, pod: KubeletPod, status: Mapping[str, Any]) -> None:
        """Merge `status` into the pod's status, conditions by type. Raises ConflictError if the UID has changed."""
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        self._merge(PODS.path(pod.namespace, pod.name, "status"), patch)

    def delete_pod(self, pod: KubeletPod) -> None:
        """Delete the pod without a grace period. Does nothing if the pod is gone."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        with suppress(NotFoundError, ConflictError):
            self._send("DELETE", PODS.path(pod.namespace, pod.name), options, "application/json")

    def record_event(self, pod: KubeletPod, reason: str, message: str) -> None:
        """Record a Warning about a pod. It is written later, and a repeated one is counted."""
        self._events.warning(ObjectReference("v1", "Pod", pod.name, pod.namespace, pod.uid), reason, message)

    def apply_node(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        """Create the Node or update its labels, then set its status."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels)}, "spec": {}}
        try:
            self._client.create(NODES, node)
        except ConflictError:
            self._merge(NODES.path(name=name), {"metadata": {"labels": dict(labels)}})
        self._merge(NODES.path(name=name, subresource="status"), {"status": status})

    def renew_lease(self, name: str, now: float) -> None:
        """Renew the node's Lease, as of `now` (seconds since the epoch), or create it."""
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            self._client.patch(LEASES, name, {"spec": spec}, namespace=_LEASE_NAMESPACE)
        except NotFoundError:
            owner = self._client.get(NODES, name)["metadata"]
            reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner["uid"]}
            lease = {"metadata": {"name": name, "ownerReferences": [reference]}, "spec": spec}
            self._client.create(LEASES, lease, _LEASE_NAMESPACE)

    def delete_slices(self, node: str, driver: str) -> None:
        """Delete the ResourceSlices of `node`, or those of one driver, with one deletecollection request."""
        selector = f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")
        self._client.send("DELETE", f"{_SLICES.path()}?{urlencode({'fieldSelector': selector})}")

    def _merge(self, path: str, patch: Mapping[str, Any]) -> None:
        self._send("PATCH", path, patch, _STRATEGIC)

    def _send(self, method: str, path: str, body: Mapping[str, Any], content_type: str) -> None:
        self._client.send(method, path, json.dumps(body).encode(), content_type=content_type)
