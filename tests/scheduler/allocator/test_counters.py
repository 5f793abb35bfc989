# SPDX-License-Identifier: Apache-2.0
"""Partitionable devices: counters that devices of a pool share."""

from typing import Any

import pytest

from dra_driver.kube.resource import Device
from dra_driver.scheduler.allocator import Features

from .build import OTHER_NODE, ask, claim, gpu, held, holding, picked, quantities, shared, slice_of, wants


def pool(*devices: Device, counters: dict[str, dict[str, int]] | None = None) -> list[object]:
    """A slice with counters (by default 4 slots in one set) and one with the devices."""
    sets = counters or {"gpu": {"slots": 4}}
    return [slice_of(name="counters", count=2, counters=sets), slice_of(*devices, name="devices", count=2)]


def part(name: str, slots: int, **fields: Any) -> Device:
    return gpu(name, takes={"gpu": {"slots": slots}}, **fields)


PARTS = pool(part("four", 4), part("one", 1), part("three", 3), part("two", 2))


@pytest.mark.parametrize(
    ("count", "in_use", "answer"),
    [
        pytest.param(1, [], "x=four", id="the first that fits"),
        pytest.param(2, [], "x=one x=three", id="with what was picked before"),
        pytest.param(3, [], "unavailable", id="more than there is"),
        pytest.param(1, ["one"], "x=three", id="without what is in use"),
        pytest.param(1, ["three"], "x=one", id="as much as is left"),
        pytest.param(1, ["three", "two"], "unavailable", id="overdrawn"),
    ],
)
def test_counters_are_never_overdrawn(count: int, in_use: list[str], answer: str) -> None:
    where = [*PARTS, *(holding(held(name), name=name) for name in in_use)]
    assert picked(ask(where, claim(x=wants(count)))) == answer


def test_device_without_counters_is_always_available() -> None:
    where = [*pool(part("four", 4), gpu("free")), holding(held("four"))]
    assert picked(ask(where, claim(x=wants()))) == "x=free"


def test_overdrawn_counter_set_blocks_all_devices_with_counters_of_the_pool() -> None:
    sets = {"gpu": {"slots": 1}, "nic": {"queues": 1}}
    devices = [part("a", 1), part("b", 1), gpu("c", takes={"nic": {"queues": 1}})]
    held_twice = [holding(held("a"), name="1"), holding(held("b"), name="2")]
    assert picked(ask([*pool(*devices, counters=sets), *held_twice], claim(x=wants()))) == "unavailable"


def test_devices_in_use_on_other_nodes_consume_counters_of_the_pool() -> None:
    slices = [
        slice_of(name="0", counters={"gpu": {"slots": 4}}, count=3, all_nodes=True),
        slice_of(part("a", 3), name="1", count=3),
        slice_of(part("b", 2), name="2", count=3, node_name=OTHER_NODE.name),
    ]
    assert picked(ask([*slices, holding(held("b"))], claim(x=wants()))) == "unavailable"
    assert picked(ask(slices, claim(x=wants()))) == "x=a"


def test_backtracking_gives_counters_back() -> None:
    """x takes part of the GPU first, which leaves y without; then x goes elsewhere."""
    whole = wants(1, "device.attributes['gpu.example.com'].size == 4")
    devices = [part(f"{size}", size, attributes={"size": size}) for size in (1, 4)]
    elsewhere = slice_of(gpu("z", attributes={"size": 0}), pool="z", name="z")
    assert picked(ask([*pool(*devices), elsewhere], claim(x=wants(), y=whole))) == "x=z y=4"


def test_shares_of_a_device_take_its_counters_once() -> None:
    where = pool(shared("a", takes={"gpu": {"slots": 3}}), part("one", 1))
    share = wants(1, "device.allowMultipleAllocations", capacity_requests=quantities({"memory": 2}))
    whole = wants(1, "!device.allowMultipleAllocations")
    assert picked(ask(where, claim(v=share, w=share, x=share, y=whole))) == "v=a w=a x=a y=one"


def test_without_the_gate_devices_with_counters_are_refused_and_their_slices_ignored() -> None:
    off = Features(partitionable_devices=False)
    assert picked(ask(PARTS, claim(x=wants()), features=off)) == "unavailable"
    both = slice_of(part("a", 1), gpu("b"))
    assert picked(ask(both, claim(x=wants()), features=off)) == "x=b"
