# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for `nvidia.com/gpu: 2` where a DeviceClass serves that."""

import json
from typing import Any

import pytest

from dra_driver.dryrun.documents import Document
from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.verdict import Verdict
from dra_driver.dryrun.workload import sort_documents
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.clusters import with_defaults

from .conftest import DryRun, Write, gpu, slice_of

JSON = dict[str, Any]
GPU = "nvidia.com/gpu"


def container(name: str, count: object, resource: str = GPU, **more: Any) -> JSON:
    return {"name": name, "image": "i", "resources": {"limits": {resource: count, "cpu": 1}}, **more}


def pod(*containers: JSON, **spec: Any) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": list(containers), **spec},
    }


def device_class(name: str, resource: str = GPU, created: str = "") -> JSON:
    meta = {"name": name} | ({"creationTimestamp": created} if created else {})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": meta,
        "spec": {"extendedResourceName": resource},
    }


def verdict(asked: JSON, *objects: JSON, release: str = "1.37") -> Verdict:
    found = sort_documents([Document(asked, "pod.yaml")])
    features = Features.from_gates({}, release=release)
    (one,) = evaluate(found.demands, with_defaults([decode(value) for value in objects]), features)
    return one


SLICE = slice_of("node-a", *(gpu(f"gpu-{index}") for index in range(4)))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (pod(container("a", 2)), {"container-0-request-1": 2}),
        (
            pod(container("a", 1), container("b", 2)),
            {"container-0-request-1": 1, "container-1-request-1": 2},
        ),
        (pod(container("a", 1), initContainers=[container("i", 1)]), {"container-1-request-1": 1}),
        (
            pod(container("a", 1), initContainers=[container("i", 3)]),
            {"container-0-request-1": 2, "container-1-request-1": 1},
        ),
        (
            pod(container("a", 1), initContainers=[container("i", 1, restartPolicy="Always")]),
            {"container-0-request-1": 1, "container-1-request-1": 1},
        ),
    ],
    ids=[
        "one container",
        "two",
        "an init container uses what comes later",
        "and gets the rest",
        "a sidecar keeps its own",
    ],
)
def test_each_container_gets_what_it_asks_for(asked: JSON, expected: dict[str, int]) -> None:
    found = verdict(asked, SLICE, device_class("gpus"))
    counted: dict[str, int] = {}
    for one in found.placed:
        counted[one.request] = counted.get(one.request, 0) + 1
    assert counted == expected


def test_requests_are_allocated_in_the_order_of_their_names() -> None:
    idle = [{"name": f"idle-{number}"} for number in range(7)]
    asked = pod(container("a", 1), *idle, container("b", 1), initContainers=[{"name": "first"}, container("i", 3)])
    found = verdict(asked, SLICE, device_class("gpus"))
    assert [one.request for one in found.placed] == [
        "container-1-request-1",
        "container-10-request-1",
        "container-2-request-1",
    ]


def test_more_than_there_is_does_not_fit() -> None:
    found = verdict(pod(container("a", 5)), SLICE, device_class("gpus"))
    assert found.node is None
    assert [one.wanted for refused in found.refused for one in refused.explanation.requests] == [5]


def test_the_newest_class_serves_a_resource() -> None:
    old, new = (
        device_class("a-old", created="2025-01-01T00:00:00Z"),
        device_class("new", created="2026-01-01T00:00:00Z"),
    )
    new["spec"]["selectors"] = [{"cel": {"expression": "false"}}]
    assert verdict(pod(container("a", 1)), SLICE, old, new).node is None


@pytest.mark.parametrize(
    ("release", "others", "is_noted"),
    [("1.37", ["old"], True), ("1.38", ["old"], False), ("1.37", [], False)],
)
def test_classes_with_one_resource_are_noted_if_the_scheduler_may_use_an_old_one(
    release: str, others: list[str], is_noted: bool
) -> None:
    classes = [device_class("new"), *(device_class(name) for name in others)]
    found = verdict(pod(container("a", 1)), SLICE, *classes, release=release)
    assert found.node == "node-a"
    assert any("DeviceClasses new and old offer nvidia.com/gpu" in note for note in found.notes) is is_noted


def test_a_class_can_be_asked_for_by_its_implicit_name() -> None:
    asked = pod({"name": "a", "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1}}})
    assert verdict(asked, SLICE).node == "node-a"


def test_a_pod_fits_nowhere_if_nothing_serves_its_resource_and_the_chart_value_is_named() -> None:
    found = verdict(pod(container("a", 1)), SLICE)
    assert found.node is None
    assert found.refused[0].explanation.error == f"no DeviceClass and no device plugin offers {GPU}"
    assert found.notes == (
        f"no DeviceClass serves {GPU}: set the chart's value deviceClasses.gpu.extendedResourceName={GPU}, or give the"
        " pod a claim (dra-dryrun migrate writes it)",
    )


@pytest.mark.parametrize(
    ("resource", "gates", "said"),
    [
        ("nvidia.com/mig-1g.10gb", {}, "set the chart's value deviceClasses.migProfiles={1g.10gb}"),
        ("deviceclass.resource.kubernetes.io/none", {}, "there is no DeviceClass none"),
        (GPU, {"DRAExtendedResource": False}, "the feature gate DRAExtendedResource is off in Kubernetes 1.37"),
    ],
)
def test_the_reason_why_nothing_serves_a_resource_is_told(resource: str, gates: dict[str, bool], said: str) -> None:
    demands = sort_documents([Document(pod(container("a", 1, resource)), "pod.yaml")]).demands
    (found,) = evaluate(demands, with_defaults([decode(SLICE)]), Features.from_gates(gates))
    assert found.node is None
    assert said in found.notes[0]


def test_the_pod_of_a_whole_cluster_gets_the_same_advice(dryrun: DryRun, write: Write) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"allocatable": {"cpu": "4", "pods": "10"}},
    }
    slices = write(
        "cluster.json", {"apiVersion": "v1", "kind": "List", "items": [SLICE, node, device_class("gpu", "")]}
    )
    code, out, _ = dryrun("--slices", slices, write("pod.json", pod(container("a", 1))))
    assert code == 1
    assert "1 node: 1 lacks nvidia.com/gpu" in out
    assert f"set the chart's value deviceClasses.gpu.extendedResourceName={GPU}" in out


@pytest.mark.parametrize("place", [["--built-in"], ["--with-node", "h100x8-mig"]])
@pytest.mark.parametrize("resource", [GPU, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me"])
def test_simulated_nodes_come_with_classes_that_serve_resources(
    place: list[str], resource: str, dryrun: DryRun, write: Write
) -> None:
    code, out, _ = dryrun(*place, write("pod.json", pod(container("a", 1, resource))))
    assert (code == 0) == (resource != GPU or place == ["--built-in"]), out
    assert out.count("deviceClasses.gpu.extendedResourceName=nvidia.com/gpu") == 1


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"requests": {GPU: 1}}, "limits: Required value: Limit must be set for non overcommitable resources"),
        ({"requests": {GPU: 2}, "limits": {GPU: 1}}, 'Invalid value: "2": must be equal to nvidia.com/gpu limit of 1'),
        ({"limits": {GPU: -1}}, 'limits[nvidia.com/gpu]: Invalid value: "-1": must be greater than or equal to 0'),
        ({"limits": {GPU: 0.5}}, 'limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer'),
    ],
)
def test_the_api_server_refuses_amounts_that_are_no_count(
    resources: JSON, said: str, dryrun: DryRun, write: Write
) -> None:
    asked = write("pod.json", pod({"name": "a", "image": "i", "resources": resources}))
    code, out, _ = dryrun("--built-in", asked)
    assert code == 1
    assert 'not admitted  Pod p: Pod "p" is invalid: ' in out
    assert said in out
    assert (
        json.loads(dryrun("--built-in", "--replicas", "max", "-o", "json", asked)[1])["replicas"]["now"]["copies"] == 0
    )


@pytest.mark.parametrize("place", [["--built-in"], ["--slices", "CLUSTER", "--with-node", "a30x4"]])
def test_resources_of_other_device_plugins_are_not_known_on_simulated_nodes(
    place: list[str], dryrun: DryRun, write: Write
) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"allocatable": {"cpu": "4", "pods": "10"}},
    }
    cluster = write(
        "cluster.json", {"apiVersion": "v1", "kind": "List", "items": [node, device_class("gpu.nvidia.com")]}
    )
    asked = container("a", 1)
    asked["resources"]["limits"]["rdma/ib"] = 1
    given = [str(cluster) if one == "CLUSTER" else one for one in place]
    code, out, _ = dryrun(*given, write("pod.json", pod(asked)))
    assert code == 3, out
    assert "not known: whether the node has rdma/ib: no device plugin is known of simulated nodes" in out


def test_a_node_whose_device_plugin_offers_the_resource_is_not_evaluated() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"allocatable": {GPU: "8", "cpu": "4"}},
    }
    found = verdict(pod(container("a", 1)), SLICE, node, device_class("gpus"))
    assert found.node is None
    assert "a device plugin offers nvidia.com/gpu there" in found.refused[0].explanation.error
