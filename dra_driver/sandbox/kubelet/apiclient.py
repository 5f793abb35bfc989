# SPDX-License-Identifier: Apache-2.0
"""The calls of kubelet to the API server, with the official client, which is independent of this project's own client.

Tests use a cluster in memory instead. Objects are parsed JSON, except claims, which are decoded to the project's types.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from kubernetes import client, config, watch

from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim

from .model import KubeletPod, decode_pod
from .podstatus import timestamp

_T = TypeVar("_T")
_WATCH_SECONDS = 240
_CUT_OFF_SECONDS = 0.05
_COMPONENT = "kubelet"
_LEASES = "kube-node-lease"
"""The namespace of the Leases of nodes."""
_LEASE_SECONDS = 40


class KubeletApiError(Exception):
    """The API server refused a request, or was unavailable (`status` 0). The text is the server's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubernetesCluster:
    """The requests of kubelet. Every method raises KubeletApiError."""

    def __init__(self, kubeconfig: Path, *, node_name: str) -> None:
        """Use the current context of the kubeconfig. `node_name` is the source of Events."""
        self._client: client.ApiClient = config.new_client_from_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), persist_config=False
        )
        self._core = client.CoreV1Api(self._client)
        self._resource = client.ResourceV1Api(self._client)
        self._leases = client.CoordinationV1Api(self._client)
        self._node_name = node_name
        self._events = Counter[tuple[str, ...]]()

    def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        """Return a ResourceClaim."""
        claim = _call(lambda: self._resource.read_namespaced_resource_claim(name, namespace))
        return decode_claim(self._json(claim), V1, strict=False)

    def watch_pods(self, node: str, stop: threading.Event) -> Iterator[Mapping[str, KubeletPod]]:
        """Yield the pods bound to `node` by UID, again after each change, until `stop` is set or the watch ends."""
        selector = f"spec.nodeName={node}"
        listed = _call(lambda: self._core.list_pod_for_all_namespaces(field_selector=selector))
        pods = {pod.uid: pod for pod in (decode_pod(self._json(item)) for item in listed.items)}
        yield pods
        assert listed.metadata is not None
        stream = watch.Watch()  # type: ignore[no-untyped-call]
        events = stream.stream(  # type: ignore[no-untyped-call]
            self._core.list_pod_for_all_namespaces,
            field_selector=selector,
            resource_version=listed.metadata.resource_version,
            timeout_seconds=_WATCH_SECONDS,
        )
        ended = threading.Event()
        threading.Thread(target=_cut_off, args=(stream, stop, ended), daemon=True).start()
        try:
            while (event := _call(lambda: next(events, None))) is not None and not stop.is_set():
                pod = decode_pod(event["raw_object"])
                if event["type"] == "DELETED":
                    pods.pop(pod.uid, None)
                else:
                    pods[pod.uid] = pod
                yield pods
        finally:
            ended.set()

    def patch_pod_status(self, pod: KubeletPod, status: Mapping[str, Any]) -> None:
        """Merge `status` into the pod's status, conditions by type. Fails with 409 if the UID has changed."""
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        _call(lambda: self._core.patch_namespaced_pod_status(pod.name, pod.namespace, patch))

    def delete_pod(self, pod: KubeletPod) -> None:
        """Delete the pod without a grace period. Does nothing if the pod is gone."""
        options = client.V1DeleteOptions(grace_period_seconds=0, preconditions=client.V1Preconditions(uid=pod.uid))
        try:
            _call(lambda: self._core.delete_namespaced_pod(pod.name, pod.namespace, body=options))
        except KubeletApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def record_event(self, pod: KubeletPod, reason: str, message: str) -> None:
        """Write a Warning about a pod, or count a repeated one."""
        what = (pod.uid, reason, message)
        self._events[what] += 1
        name = f"{pod.name}.{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"
        now = timestamp(time.time())
        seen = {"count": self._events[what], "lastTimestamp": now}
        try:
            _call(lambda: self._core.patch_namespaced_event(name, pod.namespace, seen))
            return
        except KubeletApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        event: Any = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": about,
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": _COMPONENT, "host": self._node_name},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node_name,
            "firstTimestamp": now,
            **seen,
        }
        _call(lambda: self._core.create_namespaced_event(pod.namespace, event))

    def apply_node(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        """Create the Node or update its labels, then set its status."""
        node: Any = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels)}, "spec": {}}
        try:
            _call(lambda: self._core.create_node(node))
        except KubeletApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            _call(lambda: self._core.patch_node(name, {"metadata": {"labels": dict(labels)}}))
        _call(lambda: self._core.patch_node_status(name, {"status": status}))

    def renew_lease(self, name: str, now: float) -> None:
        """Renew the node's Lease, as of `now` (seconds since the epoch), or create it."""
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            _call(lambda: self._leases.patch_namespaced_lease(name, _LEASES, {"spec": spec}))
        except KubeletApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            owner = _call(lambda: self._core.read_node(name)).metadata
            assert owner is not None
            reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner.uid}
            lease: Any = {"metadata": {"name": name, "ownerReferences": [reference]}, "spec": spec}
            _call(lambda: self._leases.create_namespaced_lease(_LEASES, lease))

    def delete_slices(self, node: str, driver: str | None) -> None:
        """Delete the ResourceSlices of `node`, or those of one driver, with one deletecollection request."""
        selector = f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")
        _call(lambda: self._resource.delete_collection_resource_slice(field_selector=selector))

    def _json(self, model: object) -> dict[str, Any]:
        value: dict[str, Any] = self._client.sanitize_for_serialization(model)  # type: ignore[no-untyped-call]
        return value


def _cut_off(stream: watch.Watch, stop: threading.Event, ended: threading.Event) -> None:
    """Close a stream when kubelet stops. Repeats this, because the stream may just be opening."""
    while not ended.wait(_CUT_OFF_SECONDS):
        if stop.is_set():
            stream.stop()  # type: ignore[no-untyped-call]


def _call(request: Callable[[], _T]) -> _T:
    try:
        return request()
    except client.ApiException as error:
        raise KubeletApiError(error.status or 0, _message(error)) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise KubeletApiError(0, str(error)) from error


def _message(error: client.ApiException) -> str:
    """Return the message of the server's Status, if there is one."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
