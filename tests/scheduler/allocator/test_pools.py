# SPDX-License-Identifier: Apache-2.0
"""Generations, completeness and validity of pools, and which slices count for a node."""

from typing import Any

import pytest

from dra_driver.kube.resource import Device, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ResourceSlice
from dra_driver.scheduler.allocator import ErrorKind, Features, allocate_all

from .build import NODE, OTHER_NODE, ask, claim, cluster, gpu, picked, slice_of, wants, wants_all

ONE = claim(x=wants())
EVERY = claim(x=wants_all())
EAST = NodeSelector((NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("east",)),)),))
WEST = NodeSelector((NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("west",)),)),))
BAD = NodeSelector((NodeSelectorTerm((NodeSelectorRequirement("zone", "Near", ("east",)),)),))
ELSEWHERE: dict[str, Any] = {"node_name": OTHER_NODE.name}


@pytest.mark.parametrize(
    ("slices", "answer"),
    [
        pytest.param([slice_of(gpu("a"), count=2)], "unavailable", id="a slice is missing"),
        pytest.param(
            [slice_of(gpu("a"), name="1"), slice_of(gpu("b"), name="2")], "unavailable", id="a slice too many"
        ),
        pytest.param(
            [slice_of(gpu("old"), name="1"), slice_of(gpu("new"), name="2", generation=2)],
            "x=new",
            id="the newest generation",
        ),
        pytest.param(
            [slice_of(gpu("old"), name="1"), slice_of(gpu("new"), name="2", generation=2, count=2)],
            "unavailable",
            id="an incomplete newest generation hides the old one",
        ),
        pytest.param(
            [slice_of(gpu("a"), name="1", count=2), slice_of(gpu("b"), name="2", count=2, **ELSEWHERE)],
            "x=a",
            id="slices of other nodes complete the pool",
        ),
        pytest.param(
            [slice_of(gpu("a"), name="1", count=2), slice_of(gpu("b"), name="2", generation=2, **ELSEWHERE)],
            "unavailable",
            id="a newer generation elsewhere makes an incomplete pool obsolete",
        ),
        pytest.param(
            [slice_of(gpu("a"), name="1"), slice_of(gpu("b"), name="2", generation=2, **ELSEWHERE)],
            "x=a",
            id="a complete old generation is used whatever there is elsewhere",
        ),
        pytest.param(
            [slice_of(gpu("a"), gpu("a"))], ErrorKind.INVALID_POOLS, id="two devices with one name make it invalid"
        ),
        pytest.param(
            [slice_of(gpu("a", takes={"set": {"c": 1}}))], ErrorKind.INVALID_POOLS, id="a counter set is undefined"
        ),
        pytest.param(
            [slice_of(gpu("b"), gpu("b"), pool="bad", name="1"), slice_of(gpu("a"), name="2")],
            "x=a",
            id="an invalid pool does not matter while another one will do",
        ),
    ],
)
def test_only_devices_of_complete_and_valid_pools_are_available(slices: list[ResourceSlice], answer: str) -> None:
    outcome = ask(slices, ONE)
    assert picked(outcome) == answer
    assert not outcome.fatal


@pytest.mark.parametrize(
    ("counters", "answer"),
    [
        pytest.param([{"s": {"c": 1}}], "x=a", id="defined"),
        pytest.param([{"s": {"d": 1}}], ErrorKind.INVALID_POOLS, id="the set lacks the counter"),
        pytest.param([{"s": {"c": 1}}, {"s": {"c": 1}}], ErrorKind.INVALID_POOLS, id="the set is defined twice"),
    ],
)
def test_consumed_counters_have_to_be_defined_once(counters: list[dict[str, dict[str, int]]], answer: str) -> None:
    count = len(counters) + 1
    slices = [slice_of(name=f"set-{n}", counters=sets, count=count) for n, sets in enumerate(counters)]
    slices.append(slice_of(gpu("a", takes={"s": {"c": 1}}), name="z", count=count))
    assert picked(ask(slices, ONE)) == answer


def test_devices_of_other_nodes_have_to_consume_defined_counters_too() -> None:
    slices = [
        slice_of(name="0", counters={"s": {"c": 1}}, count=3, all_nodes=True),
        slice_of(gpu("a", takes={"s": {"c": 1}}), name="1", count=3),
        slice_of(gpu("b", takes={"s": {"typo": 1}}), name="2", count=3, **ELSEWHERE),
    ]
    assert picked(ask(slices, ONE)) == ErrorKind.INVALID_POOLS


@pytest.mark.parametrize(
    ("slices", "kind"),
    [
        ([slice_of(gpu("a"), count=2)], ErrorKind.ALL_INCOMPLETE_POOL),
        ([slice_of(gpu("a"), gpu("a"))], ErrorKind.ALL_INVALID_POOL),
    ],
)
def test_request_for_all_devices_fails_while_a_pool_is_incomplete(slices: list[ResourceSlice], kind: ErrorKind) -> None:
    outcome = ask([*slices, slice_of(gpu("z"), driver="z.example.com", name="fine")], EVERY)
    assert (outcome.error_kind, outcome.fatal) == (kind, True)
    assert "pool" in outcome.message


def test_incomplete_pool_with_counters_affects_every_node() -> None:
    slices = [
        slice_of(name="0", counters={"s": {"c": 1}}, count=2, pool="other", **ELSEWHERE),
        slice_of(gpu("a"), name="1"),
    ]
    assert picked(ask(slices, EVERY, features=Features(release="1.36"))) == ErrorKind.ALL_INCOMPLETE_POOL


@pytest.mark.parametrize(
    ("place", "nodes"),
    [
        ({"node_name": "node-a"}, ["node-a"]),
        ({"all_nodes": True}, ["node-a", "node-b"]),
        ({"node_selector": WEST}, ["node-b"]),
        ({"node_selector": NodeSelector()}, []),
        ({"per_device_node_selection": True}, ["node-a"]),
    ],
)
def test_slice_is_relevant_for_the_nodes_that_it_names(place: dict[str, Any], nodes: list[str]) -> None:
    device = Device("a", node_selector=EAST) if "per_device_node_selection" in place else Device("a")
    where = cluster(NODE, OTHER_NODE, slice_of(device, **place))
    outcomes = allocate_all(where, [ONE])
    assert [name for name, outcome in outcomes.items() if outcome.kind == "allocated"] == nodes


def test_devices_of_one_slice_can_be_at_different_nodes() -> None:
    slices = slice_of(
        Device("west", node_selector=WEST),
        Device("here", node_name="node-a"),
        Device("nowhere"),
        Device("all", all_nodes=True),
        per_device_node_selection=True,
    )
    assert picked(ask(slices, EVERY)) == "x=here x=all"


@pytest.mark.parametrize("per_device", [False, True])
def test_node_selector_that_cannot_be_evaluated_is_an_error(per_device: bool) -> None:
    if per_device:
        slices = slice_of(Device("a", node_selector=BAD), per_device_node_selection=True)
    else:
        slices = slice_of(Device("a"), node_selector=BAD)
    outcome = ask(slices, ONE)
    assert (outcome.error_kind, outcome.fatal) == (ErrorKind.NODE_SELECTOR, True)
    assert "Near" in outcome.message
