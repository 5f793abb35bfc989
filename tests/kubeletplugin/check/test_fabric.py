# SPDX-License-Identifier: Apache-2.0
"""What `check` finds out about NVSwitches."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.fabric import NO_SWITCHES, Partition, SwitchFacts
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import GpuRule, NodePolicy
from kubeletplugin.check.fabric import FabricFacts, fabric_findings, read_fabric
from kubeletplugin.options import Node
from tests.kubeletplugin.check.support import levels, only
from tests.support.nodes import make_node

NODE = str(Path(__file__).parents[2] / "support/nvswitch.yaml")
PAIR = Partition(4, (1, 3), active=True)
GOOD = FabricFacts(SwitchFacts((PAIR, Partition(8, (1,))), True), reachable=True, machines=True)


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (GOOD, "pass", "runs in a shared mode (FABRIC_MODE=1 or 2), with 2 partitions of 1, 2 GPUs, 1 of them active"),
        (replace(GOOD, switches=SwitchFacts(shared=False)), "warn", "not in shared NVSwitch mode (FABRIC_MODE is 0)"),
        (FabricFacts(SwitchFacts(shared=False), True, False), "pass", "not in shared NVSwitch mode (FABRIC_MODE is 0)"),
        (replace(GOOD, switches=NO_SWITCHES, reachable=False), "warn", "the library libnvfm.so.1 or the socket"),
        (FabricFacts(NO_SWITCHES, False, False), "pass", "the library libnvfm.so.1 or the socket"),
        (replace(GOOD, switches=replace(GOOD.switches, problem="it fails")), "warn", "are unknown: it fails"),
    ],
)
def test_the_mode_of_fabric_manager_is_told(facts: FabricFacts, level: str, text: str) -> None:
    found = only(fabric_findings(facts))
    assert (str(found.level), text in found.text, bool(found.remedy)) == (level, True, level == "warn")


def test_partitions_that_are_impossible_are_named() -> None:
    facts = replace(GOOD, switches=replace(GOOD.switches, unsupported=(Partition(1, (1, 2)),)))
    assert levels(fabric_findings(facts)) == [("NVSwitches", "pass"), ("NVSwitches", "warn")]
    assert "partition 1 (GPU modules 1, 2) is impossible" in list(fabric_findings(facts))[1].text


@pytest.mark.parametrize("name", ["h100x8", NODE])
def test_a_node_is_asked_if_it_has_switches(tmp_path: Path, name: str) -> None:
    made = make_node(tmp_path / "node", name).node
    root, fabric = made.driver_root, made.fabric if name == NODE else None
    hardware = Hardware(made.nvml, root, root, root, root / "proc", root / "sys", root, fabric_manager=fabric)
    node = Node(tmp_path / "registry", tmp_path / "plugin", tmp_path / "cdi", tmp_path / "shm", hardware)
    facts = read_fabric(node, NodePolicy((GpuRule(passthrough=True),)))
    if fabric is None:
        assert facts is None
        assert levels(fabric_findings(facts)) == []
        return
    assert facts == FabricFacts(fabric.facts, reachable=True, machines=True)
    fabric.stop()
    assert read_fabric(node, NodePolicy()) == FabricFacts(NO_SWITCHES, reachable=False, machines=False)
