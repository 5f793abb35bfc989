# SPDX-License-Identifier: Apache-2.0
"""The gates of the two sides."""

from dra_driver.dryrun.release import ServerRelease
from dra_driver.dryrun.upgrade.sides import sides_of


def test_gate_that_the_cluster_sets_stays_set() -> None:
    server = ServerRelease("1.37", {"DRAListTypeAttributes": True, "DRAConsumableCapacity": True})
    sides = sides_of("1.37", "1.38", server, {}, {})
    assert sides.now.given == {"DRAListTypeAttributes": True}
    assert sides.then.gates["DRAListTypeAttributes"]
    assert sides.then.features.list_attributes


def test_gate_with_its_default_gets_the_default_of_the_next_release() -> None:
    server = ServerRelease("1.35", {"DRADeviceTaints": False})
    sides = sides_of("1.35", "1.36", server, {}, {})
    assert not sides.now.gates["DRADeviceTaints"]
    assert sides.then.gates["DRADeviceTaints"]


def test_gates_of_then_win_over_those_that_are_set_now() -> None:
    sides = sides_of("1.37", "1.38", ServerRelease(), {"DRAListTypeAttributes": True}, {"DRAListTypeAttributes": False})
    assert sides.now.gates["DRAListTypeAttributes"]
    assert not sides.then.gates["DRAListTypeAttributes"]


def test_gate_that_the_next_release_does_not_know_is_a_conflict() -> None:
    sides = sides_of("1.37", "1.36", ServerRelease(), {"DRADerivedAttributes": True}, {})
    (conflict,) = sides.conflicts
    assert (conflict.gate, conflict.reason) == (
        "DRADerivedAttributes",
        "Kubernetes 1.36 does not know the feature gate DRADerivedAttributes",
    )


def test_gates_of_a_cluster_of_another_release_do_not_count() -> None:
    sides = sides_of("1.36", "1.37", ServerRelease("1.35", {"DRADeviceTaints": True}), {}, {})
    assert sides.now.given == {}
