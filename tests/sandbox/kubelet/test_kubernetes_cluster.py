# SPDX-License-Identifier: Apache-2.0
"""The requests that go to an API server, and what is made of its answers: over HTTP, with scripted answers."""

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import NotFoundError, StatusError, UnreachableError
from dra_driver.sandbox.kubelet import BackoffRange, KubernetesCluster
from dra_driver.sandbox.kubelet.model import decode_pod
from tests.support.apiserver import connect

from .memory_cluster import NODE, make_pod
from .scripted_api import ScriptedApi, scripted_api, write_kubeconfig

PODS = "/api/v1/pods"
POD = decode_pod(make_pod("pod"))


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    """A server that answers 404 to all that it was not told."""
    with scripted_api() as running:
        yield running


@pytest.fixture
def cluster(api: ScriptedApi, tmp_path: Path) -> Iterator[KubernetesCluster]:
    """The client of that server."""
    with connect(write_kubeconfig(tmp_path / "kubeconfig", api.port)) as client:
        yield KubernetesCluster(client, node_name=NODE)


def test_a_claim_is_read_from_resource_v1(cluster: KubernetesCluster, api: ScriptedApi) -> None:
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": NODE, "device": "gpu-0"}
    api.answers["GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu"] = (
        200,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": "gpu",
                "namespace": "default",
                "uid": "uid-gpu",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "uid-pod", "controller": True}
                ],
            },
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "pod", "uid": "uid-pod"}],
            },
        },
    )
    claim = cluster.get_claim("default", "gpu")
    assert (claim.metadata.uid, claim.metadata.owner_references[0].controller) == ("uid-gpu", True)
    assert claim.allocation is not None
    assert claim.allocation.results[0].driver == "gpu.example.com"
    assert claim.reserved_for[0].uid == "uid-pod"


def test_error_has_the_message_of_the_server(cluster: KubernetesCluster) -> None:
    with pytest.raises(NotFoundError) as caught:
        cluster.get_claim("default", "gpu")
    assert caught.value.message == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/gpu not found"


def test_unreachable_server_is_an_error(tmp_path: Path) -> None:
    with (
        connect(write_kubeconfig(tmp_path / "kubeconfig", port=9)) as client,
        pytest.raises(UnreachableError, match="refused"),
    ):
        KubernetesCluster(client, node_name=NODE).delete_slices(NODE, "")


def test_pods_are_listed_and_then_watched(cluster: KubernetesCluster, api: ScriptedApi) -> None:
    listed = {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [make_pod("old")]}
    api.answers["GET", PODS] = 200, listed
    handled: queue.Queue[set[str]] = queue.Queue()
    watch = cluster.watch_pods(NODE, BackoffRange(0.01, 0.01), lambda pods: handled.put(set(pods)))
    watch.start()
    try:
        assert handled.get(timeout=600) == {"uid-old"}
        for version, (kind, name) in enumerate((("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "old")), start=8):
            pod = make_pod(name)
            pod["metadata"]["resourceVersion"] = str(version)
            api.events.put({"type": kind, "object": {"apiVersion": "v1", "kind": "Pod"} | pod})
        seen = [handled.get(timeout=600) for _ in range(3)]
    finally:
        watch.stop()
    assert seen == [{"uid-old", "uid-new"}, {"uid-old", "uid-new"}, {"uid-new"}]
    queries = [query for _, path, query, *_ in api.requests if path == PODS]
    assert [query["fieldSelector"] for query in queries] == ["spec.nodeName=node-1"] * 2
    assert queries[1]["resourceVersion"] == "7"


def test_the_status_is_patched_for_the_pod_of_that_uid(cluster: KubernetesCluster, api: ScriptedApi) -> None:
    path = "/api/v1/namespaces/default/pods/pod/status"
    api.answers["PATCH", path] = 200, make_pod("pod")
    cluster.patch_pod_status(POD, {"phase": "Running"})
    assert api.requests[0][3] == "application/strategic-merge-patch+json"
    assert api.body_of("PATCH", path) == {"metadata": {"uid": "uid-pod"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(("status", "raises"), [(200, False), (404, False), (409, False), (403, True)])
def test_a_pod_is_deleted_at_once_and_only_that_one(
    cluster: KubernetesCluster, api: ScriptedApi, status: int, raises: bool
) -> None:
    path = "/api/v1/namespaces/default/pods/pod"
    api.answers["DELETE", path] = status, make_pod("pod") if status == 200 else {"message": "no"}
    if raises:
        with pytest.raises(StatusError, match="no"):
            cluster.delete_pod(POD)
    else:
        cluster.delete_pod(POD)
    assert api.body_of("DELETE", path) == {"gracePeriodSeconds": 0, "preconditions": {"uid": "uid-pod"}}


def test_an_event_is_about_the_pod_and_from_kubelet(cluster: KubernetesCluster, api: ScriptedApi) -> None:
    path = "/api/v1/namespaces/default/events"
    api.answers["POST", path] = 201, {"metadata": {}, "involvedObject": {}}
    cluster.record_event(POD, "FailedPrepareDynamicResources", "Failed to …")
    cluster.close()
    event = api.body_of("POST", path)
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "pod",
        "uid": "uid-pod",
    }
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "FailedPrepareDynamicResources",
        "Failed to …",
    )
    assert event["source"] == {"component": "kubelet", "host": NODE}
    assert event["count"] == 1


@pytest.mark.parametrize("exists", [False, True])
def test_a_node_is_made_or_labelled_and_its_status_set(
    cluster: KubernetesCluster, api: ScriptedApi, exists: bool
) -> None:
    node = {"metadata": {"name": NODE}}
    api.answers["POST", "/api/v1/nodes"] = (409, {"message": "exists"}) if exists else (201, node)
    api.answers["PATCH", f"/api/v1/nodes/{NODE}"] = 200, node
    api.answers["PATCH", f"/api/v1/nodes/{NODE}/status"] = 200, node
    cluster.apply_node(NODE, {"a": "b"}, {"conditions": []})
    assert api.body_of("POST", "/api/v1/nodes")["metadata"] == {"name": NODE, "labels": {"a": "b"}}
    assert api.body_of("PATCH", f"/api/v1/nodes/{NODE}/status") == {"status": {"conditions": []}}
    if exists:
        assert api.body_of("PATCH", f"/api/v1/nodes/{NODE}") == {"metadata": {"labels": {"a": "b"}}}


def test_lease_of_a_node_is_renewed(cluster: KubernetesCluster, api: ScriptedApi) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
    api.answers["PATCH", path] = 200, {}
    cluster.renew_lease(NODE, 0.25)
    spec = {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": "1970-01-01T00:00:00.250000Z"}
    assert api.body_of("PATCH", path) == {"spec": spec}


def test_lease_of_a_new_node_belongs_to_the_node(cluster: KubernetesCluster, api: ScriptedApi) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    api.answers["PATCH", f"{leases}/{NODE}"] = 404, {"message": "not found"}
    api.answers["GET", f"/api/v1/nodes/{NODE}"] = 200, {"metadata": {"name": NODE, "uid": "uid-of-node"}}
    api.answers["POST", leases] = 201, {}
    cluster.renew_lease(NODE, 0.25)
    reference = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-of-node"}
    assert api.body_of("POST", leases)["metadata"] == {"name": NODE, "ownerReferences": [reference]}


@pytest.mark.parametrize(
    ("driver", "selector"),
    [("", "spec.nodeName=node-1"), ("gpu.example.com", "spec.nodeName=node-1,spec.driver=gpu.example.com")],
)
def test_slices_are_deleted_as_a_collection(
    cluster: KubernetesCluster, api: ScriptedApi, driver: str, selector: str
) -> None:
    path = "/apis/resource.k8s.io/v1/resourceslices"
    api.answers["DELETE", path] = 200, {"kind": "Status", "status": "Success"}
    cluster.delete_slices(NODE, driver)
    assert api.requests[0][:3] == ("DELETE", path, {"fieldSelector": selector})
