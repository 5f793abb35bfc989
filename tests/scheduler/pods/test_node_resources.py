# SPDX-License-Identifier: Apache-2.0
"""Devices that take resources of their node (KEP 5517), in the form of Kubernetes 1.37."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.kube.resource import Quantity
from dra_driver.scheduler.allocator import Features
from dra_driver.scheduler.pods import Attempt
from dra_driver.scheduler.pods.outcome import Code

from .build import attempt, node, pod

JSON = dict[str, Any]
ON = Features.from_gates({"DRANodeAllocatableResources": True}, release="1.37")
CONSUMED = "dra.example.com/cores"


def resource_slice(**taken: JSON) -> JSON:
    device = {
        "name": "cpus",
        "allowMultipleAllocations": True,
        "capacity": {CONSUMED: {"value": "8"}},
        "nodeAllocatableResources": taken,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "slice"},
        "spec": {
            "driver": "dra.example.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }


def claim(name: str = "cpus", *, wanted: str = "2", users: tuple[str, ...] = ()) -> JSON:
    exactly = {"deviceClassName": "any", "capacity": {"requests": {CONSUMED: wanted}}}
    value: JSON = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    if users:
        result: JSON = {"request": "r", "driver": "dra.example.com", "pool": "node-a", "device": "cpus"}
        result |= {"consumedCapacity": {CONSUMED: wanted}, "shareID": "0b7f2e0e-0b0a-4d5c-9c0c-0a7f6e8a9b01"}
        reserved = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
        value["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    return value


def wanted(containers: int = 1, **spec: Any) -> JSON:
    value = pod("wanted", requests={"cpu": "1"}, resourceClaims=[{"name": "c", "resourceClaimName": "cpus"}], **spec)
    first = value["spec"]["containers"][0]
    first["resources"]["claims"] = [{"name": "c"}]
    for index in range(1, containers):
        other = {"name": f"c{index}", "image": "i", "resources": {"claims": [{"name": "c"}]}}
        value["spec"]["containers"].append(other)
    return value


def tried(asked: JSON, *objects: JSON, features: Features = ON, cpu: str = "4") -> Attempt:
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
    return replace(attempt(asked, node("node-a", cpu=cpu), device_class, *objects), features=features)


def less(cpu: str) -> str:
    """A thousandth less."""
    return f"{Quantity.parse(cpu).nanos // 10**6 - 1}m"


DEVICE = {"mapping": {"deviceMultiplier": "3"}}
SHARE = {"mapping": {"capacityKey": CONSUMED, "capacityMultiplier": "1500m"}}
OVERHEAD = {"overhead": {"perPod": "500m", "perContainer": "1"}}


@pytest.mark.parametrize(
    ("taken", "containers", "fits"),
    [
        pytest.param(DEVICE, 1, "4", id="the device"),
        pytest.param(SHARE, 1, "4", id="twice 1500m"),
        pytest.param(OVERHEAD, 2, "3500m", id="the pod and each of two containers"),
        pytest.param({**DEVICE, **OVERHEAD}, 1, "5500m", id="everything together"),
        pytest.param({"mapping": {"capacityKey": "other", "capacityMultiplier": "1"}}, 1, "1", id="no such capacity"),
    ],
)
def test_devices_take_cpu_besides_the_request_of_the_pod(taken: JSON, containers: int, fits: str) -> None:
    objects = (resource_slice(cpu=taken), claim())
    assert tried(wanted(containers), *objects, cpu=fits).fits == ("node-a",)
    if fits != "1":
        refusal = tried(wanted(containers), *objects, cpu=less(fits)).refusals["node-a"]
        assert refusal is not None
        assert (refusal.reasons, refusal.code) == (("Insufficient cpu",), Code.UNRESOLVABLE)


def test_resources_of_running_pods_and_their_devices_are_not_available() -> None:
    running = pod("running", requests={"cpu": "1"}, nodeName="node-a")
    running["status"]["nodeAllocatableResourceClaimStatuses"] = [
        {
            "resourceClaimName": "old",
            "containers": ["a", "b"],
            "mapping": [{"name": "cpu", "quantity": "2"}],
            "overhead": [{"name": "cpu", "perPod": "1", "perContainer": "500m"}],
        }
    ]
    objects = (resource_slice(cpu=DEVICE), claim(), running)
    assert tried(wanted(), *objects, cpu="9").fits == ("node-a",)
    refusal = tried(wanted(), *objects, cpu="8").refusals["node-a"]
    assert refusal is not None
    assert (refusal.reasons, refusal.code) == (("Insufficient cpu",), Code.UNSCHEDULABLE)


def test_placed_pod_counts_with_the_resources_of_its_devices() -> None:
    found = tried(wanted(), resource_slice(cpu=DEVICE), claim())
    assert found.placed("node-a").amounts["cpu"] == 4000


def test_resources_are_not_taken_while_the_gate_is_off() -> None:
    off = Features.from_gates({}, release="1.37")
    assert tried(wanted(), resource_slice(cpu=DEVICE), claim(), features=off, cpu="1").fits == ("node-a",)


@pytest.mark.parametrize(("taken", "refused"), [(DEVICE, True), (OVERHEAD, False)])
def test_claim_with_a_mapped_device_cannot_be_shared_by_pods(taken: JSON, refused: bool) -> None:
    found = tried(wanted(), resource_slice(cpu=taken), claim(users=("other",))).refusals["node-a"]
    text = "node allocatable resource claim cpus has a mapped device and cannot be shared across pods"
    assert (found is not None and found.message == text) is refused


@pytest.mark.parametrize(("whole", "refused"), [("3", True), ("4", False)])
def test_request_of_the_whole_pod_includes_the_resources_of_its_devices(whole: str, refused: bool) -> None:
    asked = wanted(resources={"requests": {"cpu": whole}})
    found = tried(asked, resource_slice(cpu=DEVICE), claim(), cpu="4").refusals["node-a"]
    text = (
        "pod level request for cpu is insufficient to cover the aggregated container and node-allocatable DRA requests"
    )
    assert (found is not None and found.message == text) is refused


def test_mapping_of_capacity_needs_consumed_capacity() -> None:
    device = resource_slice(cpu=SHARE)
    del device["spec"]["devices"][0]["allowMultipleAllocations"]
    asked = claim()
    del asked["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    (error,) = tried(wanted(), device, asked).errors
    assert "claim cpus: device cpus consumes no capacity" in error


@pytest.mark.parametrize(("declared", "fits"), [([], False), (["DRAOptionalNodeOperations"], True)])
def test_node_that_cannot_skip_calls_is_refused(declared: list[str], fits: bool) -> None:
    one = resource_slice()
    one["spec"]["skipNodeOperations"] = ["*"]
    features = Features.from_gates({"DRAOptionalNodeOperations": True}, release="1.37")
    where = node("node-a")
    where["status"]["declaredFeatures"] = declared
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
    found = replace(attempt(wanted(), where, device_class, one, claim()), features=features)
    assert bool(found.fits) is fits
