# SPDX-License-Identifier: Apache-2.0
"""A server that does not store slices as they are sent is written to ever more rarely, and the other slices go on."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3
from prometheus_client import CollectorRegistry

from controller.node.metrics import PublisherMetrics
from controller.node.publisher import NodeDevices, Publisher, PublisherTiming, PublishReport
from controller.node.writer import Why
from dra_driver.gpu.devices import Description
from dra_driver.gpu.inventory import Inventory
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver import ApiServerOptions, status
from tests.support.apiserver import SLICES, connect
from tests.support.faultyserver import Alteration, FaultyServer
from tests.support.logs import records_of
from tests.support.publishing import QUICK, publishing
from tests.support.waiting import wait_for

from .test_outages import Hardware as IllHardware
from .test_publisher import (
    Hardware,
    complete_pool,
    device_names,
    make_cluster_node,
    published,
    read_four_gpus,
    slices_of_node,
    versions,
)

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]

NEVER_AGAIN = PublisherTiming(
    settle=0.01, resync=0.05, first_retry=3600.0, longest_retry=0.2, longest_slice_retry=3600.0
)
"""A slice that is not stored as it was sent is not sent again while a test lasts."""


class Counted(Connection):
    """A connection that remembers which slices were written, dry runs aside."""

    writes: list[str]

    def request(self, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
        if method in ("POST", "PUT") and "dryRun" not in path:
            self.writes.append(path.rpartition("/")[2] if method == "PUT" else "")
        return super().request(method, path, **options)


@dataclass
class Cluster:
    """A server of the test's own with a node, an onlooker's client, and the publisher's."""

    server: FaultyServer
    client: ApiClient
    counted: Counted
    node: str
    reports: list[PublishReport] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def publishing(self, hardware: NodeDevices, timing: PublisherTiming = QUICK) -> Any:
        """The node's publisher at work."""
        self.registry = CollectorRegistry()
        metrics = PublisherMetrics(self.registry, self.node, float, (DRIVER_NAME,))

        def observe(report: PublishReport) -> None:
            self.reports.append(report)
            metrics.observe(report, DRIVER_NAME)

        client = ApiClient(self.counted)
        return publishing(client, self.node, hardware, observe, timing=timing, unexpected=metrics.unexpected)

    def wait_for_unpublished(self, count: int = 1) -> None:
        """Until so many slices are reported that are not as they should be."""
        wait_for(lambda: self.reports and len(self.reports[-1].unpublished) == count, f"{count} slices to be told of")

    def slice_with(self, device: str) -> str:
        """The name of the slice that has this device."""
        found = slices_of_node(self.client, self.node)
        return next(
            name for name, one in found.items() if any(d["name"] == device for d in one["spec"].get("devices") or ())
        )

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a metric of the publisher's."""
        own = {"node": self.node, "driver": "gpu.nvidia.com"}
        return self.registry.get_sample_value(f"nvidia_dra_{name}", {**own, **labels})


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return read_four_gpus(tmp_path_factory.mktemp("node"))


@pytest.fixture
def hardware(inventory: Inventory) -> Hardware:
    return Hardware(inventory)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FaultyServer(ApiServerOptions(tls=False)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        credentials = load_credentials(str(kubeconfig))
        with connect(kubeconfig) as client, Counted(credentials, "controller") as counted:
            counted.writes = []
            yield Cluster(server, client, counted, make_cluster_node(client))


def has(device: str) -> Callable[[JSON], JSON | None]:
    """Finds the device in a slice."""
    return lambda value: next((one for one in value["spec"].get("devices") or () if one["name"] == device), None)


def relabel(value: JSON) -> None:
    """What a mutating webhook does to the slice with the first GPU."""
    if device := has("gpu-0")(value):
        device["attributes"]["model"] = {"string": "altered"}


def add_taint(value: JSON) -> None:
    if device := has("gpu-0")(value):
        device["taints"] = [{"key": "example.com/a", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]


def remove_device(value: JSON) -> None:
    if has("gpu-0")(value):
        value["spec"]["devices"] = [one for one in value["spec"]["devices"] if one["name"] != "gpu-0"]


def remove_counters(value: JSON) -> None:
    if device := has("gpu-4-mig-1g10gb-19-0")(value):
        device.pop("consumesCounters")


def change_generation(value: JSON) -> None:
    if has("gpu-0")(value):
        value["spec"]["pool"]["generation"] += 7


def remove_owner(value: JSON) -> None:
    if has("gpu-0")(value):
        value["metadata"].pop("ownerReferences")


ALTERATIONS: dict[Callable[[JSON], None], str] = {
    relabel: "spec.devices[gpu-0].attributes[model].string",
    add_taint: "spec.devices[gpu-0].taints",
    remove_device: "spec.devices[gpu-0]",
    remove_counters: "spec.devices[gpu-4-mig-1g10gb-19-0].consumesCounters",
    change_generation: "spec.pool.generation",
    remove_owner: "metadata.ownerReferences",
}


@pytest.mark.parametrize("change", ALTERATIONS)
def test_altered_slice_is_named_and_not_written_again_at_once_and_the_others_are_published(
    cluster: Cluster, hardware: Hardware, change: Callable[[JSON], None]
) -> None:
    cluster.server.faults.alter(Alteration("resourceslices", change))
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        cluster.wait_for_unpublished()
        before = versions(slices_of_node(cluster.client, cluster.node))
        assert len(cluster.counted.writes) == len(before) > 2, "each slice was written once"
        compare_often(publisher)
        assert versions(slices_of_node(cluster.client, cluster.node)) == before
        assert len(cluster.counted.writes) == len(before)
        assert ALTERATIONS[change] in (publisher.problem or "")
        (problem,) = cluster.reports[-1].unpublished.values()
        assert problem.why is Why.CHANGED
        assert cluster.metric("unpublished_slices", reason="changed") == 1
        assert cluster.metric("publish_errors_total") == 1


def compare_often(publisher: Publisher) -> None:
    """Wake the publisher again and again."""
    for _ in range(8):
        seen = publisher.comparisons
        publisher.wake()
        wait_for(lambda seen=seen: publisher.comparisons > seen, "a comparison")  # type: ignore[misc]


def test_a_change_of_another_slice_is_written_at_once(cluster: Cluster, hardware: Hardware) -> None:
    cluster.server.faults.alter(Alteration("resourceslices", remove_counters))
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        cluster.wait_for_unpublished()
        before = versions(slices_of_node(cluster.client, cluster.node))
        cluster.counted.writes.clear()
        changed = cluster.slice_with("gpu-0")
        hardware.rename_the_first("H100 of another kind")
        publisher.wake()
        wait_for(
            lambda: versions(slices_of_node(cluster.client, cluster.node))[changed] != before[changed], "the change"
        )
        compare_often(publisher)
        assert cluster.counted.writes == [changed]
        assert publisher.problem is not None


def test_taints_that_are_removed_from_one_slice_stay_on_the_others(cluster: Cluster, inventory: Inventory) -> None:
    """A feature gate that is off removes them from every slice, so that the server is asked."""

    def remove_taints(value: JSON) -> None:
        if has("gpu-0")(value):
            for device in value["spec"]["devices"]:
                device.pop("taints", None)

    hardware = IllHardware(inventory)
    hardware.ill = frozenset(gpu.uuid for gpu in inventory.gpus)
    cluster.server.faults.alter(Alteration("resourceslices", remove_taints))
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        cluster.wait_for_unpublished()
        compare_often(publisher)
        assert "].taints" in (publisher.problem or "")
        assert cluster.reports[-1].missing_gates == ()
        devices = [
            device
            for one in slices_of_node(cluster.client, cluster.node).values()
            if not has("gpu-0")(one)
            for device in one["spec"].get("devices") or ()
        ]
        assert devices
        assert all(device.get("taints") for device in devices)


def test_a_new_generation_is_written_to_the_altered_slice_too(cluster: Cluster, hardware: Hardware) -> None:
    cluster.server.faults.alter(Alteration("resourceslices", relabel))
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        cluster.wait_for_unpublished()
        hardware.lose_the_last()
        publisher.wake()

        def generations() -> set[int]:
            pool = complete_pool(cluster.client, cluster.node)
            gone = pool and not any("gpu-7" in name for name in device_names(pool))
            return {one["spec"]["pool"]["generation"] for one in pool.values()} if gone else set()

        assert wait_for(generations, "a complete pool without the GPU") == {2}


def test_altered_slice_is_right_soon_after_the_server_stops_altering(cluster: Cluster, hardware: Hardware) -> None:
    alteration = cluster.server.faults.alter(Alteration("resourceslices", relabel))
    with cluster.publishing(hardware) as publisher:
        wait_for(lambda: alteration.hits > 20, "some attempts")
        cluster.server.faults.clear()
        wait_for(lambda: publisher.problem is None, "the slice to be right")
        (gpu,) = filter(None, map(has("gpu-0"), slices_of_node(cluster.client, cluster.node).values()))
        assert gpu["attributes"]["model"] != {"string": "altered"}
        # The metrics follow the report.
        wait_for(lambda: cluster.metric("unpublished_slices", reason="changed") is None, "the metric to go")


def test_unknown_fields_that_a_server_adds_are_no_difference(cluster: Cluster, hardware: Hardware) -> None:
    def add(value: JSON) -> None:
        value["metadata"].setdefault("labels", {})["example.com/team"] = "a"
        value["metadata"].setdefault("annotations", {})["example.com/by"] = "a webhook"
        for device in value["spec"].get("devices") or ():
            device["nodeAllocatableResourceMappings"] = {"cpu": {"allocationMultiplier": "1"}}

    cluster.server.faults.alter(Alteration("resourceslices", add))
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        slices = published(cluster.client, cluster.node)
        compare_often(publisher)
        assert publisher.problem is None
        assert len(cluster.counted.writes) == len(slices)
    assert all(one["metadata"]["labels"] for one in slices.values())


def test_a_slice_that_somebody_edits_again_and_again_is_named(cluster: Cluster, hardware: Hardware) -> None:
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        published(cluster.client, cluster.node)
        edited = slices_of_node(cluster.client, cluster.node)[cluster.slice_with("gpu-0")]
        relabel(edited)
        cluster.client.update(SLICES, edited)
        cluster.wait_for_unpublished()
        assert "somebody changed spec.devices[gpu-0].attributes[model].string" in (publisher.problem or "")
        other = cluster.slice_with("gpu-4-mig-1g10gb-19-0")
        cluster.client.delete(SLICES, other)
        cluster.wait_for_unpublished(2)
        assert "(and 1 more slices)" in (publisher.problem or "")


@pytest.mark.parametrize("error", [400, 403, 422, 500])
def test_a_slice_that_is_refused_holds_back_no_other(cluster: Cluster, hardware: Hardware, error: int) -> None:
    def refuse(value: JSON) -> None:
        if has("gpu-0")(value):
            raise status.RequestError(error, "Forbidden", "a webhook denied the request")

    refused = cluster.server.faults.alter(Alteration("resourceslices", refuse))
    with cluster.publishing(hardware, NEVER_AGAIN) as publisher:
        cluster.wait_for_unpublished()
        assert f": {error} Forbidden: a webhook denied the request" in (publisher.problem or "")
        assert [one.why for one in cluster.reports[-1].unpublished.values()] == [Why.REFUSED]
        names = device_names(slices_of_node(cluster.client, cluster.node))
        assert {"gpu-4-mig-1g10gb-19-0", "gpu-7-mig-7g80gb-0-0"} <= names
        writes = refused.hits
        compare_often(publisher)
        assert refused.hits == writes


class WrongProductName(Hardware):
    """Describes the first GPU with a product name of a type that no attribute has, as a defect could."""

    WRONG: Final[dict[str, Any]] = {"productName": object()}

    def describe(self, features: SliceFeatures) -> Description:
        description = super().describe(features)
        first, *others = description.gpus
        devices = tuple(replace(device, attributes={**device.attributes, **self.WRONG}) for device in first.devices)
        return replace(description, gpus=(replace(first, devices=devices), *others))


def test_a_defect_that_costs_one_slice_is_logged_counted_and_holds_back_no_other(
    cluster: Cluster, inventory: Inventory, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.publishing(WrongProductName(inventory), NEVER_AGAIN) as publisher:
        cluster.wait_for_unpublished()
        names = device_names(slices_of_node(cluster.client, cluster.node))
        assert "gpu-0" not in names
        assert {"gpu-4-mig-1g10gb-19-0", "gpu-7-mig-7g80gb-0-0"} <= names
        compare_often(publisher)
    (record,) = (
        one
        for one in records_of(caplog, "dra_driver.process.containment")
        if one.getMessage().startswith("publish slice ")
    )
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is TypeError
    assert cluster.metric("unpublished_slices", reason="failed") == 1
    counted = {"driver": "gpu.nvidia.com", "work": "publish slice"}
    assert cluster.registry.get_sample_value("nvidia_dra_unexpected_errors_total", counted) == 1
