# SPDX-License-Identifier: Apache-2.0
"""Claims with allocated devices that a pod cannot use."""

from collections.abc import Iterable

import pytest

from dra_driver.scheduler.pods import Attempt

from .build import JSON, attempt, node, pod

READY, FAILED = "gpu.example.com/ready", "gpu.example.com/failed"
KEY = {"driver": "gpu.example.com", "pool": "a"}
UNAVAILABLE = ("resourceclaim not available on the node",)


def with_allocated_claim(statuses: Iterable[JSON], *, users: Iterable[str] = ()) -> Attempt:
    """The attempt of a pod whose claim has two devices with binding conditions, and these in `status.devices`."""
    waits = {"request": "r", "bindingConditions": [READY], "bindingFailureConditions": [FAILED]}
    allocation = {"devices": {"results": [{**waits, **KEY, "device": f"gpu-{index}"} for index in range(2)]}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}]}},
        "status": {
            "allocation": allocation,
            "devices": list(statuses),
            "reservedFor": [{"resource": "pods", "name": user, "uid": user} for user in users],
        },
    }
    wanted = pod("wanted", resourceClaims=[{"name": "c", "resourceClaimName": "gpus"}])
    return attempt(wanted, node("a"), claim)


def status(device: str, **conditions: str) -> JSON:
    listed = [{"type": f"gpu.example.com/{name}", "status": value} for name, value in conditions.items()]
    return {**KEY, "device": device, "conditions": listed}


@pytest.mark.parametrize(
    ("statuses", "refused"),
    [
        ([], False),
        ([status("gpu-0", ready="True")], False),
        ([status("gpu-0", failed="False")], False),
        ([status("gpu-0", failed="True")], True),
        ([status("gpu-0", ready="True"), status("gpu-1", failed="True")], True),
        ([status("gpu-0", ready="False"), status("gpu-1", failed="True")], False),
    ],
)
def test_claim_with_a_device_that_cannot_be_bound_is_available_nowhere(statuses: list[JSON], refused: bool) -> None:
    refusal = with_allocated_claim(statuses).refusals["a"]
    assert (refusal.reasons if refusal is not None else ()) == (UNAVAILABLE if refused else ())


@pytest.mark.parametrize(("users", "said"), [((), "deallocation of ResourceClaim completed"), ("xy", "still not")])
def test_claim_that_cannot_be_bound_loses_its_devices_if_nobody_else_uses_it(users: Iterable[str], said: str) -> None:
    after = with_allocated_claim([status("gpu-0", failed="True")], users=users).after
    assert after is not None
    assert after.devices.startswith(said)
