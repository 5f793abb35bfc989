# SPDX-License-Identifier: Apache-2.0
"""Answers of MPS daemons that are late, endless, or meant for a terminal."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.errors import MpsError
from dra_driver.names import DRIVER_NAME
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.shares import MpsShare, ShareFiles, ShareName
from tests.support.mps import MpsProcess, connect
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

SERVER = "s0123456789"
PROBE = "get_default_active_thread_percentage"


class Machine:
    """A node with dra-mps and a share."""

    def __init__(self, folder: Path) -> None:
        state = folder / "plugins" / DRIVER_NAME
        state.mkdir(parents=True)
        self.node: TestNode = make_node(folder / "node", "h100x8-mixed")
        self.files = ShareFiles(state / "mps")
        self.client = SupervisorClient(self.files.folder)
        self.process = MpsProcess(state, self.node.node, folder / "mps.log").start()
        self.uuid = self.node.nvml.uuid(self.node.nvml.device_by_index(0))
        self.files.put(ShareName(SERVER, self.uuid, "a"), MpsShare(2, (self.uuid,), 50, shared_memory=False))

    @property
    def pipe(self) -> Path:
        """The pipe directory that containers have."""
        return self.files.folder / SERVER / "pipe"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Machine(Path(name))
        yield made
        made.process.end()


def test_daemon_whose_answer_is_late_keeps_its_clients(machine: Machine) -> None:
    machine.client.settle(SERVER)
    server = connect(machine.pipe)["server"]
    machine.node.node.mps.hang(PROBE)
    wait_for(lambda: "does not answer" in machine.process.log or "did not answer" in machine.process.log, "a check")
    machine.node.node.mps.mend()
    assert connect(machine.pipe)["server"] == server
    assert machine.client.statuses()[SERVER].restarts == 0
    os.kill(server, 0)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("\x1b]0;owned\x07\x1b[2J" * 3, r"\x1b]0;owned\x07\x1b[2J"), ("x" * 100_000, "x" * 100)],
    ids=["control characters", "a long text"],
)
def test_answer_is_shown_escaped_and_shortened(machine: Machine, answer: str, shown: str) -> None:
    machine.node.node.mps.fail("set_default_active_thread_percentage", answer)
    with pytest.raises(MpsError) as error:
        machine.client.settle(SERVER)
    assert shown in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1500


def test_error_names_the_daemon(machine: Machine) -> None:
    machine.node.node.mps.fail_start("out of luck")
    with pytest.raises(
        MpsError, match=f"^the MPS control daemon of {machine.uuid} ended while it started: out of luck$"
    ):
        machine.client.settle(SERVER)
