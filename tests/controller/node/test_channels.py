# SPDX-License-Identifier: Apache-2.0
"""The slices of the driver compute-domain.nvidia.com: the channel and the daemon of a node, beside its GPUs."""

import contextlib
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import urllib3

from controller.node.channels import ChannelDevices, DomainFile
from controller.node.publisher import DriverOnNode, Publisher, Publishers
from controller.node.startup_taint import StartupTaint
from dra_driver.domains.names import DRIVER
from dra_driver.gpu.facts import Failure
from dra_driver.gpu.nvml import FabricState, Return
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.names import DRIVER_NAME
from tests.support.apiserver import SLICES, embedded
from tests.support.nodes import TestNode, make_node
from tests.support.publishing import QUICK, publishing
from tests.support.waiting import wait_for

from .test_process import log_of, running
from .test_publisher import Hardware, make_cluster_node, versions

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
CLIQUE = "9f410827-489f-46fd-8203-51266ca08eb7.1"
DOMAIN = str(uuid.uuid4())
ZERO = str(uuid.UUID(int=0))


@pytest.fixture
def gb200(tmp_path: Path) -> TestNode:
    """A node of an NVL72 rack."""
    return make_node(tmp_path / "node", "gb200x4")


@pytest.fixture
def node(client: ApiClient) -> str:
    """A Node of this test's own."""
    return make_cluster_node(client)


def channels_of(node: TestNode, domain: Callable[[], str] = lambda: "") -> ChannelDevices:
    return ChannelDevices(node.inventory, node.node.driver_root / "proc", domain)


def slices(client: ApiClient, node: str, driver: str = DRIVER) -> dict[str, JSON]:
    """The slices of a driver, by name."""
    items = client.list(SLICES, field_selector=f"spec.nodeName={node},spec.driver={driver}").items
    return {one["metadata"]["name"]: one for one in items}


def devices(client: ApiClient, node: str) -> dict[str, JSON]:
    """The devices of the second driver, by name."""
    return {device["name"]: device for one in slices(client, node).values() for device in one["spec"]["devices"]}


def channel(attributes: JSON, **fields: object) -> JSON:
    return {"attributes": {"type": {"string": "channel"}, "id": {"int": 0}, **attributes}, **fields}


IN_CLIQUE = {"gpu.nvidia.com/fabricClique": {"string": CLIQUE}}
DAEMON = {"name": "daemon-0", "attributes": {"type": {"string": "daemon"}, "id": {"int": 0}}}


def test_a_node_in_a_clique_publishes_its_channel_and_its_daemon(client: ApiClient, node: str, gb200: TestNode) -> None:
    with publishing(client, node, channels_of(gb200), driver=DRIVER):
        wait_for(lambda: devices(client, node), "the devices")
    assert devices(client, node) == {
        "channel-0": {"name": "channel-0", **channel(IN_CLIQUE, allowMultipleAllocations=True)},
        "daemon-0": {**DAEMON, "allowMultipleAllocations": True},
    }
    ((name, one),) = slices(client, node).items()
    assert name == f"00000-compute-domain.nvidia.com-{node}"
    assert one["spec"]["pool"] == {"name": node, "generation": 1, "resourceSliceCount": 1}
    assert one["metadata"]["ownerReferences"][0]["name"] == node


def test_without_consumable_capacity_there_is_a_channel_for_each_gpu(tmp_path: Path, gb200: TestNode) -> None:
    with embedded(tmp_path, gates={"DRAConsumableCapacity": False}) as (_, _, client):
        node = make_cluster_node(client)
        with publishing(client, node, channels_of(gb200), driver=DRIVER):
            found = wait_for(lambda: devices(client, node), "the devices")
    names = ["channel-0", *(f"channel-0-{number}" for number in range(1, 4))]
    assert found == {**{name: {"name": name, **channel(IN_CLIQUE)} for name in names}, "daemon-0": DAEMON}


def test_without_taints_a_channel_outside_of_its_fabric_is_withdrawn(gb200: TestNode) -> None:
    gb200.node.set_fabric(2, FabricState.IN_PROGRESS)
    found = channels_of(gb200).describe(SliceFeatures(device_taints=False))
    assert [device.name for gpu in found.gpus for device in gpu.devices] == ["daemon-0"]
    assert "compute-domain.nvidia.com/fabric" in found.left_out[0].text


FABRICS: dict[str, tuple[Callable[[TestNode], object], str, str]] = {
    "starts": (lambda node: node.node.set_fabric(0, FabricState.NOT_STARTED), CLIQUE, "in-progress"),
    "joins": (lambda node: node.node.set_fabric(3, FabricState.IN_PROGRESS), CLIQUE, "in-progress"),
    "failed": (lambda node: node.node.set_fabric(1, status=Return.UNKNOWN), CLIQUE, "failed"),
    "stays on the node": (lambda node: node.node.set_clique(ZERO, 0), "", ""),
    "moved": (lambda node: node.node.set_clique(ZERO[:-1] + "1", 7), ZERO[:-1] + "1.7", ""),
}


@pytest.mark.parametrize(("change", "clique", "value"), FABRICS.values(), ids=list(FABRICS))
def test_the_channel_follows_the_fabric(
    client: ApiClient,
    node: str,
    gb200: TestNode,
    change: Callable[[TestNode], object],
    clique: str,
    value: str,
) -> None:
    """Whoever is in a domain stays in its clique while GPUs join the fabric again, also across a restart."""
    source = channels_of(gb200)
    with publishing(client, node, source, driver=DRIVER):
        wait_for(lambda: devices(client, node), "the devices")
    change(gb200)
    taint = {"key": "compute-domain.nvidia.com/fabric", "value": value, "effect": "NoSchedule"}
    wanted = [taint] if value else []

    def shown() -> tuple[str, list[JSON]]:
        found = devices(client, node)["channel-0"]
        taints = [{key: one[key] for key in taint} for one in found.get("taints") or []]
        return found["attributes"].get("gpu.nvidia.com/fabricClique", {}).get("string", ""), taints

    with publishing(client, node, channels_of(gb200), driver=DRIVER) as publisher:
        wait_for(lambda: shown() == (clique, wanted), "the change")
        before, comparisons = versions(slices(client, node)), publisher.comparisons
        wait_for(lambda: publisher.comparisons > comparisons + 2, "comparisons")
        assert versions(slices(client, node)) == before, "a taint is written once"
        gb200.node.set_clique(CLIQUE.partition(".")[0], 1)
        for index in range(4):
            gb200.node.set_fabric(index)
        wait_for(lambda: shown() == (CLIQUE, []), "the fabric as before")


def test_a_node_without_channels_has_no_devices_and_no_problem(
    client: ApiClient, node: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with publishing(client, node, channels_of(make_node(tmp_path, "h100x8")), driver=DRIVER) as publisher:
        wait_for(lambda: publisher.comparisons > 1, "comparisons")
        assert publisher.problem is None
    (one,) = slices(client, node).values()
    assert not one["spec"].get("devices")
    assert caplog.text.count("has no IMEX channels") == 1


def test_gpus_that_cannot_be_read_leave_the_published_clique(gb200: TestNode) -> None:
    found = [gb200.inventory()]
    source = ChannelDevices(lambda: found[0], gb200.node.driver_root / "proc", str)
    before = source.describe(SliceFeatures())
    found[0] = replace(found[0], gpus=(), failures=(Failure(0, "hangs", hung=True),))
    assert source.describe(SliceFeatures()) == before


def test_a_file_of_the_driver_that_cannot_be_read_is_a_problem_until_it_can(
    client: ApiClient, node: str, gb200: TestNode
) -> None:
    parameters = gb200.node.driver_root / "proc/driver/nvidia/params"
    with publishing(client, node, channels_of(gb200), driver=DRIVER) as publisher:
        wait_for(lambda: devices(client, node), "the devices")
        before = versions(slices(client, node))
        parameters.write_text("ImexChannelCount: many\n", encoding="ascii")
        wait_for(lambda: "ImexChannelCount is 'many'" in (publisher.problem or ""), "the problem")
        parameters.write_text("ImexChannelCount: 16\n", encoding="ascii")
        wait_for(lambda: publisher.problem is None, "the end of the problem")
    assert versions(slices(client, node)) == before


def test_the_domain_in_the_plugins_file_is_an_attribute(
    client: ApiClient, node: str, gb200: TestNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plugins/compute-domain.nvidia.com/domain"
    domain = DomainFile(path)
    source = channels_of(gb200, lambda: domain.uid)

    def published() -> str | None:
        attribute = devices(client, node)["channel-0"]["attributes"].get("domain")
        return None if attribute is None else str(attribute["string"])

    # Without the file's look, the next comparison would be too late for this test.
    with publishing(client, node, source, driver=DRIVER, timing=replace(QUICK, resync=3600.0)) as publisher:
        domain.on_change = publisher.wake
        wait_for(lambda: devices(client, node), "the devices")
        assert published() is None
        domain.start()
        path.parent.mkdir(parents=True)
        path.write_text(f"{DOMAIN}\n", encoding="ascii")
        wait_for(lambda: published() == DOMAIN, "the domain")
        path.write_text("no UID, but a sentence", encoding="ascii")
        # The file may be read while it is still empty.
        wait_for(lambda: "has no UID: 'no UID, but a sentence'" in caplog.text, "the wrong content to be read")
        wait_for(lambda: published() is None, "the wrong content to be ignored")
        path.write_text(DOMAIN, encoding="ascii")
        wait_for(lambda: published() == DOMAIN, "the domain again")
        path.write_bytes(b"")
        wait_for(lambda: published() is None, "the end of the domain")
        path.unlink()
        path.mkdir()
        domain.stop()
    assert DomainFile(path).uid == ""


@contextlib.contextmanager
def both(
    client: ApiClient, node: str, gpus: Hardware, channels: ChannelDevices, taint: str = ""
) -> Iterator[Publishers]:
    """The publishers of both drivers at work."""
    startup = StartupTaint(client, node, taint, lambda: publishers.are_others_ready) if taint else None
    first = Publisher(client, DriverOnNode(node, gpus), QUICK, taint=startup)
    publishers = Publishers(first)
    publishers.add(Publisher(client, DriverOnNode(node, channels, DRIVER), QUICK))
    thread = threading.Thread(target=publishers.run)
    thread.start()
    try:
        yield publishers
    finally:
        publishers.stop()
        thread.join(60)
        assert not thread.is_alive(), "the publishers do not stop"


def test_both_drivers_of_a_node_are_published_and_a_restart_writes_nothing(
    client: ApiClient, node: str, gb200: TestNode
) -> None:
    gpus = Hardware(gb200.inventory())

    def all_slices() -> dict[str, str]:
        return versions(slices(client, node) | slices(client, node, DRIVER_NAME))

    with both(client, node, gpus, channels_of(gb200)) as publishers:
        wait_for(lambda: publishers.problem is None, "both drivers to be published")
        assert slices(client, node).keys().isdisjoint(slices(client, node, DRIVER_NAME))
    before = all_slices()
    assert len(before) == 2
    with both(client, node, gpus, channels_of(gb200)) as publishers:
        wait_for(lambda: publishers.problem is None, "the next publishers")
        gpus.looks = 0
        wait_for(lambda: gpus.looks > 2, "comparisons")
    assert all_slices() == before


def test_the_startup_taint_waits_for_both_drivers(client: ApiClient, node: str, gb200: TestNode) -> None:
    key = "example.com/starting"
    client.patch(NODES, node, {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})
    parameters = gb200.node.driver_root / "proc/driver/nvidia/params"
    before = parameters.read_text(encoding="ascii")
    parameters.write_text("ImexChannelCount: many\n", encoding="ascii")
    with both(client, node, Hardware(gb200.inventory()), channels_of(gb200), key) as publishers:
        wait_for(lambda: publishers.first.problem is None and publishers.first.comparisons > 2, "the GPUs")
        assert "ImexChannelCount" in (publishers.problem or "")
        assert client.get(NODES, node)["spec"]["taints"]
        parameters.write_text(before, encoding="ascii")
        wait_for(lambda: not client.get(NODES, node)["spec"].get("taints"), "the removal of the taint")
        assert slices(client, node)


def test_the_process_sees_the_fabric_when_the_gpus_have_joined_it(
    client: ApiClient, kubeconfig: Path, node: str, tmp_path: Path
) -> None:
    """Without reading all hardware again: a look notices it."""
    gb200 = make_node(tmp_path / "node", "gb200x4", node)
    gb200.node.set_fabric(1, FabricState.IN_PROGRESS)
    plugins = tmp_path / "plugins"
    arguments = ("--node-name", node, "--kubeconfig", str(kubeconfig), "--kubelet-plugins-directory-path", str(plugins))
    looks = ("--poll-interval", "1", "--rediscover-interval", "3600", "--http-endpoint", "127.0.0.1:0")
    with running(tmp_path, *arguments, *looks, "--compute-domains") as process:
        found = wait_for(lambda: devices(client, node), "the channel")["channel-0"]
        assert found["taints"][0]["value"] == "in-progress"
        gb200.node.set_fabric(1)
        wait_for(lambda: "taints" not in devices(client, node)["channel-0"], "the end of the taint")
        assert devices(client, node)["channel-0"]["attributes"] == {**found["attributes"], **IN_CLIQUE}
        port = re.search(r"port=(\d+)", log_of(tmp_path))
        assert port is not None
        endpoint = f"http://127.0.0.1:{port[1]}"
        wait_for(lambda: urllib3.request("GET", f"{endpoint}/readyz").status == 200, "both drivers to be published")

        def metrics() -> str:
            return urllib3.request("GET", f"{endpoint}/metrics").data.decode()

        # The metrics follow the slices.
        wait_for(lambda: f'tainted_devices{{driver="{DRIVER}"' not in metrics(), "the end of the taint in the metrics")
        for driver, kind, count in ((DRIVER_NAME, "gpu", 4), (DRIVER, "channel", 1), (DRIVER, "daemon", 1)):
            line = f'nvidia_dra_published_devices{{device_type="{kind}",driver="{driver}",node="{node}"}} {count}.0'
            wait_for(lambda line=line: line in metrics(), line)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
