# SPDX-License-Identifier: Apache-2.0
"""What `check` finds out about ComputeDomains."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.imex import Channels, DeviceNumbers, FabricProgress, NodeFabric
from dra_driver.gpu.nvml import FabricState
from dra_driver.gpu.options import Hardware
from kubeletplugin.check.computedomains import DomainFacts, domain_findings, read_domain_facts
from kubeletplugin.options import DomainOptions, Node
from tests.support.nodes import TestNode, make_node

from ..computedomains.domains import CLUSTER, HARDWARE, install_imex

JOINED = NodeFabric(FabricProgress.COMPLETED, f"{CLUSTER}.1")
WAITING = NodeFabric(FabricProgress.IN_PROGRESS, problem="not yet in the NVLink fabric: GPU 1")
GOOD = DomainFacts(False, JOINED, Channels(234, 2048), DeviceNumbers(235, 1), (), False)
PASSED = [
    f"the GPUs are in clique {CLUSTER}.1",
    "2048 IMEX channels, major number 234",
    "the driver can run an IMEX daemon on the node",
]
LISTENING = "  0: 00000000:C350 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"
CONNECTED = "  0: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000 0 0 1\n"


@pytest.mark.parametrize(
    ("facts", "told", "warnings"),
    [
        (None, [], 0),
        (GOOD, PASSED, 0),
        (replace(GOOD, port_in_use=None), PASSED, 0),
        (replace(GOOD, fabric=NodeFabric(FabricProgress.NONE), channels=None), ["in no NVLink fabric"], 0),
        (replace(GOOD, fabric=WAITING), ["no channel can be prepared at the moment: not yet in", *PASSED[1:]], 1),
        (replace(GOOD, channels=None), [PASSED[0], "has no IMEX channels", PASSED[2]], 1),
        (replace(GOOD, management=None), [*PASSED[:2], "no capability fabric-imex-mgmt"], 1),
        (replace(GOOD, missing=("nvidia-imex",)), [*PASSED[:2], "nvidia-imex not found below the driver root"], 1),
        (replace(GOOD, port_in_use=True), [*PASSED[:2], "a program of the node listens on port 50000"], 1),
        (replace(GOOD, problems=("params cannot be read",)), ["params cannot be read", *PASSED], 1),
        (replace(GOOD, host_managed=True, port_in_use=True), [*PASSED[:2], "the IMEX daemon of the node is ready"], 0),
        (
            replace(GOOD, host_managed=True, host_problem="no socket"),
            [*PASSED[:2], "is not ready: no socket", "nothing listens on port 50000"],
            2,
        ),
    ],
)
def test_what_is_missing_is_told(facts: DomainFacts | None, told: list[str], warnings: int) -> None:
    found = list(domain_findings(facts))
    assert [text in one.text for text, one in zip(told, found, strict=True)] == [True] * len(told)
    assert sum(bool(one.remedy) for one in found) == warnings
    assert {str(one.level) for one in found} <= {"pass", "warn"}


def hardware_of(made: TestNode, folder: Path) -> Node:
    node = made.node
    root = node.driver_root
    hardware = Hardware(node.nvml, root, root, root, root / "proc", root / "sys", root)
    return Node(folder / "registry", folder / "plugin", folder / "cdi", folder / "shm", hardware)


def test_a_node_is_looked_at(tmp_path: Path) -> None:
    made = make_node(tmp_path / "node", HARDWARE, "node-a")
    node, net = hardware_of(made, tmp_path), made.node.driver_root / "proc/1/net"
    driver, host = DomainOptions(enabled=True), DomainOptions(enabled=True, host_managed=True)
    assert read_domain_facts(node, DomainOptions()) is None
    install_imex(made.node)
    facts = read_domain_facts(node, driver)
    assert facts is not None
    assert (facts.fabric, facts.missing, facts.port_in_use, facts.problems) == (JOINED, (), None, ())
    assert None not in (facts.channels, facts.management)
    net.mkdir(parents=True)
    for text, in_use in ((CONNECTED, False), (LISTENING, True)):
        (net / "tcp").write_text(f"  sl  local_address rem_address   st\n{text}")
        found = read_domain_facts(node, driver)
        assert found is not None
        assert found.port_in_use is in_use
    install_imex(made.node, "echo NOT_READY")
    (made.node.driver_root / "usr/bin/nvidia-imex").unlink()
    (made.node.driver_root / "proc/driver/nvidia/params").write_text("ImexChannelCount: ?\n")
    made.node.set_fabric(0, FabricState.NOT_STARTED)
    broken = read_domain_facts(node, host)
    assert broken is not None
    assert broken.fabric.progress is FabricProgress.IN_PROGRESS
    assert broken.missing == ("nvidia-imex",)
    assert broken.host_problem == "nvidia-imex-ctl ended with code 0: NOT_READY"
    assert "ImexChannelCount is '?'" in broken.problems[0]
