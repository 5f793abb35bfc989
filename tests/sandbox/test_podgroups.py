# SPDX-License-Identifier: Apache-2.0
"""Claims that the pods of a PodGroup share, as KEP 5729 describes them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES, POD_GROUPS, PODS
from dra_driver.kube.resource import ObjectMeta
from dra_driver.kube.resource.claim import ConsumerReference, ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.kubelet.model import decode_pod
from dra_driver.sandbox.kubelet.state import ClaimError, check_claim
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES, TEMPLATES
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

from .controlplane import stand_ins
from .test_scheduler import OBJECTS, container

JSON = dict[str, Any]
ON = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
SHARED = {"name": "gpu", "resourceClaimTemplateName": "one"}
OWN = {"name": "other", "resourceClaimTemplateName": "one"}


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ApiClient]:
    """The client of a cluster with 4 GPUs, whose gates the test may name."""
    with ExitStack() as stack:
        gates = getattr(request, "param", ON)
        server = stack.enter_context(ApiServer(ApiServerOptions(minor=37, gates=gates)))
        client = stack.enter_context(connect(server.write_kubeconfig(tmp_path / "kubeconfig")))
        for kind, value in OBJECTS:
            assert kind in (NODES, SLICES, CLASSES)
            client.create(kind, value)
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
        template = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": {"requests": requests}}}}
        client.create(TEMPLATES, {"apiVersion": V1.api_version, "kind": "ResourceClaimTemplate", **template}, "default")
        stack.enter_context(stand_ins(client))
        yield client


def create_group(client: ApiClient) -> JSON:
    value = {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "gang"}}
    spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": [SHARED]}
    return client.create(POD_GROUPS, {**value, "spec": spec}, "default")


def create_pods(client: ApiClient, *names: str) -> None:
    for name in names:
        spec = {
            "containers": [container("a")],
            "resourceClaims": [SHARED, OWN],
            "schedulingGroup": {"podGroupName": "gang"},
            "terminationGracePeriodSeconds": 0,
        }
        client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, "default")


def are_bound(client: ApiClient) -> bool:
    return all(one["spec"].get("nodeName") for one in client.list(PODS).items)


def claim_of(client: ApiClient, pod: str, name: str) -> str:
    statuses = client.get(PODS, pod, "default")["status"]["resourceClaimStatuses"]
    found: str = next(one["resourceClaimName"] for one in statuses if one["name"] == name)
    return found


def test_pods_of_a_group_share_the_claim_that_equals_one_of_the_group(client: ApiClient) -> None:
    group = create_group(client)
    create_pods(client, "p", "q")
    wait_for(lambda: are_bound(client), "the pods to be bound")
    shared = claim_of(client, "p", "gpu")
    assert claim_of(client, "q", "gpu") == shared
    assert claim_of(client, "p", "other") != claim_of(client, "q", "other")
    claim = client.get(CLAIMS, shared, "default")
    uid = group["metadata"]["uid"]
    assert claim["status"]["reservedFor"] == [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": uid}
    ]
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("PodGroup", uid)
    status = client.get(POD_GROUPS, "gang", "default")["status"]
    assert status["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": shared}]
    assert len(client.list(CLAIMS).items) == 3


def test_claim_of_a_group_stays_allocated_until_the_group_is_deleted(client: ApiClient) -> None:
    create_group(client)
    create_pods(client, "p")
    wait_for(lambda: are_bound(client), "the pod to be bound")
    shared, own = claim_of(client, "p", "gpu"), claim_of(client, "p", "other")
    client.delete(PODS, "p", "default")
    wait_for(lambda: [one["metadata"]["name"] for one in client.list(CLAIMS).items] == [shared], "the own claim to go")
    assert own != shared
    assert client.get(CLAIMS, shared, "default")["status"]["allocation"]
    client.delete(POD_GROUPS, "gang", "default")
    wait_for(lambda: not client.list(CLAIMS).items, "the claim of the group to go")


@pytest.mark.parametrize("client", [{**ON, "DRAWorkloadResourceClaims": False}], indirect=True)
def test_claims_are_those_of_pods_while_the_gate_is_off(client: ApiClient) -> None:
    assert "resourceClaims" not in create_group(client)["spec"]
    create_pods(client, "p", "q")
    wait_for(lambda: are_bound(client), "the pods to be bound")
    assert claim_of(client, "p", "gpu") != claim_of(client, "q", "gpu")


@pytest.mark.parametrize(
    ("pod_group", "consumer", "allowed"),
    [
        ("gang", ConsumerReference("podgroups", "gang", "uid-gang", "scheduling.k8s.io"), True),
        ("gang", ConsumerReference("podgroups", "other", "uid-other", "scheduling.k8s.io"), False),
        ("", ConsumerReference("podgroups", "gang", "uid-gang", "scheduling.k8s.io"), False),
        ("gang", ConsumerReference("pods", "gang", "uid-other"), False),
    ],
)
def test_kubelet_lets_pods_of_the_group_use_its_claim(
    pod_group: str, consumer: ConsumerReference, allowed: bool
) -> None:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
    group = {"schedulingGroup": {"podGroupName": pod_group}} if pod_group else {}
    pod = decode_pod({"metadata": {"namespace": "default", "name": "p", "uid": "uid-p"}, "spec": {**spec, **group}})
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"}
    allocated = {"allocation": {"devices": {"results": [result]}}}
    stored = decode_claim({"metadata": {"name": "c"}, "spec": {}, "status": allocated}, V1)
    claim = ResourceClaim(ObjectMeta(name="c"), stored.spec, stored.allocation, (consumer,))
    if allowed:
        assert check_claim(pod, pod.claims[0], claim) == {"gpu.nvidia.com"}
    else:
        with pytest.raises(ClaimError, match="is not allowed to use"):
            check_claim(pod, pod.claims[0], claim)
