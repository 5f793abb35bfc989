# SPDX-License-Identifier: Apache-2.0
"""The health service over a real socket, in both versions, and to the stand-in kubelet."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.gpu.devices import GpuDevices
from dra_driver.gpu.health import Finding
from dra_driver.gpu.nvml import Placement, RecoveryAction
from dra_driver.kube.resource import TaintEffect
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.kubelet import Health, Kubelet, KubeletOptions
from kubeletplugin.kubelet.health import (
    STREAMS,
    DeviceHealth,
    HealthService,
    HealthStatus,
    device_healths,
    silence,
)
from kubeletplugin.kubelet.sockets import SocketServer
from kubeletplugin.protocol import health_v1_pb2
from tests.sandbox.kubelet.memory_cluster import MemoryCluster
from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin, plugin_on
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

VERSIONS = ("v1", "v1alpha1")
OLDER = ("v1alpha1.DRAResourceHealth",)
WELL = DeviceHealth("node-a", "gpu-0", HealthStatus.HEALTHY, 1_700_000_000.9)
SICK = DeviceHealth("node-a", "gpu-1", HealthStatus.UNHEALTHY, 1_700_000_100.0, "XID 79: it fell off the bus")


class Served:
    """A health service on a socket, and what kubelet would see of it."""

    def __init__(self, path: Path, repeat: float) -> None:
        self.devices: Sequence[DeviceHealth] = (WELL,)
        self.service = HealthService(lambda: self.devices, repeat)
        self.server = SocketServer(path, [self.service])
        self.channels: list[grpc.Channel] = []

    def change(self, *devices: DeviceHealth) -> None:
        self.devices = devices
        self.service.changed()

    def watch(self, version: str = "v1") -> Any:
        """A stream on a connection of its own."""
        channel = grpc.insecure_channel(f"unix:{self.server.path}", [("grpc.use_local_subchannel_pool", 1)])
        self.channels.append(channel)
        method = channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=health_v1_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
        )
        return method(health_v1_pb2.NodeWatchResourcesRequest(), timeout=60)


@contextmanager
def serving(folder: Path, repeat: float = 1000.0) -> Iterator[Served]:
    served = Served(folder / "a.sock", repeat)
    served.server.start()
    try:
        yield served
    finally:
        served.service.stop()
        served.server.stop()
        for channel in served.channels:
            channel.close()


@pytest.fixture
def served(short_path: Path) -> Iterator[Served]:
    with serving(short_path) as one:
        yield one


def healths(response: Any) -> list[tuple[str, int]]:
    return [(one.device.device_name, one.health) for one in response.devices]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_whole_list_comes_at_once_and_again_with_every_change(served: Served, version: str) -> None:
    stream = served.watch(version)
    (first,) = next(stream).devices
    assert (first.device.pool_name, first.device.device_name) == ("node-a", "gpu-0")
    assert (first.health, first.last_updated_time, first.message) == (1, 1_700_000_000, "")
    assert first.health_check_timeout_seconds == 30
    served.change(WELL, SICK)
    second = next(stream)
    assert healths(second) == [("gpu-0", 1), ("gpu-1", 2)]
    assert second.devices[1].message == "XID 79: it fell off the bus"
    served.change()
    assert healths(next(stream)) == []


def test_every_stream_hears_of_a_change(served: Served) -> None:
    streams = [served.watch(version) for version in VERSIONS for _ in range(2)]
    for stream in streams:
        assert healths(next(stream)) == [("gpu-0", 1)]
    served.change(SICK)
    for stream in streams:
        assert healths(next(stream)) == [("gpu-1", 2)]


def test_the_list_is_repeated_before_kubelet_forgets_it(short_path: Path) -> None:
    with serving(short_path, repeat=0.01) as served:
        stream = served.watch()
        assert [healths(next(stream)) for _ in range(5)] == [[("gpu-0", 1)]] * 5


def test_streams_that_are_cancelled_hold_nothing(served: Served) -> None:
    before = threading.active_count()
    for _ in range(5):
        streams = [served.watch() for _ in range(STREAMS)]
        for stream in streams:
            next(stream)
        assert served.service.streams() == STREAMS
        for stream in streams:
            stream.cancel()
        wait_for(lambda: served.service.streams() == 0, "the streams to end")
    assert threading.active_count() <= before + STREAMS + 2 + len(served.channels) * 2  # the server's pool; clients


def test_a_client_that_went_away_without_a_word_holds_nothing(served: Served) -> None:
    next(served.watch())
    served.channels.pop().close()
    wait_for(lambda: served.service.streams() == 0, "the stream to end")


def test_stream_above_the_limit_is_refused_until_another_ends(served: Served) -> None:
    streams = [served.watch() for _ in range(STREAMS)]
    for stream in streams:
        next(stream)
    with pytest.raises(grpc.RpcError) as refused:
        next(served.watch())
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    streams[0].cancel()
    wait_for(lambda: served.service.streams() == STREAMS - 1, "room for another")
    assert healths(next(served.watch())) == [("gpu-0", 1)]


def test_the_end_of_the_process_ends_streams_in_good_order(served: Served) -> None:
    streams = [served.watch() for _ in range(3)]
    for stream in streams:
        next(stream)
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(list, stream) for stream in streams]
        served.service.stop()
        assert [end.result(timeout=60) for end in ends] == [[], [], []]
    assert list(served.watch()) == []


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[GpuDevices, ...]:
    """The devices of a node, GPU by GPU."""
    return make_node(tmp_path_factory.mktemp("node"), "h100x8-mixed").describe()


@pytest.fixture(scope="module")
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    """A process that watches simulated GPUs."""
    with plugin_on(kubeconfig) as one:
        yield one.start()


class TestFindings:
    """What is found of a GPU, as kubelet is told."""

    @pytest.mark.parametrize(
        ("found", "status", "message"),
        [
            ([], HealthStatus.HEALTHY, ""),
            ([("xid", "79", TaintEffect.NO_SCHEDULE)], HealthStatus.UNHEALTHY, "xid 79: text"),
            ([("xid", "31", TaintEffect.NONE)], HealthStatus.HEALTHY, "xid 31: text"),
            ([("unmonitored", "", TaintEffect.NONE)], HealthStatus.UNKNOWN, "unmonitored: text"),
            (
                [("unmonitored", "", TaintEffect.NONE), ("gpu-lost", "", TaintEffect.NO_EXECUTE)],
                HealthStatus.UNHEALTHY,
                "unmonitored: text; gpu-lost: text",
            ),
        ],
    )
    def test_a_taint_that_keeps_pods_away_is_unhealthy(
        self,
        gpus: tuple[GpuDevices, ...],
        found: list[tuple[str, str, TaintEffect]],
        status: HealthStatus,
        message: str,
    ) -> None:
        findings = [
            Finding(gpus[0].key, f"gpu.nvidia.com/{key}", value, effect, 5.0 + index, "text")
            for index, (key, value, effect) in enumerate(found)
        ]
        healths = {one.device: one for one in device_healths("node-a", (gpus, tuple(findings)), 1.0)}
        assert (healths["gpu-0"].status, healths["gpu-0"].message) == (status, message)
        assert healths["gpu-1"] == DeviceHealth("node-a", "gpu-1", HealthStatus.HEALTHY, 1.0)

    def test_finding_of_an_instance_affects_overlapping_devices(self, gpus: tuple[GpuDevices, ...]) -> None:
        finding = Finding(
            gpus[4].key, "gpu.nvidia.com/xid", "94", TaintEffect.NO_SCHEDULE, 5.0, "text", Placement(0, 2)
        )
        healths = {one.device: one.status for one in device_healths("node-a", (gpus, (finding,)), 1.0)}
        sick = {name for name, status in healths.items() if status is HealthStatus.UNHEALTHY}
        assert {"gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-7g80gb-0-0"} <= sick
        assert not {name for name in sick if name.endswith(("-2", "-4")) or not name.startswith("gpu-4")}

    def test_equal_findings_are_reported_once_as_the_worst_of_them(self, gpus: tuple[GpuDevices, ...]) -> None:
        findings = [
            Finding(gpus[0].key, "gpu.nvidia.com/gpu-lost", "", effect, 5.0, str(effect))
            for effect in (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE, TaintEffect.NO_EXECUTE)
        ]
        (health,) = device_healths("node-a", (gpus[:1], tuple(findings)), 1.0)
        assert (health.status, health.message) == (HealthStatus.UNHEALTHY, "gpu-lost: NoExecute")

    def test_only_a_long_silence_means_something(self) -> None:
        assert silence(15.0) is None
        assert silence(75.4) == "the GPUs could not be read for 75 s: the NVIDIA driver hangs or is missing"

    def test_health_is_unknown_while_gpus_are_not_monitored(self, gpus: tuple[GpuDevices, ...]) -> None:
        sick = Finding(gpus[1].key, "gpu.nvidia.com/xid", "79", TaintEffect.NO_SCHEDULE, 5.0, "text")
        found = device_healths("node-a", (gpus, (sick,)), 1.0, "the driver hangs")
        now = {one.device: (one.status, one.message) for one in found}
        assert now.pop("gpu-1") == (HealthStatus.UNHEALTHY, "xid 79: text")
        assert set(now.values()) == {(HealthStatus.UNKNOWN, "the driver hangs")}

    def test_a_device_that_its_claim_cannot_use_is_unhealthy(self, gpus: tuple[GpuDevices, ...]) -> None:
        found = Finding(gpus[1].key, "gpu.nvidia.com/xid", "31", TaintEffect.NONE, 5.0, "text")
        sick = {"gpu-0": (7.0, "no daemon"), "gpu-1": (8.0, "no daemon")}
        healths = {one.device: one for one in device_healths("node-a", (gpus, (found,)), 1.0, "hangs", sick)}
        assert healths["gpu-0"] == DeviceHealth("node-a", "gpu-0", HealthStatus.UNHEALTHY, 7.0, "no daemon")
        assert healths["gpu-1"].message == "xid 31: text; no daemon"


class TestPlugin:
    """The process and the stand-in kubelet."""

    @pytest.mark.parametrize("services", [tuple(f"{one}.DRAResourceHealth" for one in VERSIONS), OLDER])
    def test_kubelet_hears_of_a_gpu_that_falls_ill(self, plugin: Plugin, services: tuple[str, ...]) -> None:
        options = KubeletOptions(POOL, plugin.folder, plugin.cdi, health_services=services)
        with Kubelet(options, MemoryCluster()) as kubelet:
            kubelet.wait_registered(DRIVER_NAME)

            def wait_health(device: str, health: Health) -> None:
                kubelet.wait(lambda: kubelet.health(DRIVER_NAME, POOL, device).health is health, what=device)

            wait_health("gpu-1", Health.HEALTHY)
            gpu = 2 if services == OLDER else 3
            plugin.node.set_recovery_action(gpu, RecoveryAction.GPU_RESET)
            wait_health(f"gpu-{gpu}", Health.UNHEALTHY)
            assert "recovery-action" in kubelet.health(DRIVER_NAME, POOL, f"gpu-{gpu}").message
            assert kubelet.health(DRIVER_NAME, POOL, "gpu-1").health is Health.HEALTHY

    def test_kubelet_hears_of_a_gpu_that_vanishes_and_of_what_the_policy_leaves_alone(
        self, kubeconfig: Path, tmp_path: Path
    ) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("", encoding="utf-8")
        with plugin_on(kubeconfig, f"--policy-file={policy}") as plugin:
            plugin.start()
            options = KubeletOptions(POOL, plugin.folder, plugin.cdi)
            with Kubelet(options, MemoryCluster()) as kubelet:
                kubelet.wait_registered(DRIVER_NAME)

                def wait_health(device: str, health: Health) -> str:
                    kubelet.wait(lambda: kubelet.health(DRIVER_NAME, POOL, device).health is health, what=device)
                    return kubelet.health(DRIVER_NAME, POOL, device).message

                wait_health("gpu-1", Health.HEALTHY)
                plugin.node.set_recovery_action(1, RecoveryAction.GPU_RESET)
                assert "recovery-action" in wait_health("gpu-1", Health.UNHEALTHY)
                policy.write_text("gpus: [{match: {indexes: [1]}, health: false}]", encoding="utf-8")
                wait_health("gpu-1", Health.HEALTHY)
                plugin.node.unplug(0)
                assert "gpu-lost" in wait_health("gpu-0", Health.UNHEALTHY)
