# SPDX-License-Identifier: Apache-2.0
"""The simulated nvidia-imex and nvidia-imex-ctl: what the real ones refuse or drop is refused or dropped."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.simulated.files import install_programs
from tests.support.hardware import ImexFaults
from tests.support.imex import Network, network
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

NAMES = ("first", "second", "third")


class Node:
    """A node with both programs, and the files that they read."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.hosts = folder / "hosts"
        self.imex = ImexFaults(folder / "state/imex")
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        install_programs(folder / "driver")

    def configure(self, addresses: list[str], names: Sequence[str] = NAMES, **values: str) -> "Node":
        """Write the files. The addresses are those of the names."""
        (self.folder / "nodes.cfg").write_text("\n".join(names))
        self.hosts.write_text("".join(f"{one}\t{name}\n" for one, name in zip(addresses, names, strict=False)))
        values = {
            "IMEX_NODE_CONFIG_FILE": f"{self.folder}/nodes.cfg",
            "IMEX_CMD_BIND_INTERFACE_IP": self.address,
            **values,
        }
        (self.folder / "cfg").write_text("# comment\n" + "".join(f"{key}={value}\n" for key, value in values.items()))
        return self

    def start(self, **environment: str) -> "subprocess.Popen[bytes]":
        """Start the daemon."""
        command = [f"{self.folder}/driver/usr/bin/nvidia-imex", "-c", f"{self.folder}/cfg"]
        with (self.folder / "log").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=self._environment(environment))
        self._processes.append(process)
        return process

    def control(self, *arguments: str) -> str:
        """What the control program prints on its standard output."""
        command = [f"{self.folder}/driver/usr/bin/nvidia-imex-ctl", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._environment({}))
        return done.stdout.strip()

    def state(self) -> str:
        """The state of the daemon, or nothing."""
        return self.control("-c", f"{self.folder}/cfg", "-q")

    def links(self) -> dict[str, str]:
        """The letters of its connections."""
        nodes: dict[str, Any] = json.loads(self.control("-c", f"{self.folder}/cfg", "-N", "-j"))["nodes"]
        own = next(one for one in nodes.values() if one["host"] == self.address)
        return {peer: link["status"] for peer, link in own["connections"].items()}

    def domain(self) -> str:
        """The state of the whole domain."""
        return str(json.loads(self.control("-c", f"{self.folder}/cfg", "-N", "-j"))["status"])

    @property
    def log(self) -> str:
        """What the daemons printed."""
        return (self.folder / "log").read_text()

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        simulated = {"DRA_SIMULATED_HOSTS_FILE": str(self.hosts), "DRA_SIMULATED_ADDRESS": self.address}
        return {**os.environ, **simulated, **more}

    def end(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def addresses() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def nodes(tmp_path: Path, addresses: Network) -> Iterator[list[Node]]:
    made = [Node(tmp_path / name, addresses.address()) for name in ("a", "b")]
    yield made
    for one in made:
        one.end()


def test_a_domain_of_two_is_up_until_one_says_that_it_ends(nodes: list[Node]) -> None:
    names = NAMES[:2]
    first, second = (one.configure([other.address for other in nodes], names) for one in nodes)
    first.start(DRA_SIMULATED_IMEX_PAUSE="0.1")
    wait_for(lambda: first.state() == "READY", "the first")
    assert (first.domain(), first.links(), second.state()) == ("DEGRADED", {"1": "N"}, "")
    process = second.start()
    wait_for(lambda: first.domain() == "UP", "the domain")
    answer = json.loads(first.control("-c", f"{first.folder}/cfg", "-N", "-j"))
    assert [one["hostName"] for one in answer["nodes"].values()] == ["first", "second"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    wait_for(lambda: first.links() == {"1": "D"}, "its end")
    assert "node 1 is shutting down" in first.log


def test_a_new_address_is_noticed_after_sigusr1_which_is_dropped_too_soon_after_another(
    nodes: list[Node], addresses: Network
) -> None:
    first, second = nodes
    first.configure([first.address, addresses.address()])
    second.configure([first.address, second.address]).start()
    process = first.start(DRA_SIMULATED_IMEX_WINDOW="1", DRA_SIMULATED_IMEX_PAUSE="600")
    wait_for(lambda: first.state() == "READY", "the first")
    first.configure([first.address, second.address])
    assert first.links()["1"] == "N"

    def signalled(answer: str) -> bool:
        process.send_signal(signal.SIGUSR1)
        return answer in first.log

    wait_for(lambda: signalled("SIGUSR1 is dropped"), "a signal in the window")
    wait_for(lambda: signalled("restarting all outgoing connections"), "a signal after the window")
    wait_for(lambda: first.links()["1"] == "C", "the connection")


@pytest.mark.parametrize(
    ("names", "own", "reason"),
    [
        (["first", "second", "other"], 1, "the node configuration files differ"),
        (NAMES, 2, "this is third, not second"),
    ],
    ids=["another domain", "another member"],
)
def test_a_daemon_that_is_not_the_wanted_one_is_refused(
    nodes: list[Node], names: list[str], own: int, reason: str
) -> None:
    first, second = nodes
    second.configure([first.address, *[second.address if index == own else "127.0.0.2" for index in (1, 2)]], names)
    second.start()
    wait_for(lambda: second.state() == "READY", "the other")
    first.configure([first.address, second.address, "127.0.0.2"]).start()
    wait_for(lambda: reason in first.log, "the refusal")
    assert first.links() == {"1": "N", "2": "N"}


def test_daemon_refuses_wrong_files_at_the_start(nodes: list[Node]) -> None:
    first, second = nodes
    assert first.configure([second.address]).start().wait(60) == 1
    assert "No matching network interface found for any IP addresses" in first.log
    first.configure([first.address]).start()
    wait_for(lambda: first.state() == "READY", "the daemon")
    assert first.start().wait(60) == 1
    assert "NV_ERR_IN_USE" in first.log
    missing = str(first.folder / "missing")
    secure = {f"IMEX_{side}_{name}": missing for side in ("SERVER", "CLIENT") for name in ("KEY", "CERT", "CERT_AUTH")}
    assert second.configure([second.address], NAMES, IMEX_ENABLE_AUTH_ENCRYPTION="1", **secure).start().wait(60) == 1
    assert "Failed to load SSL/TLS credentials" in second.log


def test_faults_and_the_command_service_on_a_unix_socket(nodes: list[Node]) -> None:
    first, _ = nodes
    socket_path = str(first.folder / "s")
    if len(socket_path) > 100:
        pytest.skip("the path of the socket is too long here")
    first.configure([first.address], IMEX_CMD_UNIX_DOMAIN_PATH=socket_path)
    first.imex.fail_start("NvGpu Library version is not matching")
    assert first.start().wait(60) == 1
    first.imex.mend()
    first.imex.stay("INIT_GPU")
    process = first.start()
    wait_for(lambda: first.control("-q", f"--u={socket_path}") == "INIT_GPU", "the state")
    first.imex.mend()
    wait_for(lambda: first.control("-q", f"--u={socket_path}") == "READY", "the next state")
    first.imex.hang("control")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
        connection.sendall(b'{"command": "status"}\n')
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    process.terminate()
    assert process.wait(60) == 0
