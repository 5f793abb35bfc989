# SPDX-License-Identifier: Apache-2.0
"""The table of releases and feature gates."""

import itertools

import pytest

from dra_driver.kube.releases import (
    GATES,
    NEWEST_RELEASED,
    RELEASES,
    RULES,
    GateStage,
    default_gates,
    first_with_rules_of,
    has_rule,
    is_since,
    is_supported,
)


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
            if stage.is_locked and gate not in GATES[after]:
                continue  # removed after it could not be changed any more
            assert order.index(GATES[after][gate].stage) >= order.index(stage.stage), gate


@pytest.mark.parametrize(
    ("release", "same"),
    [
        ("1.35.9", "1.35"),
        ("1.36", "1.36"),
        ("1.36.2", "1.36"),
        ("1.36.4", "1.36.4"),
        ("1.36.7", "1.36.4"),
        ("1.37.0", "1.37"),
    ],
)
def test_patch_releases_with_the_same_rules_count_as_one(release: str, same: str) -> None:
    assert first_with_rules_of(release) == same
    assert [has_rule(release, name) for name in RULES] == [has_rule(same, name) for name in RULES]


def test_rule_ends_in_the_patch_release_that_has_the_change() -> None:
    found = {release: has_rule(release, "refused_keep_counters") for release in ("1.35.9", "1.36.2", "1.36.4", "1.37")}
    assert found == {"1.35.9": True, "1.36.2": True, "1.36.4": False, "1.37": False}


def test_rule_does_not_apply_before_its_first_release() -> None:
    found = [has_rule(release, "capacity_of_another_device") for release in ("1.33", "1.34", "1.34.8", "1.35")]
    assert found == [False, True, True, False]


@pytest.mark.parametrize("release", ["", "1", "2.36", "1.31", "1.39", "1.36.4.1", "1.36.x", "v1.36"])
def test_release_without_known_rules_is_not_supported(release: str) -> None:
    assert not is_supported(release)


def test_is_since_compares_minor_versions() -> None:
    assert [is_since("1.36", first) for first in ("1.35", "1.36", "1.37")] == [True, True, False]
