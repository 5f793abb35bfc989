# SPDX-License-Identifier: Apache-2.0
"""Answers that Kubernetes 1.36 gives by mistake, beside the ones it should give."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dra_driver.kube.resource import (
    AttributeList,
    ClaimConfiguration,
    Device,
    DeviceRequirements,
    DeviceTaint,
    ResourceClaim,
)
from dra_driver.scheduler.allocator import Cluster, Features

from .build import (
    OTHER_NODE,
    Requests,
    ask,
    claim,
    cluster,
    distinct,
    gpu,
    held,
    holding,
    match,
    opaque,
    picked,
    quantities,
    shared,
    slice_of,
    wants,
    wants_all,
)

OLDER = Features.from_gates({}, release="1.36")
"""A release with defects that later ones do not have."""

Scenario = Callable[[], tuple[Cluster, list[ResourceClaim]]]


def half(gpu_index: int, part: int) -> Device:
    """One of two halves of a GPU."""
    attributes = {"gpu": str(gpu_index), "kind": "half"}
    return gpu(f"gpu-{gpu_index}-{part}", attributes=attributes, takes={f"gpu-{gpu_index}": {"slots": 1}})


def two_gpus(*more: object) -> Cluster:
    sets = {f"gpu-{n}": {"slots": 2} for n in (0, 1)}
    halves = [half(n, part) for n in (0, 1) for part in (0, 1)]
    return cluster(slice_of(name="0", counters=sets, count=2), slice_of(*halves, name="1", count=2), *more)


def memory(amount: int, *selectors: str) -> DeviceRequirements:
    return wants(1, *selectors, capacity_requests=quantities({"memory": amount}))


def refused_by_constraint() -> tuple[Cluster, list[ResourceClaim]]:
    """While the first GPU, partly used, is searched, halves of the idle one are refused: they are of another GPU."""
    return two_gpus(holding(held("gpu-0-0"))), [claim(match("gpu"), x=wants(), y=wants())]


def refused_by_taint() -> tuple[Cluster, list[ResourceClaim]]:
    tainted = gpu("a", takes={"s": {"slots": 1}}, taints=(DeviceTaint("k", "NoSchedule"),))
    slices = [
        slice_of(name="0", counters={"s": {"slots": 1}}, count=2),
        slice_of(tainted, gpu("b", takes={"s": {"slots": 1}}), name="1", count=2),
    ]
    return cluster(*slices), [claim(x=wants())]


def undone_share() -> tuple[Cluster, list[ResourceClaim]]:
    """The share of a is tried in vain for x: y needs all slots."""
    whole = gpu("b", takes={"s": {"slots": 2}}, attributes={"whole": True})
    share = shared("a", takes={"s": {"slots": 1}}, attributes={"whole": False})
    slices = [
        slice_of(name="0", counters={"s": {"slots": 2}}, count=2),
        slice_of(share, whole, name="1", count=2),
        slice_of(shared("c", attributes={"whole": False}), name="2", pool="z"),
    ]
    return cluster(*slices), [claim(x=memory(5), y=wants(1, "device.attributes['gpu.example.com'].whole"))]


def two_drivers_one_pool_name() -> tuple[Cluster, list[ResourceClaim]]:
    """The totals of the first driver are used for both."""
    slices = []
    for driver, slots in (("a.example.com", 1), ("b.example.com", 3)):
        device = gpu(driver[0], takes={"s": {"slots": slots}})
        sets = {"s": {"slots": slots}}
        slices.append(slice_of(name=f"{driver}-0", driver=driver, count=2, counters=sets))
        slices.append(slice_of(device, name=f"{driver}-1", driver=driver, count=2))
    return cluster(*slices), [claim(x=wants(2))]


def share_without_capacity() -> tuple[Cluster, list[ResourceClaim]]:
    """The recorded share has taken all slots, but consumed nothing."""
    slices = [
        slice_of(name="0", counters={"s": {"slots": 1}}, count=2),
        slice_of(shared("a", takes={"s": {"slots": 1}}), name="1", count=2),
    ]
    return cluster(*slices, holding(held("a", share_id="s"))), [claim(x=memory(1))]


def forgotten_share() -> tuple[Cluster, list[ResourceClaim]]:
    """The first share of a consumes nothing: once the second one is undone, Kubernetes forgets that a is shared."""
    slices = [
        slice_of(name="0", counters={"s": {"slots": 1}}, count=2),
        slice_of(shared("a", takes={"s": {"slots": 1}}), gpu("b"), name="1", count=2),
    ]
    return cluster(*slices), [claim(x=memory(0), y=[memory(10), memory(5)], z=memory(5), last=memory(0))]


def forgotten_values() -> tuple[Cluster, list[ResourceClaim]]:
    """The first and the third device are alike, and only the second one is remembered."""
    devices = [gpu(name, attributes={"x": value}) for name, value in (("a", 1), ("b", 2), ("c", 1))]
    return cluster(slice_of(*devices)), [claim(distinct("x"), r=wants(3))]


def narrowed_values() -> tuple[Cluster, list[ResourceClaim]]:
    """a and b have only 2 in common, which stays so when b is given up for c."""
    lists = (("a", (1, 2)), ("b", (2,)), ("c", (1, 3)), ("d", (1, 3)))
    devices = [gpu(name, attributes={"x": AttributeList("ints", values)}) for name, values in lists]
    return cluster(slice_of(*devices)), [claim(match("x"), r=wants(3))]


def unfinished_pool_elsewhere() -> tuple[Cluster, list[ResourceClaim]]:
    elsewhere = slice_of(name="0", counters={"s": {"c": 1}}, count=2, pool="other", node_name=OTHER_NODE.name)
    return cluster(elsewhere, slice_of(gpu("a"), name="1")), [claim(x=wants_all())]


@pytest.mark.parametrize(
    ("scenario", "kubernetes", "ideal"),
    [
        (refused_by_constraint, "unavailable", "x=gpu-1-0 y=gpu-1-1"),
        (refused_by_taint, "unavailable", "x=b"),
        (undone_share, "unavailable", "x=c y=b"),
        (two_drivers_one_pool_name, "unavailable", "x=a x=b"),
        (share_without_capacity, "unavailable", "x=a"),
        (forgotten_share, "unavailable", "x=a y/b=a z=a last=a"),
        (forgotten_values, "r=a r=b r=c", "unavailable"),
        (narrowed_values, "unavailable", "r=a r=c r=d"),
        (unfinished_pool_elsewhere, "all-incomplete-pool", "x=a"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_defect_changes_the_answer(scenario: Scenario, kubernetes: str, ideal: str) -> None:
    where, claims = scenario()
    lists = scenario is narrowed_values
    assert picked(ask(where, *claims, features=replace(OLDER, list_constraints=lists))) == kubernetes
    assert picked(ask(where, *claims, features=Features(list_constraints=lists, as_specified=True))) == ideal


def test_full_shared_device_stays_in_the_constraint() -> None:
    """All listed the device before another request filled it; refused then, it still counts for the constraint."""
    filled = shared("a", attributes={"x": 1})
    other = gpu("b", attributes={"x": 2})
    requests: Requests = {"r": memory(10, "device.allowMultipleAllocations")}
    all_shared = wants_all("device.allowMultipleAllocations")
    alternatives = [all_shared, wants(1, "!device.allowMultipleAllocations")]
    asked = claim(match("x", "s"), **requests, s=alternatives)
    where = cluster(slice_of(filled, other))
    assert picked(ask(where, asked, features=OLDER)) == "unavailable"
    assert picked(ask(where, asked)) == "r=a s/b=b"


@pytest.mark.parametrize(
    ("scenario", "before", "after"),
    [
        (refused_by_constraint, "unavailable", "x=gpu-1-0 y=gpu-1-1"),
        (two_drivers_one_pool_name, "unavailable", "x=a x=b"),
        (undone_share, "unavailable", "x=c y=b"),
        (forgotten_values, "r=a r=b r=c", "r=a r=b r=c"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_patch_release_of_1_36_gives_counters_back(scenario: Scenario, before: str, after: str) -> None:
    where, claims = scenario()
    for release, expected in (("1.36.2", before), ("1.36.4", after), ("1.36.9", after)):
        assert picked(ask(where, *claims, features=Features.from_gates({}, release=release))) == expected, release


BOTH = ClaimConfiguration(("x", "y"), opaque("both"))


@pytest.mark.parametrize(("release", "entries"), [("1.36", [("x", "y"), ("x", "y")]), ("1.37", [()])])
def test_configuration_of_all_requests_names_none_since_1_37(release: str, entries: list[tuple[str, ...]]) -> None:
    asked = claim(x=wants(), y=wants(), config=[BOTH])
    outcome = ask(slice_of(gpu("a"), gpu("b")), asked, features=Features(release=release))
    assert [entry.requests for entry in outcome.allocations[0].config] == entries


def test_configuration_for_some_requests_names_them() -> None:
    asked = claim(x=wants(), y=wants(), z=wants(), config=[BOTH])
    outcome = ask(slice_of(gpu("a"), gpu("b"), gpu("c")), asked, features=Features(release="1.37"))
    assert [entry.requests for entry in outcome.allocations[0].config] == [("x", "y")]
