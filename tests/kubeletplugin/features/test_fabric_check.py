# SPDX-License-Identifier: Apache-2.0
"""What `check` finds out about NVSwitches."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.fabric import NO_SWITCHES, Partition, SwitchFacts
from dra_driver.gpu.policy import GpuRule, NodePolicy
from kubeletplugin.features.fabric.check import fabric_findings, switch_findings
from tests.kubeletplugin.check.support import facts_of, hardware_of, levels, only
from tests.support.nodes import make_node

NODE = str(Path(__file__).parents[2] / "support/nvswitch.yaml")
PAIR = Partition(4, (1, 3), active=True)
GOOD = SwitchFacts((PAIR, Partition(8, (1,))), True)
OTHER_MODE = SwitchFacts(shared=False)


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (
            (GOOD, True, True),
            "pass",
            "(FABRIC_MODE=1 or 2), with 2 partitions of 1, 2 GPUs, 1 of them active",
        ),
        ((OTHER_MODE, True, True), "warn", "not in shared NVSwitch mode (FABRIC_MODE is 0)"),
        ((OTHER_MODE, True, False), "pass", "not in shared NVSwitch mode (FABRIC_MODE is 0)"),
        ((NO_SWITCHES, False, True), "warn", "the library libnvfm.so.1 or the socket"),
        ((NO_SWITCHES, False, False), "pass", "the library libnvfm.so.1 or the socket"),
        ((replace(GOOD, problem="it fails"), True, True), "warn", "are unknown: it fails"),
    ],
)
def test_the_mode_of_fabric_manager_is_told(facts: tuple[SwitchFacts, bool, bool], level: str, text: str) -> None:
    found = only(switch_findings(*facts))
    assert str(found.level) == level
    assert text in found.text
    assert bool(found.remedy) == (level == "warn")


def test_partitions_that_are_impossible_are_named() -> None:
    facts = replace(GOOD, unsupported=(Partition(1, (1, 2)),))
    first, second = switch_findings(facts, reachable=True, machines=True)
    assert levels([first, second]) == [("NVSwitches", "pass"), ("NVSwitches", "warn")]
    assert "partition 1 (GPU modules 1, 2) is impossible" in second.text


@pytest.mark.parametrize("name", ["h100x8", NODE])
def test_a_node_is_asked_if_it_has_switches(tmp_path: Path, name: str) -> None:
    made = make_node(tmp_path / "node", name).node
    hardware = hardware_of(made) if name == NODE else replace(hardware_of(made), fabric_manager=None)
    facts = facts_of(tmp_path, hardware, NodePolicy((GpuRule(passthrough=True),)))
    found = list(fabric_findings(facts))
    if name != NODE:
        assert found == []
        return
    assert found == list(switch_findings(made.fabric.facts, reachable=True, machines=True))
    made.fabric.stop()
    assert levels(fabric_findings(replace(facts, policy=NodePolicy()))) == [("NVSwitches", "pass")]
