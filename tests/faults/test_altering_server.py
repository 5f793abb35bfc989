# SPDX-License-Identifier: Apache-2.0
"""Webhooks that alter or refuse slices come and go while the hardware changes: what is published ends up right.

While they are there, the same slice is written ever more rarely, however often somebody wakes the publisher.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.node.publisher import PublisherTiming
from dra_driver.gpu.inventory import Inventory, read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from dra_driver.kube.resource.device import SliceFeatures
from tests.controller.node.test_outages import Hardware, as_published, content
from tests.controller.node.test_publisher import make_cluster_node
from tests.support.apiserver import SLICES, embedded
from tests.support.faultyserver import FaultyServer
from tests.support.nodes import make_node
from tests.support.publishing import QUICK, publishing
from tests.support.waiting import wait_for

from .altering import AlteringServer

ROUNDS = 8
WAKES = 10
HOUR = PublisherTiming(settle=0.0, resync=0.05, first_retry=3600.0, longest_retry=0.2, longest_slice_retry=3600.0)
"""Whatever is tried again is tried once more after the test."""


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    node = make_node(tmp_path_factory.mktemp("node"), "h100x8-mixed")
    return read_inventory(node.nvml, node.sys_root)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[FaultyServer, ApiClient]]:
    with embedded(tmp_path) as (server, _, client):
        yield server, client


@pytest.mark.parametrize("seed", [1, 2])
def test_published_slices_are_right_after_the_webhooks_are_gone(
    seed: int, cluster: tuple[FaultyServer, ApiClient], inventory: Inventory
) -> None:
    server, client = cluster
    chance = random.Random(seed)
    hardware = Hardware(inventory)
    webhooks = AlteringServer(server, chance)
    node = make_cluster_node(client)
    uid = client.get(NODES, node)["metadata"]["uid"]
    log: list[str] = []

    def right() -> bool:
        published = as_published(client, node)
        wanted = node_slices(node, uid, hardware.describe(SliceFeatures()).gpus)
        return len({one.pool.generation for one in published}) == 1 and content(published) == content(wanted)

    with publishing(client, node, hardware, timing=QUICK) as publisher:
        wait_for(right, "the first slices")
        names = [one.metadata.name for one in as_published(client, node)]
        for _ in range(ROUNDS):
            log.append(webhooks.begin(names))
            hardware.change(chance)
            publisher.wake()
            seen = publisher.comparisons
            wait_for(lambda seen=seen: publisher.comparisons > seen, f"a comparison: {log}")  # type: ignore[misc]
            if chance.random() < 0.3:
                webhooks.end()
                log.append("end")
        webhooks.end()
        wait_for(lambda: right() and publisher.problem is None, f"the slices to be right: {log}", 60)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_altered_slice_is_not_written_again_however_often_the_publisher_is_woken(
    seed: int, cluster: tuple[FaultyServer, ApiClient], inventory: Inventory
) -> None:
    server, client = cluster
    webhooks = AlteringServer(server, random.Random(seed))
    node = make_cluster_node(client)
    with publishing(client, node, Hardware(inventory), timing=QUICK) as publisher:
        wait_for(lambda: publisher.problem is None, "the first slices")
        names = [one.metadata.name for one in as_published(client, node)]
    said = [webhooks.begin(names) for _ in range(3)]
    for one in as_published(client, node):
        client.delete(SLICES, one.metadata.name)
    with publishing(client, node, Hardware(inventory), timing=HOUR) as publisher:

        def attempts() -> tuple[int, int]:
            return server.resource_version(), webhooks.hits

        def are_over() -> bool:
            """Whether nothing is written in a whole comparison."""
            before, seen = attempts(), publisher.comparisons
            wait_for(lambda: publisher.comparisons > seen + 1, "two comparisons")
            return attempts() == before

        wait_for(are_over, "the first attempts to be over")
        assert webhooks.hits, said
        before = attempts()
        for _ in range(WAKES):
            seen = publisher.comparisons
            publisher.wake()
            wait_for(lambda seen=seen: publisher.comparisons > seen, "a comparison")  # type: ignore[misc]
        assert attempts() == before, said
