# SPDX-License-Identifier: Apache-2.0
"""The stand-in for nvidia-cuda-mps-control: what the real one refuses is refused, in both protocols."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dra_driver.process.mps import LOG, OUTPUT, end_processes
from tests.support.mps import RefusedClientError, connect
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node


class Node:
    """A node, and its program with one pipe directory."""

    def __init__(self, folder: Path) -> None:
        self.node: TestNode = make_node(folder / "node", "h100x8-mixed")
        self.pipe = folder / "pipe"
        self.uuid = self.node.nvml.uuid(self.node.nvml.device_by_index(0))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._output = folder / LOG / OUTPUT
        self._output.parent.mkdir()

    def run(self, *arguments: str, text: str = "", **environment: str) -> tuple[int, str]:
        """How a run ends, and what it prints."""
        done = subprocess.run(
            [self.program, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment(environment),
        )
        return done.returncode, done.stdout.strip()

    @property
    def program(self) -> str:
        """Its path."""
        return str(self.node.node.driver_root / "usr/bin/nvidia-cuda-mps-control")

    def daemon(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        """A daemon in the foreground, when it listens."""
        with self._output.open("ab") as output:  # by which its servers are found
            process = subprocess.Popen(
                [self.program, "-f", *arguments],
                start_new_session=True,
                env=self._environment(environment),
                stdout=output,
            )
        self._daemons.append(process)
        wait_for((self.pipe / "nvidia-cuda-mps-control.pid").exists, "the daemon")
        return process

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), **more}

    def end(self) -> None:
        """End what runs: the daemons, and the servers that they started."""
        for process in self._daemons:
            process.kill()
            process.wait()
        end_processes(self.pipe.parent, 2.0)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        made = Node(Path(name))
        yield made
        made.end()


def test_without_a_daemon_every_command_fails(node: Node) -> None:
    assert node.run(text="get_default_active_thread_percentage\n") == (1, "Cannot find MPS control daemon process")
    assert node.run("server", "list", "--format=csv,noheader")[0] == 1


def test_a_second_daemon_is_refused(node: Node) -> None:
    node.daemon()
    assert node.run("-f") == (1, "An instance of this daemon is already running")


@pytest.mark.parametrize("arguments", ["-f -p 4", "-f -p", "-x", "-multiuser-server", "-f -m", "-p 3 -M"])
def test_wrong_arguments_are_refused(node: Node, arguments: str) -> None:
    assert node.run(*arguments.split())[0] == 1


@pytest.mark.parametrize(
    "command",
    [
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit 0 1Gi",
        "set_default_device_pinned_mem_limit 0 0M",
        "set_default_device_pinned_mem_limit 0",
        "get_server_list",
        "start_server",
        "server list",
        "shutdown",
    ],
)
def test_a_command_of_protocol_2_that_the_real_one_refuses_fails(node: Node, command: str) -> None:
    node.daemon()
    assert node.run(text=f"{command}\n")[0] == 1


def test_limits_count_for_servers_that_start_later(node: Node) -> None:
    node.daemon(CUDA_VISIBLE_DEVICES=node.uuid)
    limits = f"set_default_device_pinned_mem_limit {node.uuid} 2G\nset_default_active_thread_percentage 25\n"
    assert node.run(text=limits) == (0, "25.0")
    server = connect(node.pipe)["server"]
    node.run(text="set_default_active_thread_percentage 75\n")
    assert connect(node.pipe) == {"server": server, "percentage": 25.0, "memory": {node.uuid: "2G"}}
    assert node.run(text="get_default_active_thread_percentage\n") == (0, "75.0")


def test_a_server_with_a_device_that_is_not_there_does_not_start(node: Node) -> None:
    node.daemon(CUDA_VISIBLE_DEVICES="GPU-0")
    with pytest.raises(RefusedClientError, match="NO_DEVICE"):
        connect(node.pipe)


def test_a_daemon_with_clients_does_not_quit(node: Node) -> None:
    daemon = node.daemon()
    connect(node.pipe)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [node.program],
            input=b"quit\n",
            check=False,
            timeout=0.5,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(node.pipe)},
        )
    assert daemon.poll() is None


def test_a_daemon_that_is_killed_leaves_its_server_and_its_files(node: Node) -> None:
    daemon = node.daemon()
    server = int(connect(node.pipe)["server"])
    daemon.kill()
    daemon.wait()
    os.kill(server, 0)
    assert (node.pipe / "control").exists()
    node.daemon()  # files alone do not stop the next one
    os.kill(server, signal.SIGKILL)


def test_protocol_3_does_not_understand_commands_of_protocol_2(node: Node) -> None:
    node.daemon("-p", "3")
    assert node.run(text="get_default_active_thread_percentage\n")[0] == 1
    assert node.run("-q")[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        "server create Name",
        "server create one --uid=1",
        "server create one --colour=red",
        "server delete none",
        "server",
        "namespace create one --server=none",
        "namespace create one",
        "namespace delete none --server=s",
        "namespace create two --server=s --active-thread-percentage=0",
        "namespace create two --server=s --pinned-memory-limit=1Gi",
        "server list",
    ],
)
def test_a_command_of_protocol_3_that_the_real_one_refuses_fails(node: Node, command: str) -> None:
    node.daemon("-p", "3", "-m")
    assert node.run("server", "create", "s", f"--allowed-devices={node.uuid}")[0] == 0
    assert node.run(*command.split())[0] == 1


def test_a_server_of_a_device_that_is_not_there_is_made_and_gone(node: Node) -> None:
    node.daemon("-p", "3", "-m")
    assert node.run("server", "create", "s", "--allowed-devices=GPU-0")[0] == 0
    assert node.run("server", "list", "--format=csv,noheader") == (0, "")


def test_a_namespace_has_limits_of_its_own_and_none_of_the_server(node: Node) -> None:
    node.daemon("-p", "3", "-m")
    node.run("server", "create", "s", f"--allowed-devices={node.uuid}")
    for name, limits in (("a", ["--pinned-memory-limit=4G"]), ("b", ["--active-thread-percentage=25"])):
        assert node.run("namespace", "create", name, "--server=s", *limits)[0] == 0
    found = [connect(node.pipe / "s" / name) for name in ("a", "b")]
    assert [(one["percentage"], one["memory"]) for one in found] == [(100.0, "4G"), (25.0, "0")]
    with pytest.raises(RefusedClientError, match="CONNECTION_FAILED"):
        connect(node.pipe)
    assert node.run("server", "delete", "s")[0] == 1  # it has clients
    assert node.run("server", "delete", "s", "--force")[0] == 0
