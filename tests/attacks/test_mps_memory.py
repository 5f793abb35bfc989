# SPDX-License-Identifier: Apache-2.0
"""A user of the node attacks the shared memory of MPS daemons, whose names are predictable."""

import os
import stat
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

from .attacker import attacking

SERVER = "s0123456789"
ATTEMPTS = 2000

LINK = f"""
while True:
    try:
        os.symlink(victim, "dra-mps-{SERVER}")
    except OSError:
        pass
    attempted()
"""


class Machine:
    """A node whose dra-mps is not started yet, and a folder of root that no other user may enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "plugins" / DRIVER_NAME
        self.state.mkdir(parents=True)
        self.node: TestNode = make_node(folder / "node", "h100x8-mixed")
        self.everybodys = folder / "everybodys"
        self.everybodys.mkdir()
        self.everybodys.chmod(0o1777)
        self.victim = folder / "victim"
        self.victim.mkdir(mode=0o700)

    def dra_mps(self, shared_memory: Path) -> MpsProcess:
        """dra-mps with this folder for shared memory."""
        return MpsProcess(self.state, self.node.node, self.folder / "mps.log", shared_memory)

    def serve(self) -> None:
        """Let dra-mps serve a share with shared memory. Raises MpsError."""
        files = ShareFiles(self.state / "mps")
        uuid = self.node.nvml.uuid(self.node.nvml.device_by_index(0))
        files.put(ShareName(SERVER, uuid, "a"), MpsShare(2, (uuid,), 50))
        SupervisorClient(files.folder).settle(SERVER)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        yield Machine(Path(name))


def test_link_in_a_folder_of_everybody_opens_no_folder_of_root(machine: Machine) -> None:
    process = machine.dra_mps(machine.everybodys).start()
    try:
        with attacking(LINK, machine.everybodys, machine.folder, machine.victim) as attack:
            attack.require(ATTEMPTS)
            try:
                machine.serve()
            except MpsError as error:
                assert "others than root can create names in" in str(error)  # noqa: PT017 - the attack may go another way
            attack.require(attack.attempts + ATTEMPTS)
    finally:
        process.end()
    assert stat.S_IMODE(machine.victim.stat().st_mode) == 0o700
    assert list(machine.victim.iterdir()) == []


def test_only_root_can_create_names_where_shared_memory_is_by_default(machine: Machine) -> None:
    folder = machine.state / "mps/memory"
    process = machine.dra_mps(folder).start()
    try:
        machine.serve()
        assert connect(machine.state / f"mps/{SERVER}/pipe")["percentage"] == 50.0
        (group,) = folder.iterdir()
        for path in (folder, folder.parent):
            facts = path.lstat()
            assert (facts.st_uid, stat.S_IMODE(facts.st_mode) & 0o022) == (os.geteuid(), 0)
        assert stat.S_IMODE(group.lstat().st_mode) == 0o1777
    finally:
        process.end()
