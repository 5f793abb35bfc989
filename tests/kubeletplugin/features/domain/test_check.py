# SPDX-License-Identifier: Apache-2.0
"""What `check` finds out about ComputeDomains."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import FabricState
from dra_driver.gpu.simulated import SimulatedNode
from kubeletplugin.features.domain.check import domain_findings
from kubeletplugin.features.domain.offers import HostDaemon
from kubeletplugin.host.programs import HostPrograms
from kubeletplugin.kinds.daemon import CONTROL_PROGRAM
from tests.kubeletplugin.check.support import facts_of, hardware_of
from tests.support.nodes import make_node

from .domains import CLUSTER, HARDWARE, install_imex

DRIVER, HOST = False, True
"""Who runs the IMEX daemon of the node."""
PASSED = [
    f"the GPUs are in clique {CLUSTER}.1",
    "2048 IMEX channels, major number ",
    "the driver can run an IMEX daemon on the node",
]
READY = [*PASSED[:2], "the IMEX daemon of the node is ready"]
LISTENING = "  0: 00000000:C350 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"
CONNECTED = "  0: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000 0 0 1\n"
Change = Callable[[SimulatedNode], None]


def nothing(_: SimulatedNode) -> None:
    """The node stays as it is."""


def without(path: str) -> Change:
    """The node lacks a file."""
    return lambda node: (node.driver_root / path).unlink()


def with_text(path: str, old: str, new: str) -> Change:
    """A file of the node has another text."""

    def change(node: SimulatedNode) -> None:
        file = node.driver_root / path
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


def with_socket(line: str) -> Change:
    """The node has a TCP socket."""

    def change(node: SimulatedNode) -> None:
        net = node.driver_root / "proc/1/net"
        net.mkdir(parents=True)
        (net / "tcp").write_text(f"  sl  local_address rem_address   st\n{line}")

    return change


def unready(node: SimulatedNode) -> None:
    """The node's own daemon is not ready, and nobody listens on its port."""
    install_imex(node, "echo NOT_READY")
    with_socket(CONNECTED)(node)


@pytest.mark.node
@pytest.mark.parametrize(
    ("is_host", "change", "told", "warnings"),
    [
        (DRIVER, nothing, PASSED, 0),
        (DRIVER, lambda node: node.unload_driver(), [], 0),
        (DRIVER, with_socket(CONNECTED), PASSED, 0),
        (DRIVER, with_socket(LISTENING), [*PASSED[:2], "a program of the node listens on port 50000"], 1),
        (
            DRIVER,
            lambda node: node.set_fabric(0, FabricState.NOT_STARTED),
            ["no channel can be prepared at the moment: ", *PASSED[1:]],
            1,
        ),
        (
            DRIVER,
            with_text("proc/devices", "nvidia-caps-imex-channels", "other"),
            [PASSED[0], "has no IMEX channels", PASSED[2]],
            1,
        ),
        (
            DRIVER,
            without("proc/driver/nvidia/capabilities/fabric-imex-mgmt"),
            [*PASSED[:2], "no capability fabric-imex-mgmt"],
            1,
        ),
        (
            DRIVER,
            without("usr/bin/nvidia-imex"),
            [*PASSED[:2], "nvidia-imex not found below the driver root"],
            1,
        ),
        (
            DRIVER,
            lambda node: (node.driver_root / "proc/driver/nvidia/params").write_text("ImexChannelCount: ?\n"),
            ["ImexChannelCount is '?'", PASSED[0], "has no IMEX channels", "no capability fabric-imex-mgmt"],
            3,
        ),
        (HOST, with_socket(LISTENING), READY, 0),
        (
            HOST,
            unready,
            [
                *PASSED[:2],
                "is not ready: nvidia-imex-ctl ended with code 0: NOT_READY",
                "nothing listens on port 50000",
            ],
            2,
        ),
    ],
)
def test_missing_parts_are_reported(
    tmp_path: Path, is_host: bool, change: Change, told: list[str], warnings: int
) -> None:
    made = make_node(tmp_path / "node", HARDWARE, "node-a").node
    install_imex(made)
    change(made)
    check(tmp_path, made, is_host, told, warnings)


def test_gpus_outside_of_a_fabric_need_nothing(tmp_path: Path) -> None:
    check(tmp_path, make_node(tmp_path / "node", "h100x8").node, DRIVER, ["in no NVLink fabric"], 0)


@pytest.mark.node
def test_daemon_of_the_node_without_its_control_program_is_not_ready(tmp_path: Path) -> None:
    daemon = HostDaemon(HostPrograms(tmp_path, enter=False), "/imex.sock")
    assert CONTROL_PROGRAM in (daemon.problem() or "")


def check(folder: Path, made: SimulatedNode, is_host: bool, told: list[str], warnings: int) -> None:
    """What is found on a node."""
    host = HostDaemon(HostPrograms(made.driver_root, enter=False), "/imex.sock") if is_host else None
    found = list(domain_findings(facts_of(folder, hardware_of(made)), host))
    assert [text in one.text for text, one in zip(told, found, strict=True)] == [True] * len(told)
    assert sum(bool(one.remedy) for one in found) == warnings
    assert {str(one.level) for one in found} <= {"pass", "warn"}
