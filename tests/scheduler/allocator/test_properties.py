# SPDX-License-Identifier: Apache-2.0
"""What holds for every cluster and every claim."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.kube.resource import (
    Device,
    DeviceCapacity,
    DeviceConstraint,
    DeviceRequirements,
    DeviceTaint,
    Node,
    ObjectMeta,
    Quantity,
    RequestPolicy,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.scheduler.allocator import Cluster, Features, NodeOutcome, Recorder, allocate, allocate_all
from tests.support import examples

from .build import (
    ANY_CLASS,
    DRIVER,
    NODE,
    OTHER_NODE,
    Requests,
    claim,
    distinct,
    gpu,
    held,
    holding,
    match,
    quantities,
    slice_of,
    wants,
    wants_all,
)

T = TypeVar("T")

SLOTS, MEMORY = 4, 6
SELECTORS = [(), (f"device.attributes['{DRIVER}'].x == 0",), ("device.allowMultipleAllocations",)]
FEATURES = st.sampled_from([Features(), Features(as_specified=True)])


@st.composite
def devices(draw: st.DrawFn, prefix: str) -> list[Device]:
    made = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["whole", "part", "shared", "shared part"]))
        fields: dict[str, Any] = {"takes": {"s": {"slots": draw(st.integers(0, SLOTS))}}} if "part" in kind else {}
        if "shared" in kind:
            free = RequestPolicy(Quantity.of(0)) if draw(st.booleans()) else None
            memory = DeviceCapacity(Quantity.of(MEMORY), free)
            fields |= {"allow_multiple_allocations": True, "capacity": {"memory": memory}}
        if draw(st.integers(0, 5)) == 0:
            fields["taints"] = (DeviceTaint("k", "NoSchedule"),)
        attributes = {"x": draw(st.integers(0, 2)), "even": number % 2 == 0}
        made.append(gpu(f"{prefix}-{number}", attributes=attributes, **fields))
    return made


@st.composite
def slices(draw: st.DrawFn, node: Node) -> list[ResourceSlice]:
    """One pool of the node: counters and one or two slices of devices."""
    every = draw(devices(node.name))
    cut = draw(st.integers(0, len(every)))
    return [
        slice_of(
            *part,
            name=f"{node.name}-{name}",
            pool=node.name,
            node_name=node.name,
            count=3,
            counters={"s": {"slots": SLOTS}} if name == "counters" else None,
        )
        for name, part in (("counters", []), ("first", every[:cut]), ("second", every[cut:]))
    ]


@st.composite
def requests(draw: st.DrawFn) -> DeviceRequirements | list[DeviceRequirements]:
    def one() -> DeviceRequirements:
        capacity = quantities({"memory": draw(st.integers(0, MEMORY))}) if draw(st.booleans()) else {}
        selectors = draw(st.sampled_from(SELECTORS))
        if draw(st.integers(0, 7)) == 0:
            return wants_all(*selectors, capacity_requests=capacity)
        return wants(draw(st.integers(1, 3)), *selectors, capacity_requests=capacity)

    return [one() for _ in range(draw(st.integers(2, 3)))] if draw(st.integers(0, 3)) == 0 else one()


@st.composite
def claims(draw: st.DrawFn) -> list[ResourceClaim]:
    made = []
    for number in range(draw(st.integers(1, 2))):
        wanted: Requests = {f"r{n}": draw(requests()) for n in range(draw(st.integers(1, 2)))}
        constraints: list[DeviceConstraint] = draw(
            st.lists(st.sampled_from([match("x"), distinct("x"), match("even", "r0")]), max_size=1)
        )
        made.append(claim(*constraints, name=f"claim-{number}", **wanted))
    return made


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    every = [slice_ for node in (NODE, OTHER_NODE) for slice_ in draw(slices(node))]
    in_use = []
    for slice_ in every:
        for device in slice_.devices:
            if draw(st.integers(0, 5)) == 0:
                share = device.allow_multiple_allocations
                consumed = {"memory": draw(st.integers(0, MEMORY))} if share and draw(st.booleans()) else {}
                result = held(device.name, pool=slice_.pool.name, share_id="s" if share else None, consumed=consumed)
                in_use.append(holding(result, name=f"holds-{device.name}"))
    return Cluster(tuple(every), (ANY_CLASS,), (NODE, OTHER_NODE), tuple(in_use))


def answer(where: Cluster, asked: list[ResourceClaim], features: Features, **fields: Any) -> NodeOutcome:
    return allocate(where, asked, NODE.name, features, share_ids=lambda: "id", **fields)


@settings(max_examples=examples(300), deadline=None)
@given(clusters(), claims(), FEATURES)
def test_no_device_is_allocated_twice(where: Cluster, asked: list[ResourceClaim], features: Features) -> None:
    """Devices, counters and capacity, counting what was in use: more is not given than there is."""
    outcome = answer(where, asked, features)
    published = {device.name: device for slice_ in where.slices for device in slice_.devices}
    given_now = [result for allocation in outcome.allocations for result in allocation.results]
    every = [result for holder in where.claims if holder.allocation for result in holder.allocation.results]
    every += given_now
    whole = Counter(result.device for result in every if result.share_id is None)
    touched = {result.device for result in given_now}
    assert all(number == 1 for name, number in whole.items() if name in touched)
    for name in touched:
        shares = [result for result in every if result.device == name and result.share_id]
        assert sum(share.consumed_capacity["memory"].value for share in shares if share.consumed_capacity) <= MEMORY
    before = {result.device for result in every[: len(every) - len(given_now)] if result.pool == NODE.name}
    if any(published[name].consumes_counters for name in touched):
        # Too much may have been in use before; another share of a device in use takes no more of the counters.
        assert slots(before | touched, published) <= max(SLOTS, slots(before, published))


def slots(names: set[str], published: Mapping[str, Device]) -> int:
    """What the devices take of the pool's counter."""
    return sum(taken.counters["slots"].value for name in names for taken in published[name].consumes_counters)


@settings(max_examples=examples(150), deadline=None)
@given(clusters(), claims(), FEATURES, st.randoms(use_true_random=False))
def test_order_of_slices_nodes_and_claims_in_use_does_not_matter(
    where: Cluster, asked: list[ResourceClaim], features: Features, random: Random
) -> None:
    def shuffled(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(random.sample(items, len(items)))

    other = Cluster(shuffled(where.slices), where.classes, shuffled(where.nodes), shuffled(where.claims))
    assert answer(where, asked, features) == answer(other, asked, features)


@settings(max_examples=examples(150), deadline=None)
@given(clusters(), claims(), FEATURES)
def test_skipped_attempts_do_not_change_the_answer(
    where: Cluster, asked: list[ResourceClaim], features: Features
) -> None:
    """An observer is shown every candidate; without one, some are not tried."""
    watched = answer(where, asked, features, observer=Recorder(), limit=20_000)
    if watched.error_kind != "search-limit":
        assert answer(where, asked, features) == watched


@settings(max_examples=examples(150), deadline=None)
@given(clusters(), claims(), FEATURES, st.booleans())
def test_nodes_have_the_same_answers_together_and_alone(
    where: Cluster, asked: list[ResourceClaim], features: Features, twice: bool
) -> None:
    """Also when another node has the same devices under other names."""
    if twice:
        twin = Node(ObjectMeta(name="node-twin"))
        copies = [
            replace(
                slice_,
                metadata=ObjectMeta(name=f"twin-{slice_.metadata.name}"),
                node_name=twin.name,
                pool=replace(slice_.pool, name=twin.name),
            )
            for slice_ in where.slices
            if slice_.node_name == NODE.name
        ]
        where = Cluster((*where.slices, *copies), where.classes, (*where.nodes, twin), where.claims)
    outcomes = allocate_all(where, asked, features, share_ids=lambda: "id")
    for node in where.nodes:
        assert outcomes[node.name] == allocate(where, asked, node.name, features, share_ids=lambda: "id")


@settings(max_examples=examples(150), deadline=None)
@given(clusters(), claims(), FEATURES, st.data())
def test_cluster_after_a_change_of_claims_answers_as_a_new_cluster(
    before: Cluster, asked: list[ResourceClaim], features: Features, data: st.DataObject
) -> None:
    outcome = allocate_all(before, asked, features, share_ids=lambda: "id")[NODE.name]
    allocated = [replace(one, allocation=given) for one, given in zip(asked, outcome.allocations, strict=False)]
    released = [one for one in before.claims if data.draw(st.booleans())]
    after = before.after(allocated, released)
    assert set(map(str, after.claims)) == set(map(str, (*before.claims, *allocated))) - set(map(str, released))
    anew = Cluster(after.slices, after.classes, after.nodes, after.claims)
    found, wanted = (allocate_all(one, asked, features, share_ids=lambda: "id") for one in (after, anew))
    assert found.groups == wanted.groups
    assert dict(found) == dict(wanted)


@settings(max_examples=examples(100), deadline=None)
@given(clusters(), claims())
def test_allocator_as_specified_finds_every_allocation_of_kubernetes_except_for_forgotten_values(
    where: Cluster, asked: list[ResourceClaim]
) -> None:
    kubernetes, ideal = answer(where, asked, Features()), answer(where, asked, Features(as_specified=True))
    forgets = any(constraint.distinct_attribute for one in asked for constraint in one.spec.constraints)
    if kubernetes.kind == "allocated" and not forgets:
        assert ideal.kind == "allocated"


@st.composite
def simple_claims(draw: st.DrawFn) -> list[ResourceClaim]:
    """Exact counts only, with what a person could check by hand."""
    counts = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    wanted: Requests = {f"r{n}": wants(count, *draw(st.sampled_from(SELECTORS[:2]))) for n, count in enumerate(counts)}
    constraints: list[DeviceConstraint] = draw(st.lists(st.sampled_from([match("even"), distinct("x")]), max_size=2))
    return [claim(*constraints, **wanted)]


def fits(chosen: Sequence[Device], asked: ResourceClaim) -> bool:
    """Whether these devices, one for each that is asked for, meet everything."""
    exact = [request.exactly for request in asked.spec.requests if request.exactly is not None]
    wanted = [required for required in exact for _ in range(required.count)]
    names = [device.name for device in chosen]
    slots = sum(taken.counters["slots"].value for device in chosen for taken in device.consumes_counters)
    return (
        len(set(names)) == len(names)
        and slots <= SLOTS
        and not any(device.taints for device in chosen)
        and all(not one.selectors or device.attributes["x"] == 0 for one, device in zip(wanted, chosen, strict=True))
        and all(
            len({device.attributes["even"] for device in chosen}) == 1
            if constraint.match_attribute
            else len({device.attributes["x"] for device in chosen}) == len(chosen)
            for constraint in asked.spec.constraints
        )
    )


@settings(max_examples=examples(200), deadline=None)
@given(devices("gpu"), simple_claims())
def test_allocator_as_specified_finds_an_allocation_if_a_choice_of_devices_exists(
    published: list[Device], asked: list[ResourceClaim]
) -> None:
    published = [replace(device, allow_multiple_allocations=False, capacity={}) for device in published]
    where = Cluster(
        (
            slice_of(name="counters", count=2, counters={"s": {"slots": SLOTS}}),
            slice_of(*published, name="devices", count=2),
        ),
        (ANY_CLASS,),
        (NODE,),
    )
    number = sum(request.exactly.count for request in asked[0].spec.requests if request.exactly)
    possible = any(fits(chosen, asked[0]) for chosen in itertools.permutations(published, number))
    assert (answer(where, asked, Features(as_specified=True)).kind == "allocated") is possible


@st.composite
def claims_for_shares(draw: st.DrawFn) -> ResourceClaim:
    """Exact counts only, each of an amount of memory that may be nothing."""
    wanted: Requests = {}
    for number in range(draw(st.integers(1, 4))):
        memory = quantities({"memory": draw(st.integers(0, MEMORY))})
        wanted[f"r{number}"] = wants(draw(st.integers(1, 2)), capacity_requests=memory)
    return claim(**wanted)


def fits_shared(chosen: Sequence[tuple[Device, ...]], asked: ResourceClaim) -> bool:
    """Whether the devices chosen for each request meet everything: a shared one takes its counters once."""
    every = [device for devices in chosen for device in devices]
    whole = [device.name for device in every if not device.allow_multiple_allocations]
    consumed: Counter[str] = Counter()
    for devices, request in zip(chosen, asked.spec.requests, strict=True):
        assert request.exactly is not None
        for device in devices:
            consumed[device.name] += request.exactly.capacity_requests["memory"].value
    names = {device.name for device in every}
    published = {device.name: device for device in every}
    return (
        len(set(whole)) == len(whole)
        and all(amount <= MEMORY for amount in consumed.values())
        and not any(device.taints or "memory" not in device.capacity for device in every)
        and sum(taken.counters["slots"].value for name in names for taken in published[name].consumes_counters) <= SLOTS
    )


@settings(max_examples=examples(200), deadline=None)
@given(devices("gpu"), claims_for_shares())
def test_allocator_as_specified_finds_shares_if_a_choice_of_shares_exists(
    published: list[Device], asked: ResourceClaim
) -> None:
    published = published[:4]
    where = Cluster(
        (
            slice_of(name="counters", count=2, counters={"s": {"slots": SLOTS}}),
            slice_of(*published, name="devices", count=2),
        ),
        (ANY_CLASS,),
        (NODE,),
    )
    choices = [
        itertools.combinations(published, request.exactly.count) for request in asked.spec.requests if request.exactly
    ]
    possible = any(fits_shared(chosen, asked) for chosen in itertools.product(*choices))
    assert (answer(where, [asked], Features(as_specified=True)).kind == "allocated") is possible
    answer(where, [asked], Features())  # may differ, by the defects of the release, but has to be one
