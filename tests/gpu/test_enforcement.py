# SPDX-License-Identifier: Apache-2.0
"""Shares that are enforced: which devices are published with them, and what a claim consumes."""

from dataclasses import replace

import pytest

from dra_driver.gpu.devices import Description, describe
from dra_driver.gpu.devices.forms import Reason
from dra_driver.gpu.policy import Enforcement, GpuRule, MigPolicy, NodePolicy, ShareMode
from dra_driver.kube.resource import Device
from tests.gpu.test_forms import OFF, node

TURING = replace(OFF, compute_capability=(7, 5), memory_limits=False)
NEW = replace(OFF, memory_limits=True)
PASCAL = replace(OFF, compute_capability=(6, 1), memory_limits=False)


def described(
    gpu: object, enforce: Enforcement, shares: ShareMode | int = 4, *, mps: bool = True, limits: bool = True
) -> Description:
    rule = GpuRule(shares=shares, enforce=enforce, mig=MigPolicy.DYNAMIC)
    return describe(node(gpu), NodePolicy((rule,), mps=mps, memory_limits=limits))  # type: ignore[arg-type]


def by_type(description: Description) -> dict[str, set[object]]:
    """What enforces shares, by type of device; False for devices without shares."""
    found: dict[str, set[object]] = {}
    for one in description.gpus[0].devices:
        by = one.attributes.get("sharesEnforcedBy", None) if one.allow_multiple_allocations else False
        found.setdefault(str(one.attributes["type"]), set()).add(by)
    return found


@pytest.mark.parametrize(
    ("enforce", "whole", "mig"),
    [
        (Enforcement.NONE, None, None),
        (Enforcement.MPS, "mps", "mps"),
        (Enforcement.MEMORY_LIMITS, "memory-limits", False),
        (Enforcement.AUTO, "memory-limits", "mps"),
    ],
)
def test_mechanism_that_enforces_shares_is_an_attribute_of_the_device(
    enforce: Enforcement, whole: object, mig: object
) -> None:
    assert by_type(described(NEW, enforce)) == {"gpu": {whole}, "mig": {mig}}


@pytest.mark.parametrize(
    ("gpu", "enforce", "mps", "limits", "why"),
    [
        (PASCAL, Enforcement.MPS, True, True, "mps: MPS has limits from compute capability 7.0 on,"),
        (TURING, Enforcement.MPS, False, True, "mps: dra-mps is not enabled (the chart's value mps.enabled)"),
        (TURING, Enforcement.MEMORY_LIMITS, True, True, "memory-limits: the NVIDIA driver has no memory limits"),
        (NEW, Enforcement.MEMORY_LIMITS, True, False, "memory-limits: this node cannot set the limits"),
        (PASCAL, Enforcement.AUTO, True, True, "memory-limits: the NVIDIA driver has no memory limits"),
    ],
)  # fmt: skip
def test_device_whose_shares_cannot_be_enforced_is_published_without_shares(
    gpu: object, enforce: Enforcement, mps: bool, limits: bool, why: str
) -> None:
    description = described(gpu, enforce, mps=mps, limits=limits)
    assert by_type(description)["gpu"] == {False}
    assert description.left_out[0].reason is Reason.NOT_ENFORCEABLE
    assert description.left_out[0].text.startswith(f"shares of the GPU cannot be enforced: {why}")


def memory_policy(device: Device) -> list[str]:
    """What a claim without a request consumes, the least, and the most."""
    policy = device.capacity["memory"].request_policy
    assert policy is not None
    assert policy.valid_range is not None
    return list(map(str, (policy.default, policy.valid_range.minimum, policy.valid_range.maximum)))


@pytest.mark.parametrize(("shares", "usual"), [(4, "20389Mi"), (ShareMode.MEMORY, "81559Mi")])
def test_every_claim_consumes_memory_which_becomes_its_limit(shares: ShareMode | int, usual: str) -> None:
    odd = replace(NEW, mig_mode=None, mig_profiles=(), memory=(81559 << 20) + 12345)
    (whole,) = described(odd, Enforcement.AUTO, shares).gpus[0].devices
    assert memory_policy(whole) == [usual, "1Mi", "81559Mi"]


def test_a_device_without_memory_has_no_enforced_shares() -> None:
    (whole,) = described(replace(NEW, mig_mode=None, mig_profiles=(), memory=None), Enforcement.AUTO).gpus[0].devices
    assert not whole.allow_multiple_allocations
