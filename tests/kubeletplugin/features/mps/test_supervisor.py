# SPDX-License-Identifier: Apache-2.0
"""dra-mps: what it does at its start, when files change behind its back, and when it or a daemon is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from pathlib import Path

import pytest

from dra_driver.errors import MpsError
from dra_driver.names import DRIVER_NAME
from dra_driver.process.mps import processes_of
from kubeletplugin.containers.cdi import Root
from kubeletplugin.errors import SupervisorAwayError
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.patience import Patience
from kubeletplugin.features.mps.program import Program
from kubeletplugin.features.mps.protocol2 import Protocol2
from kubeletplugin.features.mps.protocol3 import Protocol3, namespace_folder
from kubeletplugin.features.mps.server import SOCKET
from kubeletplugin.features.mps.shares import MpsShare, ShareFiles, ShareName
from kubeletplugin.features.mps.supervisor import MpsSupervisor, Server
from tests.support.mps import MpsProcess, connect
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

SERVER = "s0123456789"
PROTOCOLS = [2, 3]


class Served:
    """A node, its shares, and a dra-mps that is not started yet."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "plugins" / DRIVER_NAME
        self.state.mkdir(parents=True)
        self.node: TestNode = make_node(folder / "node", "h100x8-mixed")
        self.uuid = self.node.nvml.uuid(self.node.nvml.device_by_index(0))
        self.files = ShareFiles(self.state / "mps")
        self.client = SupervisorClient(self.files.folder)
        self.process = MpsProcess(self.state, self.node.node, folder / "mps.log")

    def want(self, key: str = "a", protocol: int = 2, percentage: int = 50, server: str = SERVER) -> ShareName:
        """A share that somebody wants."""
        name = ShareName(server, self.uuid, key)
        self.files.put(name, MpsShare(protocol, (self.uuid,), percentage, shared_memory=False))
        return name

    def pipe(self, protocol: int, key: str = "a") -> Path:
        """The pipe directory of a share."""
        folder = self.files.folder
        return folder / SERVER / "pipe" if protocol == 2 else namespace_folder(folder, SERVER, key)

    def daemon(self) -> int:
        """The process of the only daemon."""
        (pid,) = (int(path.read_text()) for path in self.files.folder.glob("*/pipe/nvidia-cuda-mps-control.pid"))
        return pid

    def processes(self) -> list[int]:
        """All of them."""
        return processes_of(self.files.folder)


@pytest.fixture
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Served(Path(name))
        yield made
        made.process.end()


IMPATIENT = Patience(interval=0.0, retry=0.0, first_limit=0.2, longest_limit=0.4, failures=3, idle=0.0, working=0.0)
"""A supervisor that checks a daemon each time it looks."""


def supervisor_of(served: Served, patience: Patience) -> MpsSupervisor:
    """A supervisor in this process."""
    folder, program = served.files.folder, Program(Root(served.node.node.driver_root), False)
    protocols: dict[int, Server] = {2: Protocol2(program, folder, folder / "memory"), 3: Protocol3(program, folder)}
    return MpsSupervisor(served.files, protocols, patience)


def look(supervisor: MpsSupervisor) -> bool:
    """Let a supervisor look once, and wait until its work is done."""
    return not wait(supervisor.look(), 60).not_done


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_daemons_follow_the_share_files_without_a_request(served: Served, protocol: int) -> None:
    name = served.want(protocol=protocol)
    served.process.start()
    wait_for(lambda: [one.problem for one in served.client.statuses().values()] == [""], "the daemon")
    assert connect(served.pipe(protocol))["percentage"] == 50.0
    served.files.remove(name)
    wait_for(lambda: not served.files.servers(), "its end")
    assert served.processes() == []


NOT_READY = """#!/bin/sh
[ "$1" = -f ] || [ -e {asked} ] || {{ touch {asked}; echo "Cannot find MPS control daemon process"; exit 1; }}
exec {program} "$@"
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_daemon_that_is_not_ready_yet_is_told_its_limits_again(served: Served, protocol: int) -> None:
    program = served.node.node.driver_root / "usr/bin/nvidia-cuda-mps-control"
    real = program.rename(program.with_name("real-mps-control"))
    asked = served.state / "asked"
    program.write_text(NOT_READY.format(asked=asked, program=real))
    program.chmod(0o755)
    served.want(protocol=protocol)
    served.process.start()
    served.client.settle(SERVER)
    assert asked.exists()
    assert connect(served.pipe(protocol))["percentage"] == 50.0
    assert served.client.statuses()[SERVER].restarts == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_supervisor_leaves_daemons_that_the_next_one_starts_anew(served: Served, protocol: int) -> None:
    served.want(protocol=protocol)
    served.process.start()
    served.client.settle(SERVER)
    connect(served.pipe(protocol))
    before, pipe = served.processes(), served.pipe(protocol).stat().st_ino
    assert len(before) == 2
    served.process.kill()
    served.process.start()
    served.client.settle(SERVER)
    assert not set(before) & set(served.processes())
    assert served.pipe(protocol).stat().st_ino == pipe
    assert connect(served.pipe(protocol))["percentage"] == 50.0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_daemon_that_hangs_is_ended_and_started_again(served: Served, protocol: int) -> None:
    supervisor = supervisor_of(served, IMPATIENT)
    served.want(protocol=protocol)
    supervisor.settle(SERVER)
    before = served.daemon()
    look(supervisor)
    assert served.daemon() == before
    os.kill(before, signal.SIGSTOP)
    wait_for(lambda: look(supervisor) and served.daemon() != before, "another daemon")
    assert supervisor.statuses()[SERVER].restarts == 1
    supervisor.end()
    assert served.processes() == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_socket_that_a_container_removes_is_published_again(served: Served, protocol: int) -> None:
    served.want(protocol=protocol)
    served.process.start()
    served.client.settle(SERVER)
    control = served.pipe(protocol) / "control"
    control.unlink()
    wait_for(control.is_socket, "the socket")
    assert connect(served.pipe(protocol))["percentage"] == 50.0
    assert served.client.statuses()[SERVER].restarts == 0


def test_all_groups_of_protocol_3_come_back_with_their_daemon(served: Served) -> None:
    other = "sabcdef0123"
    served.want(protocol=3)
    served.want("b", protocol=3, percentage=25)
    served.want("c", protocol=3, server=other)
    served.process.start()
    for server in (SERVER, other):
        served.client.settle(server)
    os.kill(served.daemon(), signal.SIGKILL)
    wait_for(lambda: [one.restarts for one in served.client.statuses().values()] == [1, 1], "the restarts")
    assert [connect(served.pipe(3, key))["percentage"] for key in ("a", "b")] == [50.0, 25.0]


def test_a_new_share_of_a_group_of_protocol_3_does_not_disturb_the_others(served: Served) -> None:
    served.want(protocol=3)
    served.process.start()
    served.client.settle(SERVER)
    before, status = connect(served.pipe(3)), served.client.statuses()[SERVER]
    second = served.want("b", protocol=3, percentage=25)
    served.client.settle(SERVER)
    served.files.remove(second)
    served.client.settle(SERVER)
    assert (connect(served.pipe(3)), served.client.statuses()[SERVER]) == (before, status)


class Scripted(Protocol2):
    """Serves the group SERVER only when `goes_on` is set. Daemons run until a test removes them from `served`."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.began = threading.Event()
        self.served: list[str] = []
        self.starts: list[str] = []

    def serves(self, server: str, shares: Mapping[str, MpsShare]) -> bool:
        return server in self.served

    def runs(self, server: str) -> bool:
        return server in self.served

    def answers(self, server: str, seconds: float) -> None:
        """It does."""

    def publish(self, server: str) -> None:
        """It has no sockets."""

    def serve(self, server: str, shares: Mapping[str, MpsShare]) -> None:
        if server == SERVER:
            self.began.set()
            assert self.goes_on.wait(60)
        self.served.append(server)
        self.starts.append(server)

    def end(self, server: str) -> None:
        """Nothing runs."""

    def discard(self, server: str) -> None:
        """Nothing is left."""


def test_a_group_whose_daemon_is_slow_does_not_keep_others_waiting(served: Served) -> None:
    slow = Scripted()
    supervisor = MpsSupervisor(served.files, {2: slow})
    served.want()
    other = served.want(server="sabcdef0123")
    waiting = threading.Thread(target=supervisor.settle, args=(SERVER,))
    waiting.start()
    assert slow.began.wait(60)
    supervisor.settle(other.server)
    assert slow.served == [other.server]
    slow.goes_on.set()
    waiting.join()
    assert slow.served == [other.server, SERVER]


def test_a_daemon_that_starts_slowly_does_not_delay_the_restarts_of_others(served: Served) -> None:
    slow, other = Scripted(), "sabcdef0123"
    supervisor = MpsSupervisor(served.files, {2: slow})
    served.want(server=other)
    look(supervisor)
    served.want()
    begun = supervisor.look()
    assert slow.began.wait(60)
    slow.served.remove(other)
    wait_for(lambda: supervisor.look() and slow.starts.count(other) == 2, "the restart")
    assert slow.starts == [other, other]
    slow.goes_on.set()
    assert not wait(begun, 60).not_done
    assert slow.starts == [other, other, SERVER]


def test_only_the_first_restart_is_without_a_pause(served: Served) -> None:
    slow, server = Scripted(), "sabcdef0123"
    supervisor = MpsSupervisor(served.files, {2: slow}, Patience(first_pause=1000.0, longest_pause=1000.0))
    served.want(server=server)
    for starts in (1, 2):
        look(supervisor)
        assert slow.starts == [server] * starts
        slow.served.clear()
    for _ in range(3):
        look(supervisor)
    assert slow.starts == [server] * 2
    assert re.search(r"has ended, and is started again in \d+\.\d s", supervisor.statuses()[server].problem)
    supervisor.settle(server)  # a claim does not wait
    assert slow.starts == [server] * 3
    assert supervisor.statuses()[server].problem == ""


def test_pauses_begin_anew_after_a_daemon_has_run_for_a_while(served: Served) -> None:
    slow, server = Scripted(), "sabcdef0123"
    patience = Patience(first_pause=1000.0, longest_pause=1000.0, healthy=0.0)
    supervisor = MpsSupervisor(served.files, {2: slow}, patience)
    served.want(server=server)
    for starts in (1, 2, 3, 4):
        look(supervisor)
        assert slow.starts == [server] * starts
        slow.served.clear()


def test_shares_that_disagree_are_refused_by_protocol_2(served: Served) -> None:
    served.process.start()
    served.want()
    served.want("b", percentage=25)
    with pytest.raises(MpsError, match="must have the same limits"):
        served.client.settle(SERVER)


def test_wishes_of_an_earlier_boot_and_unreadable_ones_start_nothing(served: Served) -> None:
    old, damaged = served.want(), served.want("b", server="sabcdef0123")
    for name, text in ((old, None), (damaged, "{")):
        path = served.files.folder / name.server / "shares" / f"{name.gpu}_{name.key}.json"
        path.write_text(text or path.read_text().replace('"boot": "', '"boot": "not-'))
    served.process.start()
    for server in (SERVER, damaged.server):
        served.client.settle(server)
    assert (served.processes(), served.client.statuses()) == ([], {})


def test_obstacle_to_a_daemon_is_reported(served: Served) -> None:
    served.process.start()
    served.want()
    (served.files.folder / SERVER / "log/output").mkdir(parents=True)
    with pytest.raises(MpsError, match="Is a directory"):
        served.client.settle(SERVER)
    assert served.client.statuses()[SERVER].problem


def test_a_driver_that_is_installed_after_the_start_is_found(served: Served) -> None:
    root = served.node.node.driver_root
    away = root.rename(root.with_name("not-yet"))
    served.process.start()
    served.want()
    with pytest.raises(MpsError, match=f"there is no nvidia-cuda-mps-control below {root}: "):
        served.client.settle(SERVER)
    away.rename(root)
    served.client.settle(SERVER)
    connect(served.pipe(2))


def test_a_second_supervisor_ends_at_once(served: Served) -> None:
    served.process.start()
    command = [
        sys.executable,
        "-m",
        "kubeletplugin.features.mps.main",
        f"--kubelet-plugins-directory-path={served.state.parent}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "another dra-mps works in" in done.stderr


def test_supervisor_ends_its_daemons_at_its_end(served: Served) -> None:
    served.want()
    served.process.start()
    served.client.settle(SERVER)
    assert served.process.stop() == 0
    assert served.processes() == []
    with pytest.raises(SupervisorAwayError, match="no dra-mps answers at"):
        served.client.statuses()


def test_unknown_request_is_answered_with_an_error(served: Served) -> None:
    served.process.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(served.files.folder / SOCKET))
        connection.sendall(b'{"dance": 1}\n')
        with connection.makefile("rb") as lines:
            answer = json.loads(lines.readline())
    assert "does not know" in answer["error"]
