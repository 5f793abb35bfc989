# SPDX-License-Identifier: Apache-2.0
"""What `capacity` shows of devices with taints, and what commands say where there are no devices."""

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


def test_the_capacity_that_a_health_taint_takes_is_told(dryrun: DryRun, slices: Path) -> None:
    _, out, _ = dryrun("capacity", "--slices", slices)
    assert "taint health: gpu.nvidia.com/xid=79:NoSchedule" in out


@pytest.mark.parametrize("command", ["gpus", "capacity", "fit"])
def test_a_place_without_devices_is_told_in_one_sentence(command: str, dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a"))
    wanted = [write("claim.yaml", claim())] if command == "fit" else []
    out = dryrun(command, *wanted, "--slices", slices)[1]
    said = "there are no devices: the ResourceSlices of gpu.nvidia.com are empty (the log of the driver says why)"
    assert said in out.splitlines()
    assert "TOTAL" not in out
