# SPDX-License-Identifier: Apache-2.0
"""Why a claim fits nowhere, and what would make it fit."""

from collections.abc import Sequence
from typing import Any

import pytest

from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.explain import Removal
from dra_driver.dryrun.selectors import parts
from dra_driver.dryrun.verdict import Verdict
from dra_driver.dryrun.workload import Demand
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1, Decoded, decode, decode_claim
from dra_driver.scheduler.allocator import Check, Features
from tests.dryrun.clusters import with_defaults

from .conftest import gpu, slice_of

JSON = dict[str, Any]
NEWEST = Features()
OLDER = Features.from_gates({}, release="1.36")
"""A release with defects that later ones do not have."""
TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}


def claim(name: str = "wanted", *requests: JSON, devices: Sequence[str] = (), node: str = "node-a", **spec: Any) -> Any:
    """A claim of one GPU, or of `requests`; allocated when it has `devices`."""
    wanted = requests or ({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}},)
    value: JSON = {"metadata": {"name": name, "namespace": "ns", "uid": name}}
    value["spec"] = {"devices": {"requests": list(wanted), **spec}}
    if devices:
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": one} for one in devices]
        value["status"] = {"allocation": {"devices": {"results": results}}}
    return decode_claim(value, V1)


def request(name: str = "gpu", **exactly: Any) -> JSON:
    return {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}}


def selecting(expression: str, **exactly: Any) -> JSON:
    return request(selectors=[{"cel": {"expression": expression}}], **exactly)


def verdict(wanted: ResourceClaim, *objects: JSON | ResourceClaim, features: Features = NEWEST) -> Verdict:
    decoded: list[Decoded] = [one if isinstance(one, ResourceClaim) else decode(one) for one in objects]
    (found,) = evaluate([Demand("the claim", (wanted,))], with_defaults(decoded), features)
    return found


def removals(found: Verdict) -> tuple[Removal, ...]:
    ((report,),) = (one.explanation.requests for one in found.refused)
    return report.removals


def changes(found: Verdict) -> list[str]:
    return [change.text for change in found.changes]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a == 1", ["a == 1"]),
        ("a == 1 && b == 2", ["a == 1", "b == 2"]),
        ("a == 'x && y' && b", ["a == 'x && y'", "b"]),
        ("(a && b) && c", ["(a && b)", "c"]),
        ("a.exists(x, x && y) && [b, c && d] == e", ["a.exists(x, x && y)", "[b, c && d] == e"]),
        ("a || b && c", ["a || b && c"]),
        ("a ? b && c : d", ["a ? b && c : d"]),
        ("a.?b.orValue(c) && d", ["a.?b.orValue(c)", "d"]),
        (r"r'\' == a && b", [r"r'\' == a", "b"]),
        (r"'\'' == a && b", [r"'\'' == a", "b"]),
        ('"""a && \n b""" == c && d', ['"""a && \n b""" == c', "d"]),
        ("a // && not here\n&& b", ["a // && not here", "b"]),
    ],
)
def test_a_chain_is_taken_apart_where_it_is_joined(expression: str, expected: list[str]) -> None:
    assert parts(expression) == expected


def test_the_false_part_of_a_selector_is_named_with_what_it_saw() -> None:
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].productName == 'H200'"
    found = verdict(claim("wanted", selecting(expression)), slice_of("node-a", gpu("gpu-0"), gpu("gpu-1", "A100")))
    (removal,) = removals(found)
    assert removal.text == "not matched by its selector: device.attributes['gpu.nvidia.com'].productName == 'H200'"
    assert (removal.check, removal.devices) == (Check.SELECTOR, 2)
    assert dict(removal.saw) == {"productName=NVIDIA H100 80GB HBM3": 1, "productName=A100": 1}
    part = "device.attributes['gpu.nvidia.com'].productName == 'H200'"
    assert changes(found) == [f"remove the selector {part} from request gpu"]


def test_devices_in_use_are_told_with_their_holders_and_waiting_helps() -> None:
    busy = [claim("train-7", devices=["gpu-0"]), claim("train-8", devices=["gpu-1"])]
    found = verdict(claim(), slice_of("node-a", gpu("gpu-0"), gpu("gpu-1")), *busy)
    (removal,) = removals(found)
    assert (removal.text, removal.devices) == ("in use", 2)
    assert dict(removal.saw) == {"by ns/train-7": 1, "by ns/train-8": 1}
    assert changes(found) == ["wait for claim ns/train-7", "wait for claim ns/train-8"]


def test_only_the_claims_that_have_to_go_are_waited_for_when_one_is_not_enough() -> None:
    names = [f"gpu-{index}" for index in range(4)]
    elsewhere = [claim(f"other-{index}", devices=[f"gpu-{index}"], node="node-b") for index in range(1)]
    busy = [claim(f"train-{index}", devices=[f"gpu-{index}"]) for index in range(4)]
    slices = [slice_of("node-a", *map(gpu, names)), slice_of("node-b", gpu("gpu-0"))]
    found = verdict(claim("wanted", request(count=2)), *slices, *elsewhere, *busy)
    (change,) = [one for one in changes(found) if one.startswith("wait")]
    assert change.count("train-") == 2
    assert "other" not in change


def test_a_taint_is_named_and_can_be_tolerated() -> None:
    taint = {"key": "example.com/reserved", "effect": "NoSchedule"}
    found = verdict(claim(), slice_of("node-a", {**gpu("gpu-0"), "taints": [taint]}))
    (removal,) = removals(found)
    assert removal.text == "with taint example.com/reserved:NoSchedule, which is not tolerated"
    assert changes(found) == ["tolerate taint example.com/reserved:NoSchedule"]


@pytest.mark.parametrize(
    ("key", "value", "advised"),
    [
        ("gpu.nvidia.com/xid", "79", False),
        ("gpu.nvidia.com/gpu-lost", "", False),
        ("gpu.nvidia.com/xid", "13", True),
        ("gpu.nvidia.com/nvlink", "16-of-18", True),
        ("example.com/xid", "79", True),
    ],
)
def test_a_gpu_that_cannot_be_trusted_is_never_advised(key: str, value: str, advised: bool) -> None:
    taint = {"key": key, "value": value, "effect": "NoSchedule"}
    found = verdict(claim(), slice_of("node-a", {**gpu("gpu-0"), "taints": [taint]}))
    assert found.node is None
    assert any(one.startswith("tolerate taint") for one in changes(found)) == advised


def test_a_constraint_that_cannot_be_met_can_be_dropped() -> None:
    constraint = {"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/productName"}
    wanted = claim("wanted", request(count=2), constraints=[constraint])
    found = verdict(wanted, slice_of("node-a", gpu("gpu-0"), gpu("gpu-1", "A100")))
    assert any(one.text == "would break matchAttribute gpu.nvidia.com/productName" for one in removals(found))
    assert "remove the constraint matchAttribute gpu.nvidia.com/productName of claim ns/wanted" in changes(found)
    assert "ask for 1 instead of 2 devices in request gpu" in changes(found)


def test_counters_that_others_draw_on_are_told_with_who_draws() -> None:
    def partition(name: str, slices: int) -> JSON:
        counters = [{"counterSet": "set", "counters": {"slices": {"value": str(slices)}}}]
        return {**gpu(name), "consumesCounters": counters}

    shared = slice_of("node-a")
    shared["metadata"]["name"] = "counters"
    shared["spec"] = {
        **{key: value for key, value in shared["spec"].items() if key != "devices"},
        "sharedCounters": [{"name": "set", "counters": {"slices": {"value": "4"}}}],
    }
    devices = slice_of("node-a", partition("half-0", 2), partition("half-1", 2), partition("most", 3))
    for one in (shared, devices):
        one["spec"]["pool"]["resourceSliceCount"] = 2
    wanted = claim("wanted", selecting("device.attributes['gpu.nvidia.com'].type == 'gpu'", count=2))
    found = verdict(wanted, shared, devices, claim("train-7", devices=["half-0"]))
    counted = [one for one in removals(found) if one.check is Check.COUNTERS]
    assert counted
    assert all("set by ns/train-7" in value for one in counted for value, _ in one.saw)
    assert "wait for claim ns/train-7" in changes(found)


def test_a_pool_that_is_not_complete_is_named() -> None:
    broken = slice_of("node-a", gpu("gpu-0"))
    broken["spec"]["pool"]["resourceSliceCount"] = 2
    found = verdict(claim(), broken)
    assert [one.explanation.pools for one in found.refused] == [
        ("pool gpu.nvidia.com/node-a is incomplete: it has 1 slices of generation 1 instead of 2",)
    ]


def test_the_node_that_comes_closest_comes_first() -> None:
    wanted = claim("wanted", selecting("device.attributes['gpu.nvidia.com'].productName == 'H200'", count=2))
    slices = [slice_of("far", gpu("gpu-0"), gpu("gpu-1")), slice_of("near", gpu("gpu-0", "H200"))]
    assert [one.nodes for one in verdict(wanted, *slices).refused] == [("near",), ("far",)]


def test_an_error_of_the_whole_attempt_is_told_once() -> None:
    slices = [slice_of(node, gpu("gpu-0")) for node in ("a", "b", "c")]
    broken = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "broken"},
        "spec": {"selectors": [{"cel": {"expression": "device.nothing == 1"}}]},
    }
    found = verdict(claim("wanted", request(deviceClassName="broken")), broken, *slices)
    (refused,) = found.refused
    assert refused.explanation.fatal
    assert found.changes == (), "an expression that does not compile has to be mended first"


def leaking_scenario(*nodes: str) -> tuple[ResourceClaim, *tuple[JSON | ResourceClaim, ...]]:
    """Nodes with two GPUs of two partitions; the first GPU of the first node is partly used.

    While it is tried, partitions of the idle one are refused by the constraint and keep the counters they reserved.
    """

    def partition(gpu_index: int, number: int) -> JSON:
        taken = [{"counterSet": f"set-{gpu_index}", "counters": {"slices": {"value": "1"}}}]
        device = gpu(f"gpu-{gpu_index}-part-{number}")
        device["attributes"]["parent"] = {"string": f"GPU-{gpu_index}"}
        return {**device, "consumesCounters": taken}

    objects: list[JSON | ResourceClaim] = []
    for node in nodes:
        counters = slice_of(node)
        counters["metadata"]["name"] = f"{node}-counters"
        del counters["spec"]["devices"]
        counters["spec"]["sharedCounters"] = [
            {"name": f"set-{index}", "counters": {"slices": {"value": "2"}}} for index in range(2)
        ]
        devices = slice_of(node, *(partition(index, number) for index in range(2) for number in range(3)))
        for one in (counters, devices):
            one["spec"]["pool"]["resourceSliceCount"] = 2
        objects += [counters, devices]
    wanted: ResourceClaim = claim(
        "wanted", request("a"), request("b"), constraints=[{"matchAttribute": "gpu.nvidia.com/parent", "requests": []}]
    )
    return wanted, *objects, claim("train-7", devices=["gpu-0-part-0"], node=nodes[0])


def test_defect_of_the_scheduler_is_named() -> None:
    found = verdict(*leaking_scenario("node-a"), features=OLDER)
    assert found.node is None
    assert found.defect is not None
    assert "kubernetes/kubernetes#140436" in found.defect.text
    assert found.defect.node == "node-a"


def test_a_node_that_is_passed_over_by_a_defect_is_told() -> None:
    found = verdict(*leaking_scenario("node-a", "node-b"), features=OLDER)
    assert found.node == "node-b"
    assert found.defect is not None
    assert "kubernetes/kubernetes#140436" in found.defect.text
    assert "does not use node-a" in found.defect.text


def test_devices_that_break_distinct_attribute_are_told() -> None:
    colours = ["red", "blue", "red", "green"]
    devices = [gpu(f"gpu-{index}", colour) for index, colour in enumerate(colours)]
    constraint = {"requests": ["gpu"], "distinctAttribute": "gpu.nvidia.com/productName"}
    wanted = claim("wanted", request(count=3), constraints=[constraint])
    found = verdict(wanted, slice_of("node-a", *devices), features=OLDER)
    assert [one.name for one in found.placed] == ["gpu-0", "gpu-1", "gpu-2"], "as kube-scheduler 1.36 does"
    assert found.defect is not None
    assert "kubernetes/kubernetes#140438" in found.defect.text


@pytest.mark.parametrize(("amount", "fits"), [("1Pi", True), ("3Pi", False), ("1Ti", True)])
def test_a_request_that_grows_is_told(amount: str, fits: bool) -> None:
    """Kubernetes keeps 1Pi as a decimal, which it changes while it compares; 1Ti it does not."""
    device = gpu("gpu-0")
    capacity = {"value": "6Pi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}}
    device |= {"allowMultipleAllocations": True, "capacity": {"memory": capacity}}
    halves = [request(name, capacity={"requests": {"memory": amount}}) for name in ("first", "second")]
    found = verdict(claim("wanted", *halves), slice_of("node-a", device), features=OLDER)
    assert (found.node == "node-a") is fits
    if amount == "1Ti":
        assert found.defect is None
    else:
        assert found.defect is not None
        assert "a requested capacity that Go keeps as a decimal" in found.defect.text


def test_claim_for_too_many_devices_is_no_defect() -> None:
    assert verdict(claim("wanted", request(count=2)), slice_of("node-a", gpu("gpu-0"))).defect is None
