# SPDX-License-Identifier: Apache-2.0
"""Kubernetes 1.33 and 1.34: their layout of slices, their feature gates, and a defect of 1.34 alone."""

import json
from typing import Any

import pytest

from dra_driver.scheduler.allocator import Features

from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim
from .test_whole_pod import node, pod, several

JSON = dict[str, Any]
PARTITIONS = "DRAPartitionableDevices=true"
SHARING = "DRAConsumableCapacity=true"


def layout_of_1_34(node: str) -> JSON:
    """A slice with a counter set and the devices that draw on it."""
    taken = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    made = slice_of(node, *({**gpu(name), "consumesCounters": taken} for name in ("half-0", "half-1", "half-2")))
    made["spec"]["sharedCounters"] = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    return made


@pytest.mark.parametrize(("count", "code"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("release", ["1.33", "1.34"])
def test_counter_sets_beside_devices_count_where_that_is_the_layout(
    release: str, count: int, code: int, dryrun: DryRun, write: Write
) -> None:
    slices = write("slices.json", layout_of_1_34("a"))
    wanted = write("claim.yaml", claim(count=count))
    flags = ("--slices", slices, "--kubernetes-version", release, "--feature-gates", PARTITIONS)
    found, out, err = dryrun(wanted, *flags)
    assert found == code, out + err
    assert ("of 3 devices qualify" in out) == bool(code)


def test_without_the_gate_partitions_are_not_given(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", layout_of_1_34("a"))
    code, out, _ = dryrun(write("claim.yaml", claim()), "--slices", slices, "--kubernetes-version", "1.34")
    assert code == 1, out
    assert "0 of 3 devices qualify" in out


@pytest.mark.parametrize("sets", [[], [{"name": "other", "counters": {"memory": {"value": "80Gi"}}}]])
def test_without_the_gate_counters_make_no_pool_invalid_and_leave_nothing_of_a_partition(
    sets: list[JSON], dryrun: DryRun, write: Write
) -> None:
    """Up to 1.35, kube-scheduler reads no counter set while the gate is disabled, so an unknown one does no harm."""
    made = layout_of_1_34("a")
    made["spec"]["sharedCounters"] = sets
    made["spec"]["devices"] += [gpu("gpu-0"), gpu("gpu-1")]
    flags = ("--slices", write("slices.json", made), "--kubernetes-version", "1.34", "--output", "json")
    code, out, err = dryrun(write("claim.yaml", claim()), *flags)
    assert (code, err) == (0, "")
    assert [(one["freeBefore"], one["freeAfter"]) for one in json.loads(out)["leftover"]] == [(2, 1)]


@pytest.mark.parametrize(("release", "said"), [("1.34", True), ("1.36", False)])
def test_choice_between_equal_devices_is_reported_as_open(
    release: str, said: bool, dryrun: DryRun, write: Write
) -> None:
    slices = write("slices.json", slice_of("a", gpu("gpu-0"), gpu("gpu-1")))
    code, out, _ = dryrun(write("claim.yaml", claim()), "--slices", slices, "--kubernetes-version", release)
    assert (code, "which of several equal devices is taken is open" in out) == (0, said)


def shared(name: str) -> JSON:
    made = gpu(name)
    made["allowMultipleAllocations"] = True
    made["capacity"]["memory"]["requestPolicy"] = {"default": "80Gi"}
    return made


def using(name: str, device: str, amount: str) -> JSON:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    result: JSON = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": device, "shareID": name}
    result["consumedCapacity"] = {"memory": amount}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


@pytest.mark.parametrize(
    ("release", "full", "code"),
    [("1.34", "gpu-0", 1), ("1.35", "gpu-0", 0), ("1.36", "gpu-0", 0), ("1.34", "gpu-1", 0), ("1.34", "", 0)],
)
def test_in_1_34_a_full_shared_gpu_stands_before_the_others_of_its_slice(
    release: str, full: str, code: int, dryrun: DryRun, write: Write
) -> None:
    share = "a7c1c0de-0000-4000-8000-000000000001"
    held = [using(share, full, "80Gi")] if full else []
    slices = several([slice_of("a", shared("gpu-0"), shared("gpu-1")), *held])
    wanted = claim().replace("count: 1", "count: 1\n        capacity: {requests: {memory: 10Gi}}")
    flags = ("--kubernetes-version", release, "--feature-gates", SHARING)
    found, out, err = dryrun(write("claim.yaml", wanted), "--slices", write("slices.json", slices), *flags)
    assert found == code, out + err
    text = "known defect of kube-scheduler 1.34: the capacity that is left is looked up for another device"
    assert (text in out) == bool(code)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([], 0),
        (["--feature-gates", "DRAExtendedResource=false"], 1),
        (["--kubernetes-version", "1.35"], 1),
        (["--kubernetes-version", "1.34", "--feature-gates", "DRAExtendedResource=true"], 0),
    ],
)
def test_classes_serve_extended_resources_where_the_gate_is_on(
    flags: list[str], code: int, dryrun: DryRun, write: Write
) -> None:
    serving = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    serving["spec"] = {"extendedResourceName": "nvidia.com/gpu"}
    cluster = write("cluster.json", several([node("a"), slice_of("a", gpu("gpu-0")), serving]))
    wanted = write("pod.json", pod("p", extended={"nvidia.com/gpu": "1"}))
    found, out, err = dryrun(wanted, "--slices", cluster, *flags)
    assert (found, "Insufficient nvidia.com/gpu" in out) == (code, bool(code)), out + err


def test_gates_of_every_release_are_known() -> None:
    assert not Features.from_gates({}, release="1.33").prioritized_list
    assert Features.from_gates({}, release="1.33").claim_device_status
