# SPDX-License-Identifier: Apache-2.0
"""A node's slices in a real API, kept as they should be whatever others do to them."""

import contextlib
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.node.publisher import PublishReport
from controller.node.reconcile import Writes
from controller.node.writer import Attempts, SliceWriter, StoredSlices, Why
from dra_driver.gpu.devices import Description, Reason, describe
from dra_driver.gpu.inventory import Inventory, read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.view import UnreadError
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.kube.api.features import GATES
from dra_driver.kube.kinds import NODES, slices_of
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.codec import V1
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import SLICES, connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.nodes import make_node
from tests.support.publishing import publishing
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]


class Hardware:
    """What a node has: GPUs, or an error."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.error: NvmlError | None = None
        self.looks = 0
        self.features = SliceFeatures()
        self.adopted: list[str] = []

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        self.adopted = sorted(one.metadata.name for one in slices)

    def describe(self, features: SliceFeatures) -> Description:
        self.looks += 1
        self.features = features
        if self.error is not None:
            raise self.error
        return describe(self.inventory, features=features)

    def rename_the_first(self, product: str) -> None:
        first, *others = self.inventory.gpus
        self.inventory = replace(self.inventory, gpus=(replace(first, product_name=product), *others))

    def lose_the_last(self) -> None:
        self.inventory = replace(self.inventory, gpus=self.inventory.gpus[:-1])


def read_four_gpus(folder: Path) -> Inventory:
    """Four of the GPUs of a node with 8 H100: 0 and 1, and 4 and 7 in MIG mode. Half of the devices decide the same."""
    node = make_node(folder, "h100x8-mixed")
    found = read_inventory(node.nvml, node.sys_root)
    gpus, pci_gpus = found.gpus, found.pci_gpus
    chosen = (0, 1, 4, 7)
    return replace(found, gpus=tuple(gpus[at] for at in chosen), pci_gpus=tuple(pci_gpus[at] for at in chosen))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """4 H100, the second half in MIG mode."""
    return read_four_gpus(tmp_path_factory.mktemp("node"))


@pytest.fixture
def hardware(mixed: Inventory) -> Hardware:
    return Hardware(mixed)


@pytest.fixture
def node(client: ApiClient) -> str:
    """A Node of this test's own."""
    return make_cluster_node(client)


def make_cluster_node(client: ApiClient, name: str = "") -> str:
    """A Node. Its name ends in no number, as a simulated node's clique follows from that."""
    name = name or f"{uuid.uuid4().hex[:8]}-node"
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return name


def slices_of_node(client: ApiClient, node: str) -> dict[str, JSON]:
    """By name."""
    items = client.list(SLICES, field_selector=f"spec.nodeName={node}").items
    return {one["metadata"]["name"]: one for one in items}


def complete_pool(client: ApiClient, node: str) -> dict[str, JSON]:
    """The slices of the highest generation, empty while some are missing."""
    slices = slices_of_node(client, node)
    generation = max((one["spec"]["pool"]["generation"] for one in slices.values()), default=0)
    current = {name: one for name, one in slices.items() if one["spec"]["pool"]["generation"] == generation}
    counts = {one["spec"]["pool"]["resourceSliceCount"] for one in current.values()}
    return current if counts == {len(current)} else {}


def published(client: ApiClient, node: str) -> dict[str, JSON]:
    """The node's slices as soon as all are there."""
    return wait_for(lambda: complete_pool(client, node), "a complete pool")


def versions(slices: dict[str, JSON]) -> dict[str, str]:
    return {name: one["metadata"]["resourceVersion"] for name, one in slices.items()}


def device_names(slices: dict[str, JSON]) -> set[str]:
    return {device["name"] for one in slices.values() for device in one["spec"].get("devices") or []}


def test_the_startup_taint_is_removed_when_the_slices_are_there_and_others_stay(
    client: ApiClient, node: str, hardware: Hardware
) -> None:
    key, other = "example.com/starting", {"key": "other", "effect": "NoSchedule"}

    def taint() -> None:
        spec = {"taints": [other, {"key": key, "effect": "NoExecute"}, {"key": key, "effect": "NoSchedule"}]}
        client.patch(NODES, node, {"spec": spec})

    def tainted() -> bool:
        return bool(client.get(NODES, node)["spec"]["taints"] != [other])

    taint()
    hardware.error = NvmlError(Return.DRIVER_NOT_LOADED, "nvmlInit")
    with publishing(client, node, hardware, startup_taint=key) as publisher:
        wait_for(lambda: hardware.looks > 2, "attempts to publish")
        assert tainted()
        hardware.error = None
        publisher.wake()
        wait_for(lambda: not tainted(), "the removal of the taint")
        assert complete_pool(client, node)
        taint()  # an administrator's, after the start: it stays
        before = publisher.comparisons
        wait_for(lambda: publisher.comparisons > before + 2, "comparisons")
        assert tainted()
        client.delete(NODES, node)  # a new machine of the same name
        make_cluster_node(client, node)
        taint()
        for name in slices_of_node(client, node):
            client.delete(SLICES, name)
        wait_for(lambda: not tainted(), "the removal of the new Node's taint")


def test_a_node_publishes_whole_gpus_and_mig_placements_owned_by_the_node(
    client: ApiClient, node: str, hardware: Hardware
) -> None:
    with publishing(client, node, hardware):
        slices = published(client, node)
    owner = client.get(NODES, node)["metadata"]["uid"]
    for one in slices.values():
        assert [(ref["kind"], ref["name"], ref["uid"]) for ref in one["metadata"]["ownerReferences"]] == [
            ("Node", node, owner)
        ]
        assert one["spec"]["driver"] == DRIVER_NAME
        assert one["spec"]["pool"]["name"] == node
    names = device_names(slices)
    assert {"gpu-0", "gpu-1", "gpu-4-mig-1g10gb-19-0", "gpu-7-mig-7g80gb-0-0"} <= names
    assert not {"gpu-4", "gpu-0-mig-1g10gb-19-0"} & names, "a GPU is either whole or partitioned"


def test_a_whole_gpu_has_the_attributes_that_users_select_by(client: ApiClient, node: str, hardware: Hardware) -> None:
    with publishing(client, node, hardware):
        slices = published(client, node)
    (gpu,) = (d for one in slices.values() for d in one["spec"].get("devices") or [] if d["name"] == "gpu-0")
    wanted = {
        *("uuid", "model", "productName", "architecture", "brand"),
        *("cudaComputeCapability", "driverVersion", "type"),
    }
    assert wanted <= set(gpu["attributes"])
    assert gpu["attributes"]["architecture"] == {"string": "Hopper"}
    assert gpu["attributes"]["cudaComputeCapability"] == {"version": "9.0.0"}
    assert gpu["capacity"]["memory"] == {"value": "81559Mi"}


def test_a_device_that_the_api_server_would_refuse_is_left_out_and_no_write_is_refused(
    client: ApiClient, node: str, hardware: Hardware
) -> None:
    class Faulty(Hardware):
        """The first GPU is described twice, and the second one has an attribute that is too long."""

        def describe(self, features: SliceFeatures) -> Description:
            found = super().describe(features)
            first, second, *others = found.gpus
            (device,) = second.devices
            long = replace(second, devices=(replace(device, attributes={**device.attributes, "model": "x" * 65}),))
            return replace(found, gpus=(first, long, *others, replace(first, key="0000:1b:00.0")))

    reports: list[PublishReport] = []
    everything = len(published_names(hardware))
    with publishing(client, node, Faulty(hardware.inventory), reports.append) as publisher:
        slices = published(client, node)
        wait_for(lambda: publisher.problem is None, "the report that everything else is published")
    assert len(device_names(slices)) == everything - 1
    assert "gpu-1" not in device_names(slices)
    assert {(one.subject, one.reason) for one in reports[-1].left_out} == {
        (hardware.inventory.gpus[1].uuid, Reason.INVALID),
        ("0000:1b:00.0", Reason.INVALID),
    }
    assert [report.failures for report in reports] == [0] * len(reports)


def published_names(hardware: Hardware) -> set[str]:
    """The names of the devices of healthy hardware."""
    return {device.name for gpu in hardware.describe(SliceFeatures()).gpus for device in gpu.devices}


def test_a_slice_that_breaks_a_rule_is_not_sent(client: ApiClient, hardware: Hardware) -> None:
    """The name of a node that no Node can have."""
    kind, dialect = slices_of(V1), V1
    (first, *_) = node_slices("node-a", "uid", hardware.describe(SliceFeatures()).gpus)
    broken = replace(first, pool=replace(first.pool, name="Not A Pool"))
    attempts, stored = Attempts(1.0, 2.0), StoredSlices(dialect, lambda: None)
    writer = SliceWriter(client, (kind, dialect), stored, attempts, lambda _work: None)
    written = writer.write(Writes(creates=(broken,)), SliceFeatures())
    assert written.failures == 1
    problem = attempts.problem(first.metadata.name)
    assert problem is not None
    assert problem.why == Why.INVALID
    assert "is not a pool name" in problem.text
    assert first.metadata.name not in {one["metadata"]["name"] for one in client.list(SLICES).items}


def test_a_restart_writes_nothing(client: ApiClient, node: str, hardware: Hardware) -> None:
    with publishing(client, node, hardware):
        before = versions(published(client, node))
    looks = hardware.looks
    with publishing(client, node, hardware):
        wait_for(lambda: hardware.looks >= looks + 3, "the second publisher to look at the hardware repeatedly")
    assert versions(slices_of_node(client, node)) == before


def test_slices_of_a_node_with_the_longest_name_are_known_again(client: ApiClient, hardware: Hardware) -> None:
    name = ".".join((*(letter * 60 for letter in "abc"), uuid.uuid4().hex, "d" * 37))
    assert len(name) == 253
    node = make_cluster_node(client, name)
    with publishing(client, node, hardware):
        before = versions(published(client, node))
    hardware.looks = 0
    with publishing(client, node, hardware):
        wait_for(lambda: hardware.looks >= 3, "the second publisher to look at the hardware repeatedly")
    assert versions(slices_of_node(client, node)) == before


def test_a_deleted_slice_comes_back(client: ApiClient, node: str, hardware: Hardware) -> None:
    with publishing(client, node, hardware):
        before = published(client, node)
        victim = sorted(before)[1]
        client.delete(SLICES, victim)
        wait_for(lambda: victim in slices_of_node(client, node), "the slice to come back")
        after = published(client, node)
    assert device_names(after) == device_names(before)


def test_an_edited_slice_is_put_right(client: ApiClient, node: str, hardware: Hardware) -> None:
    with publishing(client, node, hardware):
        before = published(client, node)
        name, edited = next((n, one) for n, one in sorted(before.items()) if one["spec"].get("devices"))
        intact = edited["spec"]["devices"]
        client.update(SLICES, {**edited, "spec": {**edited["spec"], "devices": intact[:1]}})
        wait_for(
            lambda: complete_pool(client, node).get(name, {}).get("spec", {}).get("devices") == intact,
            "the devices to be back",
        )


def test_a_gpu_that_is_gone_is_withdrawn_in_a_new_generation(client: ApiClient, node: str, hardware: Hardware) -> None:
    with publishing(client, node, hardware):
        before = published(client, node)
        hardware.lose_the_last()
        wait_for(
            lambda: not any("gpu-7" in name for name in device_names(complete_pool(client, node)) or {"gpu-7"}),
            "the lost GPU's devices to go",
        )
        after = published(client, node)
    generations = [{one["spec"]["pool"]["generation"] for one in slices.values()} for slices in (before, after)]
    assert generations == [{1}, {2}]


def test_a_node_without_gpus_publishes_an_empty_pool_or_nothing(client: ApiClient, node: str) -> None:
    hardware = Hardware(Inventory("570.158.01", 12080, ()))
    with publishing(client, node, hardware):
        wait_for(lambda: hardware.looks >= 3, "some looks")
    assert device_names(slices_of_node(client, node)) == set()


def test_slices_of_other_drivers_and_nodes_are_left_alone(client: ApiClient, node: str, hardware: Hardware) -> None:
    other = make_cluster_node(client)
    foreign: JSON = {
        "apiVersion": SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"foreign-{node}"},
        "spec": {
            "driver": "nic.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "nic-0"}],
        },
    }
    ours_elsewhere = {
        **foreign,
        "metadata": {"name": f"elsewhere-{node}"},
        "spec": {
            **foreign["spec"],
            "driver": DRIVER_NAME,
            "nodeName": other,
            "pool": {"name": other, "generation": 1, "resourceSliceCount": 1},
        },
    }
    before = [client.create(SLICES, one)["metadata"]["resourceVersion"] for one in (foreign, ours_elsewhere)]
    with publishing(client, node, hardware):
        wait_for(lambda: len(slices_of_node(client, node)) > 2, "the node's slices")
    after = [
        client.get(SLICES, name)["metadata"]["resourceVersion"] for name in (f"foreign-{node}", f"elsewhere-{node}")
    ]
    assert after == before
    client.delete(SLICES, f"elsewhere-{node}")  # its device has no type, which breaks our DeviceClasses for all


def test_hardware_that_stops_answering_keeps_what_was_published(
    client: ApiClient, node: str, hardware: Hardware
) -> None:
    with publishing(client, node, hardware):
        before = versions(published(client, node))
        hardware.error = NvmlError(Return.GPU_IS_LOST, "nvmlDeviceGetCount_v2")
        looks = hardware.looks
        wait_for(lambda: hardware.looks >= looks + 3, "failing looks")
        assert versions(slices_of_node(client, node)) == before


@pytest.mark.parametrize(
    ("error", "warns"), [(NvmlError(Return.DRIVER_NOT_LOADED, "nvmlInit_v2"), True), (UnreadError(), False)]
)
def test_hardware_that_is_late_is_waited_for(
    error: NvmlError, warns: bool, client: ApiClient, node: str, hardware: Hardware, caplog: pytest.LogCaptureFixture
) -> None:
    hardware.error = error
    with caplog.at_level("INFO"), publishing(client, node, hardware):
        wait_for(lambda: hardware.looks >= 2, "the first failures")
        hardware.error = None
        assert published(client, node)
    said = {one.levelname for one in caplog.records if one.getMessage() == f"not published yet: {error}"}
    assert said == {"WARNING" if warns else "INFO"}


def test_a_node_that_registers_late_is_waited_for(client: ApiClient, hardware: Hardware) -> None:
    name = f"late-{uuid.uuid4().hex[:8]}"
    with publishing(client, name, hardware) as publisher:
        wait_for(lambda: name in (publisher.problem or ""), "the publisher to miss its node")
        make_cluster_node(client, name)
        assert published(client, name)


# What only the embedded server can be made to do


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(ApiServerOptions(tls=False)) as running:
        yield running


def client_of(server: FaultyServer, folder: Path) -> contextlib.AbstractContextManager[ApiClient]:
    return connect(server.write_kubeconfig(folder / "kubeconfig"))


def test_a_conflict_is_resolved_by_looking_again(server: FaultyServer, tmp_path: Path, hardware: Hardware) -> None:
    with client_of(server, tmp_path) as client:
        node = make_cluster_node(client)
        with publishing(client, node, hardware):
            before = published(client, node)
            fault = server.faults.add(RequestFault(verb="update", resource="resourceslices", error=409, times=2))
            hardware.lose_the_last()
            wait_for(
                lambda: (after := complete_pool(client, node)) and device_names(after) != device_names(before),
                "the new generation",
            )
        assert fault.hits == 2


@pytest.mark.parametrize("error", [429, 500, 503])
def test_an_api_server_in_trouble_is_asked_again(
    error: int, server: FaultyServer, tmp_path: Path, hardware: Hardware
) -> None:
    with client_of(server, tmp_path) as client:
        node = make_cluster_node(client)
        server.faults.add(RequestFault(verb="create", resource="resourceslices", error=error, times=3, retry_after=0))
        with publishing(client, node, hardware):
            assert len(device_names(published(client, node))) == 2 + 2 * 25


def test_a_lost_answer_does_not_make_a_second_slice(server: FaultyServer, tmp_path: Path, hardware: Hardware) -> None:
    with client_of(server, tmp_path) as client:
        node = make_cluster_node(client)
        server.faults.add(
            RequestFault(verb="create", resource="resourceslices", disconnect=True, after_commit=True, times=1)
        )
        with publishing(client, node, hardware):
            slices = published(client, node)
        assert len(device_names(slices)) == sum(len(one["spec"].get("devices") or []) for one in slices.values())


def test_an_unplugged_api_server_is_served_when_it_is_back(
    server: FaultyServer, tmp_path: Path, hardware: Hardware
) -> None:
    with client_of(server, tmp_path) as client:
        node = make_cluster_node(client)
        with publishing(client, node, hardware):
            published(client, node)
            server.faults.refuse_connections()
            hardware.lose_the_last()
            looks = hardware.looks
            wait_for(lambda: hardware.looks >= looks + 3, "looks without a server")
            server.faults.clear()
            wait_for(
                lambda: (pool := complete_pool(client, node)) and not any("gpu-7" in n for n in device_names(pool)),
                "the change to arrive",
            )


def test_a_server_that_drops_counters_gets_no_mig_devices(tmp_path: Path, hardware: Hardware) -> None:
    """Without its counters a placement could be given to several claims at once."""
    options = ApiServerOptions(gates={"DRAPartitionableDevices": False})
    with FaultyServer(options) as server, client_of(server, tmp_path) as client:
        node = make_cluster_node(client)
        with publishing(client, node, hardware):
            wait_for(
                lambda: device_names(complete_pool(client, node)) == {"gpu-0", "gpu-1"},
                "the whole GPUs alone",
            )


@pytest.mark.parametrize(
    ("flag", "kept"), [("list_attributes", True), ("list_attributes", False), ("binding_conditions", False)]
)
def test_a_server_is_asked_about_an_optional_feature_while_it_is_wanted(
    tmp_path: Path, hardware: Hardware, flag: str, kept: bool
) -> None:
    wanted = threading.Event()
    reports: list[PublishReport] = []

    def optional() -> frozenset[str]:
        return frozenset((flag,)) if wanted.is_set() else frozenset()

    with (
        FaultyServer(ApiServerOptions(minor=37, gates={GATES[flag]: kept}, tls=False)) as server,
        client_of(server, tmp_path) as client,
        publishing(client, make_cluster_node(client), hardware, reports.append, optional),
    ):
        wait_for(lambda: reports, "slices")
        assert not getattr(hardware.features, flag)
        assert reports[-1].missing_gates == (())
        wanted.set()
        if kept:
            wait_for(lambda: getattr(hardware.features, flag), "the feature")
        else:
            wait_for(lambda: reports[-1].missing_gates == (GATES[flag],), "word of the gate")
        wanted.clear()
        wait_for(lambda: not (getattr(hardware.features, flag) or reports[-1].missing_gates), "it to be forgotten")


@pytest.mark.parametrize(("minor", "version"), [(32, "v1beta1"), (33, "v1beta2")])
def test_older_kubernetes_gets_slices_in_its_own_version(
    minor: int, version: str, tmp_path: Path, hardware: Hardware
) -> None:
    options = ApiServerOptions(minor=minor, resource_versions=(version,))
    with FaultyServer(options) as server, client_of(server, tmp_path) as client:
        node = make_cluster_node(client)
        kind = replace(SLICES, api_version=f"resource.k8s.io/{version}")
        with publishing(client, node, hardware):
            items = wait_for(lambda: client.list(kind).items, "slices")
        (devices,) = ([device["name"] for device in one["spec"]["devices"]] for one in items)
        assert devices == ["gpu-0", "gpu-1"]


def test_stopping_leaves_the_slices(client: ApiClient, node: str, hardware: Hardware, kubeconfig: Path) -> None:
    with (
        Connection(load_credentials(str(kubeconfig)), "controller") as connection,
        publishing(ApiClient(connection), node, hardware),
    ):
        before = published(client, node)
    assert versions(slices_of_node(client, node)) == versions(before)


def test_an_api_version_that_goes_away_is_left_for_another(tmp_path: Path, hardware: Hardware) -> None:
    """As when a cluster is upgraded past the last release that serves it."""
    usual = {"tls": False, "admin_token": "secret"}
    old = FaultyServer(ApiServerOptions(minor=33, resource_versions=("v1beta1",), **usual))  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(old)
        client = stack.enter_context(client_of(server, tmp_path))
        node = make_cluster_node(client)
        stack.enter_context(publishing(client, node, hardware))
        kind = replace(SLICES, api_version="resource.k8s.io/v1beta1")
        wait_for(lambda: client.list(kind).items, "slices")
        port = int(server.url.rpartition(":")[2])
        old.stop()
        with FaultyServer(ApiServerOptions(port=port, **usual)):  # type: ignore[arg-type]
            make_cluster_node(client, node)
            assert published(client, node)
