# SPDX-License-Identifier: Apache-2.0
"""A container with an MPS claim attacks files and daemons of others through the directory of its own daemon."""

import contextlib
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.names import DRIVER_NAME
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.shares import MpsShare, ShareFiles, ShareName
from kubeletplugin.features.mps.supervisor import Status
from tests.support.listing import paths_in
from tests.support.mps import MpsProcess, connect
from tests.support.nodes import make_node
from tests.support.waiting import wait_for

from .attacker import Attack, attacking

SERVER, NEIGHBOUR = "s0123456789", "sabcdef0123"
NAMES = 3000
"""How many names the attacker makes, so that removing them takes long."""
FILES = 300
"""How many files the attacker tries to remove, under their names."""
RESTARTS = 4
"""How often a daemon is started, or cannot be started, during an attack."""
EXCHANGES = 20_000

QUIT = """
def quitting():
    while True:
        if quit():
            attempted()
        time.sleep(1.5)  # a daemon that has not its limits yet could not be started
"""

EXCHANGE = f"""{QUIT}
for number in range({NAMES}):
    open(f"name-{{number}}", "w").close()
os.symlink(victim, "link")
os.mkdir("folder")
folder = os.open("folder", os.O_RDONLY)
names = os.listdir(victim)

def filling():
    while True:
        for name in names:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder))

in_child(quitting)
in_child(filling)
while True:
    for name in ("folder", "link"):  # the link was removed, whatever name it had
        if not os.path.lexists(name):
            os.symlink(victim, name)
    for _ in range(100):
        exchange("folder", "link")
        attempted()
"""

LINKS = f"""{QUIT}
in_child(quitting)
while True:
    for name in ("nvidia-cuda-mps-control.pid", "control_lock"):
        try:
            if os.path.lexists(name) and not os.path.islink(name):
                os.unlink(name)
            os.symlink(os.path.join(victim, "file-1"), name)
        except OSError:
            pass
        attempted()
"""


class Cluster:
    """A node with dra-mps, whose first GPU the attacker has, and whose second one a neighbour has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "plugins" / DRIVER_NAME
        self.state.mkdir(parents=True)
        node = make_node(folder / "node", "h100x8-mixed")
        self.files = ShareFiles(self.state / "mps")
        self.client = SupervisorClient(self.files.folder)
        self.process = MpsProcess(self.state, node.node, folder / "mps.log").start()
        self.victim = folder / "victim"
        self.victim.mkdir()
        for number in range(FILES):
            (self.victim / f"file-{number}").write_text("of the host\n")
            (self.victim / f"file-{number}").chmod(0o600)
        for index, server in enumerate((SERVER, NEIGHBOUR)):
            uuid = node.nvml.uuid(node.nvml.device_by_index(index))
            self.files.put(ShareName(server, uuid, "a"), MpsShare(2, (uuid,), 50, shared_memory=False))
            self.client.settle(server)

    def pipe(self, server: str = SERVER) -> Path:
        """The pipe directory that containers with the claim have."""
        return self.files.folder / server / "pipe"

    def status(self, server: str = SERVER) -> Status:
        """What dra-mps reports."""
        return self.client.statuses()[server]

    def wait_restarts(self, number: int, server: str = SERVER) -> None:
        """Wait until the status of a daemon has changed so often: it was started, or could not be started."""
        seen: set[float] = set()

        def has_changed() -> bool:
            seen.add(self.status(server).since)
            return len(seen) > number

        wait_for(has_changed, "restarts", 120.0)

    def daemon(self, server: str) -> int:
        """The process of a daemon that is not attacked."""
        return int((self.pipe(server) / "nvidia-cuda-mps-control.pid").read_text())

    def release(self, server: str) -> None:
        """End the claim of a group."""
        for name in self.files.names(server):
            self.files.remove(name)
        self.client.settle(server)

    def require_untouched(self) -> None:
        """Fail if a file of the victim was removed, changed, or made accessible."""
        files = sorted(self.victim.iterdir())
        assert len(files) == FILES
        for file in files:
            assert file.read_text() == "of the host\n"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def attacking(self, text: str) -> contextlib.AbstractContextManager[Attack]:
        """Attack from the container with the first claim."""
        return attacking(text, self.pipe(), self.folder, self.victim)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Cluster(Path(name))
        yield made
        made.process.end()


@pytest.mark.parametrize("text", [EXCHANGE, LINKS], ids=["exchanges a folder and a link", "makes links of known names"])
def test_restarts_change_no_file_outside_of_the_pipe_directory(cluster: Cluster, text: str) -> None:
    with cluster.attacking(text) as attack:
        cluster.wait_restarts(RESTARTS)
        attack.require(EXCHANGES if text == EXCHANGE else 1000)
    cluster.require_untouched()


def test_restarts_of_a_daemon_that_is_told_to_quit_are_paused(cluster: Cluster) -> None:
    seen: list[Status] = []

    def paused() -> bool:
        seen.append(cluster.status())
        return "is started again in" in seen[-1].problem or seen[-1].restarts >= 10

    with cluster.attacking(QUIT + "quitting()"):
        wait_for(paused, "a pause")
    assert seen[-1].restarts < 10


def test_restarts_of_an_attacked_daemon_do_not_delay_others(cluster: Cluster) -> None:
    with cluster.attacking(EXCHANGE) as attack:
        cluster.wait_restarts(2)
        before = cluster.daemon(NEIGHBOUR)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: cluster.status(NEIGHBOUR).restarts == 1, "the restart of the other one")
        attack.require(EXCHANGES)
    assert cluster.daemon(NEIGHBOUR) != before
    assert connect(cluster.pipe(NEIGHBOUR))["percentage"] == 50.0


def test_link_to_the_socket_of_a_neighbour_sends_no_command_there(cluster: Cluster) -> None:
    before = cluster.daemon(NEIGHBOUR)
    control = cluster.pipe() / "control"
    text = f"""
while True:
    try:
        if not os.path.islink("control"):
            os.unlink("control")
        os.symlink({str(cluster.pipe(NEIGHBOUR) / "control")!r}, "control")
    except OSError:
        pass
    attempted()
"""
    with cluster.attacking(text) as attack:
        wait_for(control.is_symlink, "the link")
        cluster.release(SERVER)
        attack.require(1000)
    assert cluster.daemon(NEIGHBOUR) == before
    assert cluster.status(NEIGHBOUR).restarts == 0
    os.kill(before, 0)


def test_nested_folders_do_not_keep_a_claim_from_ending(cluster: Cluster) -> None:
    text = """
depth = 0
while True:
    if depth < 3000:
        os.mkdir("nested")
        os.chdir("nested")
        depth += 1
    attempted()
"""
    with cluster.attacking(text) as attack:
        attack.require(3001)
    cluster.release(SERVER)
    assert cluster.files.servers() == [NEIGHBOUR]
    wait_for(lambda: not paths_in(cluster.files.folder, "removed/*"), "the removal of the folders")


def test_folder_that_is_filled_again_and_again_does_not_keep_a_claim_from_ending(cluster: Cluster) -> None:
    text = """
while True:
    try:
        os.makedirs(f"folder-{attempts % 100}", exist_ok=True)
        open(f"folder-{attempts % 100}/{attempts}\\nname", "w").close()
    except OSError:
        pass
    attempted()
"""
    with cluster.attacking(text) as attack:
        attack.require(5000)
        cluster.release(SERVER)
        assert cluster.files.servers() == [NEIGHBOUR]
        attack.require(attack.attempts + 1000)
    wait_for(lambda: not paths_in(cluster.files.folder, "removed/*"), "the removal of the folders")
