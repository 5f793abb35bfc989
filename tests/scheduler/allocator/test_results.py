# SPDX-License-Identifier: Apache-2.0
"""What the scheduler would write: results, configuration, node selector."""

from itertools import count
from typing import Any

import pytest

from dra_driver.kube.resource import (
    ClaimConfiguration,
    Device,
    DeviceClass,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    ResourceSlice,
)
from dra_driver.scheduler.allocator import ErrorKind, Features, allocate

from .build import NODE, ask, claim, cluster, gpu, opaque, picked, quantities, shared, slice_of, wants

EAST = NodeSelectorRequirement("zone", "In", ("east", "south"))
EAST_AGAIN = NodeSelectorRequirement("zone", "In", ("south", "east"))
RANKED = NodeSelectorRequirement("rank", "Exists")
HERE = NodeSelectorRequirement("metadata.name", "In", ("node-a",))


def selector(*expressions: NodeSelectorRequirement, fields: tuple[NodeSelectorRequirement, ...] = ()) -> NodeSelector:
    return NodeSelector((NodeSelectorTerm(expressions, fields),))


PINNED = selector(fields=(HERE,))


def place(name: str, **where: Any) -> ResourceSlice:
    return slice_of(gpu(name), name=name, pool=name, **where)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param([place("a", all_nodes=True)], None, id="everywhere"),
        pytest.param([place("a", node_name="node-a")], PINNED, id="on one node"),
        pytest.param([place("a", node_selector=selector(EAST))], selector(EAST), id="where the slice is"),
        pytest.param(
            [place("a", node_selector=selector(EAST)), place("b", node_selector=selector(RANKED, EAST_AGAIN))],
            selector(EAST, RANKED),
            id="where both are, without repetition",
        ),
        pytest.param(
            [place("a", node_selector=selector(EAST, fields=(HERE,)))],
            selector(EAST, fields=(HERE,)),
            id="fields and expressions apart",
        ),
        pytest.param(
            [place("a", node_selector=selector(EAST)), place("b", node_name="node-a")], PINNED, id="a node wins"
        ),
        pytest.param([slice_of(gpu("a", binds_to_node=True), all_nodes=True)], PINNED, id="bound to the node"),
        pytest.param(
            [slice_of(Device("a", node_name="node-a"), per_device_node_selection=True)], PINNED, id="a device's node"
        ),
        pytest.param(
            [slice_of(Device("a", node_selector=selector(EAST)), per_device_node_selection=True)],
            selector(EAST),
            id="a device's selector",
        ),
    ],
)
def test_allocation_can_be_used_where_all_its_devices_are(
    slices: list[ResourceSlice], expected: NodeSelector | None
) -> None:
    outcome = ask(slices, claim(x=wants(len(slices))))
    assert outcome.allocations[0].node_selector == expected


def test_node_selector_with_two_terms_cannot_be_merged() -> None:
    two = NodeSelector((*selector(EAST).terms, *selector(RANKED).terms))
    outcome = ask(slice_of(Device("a", node_selector=two), per_device_node_selection=True), claim(x=wants()))
    assert (outcome.error_kind, outcome.fatal) == (ErrorKind.NODE_SELECTOR, True)


def test_configuration_of_classes_comes_first_once_a_class() -> None:
    classes = [
        DeviceClass(ObjectMeta(name="one"), config=(opaque("one-a"), opaque("one-b"))),
        DeviceClass(ObjectMeta(name="two"), config=(opaque("two"),)),
    ]
    asked = claim(
        a=wants(device_class="two"),
        b=[wants(9, device_class="two"), wants(device_class="one")],
        c=wants(device_class="one"),
        config=[ClaimConfiguration((), opaque("all")), ClaimConfiguration(("b/b",), opaque("b"))],
    )
    outcome = ask([slice_of(gpu("1"), gpu("2"), gpu("3")), *classes], asked)
    assert [
        (entry.source, entry.requests, entry.opaque.parameters["value"]) for entry in outcome.allocations[0].config
    ] == [
        ("FromClass", ("a",), "two"),
        ("FromClass", ("b/b", "c"), "one-a"),
        ("FromClass", ("b/b", "c"), "one-b"),
        ("FromClaim", (), "all"),
        ("FromClaim", ("b/b",), "b"),
    ]


@pytest.mark.parametrize(
    ("requests", "applies"), [(("x",), True), (("x/b",), True), (("x/a",), False), (("y",), False)]
)
def test_configuration_applies_to_the_alternative_that_was_chosen(requests: tuple[str, ...], applies: bool) -> None:
    asked = claim(x=[wants(9), wants()], config=[ClaimConfiguration(requests, opaque("c"))])
    assert bool(ask(slice_of(gpu("1")), asked).allocations[0].config) is applies


def test_share_ids_come_from_the_caller() -> None:
    numbers = count(1)
    half = wants(capacity_requests=quantities({"memory": 5}))
    where = cluster(slice_of(shared("a")))
    outcome = allocate(where, [claim(x=half, y=half)], NODE.name, share_ids=lambda: f"id-{next(numbers)}")
    assert [result.share_id for result in outcome.allocations[0].results] == ["id-1", "id-2"]


def test_binding_conditions_are_copied_and_devices_with_them_skipped_while_the_gate_is_off() -> None:
    bound = gpu("a", binding_conditions=("ready",), binding_failure_conditions=("broken",))
    where = slice_of(bound, gpu("b"))
    result = ask(where, claim(x=wants())).allocations[0].results[0]
    assert (result.device, result.binding_conditions, result.binding_failure_conditions) == (
        "a",
        ("ready",),
        ("broken",),
    )
    for off in (Features(binding_conditions=False), Features(claim_device_status=False)):
        assert picked(ask(where, claim(x=wants()), features=off)) == "x=b"


def test_admin_access_is_marked() -> None:
    outcome = ask(slice_of(gpu("a"), gpu("b")), claim(x=wants(admin_access=True), y=wants()))
    assert [result.admin_access for result in outcome.allocations[0].results] == [True, False]
