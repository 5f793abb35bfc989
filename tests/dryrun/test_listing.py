# SPDX-License-Identifier: Apache-2.0
"""What the listings show of devices with taints."""

import json
from pathlib import Path

import pytest

from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim

XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
OTHER = {"key": "example.com/reserved", "effect": "NoSchedule"}


@pytest.fixture
def slices(write: Write) -> Path:
    """A node with a broken GPU, one that somebody else has tainted, and one without a taint."""
    gpus = [{**gpu("gpu-0"), "taints": [XID]}, {**gpu("gpu-1"), "taints": [OTHER]}, gpu("gpu-2")]
    return write("slices.json", slice_of("node-a", *gpus))


def test_devices_are_listed_with_their_taints_and_health(dryrun: DryRun, slices: Path) -> None:
    _, out, _ = dryrun("devices", "--slices", slices)
    lines = {line.split()[1]: line for line in out.splitlines() if line.startswith("node-a")}
    assert lines["gpu-0"].endswith("health: gpu.nvidia.com/xid=79:NoSchedule")
    assert lines["gpu-1"].endswith("example.com/reserved:NoSchedule")
    assert "health" not in lines["gpu-1"]
    _, out, _ = dryrun("devices", "--slices", slices, "-o", "json")
    assert [one["taints"] for one in json.loads(out)["items"]] == [
        ["health: gpu.nvidia.com/xid=79:NoSchedule"],
        ["example.com/reserved:NoSchedule"],
        [],
    ]


def test_nodes_are_listed_with_the_number_of_unhealthy_devices(dryrun: DryRun, slices: Path) -> None:
    _, out, _ = dryrun("nodes", "--slices", slices, "-o", "json")
    assert json.loads(out)["items"] == [{"node": "node-a", "devices": 3, "inUse": 0, "unhealthy": 1}]
    assert "UNHEALTHY" in dryrun("nodes", "--slices", slices)[1]


def test_the_capacity_that_a_health_taint_takes_is_told(dryrun: DryRun, slices: Path) -> None:
    _, out, _ = dryrun("capacity", "--slices", slices)
    assert "taint health: gpu.nvidia.com/xid=79:NoSchedule" in out


def test_healthy_devices_need_no_columns(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a", gpu("gpu-0")))
    assert "TAINTS" not in dryrun("devices", "--slices", slices)[1]
    assert "UNHEALTHY" not in dryrun("nodes", "--slices", slices)[1]


@pytest.mark.parametrize("command", ["nodes", "devices", "capacity", "fit"])
def test_a_place_without_devices_is_told_in_one_sentence(command: str, dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a"))
    wanted = [write("claim.yaml", claim())] if command == "fit" else []
    out = dryrun(command, *wanted, "--slices", slices)[1]
    said = "there are no devices: the ResourceSlices of gpu.nvidia.com are empty (the log of the driver says why)"
    assert said in out.splitlines()
    assert "TOTAL" not in out
