# SPDX-License-Identifier: Apache-2.0
"""PodGroups: claims that their pods share (KEP 5729), and gangs (KEP 4671). Workloads are only stored."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Kind, StatusError
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
WORKLOADS = Kind("scheduling.k8s.io/v1beta1", "workloads", namespaced=True)
ON = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
SHARED = {"name": "gpu", "resourceClaimTemplateName": "one"}
OWN = {"name": "other", "resourceClaimTemplateName": "one"}


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ApiClient]:
    """The client of a cluster with 4 GPUs, whose gates the test may name."""
    with ExitStack() as stack:
        gates = getattr(request, "param", ON)
        server = stack.enter_context(ApiServer(ApiServerOptions(minor=37, gates=gates, tls=False)))
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
    return all(pod["spec"].get("nodeName") for pod in client.list(PODS).items)


def claim_of(client: ApiClient, pod: str, name: str) -> str:
    statuses = client.get(PODS, pod, "default")["status"]["resourceClaimStatuses"]
    found: str = next(item["resourceClaimName"] for item in statuses if item["name"] == name)
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
    wait_for(
        lambda: [claim["metadata"]["name"] for claim in client.list(CLAIMS).items] == [shared], "the own claim to go"
    )
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


def create_gang(client: ApiClient, least: int) -> None:
    value = {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "gang"}}
    client.create(POD_GROUPS, {**value, "spec": {"schedulingPolicy": {"gang": {"minCount": least}}}}, "default")


def condition_of(client: ApiClient) -> tuple[str, str, str]:
    """Status, reason and message of the gang's condition, empty if there is none."""
    status = client.get(POD_GROUPS, "gang", "default").get("status") or {}
    for condition in status.get("conditions") or ():
        assert condition["type"] == "PodGroupInitiallyScheduled"
        return condition["status"], condition["reason"], condition["message"]
    return "", "", ""


def create_members(client: ApiClient, *names: str) -> None:
    for name in names:
        spec = {
            "containers": [container("a")],
            "resourceClaims": [OWN],
            "schedulingGroup": {"podGroupName": "gang"},
            "terminationGracePeriodSeconds": 0,
        }
        client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, "default")


def test_gang_is_bound_as_a_whole(client: ApiClient) -> None:
    create_gang(client, 4)
    create_members(client, "p", "q", "r")
    wait_for(lambda: len(client.list(CLAIMS).items) == 3, "the claims")
    assert not any(pod["spec"].get("nodeName") for pod in client.list(PODS).items)
    assert condition_of(client) == ("", "", ""), "the pods are not in the scheduling queue"
    create_members(client, "s")
    wait_for(lambda: are_bound(client), "the pods to be bound")
    wait_for(lambda: condition_of(client)[0] == "True", "the condition")
    assert condition_of(client) == ("True", "Scheduled", "")


def test_gang_that_does_not_fit_is_not_bound(client: ApiClient) -> None:
    create_gang(client, 5)
    create_members(client, "p", "q", "r", "s", "t")
    message = "minCount (5) cannot be satisfied: 4 scheduled, 0 remaining"
    wait_for(lambda: condition_of(client) == ("False", "Unschedulable", message), "the condition")

    def texts() -> set[str]:
        conditions = [
            condition for pod in client.list(PODS).items for condition in pod["status"].get("conditions") or ()
        ]
        return {condition["message"] for condition in conditions if condition["type"] == "PodScheduled"}

    wanted = {message, "0/1 nodes are available: 1 cannot allocate all claims."}
    wait_for(lambda: texts() == wanted, "the conditions of the pods")
    assert not any(pod["spec"].get("nodeName") for pod in client.list(PODS).items)
    assert not any((claim.get("status") or {}).get("allocation") for claim in client.list(CLAIMS).items)


def test_group_that_was_scheduled_stays_so(client: ApiClient) -> None:
    create_gang(client, 2)
    create_members(client, "p", "q")
    wait_for(lambda: condition_of(client)[0] == "True", "the condition")
    create_members(client, "r", "s", "t")
    wait_for(lambda: sum(bool(pod["spec"].get("nodeName")) for pod in client.list(PODS).items) == 4, "two more pods")
    assert condition_of(client) == ("True", "Scheduled", "")


def test_gang_waits_for_its_group(client: ApiClient) -> None:
    create_members(client, "p")
    wait_for(lambda: len(client.list(CLAIMS).items) == 1, "the claim")
    create_gang(client, 1)
    client.patch(PODS, "p", {"metadata": {"labels": {"touched": "yes"}}}, namespace="default")
    wait_for(lambda: are_bound(client), "the pod to be bound")


def workload(*templates: JSON) -> JSON:
    value = {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "metadata": {"name": "w"}}
    return {**value, "spec": {"podGroupTemplates": list(templates)}}


def test_workload_is_stored_without_fields_behind_disabled_gates(client: ApiClient) -> None:
    constraints = {"topology": [{"key": "rack"}]}
    policy = {"gang": {"minCount": 2}}
    template = {
        "name": "t",
        "schedulingPolicy": policy,
        "schedulingConstraints": constraints,
        "resourceClaims": [SHARED],
    }
    client.create(WORKLOADS, workload(template), "default")
    stored = client.get(WORKLOADS, "w", "default")["spec"]["podGroupTemplates"]
    assert stored == [{"name": "t", "schedulingPolicy": policy, "resourceClaims": [SHARED]}]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({}, "must specify exactly one of: `basic`, `gang`"),
        ({"basic": {}, "gang": {"minCount": 1}}, "must specify exactly one of: `basic`, `gang`"),
        ({"gang": {"minCount": 0}}, "must be greater than or equal to 1"),
    ],
)
def test_wrong_policy_is_refused(client: ApiClient, policy: JSON, text: str) -> None:
    with pytest.raises(StatusError, match=text):
        client.create(WORKLOADS, workload({"name": "t", "schedulingPolicy": policy}), "default")
    value = {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "gang"}}
    with pytest.raises(StatusError, match=text):
        client.create(POD_GROUPS, {**value, "spec": {"schedulingPolicy": policy}}, "default")
