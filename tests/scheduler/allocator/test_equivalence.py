# SPDX-License-Identifier: Apache-2.0
"""Nodes that are alike are decided once, and only they."""

from typing import Any

import pytest

from dra_driver.kube.resource import Device, DeviceTaint, Node, ObjectMeta, ResourceClaim, ResourceSlice
from dra_driver.scheduler.allocator import Cluster, Group, allocate, allocate_all

from .build import DRIVER, claim, cluster, gpu, held, holding, match, slice_of, wants

NAMES = tuple(f"node-{n}" for n in range(5))
MODEL = f"device.attributes['{DRIVER}'].model == 'x'"
UUID = f"device.attributes['{DRIVER}'].uuid == 'node-3-0'"


def devices_of(name: str) -> list[Device]:
    return [gpu(f"{name}-gpu-{n}", attributes={"model": "x", "uuid": f"{name}-{n}", "even": n % 2}) for n in range(4)]


def nodes(*odd: ResourceSlice, more: tuple[object, ...] = ()) -> Cluster:
    """Five like nodes, where the slices `odd` stand in for those of their pools, and whatever else is given."""
    replaced = {slice_.pool.name for slice_ in odd}
    slices = [
        slice_of(*devices_of(name), name=f"slice-{name}", pool=name, node_name=name)
        for name in NAMES
        if name not in replaced
    ]
    return cluster(*(Node(ObjectMeta(name=name)) for name in NAMES), *slices, *odd, *more)


def grouped(where: Cluster, *claims: ResourceClaim) -> list[int]:
    """How many nodes are in each group."""
    outcomes = allocate_all(where, claims, share_ids=lambda: "id")
    for name in NAMES:  # whatever the groups are, nobody gets another answer than alone
        assert outcomes[name] == allocate(where, claims, name, share_ids=lambda: "id")
    return sorted(len(group.nodes) for group in outcomes.groups)


def odd_slice(*devices: Device, **fields: Any) -> ResourceSlice:
    return slice_of(*devices, name="odd", pool="node-3", node_name="node-3", **fields)


def test_nodes_that_differ_only_in_names_are_equivalent() -> None:
    assert grouped(nodes(), claim(x=wants(2, MODEL))) == [5]
    assert grouped(nodes(), claim(match("uuid"), x=wants(2))) == [5]
    assert grouped(nodes(), claim(match("even"), x=wants(2))) == [5]


def odd_with(**fields: Any) -> ResourceSlice:
    """As on the other nodes, but for the last device."""
    return odd_slice(*devices_of("node-3")[:3], gpu("odd", **{"attributes": {"model": "x"}, **fields}))


@pytest.mark.parametrize(
    "where",
    [
        nodes(odd_slice(*devices_of("node-3")[:3])),
        nodes(odd_slice(*devices_of("node-3"), count=2)),
        nodes(odd_with(taints=(DeviceTaint("k", "None"),))),
        nodes(odd_with(attributes={"model": "y"})),
        nodes(odd_with(allow_multiple_allocations=True)),
        nodes(odd_with(binds_to_node=True)),
        nodes(more=(holding(held("node-3-gpu-1", pool="node-3")),)),
        nodes(more=(slice_of(gpu("x", attributes={"model": "x"}), name="more", pool="more", node_name="node-3"),)),
    ],
    ids=["devices", "incomplete", "taint", "value", "sharing", "binding", "use", "pool"],
)
def test_node_with_a_difference_is_decided_separately(where: Cluster) -> None:
    assert grouped(where, claim(x=wants(4, MODEL))) == [1, 4]


def test_nodes_with_different_values_of_a_read_attribute_are_not_equivalent() -> None:
    assert grouped(nodes(), claim(x=wants(1, UUID))) == [1] * 5


def test_nodes_with_different_values_of_an_unread_attribute_are_equivalent() -> None:
    odd = odd_slice(*(gpu(f"{n}", attributes={"model": "x", "more": n}) for n in range(4)))
    assert grouped(nodes(odd), claim(x=wants(1, MODEL))) == [5]


def test_groups_are_known_before_every_outcome_is_written() -> None:
    outcomes = allocate_all(nodes(), [claim(x=wants(9))])
    assert outcomes.groups == (Group(outcomes["node-0"], NAMES),)
    assert list(outcomes) == list(NAMES)
    assert outcomes["node-4"].node == "node-4"


def test_error_names_the_devices_of_its_own_node() -> None:
    outcomes = allocate_all(nodes(), [claim(x=wants(1, f"device.attributes['{DRIVER}'].missing == 1"))])
    assert len(outcomes.groups) == 1
    assert "node-4-gpu-0" in outcomes["node-4"].message
