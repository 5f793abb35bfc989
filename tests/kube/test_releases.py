# SPDX-License-Identifier: Apache-2.0
"""The table of releases and feature gates."""

import itertools

import pytest

from dra_driver.kube.releases import GATES, NEWEST_RELEASED, RELEASES, GateStage, default_gates, is_since


def test_releases_follow_each_other() -> None:
    assert [int(release.removeprefix("1.")) for release in RELEASES] == list(range(32, 32 + len(RELEASES)))
    assert NEWEST_RELEASED in RELEASES


@pytest.mark.parametrize(
    ("release", "gate", "stage"),
    [
        ("1.33", "DRAPartitionableDevices", GateStage("alpha", is_on=False, is_locked=False)),
        ("1.36", "DRADeviceTaintRules", GateStage("beta", is_on=False, is_locked=False)),
        ("1.37", "DRAPrioritizedList", GateStage("general availability", is_on=True, is_locked=True)),
        ("1.38", "DRADeviceTaints", GateStage("general availability", is_on=True, is_locked=True)),
    ],
)
def test_gate_has_stage_and_default_of_release(release: str, gate: str, stage: GateStage) -> None:
    assert GATES[release][gate] == stage
    assert default_gates(release)[gate] is stage.is_on


def test_gate_is_unknown_before_its_first_release() -> None:
    assert "DRAConsumableCapacity" not in default_gates("1.33")


def test_gate_stays_known_and_its_stage_only_rises() -> None:
    order = ["alpha", "beta", "general availability"]
    for before, after in itertools.pairwise(RELEASES):
        for gate, stage in GATES[before].items():
            assert order.index(GATES[after][gate].stage) >= order.index(stage.stage), gate


def test_is_since_compares_minor_versions() -> None:
    assert [is_since("1.36", first) for first in ("1.35", "1.36", "1.37")] == [True, True, False]
