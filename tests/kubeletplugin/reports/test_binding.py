# SPDX-License-Identifier: Apache-2.0
"""Binding conditions: what is said of a claim's devices before its pod is bound, and that it is said once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.devices import AVAILABLE, UNAVAILABLE
from dra_driver.gpu.nvml import RecoveryAction
from dra_driver.kube.api import ApiClient
from dra_driver.kube.resource import DeviceToleration
from kubeletplugin.reports.binding import binding_entries
from kubeletplugin.reports.devicestatus import JSON
from tests.support.apiserver import CLAIMS
from tests.support.plugin import POOL, plugin_on, stored_claim
from tests.support.waiting import wait_for

CABLED = "example.com/cabled"
NOW = "2026-01-02T00:00:00Z"
WAITED_FOR: JSON = {"bindingConditions": [AVAILABLE], "bindingFailureConditions": [UNAVAILABLE]}
TOLERANT: JSON = {**WAITED_FOR, "tolerations": [{"key": "sick", "operator": "Exists"}]}


def claim(*devices: JSON, told: tuple[str, ...] = ()) -> JSON:
    """One with these allocated devices, of whose first something was told already."""
    ours = {"driver": "gpu.nvidia.com", "pool": POOL}
    results = [{"request": "r", **ours, "device": f"gpu-{index}", **one} for index, one in enumerate(devices)]
    known = [{"type": one, "status": "True"} for one in told]
    return {
        "status": {
            "allocation": {"devices": {"results": results}},
            "devices": [{**ours, "device": "gpu-0", "conditions": known}],
        }
    }


def fitness(device: str, tolerations: Sequence[DeviceToleration]) -> str | None:
    return "XID 79" if device == "gpu-1" and not tolerations else None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (claim(WAITED_FOR), {"gpu-0": [AVAILABLE]}),
        (claim(WAITED_FOR, WAITED_FOR), {"gpu-0": [AVAILABLE], "gpu-1": [UNAVAILABLE]}),
        (claim({}, WAITED_FOR), {"gpu-1": [UNAVAILABLE]}),
        (claim({}, TOLERANT), {"gpu-1": [AVAILABLE]}),
        (claim({}), None),
        (claim({"bindingConditions": [CABLED], "bindingFailureConditions": [UNAVAILABLE]}), None),  # another's to set
        (claim({**WAITED_FOR, "bindingConditions": [CABLED, AVAILABLE]}), {"gpu-0": [AVAILABLE]}),
        (claim({**WAITED_FOR, "pool": "node-b"}), None),
        (claim({**WAITED_FOR, "driver": "other.example.com"}), None),
        (claim(WAITED_FOR, told=(AVAILABLE,)), None),
        (claim(WAITED_FOR, told=(UNAVAILABLE,)), None),
        (claim(WAITED_FOR, told=(CABLED,)), {"gpu-0": [AVAILABLE]}),
        ({}, None),
    ],
)
def test_binding_conditions_follow_the_fitness_of_devices(value: JSON, found: dict[str, list[str]] | None) -> None:
    entries = binding_entries(value, POOL, fitness, NOW)
    said = entries and {one["device"]: [each["type"] for each in one["conditions"]] for one in entries}
    assert said == found
    for one in entries or ():
        assert {each["status"] for each in one["conditions"]} == {"True"}


def test_why_a_device_is_not_fit_is_in_the_message() -> None:
    entries = binding_entries(claim({}, WAITED_FOR), POOL, fitness, NOW)
    assert entries is not None
    assert [(one["reason"], one["message"]) for one in entries[0]["conditions"]] == [("DeviceUnavailable", "XID 79")]


def test_a_claims_tolerations_are_passed_on() -> None:
    value = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 3}
    asked: list[DeviceToleration] = []

    def ask(_device: str, tolerations: Sequence[DeviceToleration]) -> None:
        asked.extend(tolerations)

    binding_entries(claim({**WAITED_FOR, "tolerations": [value, {"operator": "Exists"}]}), POOL, ask, NOW)
    assert asked == [DeviceToleration("k", "Equal", "v", "NoExecute"), DeviceToleration(operator="Exists")]


def conditions(client: ApiClient, claim: Any) -> dict[str, tuple[str, str]]:
    """(status, message) by type, of all devices of a claim."""
    status = client.get(CLAIMS, claim.name, "default")["status"]
    found = (each for one in status.get("devices", ()) for each in one["conditions"])
    return {one["type"]: (one["status"], one["message"]) for one in found}


@pytest.mark.node
def test_a_process_sets_them_as_long_as_the_policy_wants_them(
    kubeconfig: Path, client: ApiClient, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus: []\n", encoding="utf-8")
    before = stored_claim(client, "gpu-0", **WAITED_FOR)
    with plugin_on(kubeconfig, f"--policy-file={policy}") as plugin:
        plugin.start()
        assert not conditions(client, before)
        policy.write_text("gpus: [{bindingConditions: true}]\n", encoding="utf-8")
        wait_for(lambda: conditions(client, before), "the condition of a claim that was there before")
        assert conditions(client, before)[AVAILABLE][0] == "True"
        after = stored_claim(client, "gpu-0", **WAITED_FOR)
        gone = stored_claim(client, "gpu-99", **WAITED_FOR)
        plain = stored_claim(client, "gpu-0")
        wait_for(lambda: conditions(client, after) and conditions(client, gone), "those of new ones")
        assert conditions(client, gone) == {UNAVAILABLE: ("True", "device gpu-99 no longer exists on this node")}
        assert conditions(client, plain) == {}
        plugin.prepare(after)
        wait_for(lambda: "Ready" in conditions(client, after), "the device's status beside it")
        assert conditions(client, after)[AVAILABLE][0] == "True"


@pytest.mark.node
def test_problem_of_a_device_counts_unless_the_claim_tolerates_it(
    kubeconfig: Path, client: ApiClient, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus: [{bindingConditions: true}]\n", encoding="utf-8")
    with plugin_on(kubeconfig, f"--policy-file={policy}") as plugin:
        plugin.start()

        def said(**result: Any) -> dict[str, tuple[str, str]]:
            """Of a new claim that has GPU 1."""
            stored = stored_claim(client, "gpu-1", **WAITED_FOR, **result)
            return wait_for(lambda: conditions(client, stored), "word of the device")

        assert AVAILABLE in said()
        plugin.node.set_recovery_action(1, RecoveryAction.GPU_RESET)
        wait_for(lambda: UNAVAILABLE in said(), "the plugin to look at the GPU")
        assert said()[UNAVAILABLE][1].startswith("recovery-action gpu-reset: ")
        assert AVAILABLE in said(tolerations=[{"key": "gpu.nvidia.com/recovery-action", "operator": "Exists"}])
