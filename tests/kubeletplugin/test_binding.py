# SPDX-License-Identifier: Apache-2.0
"""Binding conditions: what is said of a claim's devices before its pod is bound, and that it is said once."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.cluster import ApiClient
from kubeletplugin.reports.binding import binding_entries
from kubeletplugin.reports.devicestatus import JSON
from tests.support.apiserver import CLAIMS
from tests.support.plugin import POOL, plugin_on, stored_claim
from tests.support.waiting import wait_for

FIT, UNFIT, CABLED = "gpu.nvidia.com/fit", "gpu.nvidia.com/unfit", "example.com/cabled"
NAMES = frozenset({FIT, UNFIT})
NOW = "2026-01-02T00:00:00Z"
WAITED_FOR: JSON = {"bindingConditions": [FIT], "bindingFailureConditions": [UNFIT]}


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


def fitness(device: str) -> str | None:
    return "XID 79" if device == "gpu-1" else None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (claim(WAITED_FOR), {"gpu-0": [FIT]}),
        (claim(WAITED_FOR, WAITED_FOR), {"gpu-0": [FIT], "gpu-1": [UNFIT]}),
        (claim({}, WAITED_FOR), {"gpu-1": [UNFIT]}),
        (claim({}), None),
        (claim({"bindingConditions": [CABLED], "bindingFailureConditions": [UNFIT]}), None),  # somebody else's to set
        (claim({"bindingConditions": [CABLED, FIT]}), {"gpu-0": [FIT]}),
        (claim({**WAITED_FOR, "pool": "node-b"}), None),
        (claim({**WAITED_FOR, "driver": "other.example.com"}), None),
        (claim(WAITED_FOR, told=(FIT,)), None),
        (claim(WAITED_FOR, told=(CABLED,)), {"gpu-0": [FIT]}),
        ({}, None),
    ],
)
def test_what_is_said(value: JSON, found: dict[str, list[str]] | None) -> None:
    entries = binding_entries(value, POOL, NAMES, fitness, NOW)
    said = entries and {one["device"]: [each["type"] for each in one["conditions"]] for one in entries}
    assert said == found
    for one in entries or ():
        assert {each["status"] for each in one["conditions"]} == {"True"}


def test_why_a_device_is_not_fit_is_in_the_message() -> None:
    entries = binding_entries(claim({}, WAITED_FOR), POOL, NAMES, fitness, NOW)
    assert entries is not None
    assert [(one["reason"], one["message"]) for one in entries[0]["conditions"]] == [("DeviceUnfit", "XID 79")]


def test_a_process_that_is_told_to_sets_them(kubeconfig: Path, client: ApiClient) -> None:
    def conditions(stored: Any) -> dict[str, tuple[str, str]]:
        status = client.get(CLAIMS, stored.name, "default")["status"]
        found = (each for one in status.get("devices", ()) for each in one["conditions"])
        return {one["type"]: (one["status"], one["message"]) for one in found}

    before = stored_claim(client, "gpu-0", **WAITED_FOR)
    with plugin_on(kubeconfig, f"--binding-condition={FIT}", f"--binding-condition={UNFIT}") as plugin:
        plugin.start()
        wait_for(lambda: conditions(before), "the condition of a claim that was there before")
        assert conditions(before)[FIT][0] == "True"
        after = stored_claim(client, "gpu-0", **WAITED_FOR)
        gone = stored_claim(client, "gpu-99", **WAITED_FOR)
        plain = stored_claim(client, "gpu-0")
        wait_for(lambda: conditions(after) and conditions(gone), "those of new ones")
        assert conditions(gone) == {UNFIT: ("True", "there is no device gpu-99 on this node any more")}
        assert conditions(plain) == {}
        plugin.prepare(after)
        wait_for(lambda: "Ready" in conditions(after), "the device's status beside it")
        assert conditions(after)[FIT][0] == "True"
