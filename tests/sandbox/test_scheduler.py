# SPDX-License-Identifier: Apache-2.0
"""What pods get from the sandbox's scheduler: the same as from kube-scheduler 1.36, asked where there is one."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, NotFoundError
from dra_driver.kube.kinds import EVENTS, NODES, PODS
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES, controlled_by
from dra_driver.sandbox.scheduler import Scheduler
from dra_driver.scheduler.allocator import Features
from tests.support.apiserver import connect
from tests.support.waiting import wait_for

from .controlplane import kubernetes, stand_ins

JSON = dict[str, Any]
GPU, LINK, NOBODY = "nvidia.com/gpu", "a.com/link", "x.com/nobody-serves-it"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
PREEMPTION = "preemption: 0/{0} nodes are available: {0} Preemption is not helpful for scheduling."
PATIENCE = 60.0  # kube-scheduler waits up to 10 s before it tries again


@pytest.fixture(scope="module", params=["stand-in", "kubernetes"])
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    """An API server with a scheduler; node-1 has 4 GPUs, and the classes gpu and link serve extended resources."""
    folder = tmp_path_factory.mktemp("scheduler")
    with ExitStack() as stack:
        if request.param == "kubernetes":
            kubeconfig = stack.enter_context(kubernetes(folder))
        else:
            server = stack.enter_context(ApiServer(ApiServerOptions(minor=36, tls=False)))
            kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        client = stack.enter_context(connect(kubeconfig))
        for kind, value in OBJECTS:
            client.create(kind, value)
        if request.param == "stand-in":
            stack.enter_context(stand_ins(client))
        yield client


@pytest.fixture
def client(control_plane: ApiClient) -> Iterator[ApiClient]:
    """Its client. No test leaves anything to the next one."""
    client = control_plane
    yield client
    for kind, namespace in ((PODS, "default"), (CLAIMS, "default")):
        for item in client.list(kind).items:
            with suppress(NotFoundError):
                client.delete(kind, item["metadata"]["name"], namespace)
    wait_for(lambda: not client.list(PODS).items and not client.list(CLAIMS).items, "all to be gone", PATIENCE)


def node(name: str, **resources: str) -> JSON:
    room = {"cpu": "8", "memory": "32Gi", "pods": "110", **resources}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def device_class(name: str, resource: str) -> JSON:
    spec = {"extendedResourceName": resource}
    return {"apiVersion": V1.api_version, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


OBJECTS = (
    (NODES, node("node-1")),
    (
        SLICES,
        {
            "apiVersion": V1.api_version,
            "kind": "ResourceSlice",
            "metadata": {"name": "node-1"},
            "spec": {
                "nodeName": "node-1",
                "driver": "gpu.nvidia.com",
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{index}"} for index in range(4)],
            },
        },
    ),
    (CLASSES, device_class("gpu", GPU)),
    (CLASSES, device_class("link", LINK)),
)


def container(name: str, resources: JSON | None = None, **more: Any) -> JSON:
    return {"name": name, "image": "i", "resources": {"limits": resources or {}}, **more}


def create_pod(client: ApiClient, name: str, *containers: JSON, **spec: Any) -> None:
    complete = {"containers": list(containers), "terminationGracePeriodSeconds": 0, **spec}
    client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": complete}, "default")


def create_claim(client: ApiClient, name: str, **exactly: Any) -> JSON:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    value = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    return client.create(CLAIMS, value, "default")


def uses(claim: str) -> JSON:
    """The part of a pod's spec."""
    return {"resourceClaims": [{"name": "devices", "resourceClaimName": claim}]}


def bound(client: ApiClient, name: str) -> JSON:
    """The pod, once it has a node."""

    def on_node() -> JSON | None:
        pod = client.get(PODS, name, "default")
        return pod if pod["spec"].get("nodeName") else None

    found = wait_for(on_node, f"{name} to be bound", PATIENCE)
    assert found is not None
    return found


def refused(client: ApiClient, name: str) -> JSON:
    """The condition of a pod that is not scheduled."""

    def condition() -> JSON | None:
        conditions = client.get(PODS, name, "default").get("status", {}).get("conditions") or []
        return next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)

    found = wait_for(condition, f"a verdict on {name}", PATIENCE)
    assert found is not None
    assert found["status"] == "False"
    return found


def claims_of(client: ApiClient, pod: JSON) -> list[JSON]:
    """The claims that the pod owns."""
    return [claim for claim in client.list(CLAIMS).items if controlled_by(claim) == pod["metadata"]["uid"]]


def events_of(client: ApiClient, name: str, reason: str) -> list[JSON]:
    """The Events with that reason about the pod that has the name now."""
    uid = client.get(PODS, name, "default")["metadata"]["uid"]
    found = client.list(EVENTS).items
    return [item for item in found if item["involvedObject"].get("uid") == uid and item["reason"] == reason]


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("init", "main", "requests", "mappings"),
    [
        ([], [("a", {GPU: 1})], {"container-0-request-0": ("gpu", 1)}, ["a nvidia.com/gpu container-0-request-0"]),
        (
            [],
            [("a", {"cpu": 1, GPU: 1}), ("b", {}), ("c", {GPU: 2})],
            {"container-0-request-1": ("gpu", 1), "container-2-request-0": ("gpu", 2)},
            ["a nvidia.com/gpu container-0-request-1", "c nvidia.com/gpu container-2-request-0"],
        ),
        (
            [],
            [("a", {}), ("b", {}), ("c", {GPU: 1}), *((f"d{n}", {}) for n in range(7)), ("k", {GPU: 2})],
            {"container-10-request-0": ("gpu", 2), "container-2-request-0": ("gpu", 1)},
            ["c nvidia.com/gpu container-2-request-0", "k nvidia.com/gpu container-10-request-0"],
        ),
        (
            [],
            [("a", {IMPLICIT: 1})],
            {"container-0-request-0": ("gpu", 1)},
            ["a deviceclass.resource.kubernetes.io/gpu container-0-request-0"],
        ),
        (
            [],
            [("b", {GPU: 1, LINK: 1}), ("c", {LINK: 1})],
            {
                "container-0-request-0": ("link", 1),
                "container-0-request-1": ("gpu", 1),
                "container-1-request-0": ("link", 1),
            },
            [
                "b a.com/link container-0-request-0",
                "c a.com/link container-1-request-0",
                "b nvidia.com/gpu container-0-request-1",
            ],
        ),
        (
            [("i", {GPU: 2}), ("j", {GPU: 1}), ("s", {GPU: 1}, SIDECAR)],
            [("a", {"cpu": 1, GPU: 1})],
            {"container-2-request-0": ("gpu", 1), "container-3-request-1": ("gpu", 1)},
            [
                "s nvidia.com/gpu container-2-request-0",
                "a nvidia.com/gpu container-3-request-1",
                "i nvidia.com/gpu container-2-request-0",
                "i nvidia.com/gpu container-3-request-1",
                "j nvidia.com/gpu container-2-request-0",
            ],
        ),
        (
            [("s", {GPU: 1}, SIDECAR), ("i", {GPU: 2}), ("j", {GPU: 3})],
            [("a", {GPU: 1})],
            {
                "container-0-request-0": ("gpu", 1),
                "container-2-request-0": ("gpu", 2),
                "container-3-request-0": ("gpu", 1),
            },
            [
                "s nvidia.com/gpu container-0-request-0",
                "a nvidia.com/gpu container-3-request-0",
                "i nvidia.com/gpu container-3-request-0",
                "i nvidia.com/gpu container-2-request-0",
                "j nvidia.com/gpu container-3-request-0",
                "j nvidia.com/gpu container-2-request-0",
            ],
        ),
    ],
    ids=[
        "one",
        "several containers",
        "more than ten",
        "implicit name",
        "two resources",
        "init uses what comes later",
        "init needs more",
    ],
)
def test_extended_resources_come_with_one_claim(
    client: ApiClient, init: list[Any], main: list[Any], requests: JSON, mappings: list[str]
) -> None:
    first = [container(name, resources, **(more[0] if more else {})) for name, resources, *more in init]
    create_pod(client, "p", *(container(*item) for item in main), initContainers=first)
    pod = bound(client, "p")
    (claim,) = claims_of(client, pod)
    meta = claim["metadata"]
    assert meta["generateName"] == "p-extended-resources-"
    assert meta["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert meta["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert meta["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": True}
    ]
    asked = {request["name"]: request["exactly"] for request in claim["spec"]["devices"]["requests"]}
    assert list(asked) == sorted(requests)
    assert {name: (one["deviceClassName"], one["count"]) for name, one in asked.items()} == requests
    results = [result["request"] for result in claim["status"]["allocation"]["devices"]["results"]]
    assert {name: results.count(name) for name in requests} == {name: count for name, (_, count) in requests.items()}
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}]
    status = pod["status"]["extendedResourceClaimStatus"]
    assert status["resourceClaimName"] == meta["name"]
    assert [
        f"{mapping['containerName']} {mapping['resourceName']} {mapping['requestName']}"
        for mapping in status["requestMappings"]
    ] == mappings


def test_an_allocation_says_when_it_was_made(client: ApiClient) -> None:
    create_claim(client, "one", deviceClassName="gpu")
    create_pod(client, "p", container("a"), **uses("one"))
    bound(client, "p")
    stamp = client.get(CLAIMS, "one", "default")["status"]["allocation"]["allocationTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp)


def test_a_device_plugin_goes_first_and_is_used_up(client: ApiClient) -> None:
    client.create(NODES, node("node-2", **{GPU: "2"}))
    try:
        here = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}
        create_pod(client, "first", container("a", {GPU: 2}), **here)
        pod = bound(client, "first")
        assert "extendedResourceClaimStatus" not in pod["status"]
        assert claims_of(client, pod) == []
        create_pod(client, "second", container("a", {GPU: 1}), **here)
        assert refused(client, "second")["message"] == (
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node"
            " affinity/selector. still not schedulable, preemption: 0/2 nodes are available:"
            " 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
        )
        create_pod(client, "third", container("a", {GPU: 3}))
        assert bound(client, "third")["spec"]["nodeName"] == "node-1"
    finally:
        client.delete(NODES, "node-2")


@pytest.mark.parametrize(
    ("resources", "spec", "why"),
    [
        ({GPU: 5}, {}, "1 cannot allocate all claims. still not schedulable"),
        ({NOBODY: 1}, {}, "1 Insufficient x.com/nobody-serves-it. no new claims to deallocate"),
        ({GPU: 1, NOBODY: 1}, {}, "1 Insufficient x.com/nobody-serves-it. still not schedulable"),
        ({}, uses("five"), "1 cannot allocate all claims. still not schedulable"),
        ({GPU: 1}, uses("four"), "1 cannot allocate all claims. still not schedulable"),
        ({}, uses("lost"), "request gpu: device class lost does not exist. no new claims to deallocate"),
        ({"cpu": 9}, {}, "1 Insufficient cpu. no new claims to deallocate"),
        (
            {GPU: 1},
            {"nodeSelector": {"zone": "z"}},
            "1 node(s) didn't match Pod's node affinity/selector. still not schedulable",
        ),
    ],
    ids=[
        "too many",
        "served by nobody",
        "one of two",
        "claim",
        "claim and resource",
        "no class",
        "cpu",
        "no node selected",
    ],
)
def test_a_pod_that_fits_nowhere_says_why(client: ApiClient, resources: JSON, spec: JSON, why: str) -> None:
    create_claim(client, "five", deviceClassName="gpu", count=5)
    create_claim(client, "four", deviceClassName="gpu", count=4)
    create_claim(client, "lost", deviceClassName="lost")
    create_pod(client, "p", container("a", resources), **spec)
    condition = refused(client, "p")
    assert condition["reason"] == "Unschedulable"
    assert condition["message"] == f"0/1 nodes are available: {why}, {PREEMPTION.format(1)}"
    assert condition["lastTransitionTime"]
    event = wait_for(lambda: events_of(client, "p", "FailedScheduling"), "the Event", PATIENCE)[0]
    assert (event["type"], event["message"]) == ("Warning", condition["message"])
    assert event["reportingComponent"] == "default-scheduler"
    assert [claim for claim in client.list(CLAIMS).items if claim["metadata"].get("generateName")] == []


def test_a_pod_that_waited_is_scheduled_when_there_is_room(client: ApiClient) -> None:
    create_pod(client, "holder", container("a", {GPU: 3}))
    bound(client, "holder")
    create_pod(client, "waits", container("a", {GPU: 2}))
    refused(client, "waits")
    client.delete(PODS, "holder", "default")
    bound(client, "waits")
    message = "Successfully assigned default/waits to node-1"
    assert wait_for(lambda: events_of(client, "waits", "Scheduled"), "the Event")[0]["message"] == message


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_claim_of_a_finished_pod_is_deleted(client: ApiClient, phase: str) -> None:
    create_pod(client, "job", container("a", {GPU: 4}), restartPolicy="Never")
    bound(client, "job")
    client.patch(PODS, "job", {"status": {"phase": phase}}, namespace="default", subresource="status")
    wait_for(lambda: not client.list(CLAIMS).items, "the claim to be gone", PATIENCE)
    create_pod(client, "next", container("a", {GPU: 4}))
    bound(client, "next")


def test_a_pod_whose_template_is_missing_hears_of_it(client: ApiClient) -> None:
    create_pod(client, "orphan", container("a"), resourceClaims=[{"name": "g", "resourceClaimTemplateName": "nowhere"}])
    event = wait_for(lambda: events_of(client, "orphan", "FailedResourceClaimCreation"), "the Event", PATIENCE)[0]
    assert event["message"] == (
        'PodResourceClaim g: resource claim template "nowhere": '
        'resourceclaimtemplate.resource.k8s.io "nowhere" not found'
    )
    assert not client.get(PODS, "orphan", "default")["status"].get("conditions")


@pytest.mark.parametrize("control_plane", ["stand-in"], indirect=True)
def test_a_claim_of_an_attempt_that_broke_off_is_replaced(client: ApiClient) -> None:
    create_pod(client, "again", container("a", {GPU: 4}), schedulingGates=[{"name": "wait"}])
    uid = client.get(PODS, "again", "default")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "again", "uid": uid, "controller": True}
    claim = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaim",
        "metadata": {
            "name": "again-extended-resources-old",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": [{"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu"}}]}},
    }
    client.create(CLAIMS, claim, "default")
    client.patch(PODS, "again", {"spec": {"schedulingGates": []}}, namespace="default")
    pod = bound(client, "again")
    assert [claim["metadata"]["name"] for claim in claims_of(client, pod)] == [
        pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    ]


def test_the_text_of_opaque_parameters_stays_when_pods_come_and_go(client: ApiClient) -> None:
    text = '{"b": 1.0, "a": "\\u00e9<"}'
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"TEXT": 0}}}]
    spec = {"devices": {"requests": requests, "config": config}}
    value = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": "shared"}, "spec": spec}
    body = json.dumps(value).replace('{"TEXT": 0}', text).encode()
    client.send("POST", CLAIMS.path("default"), body, content_type="application/json")

    def copies() -> int:
        """Of the text, in the form in which the server stores the claim."""
        path = CLAIMS.path("default", "shared")
        return client.send("GET", path, accept="application/vnd.kubernetes.protobuf").count(text.encode())

    for name in ("first", "second"):
        create_pod(client, name, container("a"), **uses("shared"))
        bound(client, name)
    assert copies() == 2
    for name in ("first", "second"):
        client.delete(PODS, name, "default")
    wait_for(lambda: not client.get(CLAIMS, "shared", "default").get("status"), "the end of the allocation", PATIENCE)
    assert copies() == 1


def test_attempts_are_counted_in_one_event(tmp_path: Path) -> None:
    with (
        ApiServer(ApiServerOptions(tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        client.create(NODES, node("node-1"))
        create_pod(client, "p", container("a", {NOBODY: 1}))
        scheduler = Scheduler(client)
        for _ in range(5):
            scheduler.step()
        scheduler.close()
        (event,) = events_of(client, "p", "FailedScheduling")
        assert event["count"] == 5
        assert len(client.get(PODS, "p", "default")["status"]["conditions"]) == 1


def test_an_older_release_does_not_say_when_an_allocation_was_made(tmp_path: Path) -> None:
    options = ApiServerOptions(minor=35)
    with ApiServer(options) as server, connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
        for kind, value in OBJECTS:
            client.create(kind, value)
        create_claim(client, "one", deviceClassName="gpu")
        create_pod(client, "p", container("a"), **uses("one"))
        Scheduler(client, Features.from_gates({}, release="1.35"), extended_resources=False).step()
        assert set(client.get(CLAIMS, "one", "default")["status"]["allocation"]) == {"devices", "nodeSelector"}


def test_a_release_without_the_gate_serves_no_extended_resources(tmp_path: Path) -> None:
    with (
        ApiServer(ApiServerOptions(tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        for kind, value in OBJECTS:
            client.create(kind, value)
        create_pod(client, "p", container("a", {GPU: 1, IMPLICIT: 1}))
        Scheduler(client, extended_resources=False).step()
        message = refused(client, "p")["message"]
        assert f"1 Insufficient {IMPLICIT}, 1 Insufficient {GPU}. no new claims to deallocate" in message


def test_without_nodes_a_pod_waits(tmp_path: Path) -> None:
    with (
        ApiServer(ApiServerOptions(tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        create_pod(client, "p", container("a"))
        Scheduler(client).step()
        assert refused(client, "p")["message"] == "no nodes available to schedule pods"
