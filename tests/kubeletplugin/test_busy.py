# SPDX-License-Identifier: Apache-2.0
"""A node that is busy is not a dead one: many claims wait for one GPU, and everything else goes on."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from kubeletplugin.healthchecks import live_checks
from kubeletplugin.kubelet.service import RegistrationService
from kubeletplugin.kubelet.sockets import SocketServer
from tests.support.plugin import Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

from .test_metrics import get, metrics_of

BUSY = "gpu-4-mig-1g10gb-19-0"
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CLAIMS = 40
INFLIGHT = "nvidia_dra_requests_inflight"


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as one:
        yield one.start()


@pytest.mark.node
@pytest.mark.parametrize(
    "fault",
    [Fault(CREATE, gpu=4, seconds=1000.0, times=1), Fault(CREATE, gpu=4, seconds=15.0)],
    ids=["a call that hangs", "calls that are slow"],
)
@pytest.mark.parametrize("together", [1, 5], ids=["one claim a call", "five claims a call"])
def test_claims_that_wait_for_one_gpu_delay_nothing_else(
    plugin: Plugin, client: ApiClient, fault: Fault, together: int
) -> None:
    claims = [stored_claim(client, BUSY) for _ in range(CLAIMS)]
    others = [stored_claim(client, f"gpu-{index}") for index in range(4)]
    plugin.node.inject(fault)
    calls = [plugin.begin("Prepare", *claims[first : first + together]) for first in range(0, CLAIMS, together)]
    wait_for(lambda: metrics_of(plugin)[INFLIGHT]["prepare",] == CLAIMS, "all claims to be worked on")
    try:
        assert get(plugin, "/healthz") == (200, "ok\n")
        assert plugin.prepare(*others[:1])[others[0].uid].error == ""
        assert not any(one.error for one in plugin.prepare(*others[1:]).values())
        assert plugin.get_info().name == "gpu.nvidia.com"
        assert next(plugin.watch_health()).devices
        assert plugin.unprepare(*others) == {one.uid: "" for one in others}
        assert get(plugin, "/healthz") == (200, "ok\n")
        assert metrics_of(plugin)[INFLIGHT]["prepare",] >= CLAIMS - 10, "they had to wait all the time"
    finally:
        for call in calls:
            call.cancel()
    in_driver = 1 if fault.times else 0  # a call that hangs is waited for, whoever else gave up
    if not in_driver:
        plugin.node.clear_faults()  # a call that is slow returns
    wait_for(lambda: metrics_of(plugin)[INFLIGHT]["prepare",] <= in_driver, "the others to be given up")


@pytest.mark.node
class TestLiveness:
    """Servers that are dead."""

    def test_a_plugin_that_serves_nothing_yet_is_alive(self, short_path: Path) -> None:
        assert live_checks(plugin_server(short_path, lambda: None))["sockets"]() is None

    @pytest.mark.parametrize("removed", ["dra.sock", "reg.sock"])
    def test_a_socket_that_is_gone_is_noticed(self, short_path: Path, removed: str) -> None:
        server = plugin_server(short_path, lambda: None)
        check = live_checks(server)["sockets"]
        server.start()
        try:
            with grpc.insecure_channel(f"unix:{short_path / removed}") as connected:
                grpc.channel_ready_future(connected).result(60)
                assert check() is None
                (short_path / removed).unlink()
                assert "does not answer on its own sockets" in (check() or "")
        finally:
            server.stop()

    def test_a_server_that_ended_is_noticed(self, short_path: Path) -> None:
        server = plugin_server(short_path, lambda: None)
        server.start()
        server.stop()
        assert "does not answer on its own sockets" in (live_checks(server)["sockets"]() or "")

    @pytest.mark.parametrize("silent", ["dra.sock", "reg.sock"])
    def test_a_socket_that_takes_connections_and_answers_nothing_is_noticed(
        self, short_path: Path, silent: str
    ) -> None:
        server = plugin_server(short_path, lambda: None)
        server.start()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                (short_path / silent).unlink()
                dead.bind(str(short_path / silent))
                dead.listen()
                assert "does not answer on its own sockets" in (live_checks(server)["sockets"]() or "")
        finally:
            server.stop()

    def test_a_service_whose_calls_never_end_is_noticed(self, short_path: Path) -> None:
        over = threading.Event()
        server = plugin_server(short_path, over.wait)
        server.start()
        try:
            assert "Deadline Exceeded" in (live_checks(server)["sockets"]() or "")
        finally:
            over.set()
            server.stop()


def plugin_server(folder: Path, work: Any) -> SocketServer:
    """A server with both sockets, on which NodePrepareResources does `work`."""
    path = folder / "dra.sock"
    registration = RegistrationService(path, ["v1.DRAPlugin"], lambda _: None)
    return SocketServer(path, [Prepare(work), registration], folder / "reg.sock")


class Prepare:
    """Answers NodePrepareResources once `work` has returned."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def add_to(self, server: grpc.Server) -> None:
        def answer(_request: bytes, _context: grpc.ServicerContext) -> bytes:
            self._work()
            return b""

        handler = grpc.unary_unary_rpc_method_handler(answer)
        service = grpc.method_handlers_generic_handler(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", {"NodePrepareResources": handler}
        )
        server.add_generic_rpc_handlers((service,))
