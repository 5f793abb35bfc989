# SPDX-License-Identifier: Apache-2.0
"""Which pods Kubernetes evicts because of device taints, and after how many seconds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
    DeviceClaim,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    DeviceToleration,
    ObjectMeta,
    ResourceClaim,
)
from dra_driver.scheduler.pods import Pod, evictions, taints_of_rules
from dra_driver.scheduler.pods.evictions import tolerated_seconds
from dra_driver.scheduler.pods.objects import ClaimReference

TAINT = DeviceTaint("example.com/drain", "NoExecute", "disk")


def result(*tolerations: DeviceToleration, device: str = "gpu-0") -> AllocatedDevice:
    return AllocatedDevice("gpu", "gpu.nvidia.com", "node-1", device, tolerations=tolerations)


def toleration(**fields: object) -> DeviceToleration:
    return DeviceToleration(**{"key": TAINT.key, "operator": "Exists", "effect": "NoExecute", **fields})  # type: ignore[arg-type]


def claim(*results: AllocatedDevice, user: str = "pod") -> ResourceClaim:
    reserved = (ConsumerReference("pods", user, f"uid-{user}"),)
    return ResourceClaim(ObjectMeta("claim", "default"), DeviceClaim(), AllocationResult(results), reserved)


def pod(name: str = "pod", **fields: object) -> Pod:
    known = {"node_name": "node-1", "claims": (ClaimReference("claim"),), **fields}
    return Pod("default", name, f"uid-{name}", **known)  # type: ignore[arg-type]


def rule(**names: str) -> DeviceTaintRule:
    return DeviceTaintRule(ObjectMeta("rule"), TAINT, DeviceTaintSelector(**names))


def evicted(one: Pod, held: ResourceClaim, *rules: DeviceTaintRule, release: str = "1.37") -> list[float]:
    """The seconds after which the pod is evicted, none if it stays."""
    return [found.seconds for found in evictions([one], [held], taints_of_rules(rules), release)]


TOLERATIONS = [
    ((), 0.0),
    ((toleration(),), math.inf),
    ((toleration(toleration_seconds=60),), 60.0),
    ((toleration(toleration_seconds=60), toleration(toleration_seconds=30)), 30.0),
    ((toleration(toleration_seconds=-1),), 0.0),
    ((toleration(toleration_seconds=60), toleration()), math.inf),
    ((toleration(effect=""),), 0.0),
    ((toleration(effect="NoSchedule"),), 0.0),
    ((toleration(key="example.com/other"),), 0.0),
    ((toleration(key=""),), math.inf),
    ((toleration(operator="Equal", value="disk"),), math.inf),
    ((toleration(operator="Equal", value="net"),), 0.0),
]


@pytest.mark.parametrize(("tolerations", "seconds"), TOLERATIONS)
def test_tolerated_seconds_of_a_taint(tolerations: tuple[DeviceToleration, ...], seconds: float) -> None:
    assert tolerated_seconds(result(*tolerations), TAINT) == seconds


def test_pod_leaves_at_the_earliest_time_of_its_devices() -> None:
    held = claim(result(toleration(toleration_seconds=90)), result(toleration(toleration_seconds=20), device="gpu-1"))
    assert evicted(pod(), held, rule(driver="gpu.nvidia.com")) == [20]


def test_device_that_tolerates_for_ever_does_not_evict() -> None:
    assert evicted(pod(), claim(result(toleration())), rule(driver="gpu.nvidia.com")) == []


@pytest.mark.parametrize(
    ("names", "is_evicted"),
    [
        ({"driver": "gpu.nvidia.com"}, True),
        ({"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}, True),
        ({"pool": "node-2"}, False),
        ({"device": "gpu-1"}, False),
        ({}, True),
    ],
)
def test_selector_of_a_rule_decides(names: dict[str, str], is_evicted: bool) -> None:
    assert bool(evicted(pod(), claim(result()), rule(**names))) is is_evicted


def test_rule_without_a_selector_evicts_no_pod() -> None:
    assert evicted(pod(), claim(result()), DeviceTaintRule(ObjectMeta("rule"), TAINT)) == []


def test_taint_without_the_effect_no_execute_evicts_no_pod() -> None:
    weaker = DeviceTaintRule(ObjectMeta("rule"), DeviceTaint("example.com/drain", "NoSchedule"), DeviceTaintSelector())
    assert evicted(pod(), claim(result()), weaker) == []


@pytest.mark.parametrize(
    "staying",
    [pod(node_name=""), pod(deleted=True), pod(claims=()), pod("other"), pod(claims=(ClaimReference("another"),))],
    ids=["without a node", "deleted already", "without the claim", "without a reservation", "with another claim"],
)
def test_pods_that_are_not_evicted(staying: Pod) -> None:
    assert evicted(staying, claim(result()), rule()) == []


def test_pod_of_a_group_is_evicted_with_the_claim_of_the_group() -> None:
    reserved = (ConsumerReference("podgroups", "gang", "uid-gang", "scheduling.k8s.io"),)
    held = ResourceClaim(ObjectMeta("claim", "default"), DeviceClaim(), AllocationResult((result(),)), reserved)
    assert evicted(pod(group="gang"), held, rule()) == [0]
    assert evicted(pod(), held, rule()) == []


@pytest.mark.parametrize(("release", "found"), [("1.37", []), ("1.38", [0])])
def test_claim_for_extended_resources_evicts_from_1_38_on(release: str, found: list[float]) -> None:
    assert evicted(pod(claims=(), extended_claim="claim"), claim(result()), rule(), release=release) == found


@given(
    st.lists(st.builds(lambda each: toleration(toleration_seconds=each), st.none() | st.integers(-5, 100)), max_size=4)
)
def test_another_toleration_with_a_limit_never_delays_an_eviction(tolerations: list[DeviceToleration]) -> None:
    before = tolerated_seconds(result(*tolerations), TAINT)
    after = tolerated_seconds(result(*tolerations, toleration(toleration_seconds=50)), TAINT)
    assert after <= before or not tolerations
