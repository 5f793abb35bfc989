# SPDX-License-Identifier: Apache-2.0
"""Thirty outages of the API server at random, while the hardware changes: what is published ends up right."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3

from dra_driver.gpu.devices import Description, describe
from dra_driver.gpu.health import Finding, taint
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.kube.api import ApiClient, ApiError, Connection, load_credentials
from dra_driver.kube.kinds import NODES
from dra_driver.kube.resource import ResourceSlice, TaintEffect
from dra_driver.kube.resource.codec import V1, decode_slice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import SLICES
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.publishing import publishing
from tests.support.waiting import wait_for

from .test_publisher import make_cluster_node, read_four_gpus

pytestmark = pytest.mark.cluster


class Counted(Connection):
    """A connection that remembers what went through it."""

    requests: list[str]

    def request(self, method: str, path: str, **options: object) -> urllib3.BaseHTTPResponse:
        self.requests.append(f"{method} {path.partition('?')[0]}{' watch' if 'watch=1' in path else ''}")
        return super().request(method, path, **options)  # type: ignore[arg-type]


class Hardware:
    """A node whose GPUs come, go and fall ill."""

    def __init__(self, inventory: Inventory) -> None:
        self._all = inventory
        self.inventory = inventory
        self.ill: frozenset[str] = frozenset()

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Nothing of before matters here."""

    def describe(self, features: SliceFeatures) -> Description:
        description = describe(self.inventory, features=features)
        findings = [
            Finding(uuid, "gpu.nvidia.com/xid", "79", TaintEffect.NO_SCHEDULE, 1_700_000_000.0, "fell off the bus")
            for uuid in self.ill
        ]
        return replace(description, gpus=taint(description.gpus, findings))

    def change(self, rng: random.Random) -> None:
        """Something happens to it."""
        gpus = [gpu for gpu in self._all.gpus if rng.random() < 0.8]
        self.inventory = replace(self._all, gpus=tuple(gpus))
        self.ill = frozenset(gpu.uuid for gpu in gpus if rng.random() < 0.2)


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return read_four_gpus(tmp_path_factory.mktemp("node"))


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(ApiServerOptions(tls=False)) as running:
        yield running


@pytest.fixture
def counted(server: FaultyServer, tmp_path: Path) -> Iterator[Counted]:
    with Counted(load_credentials(str(server.write_kubeconfig(tmp_path / "kubeconfig"))), "controller") as connection:
        connection.requests = []
        yield connection


def outages(server: FaultyServer, client: ApiClient, rng: random.Random) -> list[Callable[[], object]]:
    """One outage of each kind."""

    def fails(**fault: object) -> Callable[[], object]:
        resource = rng.choice(["resourceslices", "nodes", ""])
        verb = rng.choice(["create", "update", "delete", "list", "watch", "get", ""])
        wanted = RequestFault(resource=resource, verb=verb, times=rng.randint(1, 4), retry_after=0)
        for name, value in fault.items():
            setattr(wanted, name, value)
        return lambda: server.faults.add(wanted)

    def someone_deletes() -> None:
        for one in client.list(SLICES).items:
            if rng.random() < 0.5:
                client.delete(SLICES, one["metadata"]["name"])

    def someone_edits() -> None:
        for one in client.list(SLICES).items:
            if one["spec"].get("devices") and rng.random() < 0.5:
                one["spec"]["devices"] = one["spec"]["devices"][1:]
                client.update(SLICES, one)

    return [
        *(fails(error=error) for error in (409, 429, 500, 503, 504)),
        fails(disconnect=True),
        fails(disconnect=True, after_commit=True),
        fails(delay=0.05),
        server.drop_watches,
        server.compact,
        server.faults.refuse_connections,
        someone_deletes,
        someone_edits,
    ]


def as_published(client: ApiClient, node: str) -> list[ResourceSlice]:
    items = client.list(SLICES, field_selector=f"spec.nodeName={node}").items
    return sorted((decode_slice(one, V1) for one in items), key=lambda one: one.metadata.name)


def content(slices: Iterable[ResourceSlice]) -> list[object]:
    return [(one.metadata.name, one.devices, one.shared_counters, one.pool.resource_slice_count) for one in slices]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_outages_of_all_kinds_end_with_exactly_what_the_node_has(
    seed: int, server: FaultyServer, counted: Counted, inventory: Inventory, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    hardware = Hardware(inventory)
    with Connection(load_credentials(str(server.write_kubeconfig(tmp_path / "admin"))), "admin") as connection:
        client = ApiClient(connection)
        node = make_cluster_node(client)
        uid = next(one for one in client.list(NODES).items if one["metadata"]["name"] == node)["metadata"]["uid"]

        def right() -> bool:
            try:
                published = as_published(client, node)
            except ApiError:
                return False  # an outage is for everybody
            wanted = node_slices(node, uid, hardware.describe(SliceFeatures()).gpus)
            generations = {one.pool.generation for one in published}
            return len(generations) == 1 and content(published) == content(wanted)

        with publishing(ApiClient(counted), node, hardware) as publisher:
            kinds = outages(server, client, rng)
            for outage in rng.sample(kinds, len(kinds)):
                with suppress(ApiError):  # an outage of before is still on, and keeps off who interferes as well
                    outage()
                hardware.change(rng)
                publisher.wake()
                seen = len(counted.requests)
                wait_for(lambda seen=seen: len(counted.requests) > seen or right(), "an attempt")  # type: ignore[misc]
                if rng.random() < 0.5:
                    server.faults.clear()
                    server.faults.refuse_connections(False)
            server.faults.clear()
            server.faults.refuse_connections(False)
            wait_for(right, f"the slices to be right: {json.dumps(counted.requests[-20:], indent=1)}", 60)


def test_at_rest_there_is_one_watch_and_nothing_is_written(
    server: FaultyServer, counted: Counted, inventory: Inventory
) -> None:
    client = ApiClient(counted)
    node = make_cluster_node(client)
    hardware = Hardware(inventory)
    with publishing(client, node, hardware) as publisher:
        wait_for(lambda: publisher.problem is None, "the slices")
        wait_for(lambda: any(" watch" in one for one in counted.requests), "the watch")
        before = server.resource_version()
        asked = len(counted.requests)
        for _ in range(20):
            looks = publisher.comparisons
            publisher.wake()
            wait_for(lambda looks=looks: publisher.comparisons > looks, "a comparison")  # type: ignore[misc]
        assert counted.requests[asked:] == []
        assert server.resource_version() == before
        assert sum(" watch" in one for one in counted.requests) == 1
