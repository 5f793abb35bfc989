# SPDX-License-Identifier: Apache-2.0
"""Programs in containers: what they are given, when they are ready, and that they are started again and ended."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.kubelet import BackoffRange, Kubelet, KubeletOptions, Launch
from dra_driver.sandbox.kubelet.model import Container
from tests.support.waiting import wait_for

from .memory_cluster import MemoryCluster, make_pod

NETWORK = IPv4Network("127.77.7.0/29")
FIRST_ADDRESS = NETWORK[1]
SERVER = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3) if sys.argv[1] == "polite" else None)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists(sys.argv[2]) else 503)
        self.end_headers()
class Server(http.server.HTTPServer):
    allow_reuse_port = True
server = Server((os.environ["POD_IP"], int(os.environ.get("PORT", 0))), Handler)
print(os.environ["WHO"], flush=True)
server.serve_forever()
"""


class Servers:
    """Starts a web server that is ready while the file `ready` exists."""

    def __init__(self, folder: Path) -> None:
        self.ready = folder / "ready"
        self.launches: list[Launch] = []
        self.started: list[Server] = []
        self.removed: list[str] = []

    def runs(self, container: Container) -> bool:
        return container.command[:1] == ("server",)

    def start(self, launch: Launch) -> "Server":
        _, how = launch.arguments()
        command = [sys.executable, "-c", SERVER, how, str(self.ready)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(launch.env))
        assert process.stdout is not None
        assert process.stdout.readline().strip() == f"{launch.pod.name}@{launch.address}"
        self.launches.append(launch)
        self.started.append(Server(process))
        return self.started[-1]

    def clean_up(self, uid: str) -> None:
        self.removed.append(uid)


class Server:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def wait(self, seconds: float) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


@pytest.fixture
def servers(root: Path) -> Iterator[Servers]:
    made = Servers(root)
    yield made
    for server in made.started:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def reserved_port() -> Iterator[int]:
    """A port of the first pod's address, which no other process gets by chance."""
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # so that the server can listen on it
        reserving.bind((str(FIRST_ADDRESS), 0))
        yield reserving.getsockname()[1]


@pytest.fixture
def running(options: KubeletOptions, cluster: MemoryCluster, servers: Servers) -> Iterator[Kubelet]:
    periods = replace(options.periods, program_restart=BackoffRange(0.01, 0.02), longest_probe=0.02)
    with Kubelet(replace(options, programs=servers, pod_network=NETWORK, periods=periods), cluster) as kubelet:
        yield kubelet


def pod(name: str, how: str = "polite") -> dict[str, Any]:
    made = make_pod(name)
    by_field = {"NAME": "metadata.name", "POD_IP": "status.podIP", "NODE": "spec.nodeName"}
    variables: list[dict[str, Any]] = [
        {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in by_field.items()
    ]
    container = made["spec"]["containers"][0]
    container |= {
        "command": ["server"],
        "args": ["$(HOW)"],
        "env": [*variables, {"name": "HOW", "value": how}, {"name": "WHO", "value": "$(NAME)@$(POD_IP)"}],
    }
    return made


def container_status(cluster: MemoryCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.status(name)["containerStatuses"][0]
    return found


def test_a_program_gets_fields_of_its_pod_and_an_address_of_its_own(
    running: Kubelet, cluster: MemoryCluster, servers: Servers
) -> None:
    for name in ("one", "two"):
        cluster.add_pod(pod(name))
        running.wait_pod_running("default", name)
    assert [launch.address for launch in servers.launches] == ["127.77.7.1", "127.77.7.2"]
    assert servers.launches[0].env["NODE"] == "node-1"
    wait_for(lambda: cluster.status("two").get("podIP") == "127.77.7.2", "the address")
    cluster.ask_to_delete("one")
    running.wait_pod_gone("default", "one")
    assert servers.started[0].process.wait(60) == 3
    assert servers.removed == ["uid-one"]
    cluster.add_pod(pod("three"))
    running.wait_pod_running("default", "three")
    assert servers.launches[-1].address == "127.77.7.1"


def test_a_pod_is_ready_while_its_probe_succeeds(
    running: Kubelet, cluster: MemoryCluster, servers: Servers, reserved_port: int
) -> None:
    made = pod("pod")
    container = made["spec"]["containers"][0]
    container["env"].append({"name": "PORT", "value": str(reserved_port)})
    container["readinessProbe"] = {"httpGet": {"path": "/readyz", "port": reserved_port}}
    cluster.add_pod(made)
    running.wait_pod_running("default", "pod")
    assert [launch.address for launch in servers.launches] == [str(FIRST_ADDRESS)]
    for exists in (False, True, False):
        if exists:
            servers.ready.touch()
        else:
            servers.ready.unlink(missing_ok=True)
        wait_for(lambda exists=exists: readiness(cluster, "pod") == (exists, str(exists)), "readiness")  # type: ignore[misc]


def readiness(cluster: MemoryCluster, name: str) -> tuple[bool, str]:
    """Whether the container is ready, and the condition of the pod, of one status."""
    status = cluster.status(name)
    (condition,) = (one for one in status["conditions"] if one["type"] == "Ready")
    return status["containerStatuses"][0]["ready"], condition["status"]


def test_a_program_that_ends_is_started_again_and_one_that_hangs_is_killed(
    running: Kubelet, cluster: MemoryCluster, servers: Servers
) -> None:
    cluster.add_pod(pod("pod", "stubborn"))
    running.wait_pod_running("default", "pod")
    for count in (1, 2, 3):
        servers.started[-1].process.kill()
        wait_for(lambda count=count: container_status(cluster, "pod")["restartCount"] == count, "a restart")  # type: ignore[misc]
    assert cluster.status("pod")["phase"] == "Running"
    assert len(servers.started) == 4
    cluster.ask_to_delete("pod")  # with a grace period of one second
    running.wait_pod_gone("default", "pod")
    assert servers.started[-1].process.wait(60) == -9


def test_programs_end_with_kubelet(running: Kubelet, cluster: MemoryCluster, servers: Servers) -> None:
    cluster.add_pod(pod("pod", "stubborn"))
    running.wait_pod_running("default", "pod")
    running.stop()
    assert servers.started[-1].process.wait(60) == -9
