# SPDX-License-Identifier: Apache-2.0
"""Pods that ask for `nvidia.com/gpu: 2` where a DeviceClass serves that."""

from typing import Any

import pytest

from dra_driver.allocation import Features
from dra_driver.command import InputError
from dra_driver.dryrun.documents import Document
from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.inventory import with_defaults
from dra_driver.dryrun.verdict import Verdict
from dra_driver.dryrun.workload import sort_documents
from dra_driver.resource.codec import decode

from .conftest import gpu, slice_of

JSON = dict[str, Any]
GPU = "nvidia.com/gpu"


def container(name: str, count: int, where: str = "limits", **more: Any) -> JSON:
    return {"name": name, "image": "i", "resources": {where: {GPU: count, "cpu": 1}}, **more}


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


def verdict(asked: JSON, *objects: JSON) -> Verdict:
    found = sort_documents([Document(asked, "pod.yaml")])
    (one,) = evaluate(found.demands, with_defaults([decode(value) for value in objects]), Features())
    return one


SLICE = slice_of("node-a", *(gpu(f"gpu-{index}") for index in range(4)))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (pod(container("a", 2)), {"container-0-request-1": 2}),
        (
            pod(container("a", 1, "requests"), container("b", 2)),
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


def test_a_class_can_be_asked_for_by_its_implicit_name() -> None:
    asked = pod({"name": "a", "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1}}})
    assert verdict(asked, SLICE).node == "node-a"


def test_a_resource_that_no_class_serves_is_an_error() -> None:
    with pytest.raises(InputError, match=r"no DeviceClass serves the extended resource nvidia\.com/gpu"):
        verdict(pod(container("a", 1)), SLICE)


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
