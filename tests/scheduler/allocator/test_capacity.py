# SPDX-License-Identifier: Apache-2.0
"""Shares of devices: what a request takes of a capacity, and how much is left for the next one."""

from dataclasses import replace

import pytest

from dra_driver.kube.resource import DeviceCapacity, DeviceRequirements, Quantity, RequestPolicy, RequestRange
from dra_driver.scheduler.allocator import ErrorKind, Features
from dra_driver.scheduler.allocator.capacity import Arithmetic, CapacityRefusal, amounts_for

from .build import (
    Requests,
    ask,
    claim,
    cluster,
    gpu,
    held,
    holding,
    picked,
    quantities,
    shared,
    slice_of,
    wants,
    wants_all,
)

OLDER = Features.from_gates({}, release="1.36")
"""A release with defects that later ones do not have."""

Q = Quantity.parse


def policy(default: str | None = None, *values: str, least: str = "", most: str = "", step: str = "") -> RequestPolicy:
    valid = RequestRange(Q(least), Q(most) if most else None, Q(step) if step else None) if least else None
    return RequestPolicy(Q(default) if default else None, tuple(map(Q, values)), valid)


@pytest.mark.parametrize(
    ("request_policy", "requested", "taken"),
    [
        pytest.param(None, None, "8Gi", id="nothing requested takes all"),
        pytest.param(None, "2Gi", "2Gi", id="no policy takes what is requested"),
        pytest.param(policy("1Gi"), None, "1Gi", id="the default"),
        pytest.param(policy("1Gi"), "3Gi", "3Gi", id="a default alone rules nothing out"),
        pytest.param(policy(None, "1Gi", "4Gi"), "2Gi", "4Gi", id="the next valid value"),
        pytest.param(policy(None, "1Gi", "4Gi"), "5Gi", None, id="beyond the valid values"),
        pytest.param(policy(None, "1Gi", "4Gi"), None, None, id="all is no valid value"),
        pytest.param(policy(None, least="2Gi"), "1Gi", "2Gi", id="raised to the minimum"),
        pytest.param(policy(None, least="1Gi", most="4Gi"), "5Gi", None, id="beyond the maximum"),
        pytest.param(policy(None, least="1Gi", step="2Gi"), "2Gi", "3Gi", id="a step from the minimum"),
        pytest.param(policy(None, least="1Gi", most="4Gi", step="2Gi"), "4Gi", None, id="a step beyond the maximum"),
        pytest.param(policy(None, least="1", step="1"), "1500m", "2", id="fractions are rounded up"),
        pytest.param(policy(None, least="1k", step="24"), "1001", "1Ki", id="a rounded amount has a binary suffix"),
        pytest.param(policy("8Gi", least="1Gi", most="4Gi"), None, "8Gi", id="a default need not be in the range"),
        pytest.param(policy(None, least="1Gi", step="3Gi"), None, None, id="all is no step"),
        pytest.param(
            policy("7Gi", least="1Gi", most="4Gi", step="2Gi"), "6Gi", "7Gi", id="a rounded amount can be the default"
        ),
    ],
)
def test_amount_follows_the_policy_of_the_device(
    request_policy: RequestPolicy | None, requested: str | None, taken: str | None
) -> None:
    capacities = {"memory": DeviceCapacity(Q("8Gi"), request_policy)}
    amounts = amounts_for(capacities, {} if requested is None else {"memory": Q(requested)})
    assert (None if isinstance(amounts, CapacityRefusal) else str(amounts["memory"])) == taken


def test_range_beyond_an_int64_of_thousandths_is_computed_in_wholes() -> None:
    capacities = {"memory": DeviceCapacity(Q("16Pi"), policy("1Gi", least="1Gi", most="16Pi", step="1Gi"))}
    amounts = amounts_for(capacities, {"memory": Q("9Pi")}, Arithmetic(is_checked=True, fractions=True))
    assert amounts == {"memory": Q("9Pi")}


def test_capacity_that_does_not_exist_cannot_be_requested() -> None:
    assert amounts_for({}, quantities({"memory": 1})) == CapacityRefusal("memory", "the device has no such capacity")


def takes(memory: int | None) -> DeviceRequirements:
    return wants(capacity_requests=quantities({} if memory is None else {"memory": memory}))


@pytest.mark.parametrize(
    ("amounts", "answer"),
    [
        ([4, 6], "r0=a r1=a"),
        ([4, 7], "r0=a r1=b"),
        ([None, 1], "r0=a r1=b"),
        ([11], "unavailable"),
        ([6, 6, 6], "unavailable"),
    ],
)
def test_several_requests_share_a_device_while_there_is_room(amounts: list[int | None], answer: str) -> None:
    requests: Requests = {f"r{n}": takes(amount) for n, amount in enumerate(amounts)}
    assert picked(ask(slice_of(shared("a"), shared("b")), claim(**requests))) == answer


def test_request_takes_one_share_of_a_device() -> None:
    two = wants(2, capacity_requests=quantities({"memory": 1}))
    assert picked(ask(slice_of(shared("a"), shared("b")), claim(x=two))) == "x=a x=b"
    assert picked(ask(slice_of(shared("a")), claim(x=two))) == "unavailable"


def test_claims_in_use_reduce_the_available_counters() -> None:
    share = holding(held("a", share_id="s", consumed={"memory": 7}))
    where = cluster(slice_of(shared("a")), share)
    assert picked(ask(where, claim(x=takes(3)))) == "x=a"
    assert picked(ask(where, claim(x=takes(4)))) == "unavailable"


def test_shared_device_held_without_share_is_held_as_a_whole() -> None:
    assert picked(ask([slice_of(shared("a")), holding(held("a"))], claim(x=takes(1)))) == "unavailable"


def test_request_for_all_skips_shared_devices_without_room() -> None:
    where = cluster(slice_of(shared("a"), shared("b")), holding(held("a", share_id="s", consumed={"memory": 10})))
    assert picked(ask(where, claim(x=wants_all(capacity_requests=quantities({"memory": 1}))))) == "x=b"


def test_ordinary_device_must_have_what_is_requested() -> None:
    where = slice_of(gpu("small", capacity={"memory": 4}), gpu("large", capacity={"memory": 8}))
    outcome = ask(where, claim(x=takes(6)))
    assert picked(outcome) == "x=large"
    assert outcome.allocations[0].results[0].share_id is None
    assert not outcome.allocations[0].results[0].consumed_capacity


def test_share_names_all_consumed_capacity_and_has_an_id() -> None:
    result = ask(slice_of(shared("a")), claim(x=takes(4))).allocations[0].results[0]
    assert result.share_id
    assert result.consumed_capacity == quantities({"memory": 4})


def test_shares_are_whole_devices_without_the_gate() -> None:
    off = Features(consumable_capacity=False)
    where = cluster(slice_of(shared("a"), shared("b")), holding(held("a", share_id="s", consumed={"memory": 1})))
    outcome = ask(where, claim(x=wants()), features=off)
    assert picked(outcome) == "x=b"
    assert outcome.allocations[0].results[0].share_id is None
    assert picked(ask(where, claim(x=takes(1)), features=off)) == ErrorKind.FEATURE_DISABLED


def consumption(amount: str, capacity: DeviceCapacity, features: Features) -> list[str]:
    """What two requests of one claim consume of one device when both ask for `amount`."""
    device = gpu("a", capacity={"memory": capacity}, allow_multiple_allocations=True)
    required = wants(capacity_requests=quantities({"memory": amount}))
    outcome = ask(cluster(slice_of(device)), claim(x=required, y=required), features=features)
    results = outcome.allocations[0].results if outcome.allocations else ()
    return [str(one.consumed_capacity["memory"]) for one in results]


@pytest.mark.parametrize(
    ("amount", "request_policy", "consumed"),
    [
        pytest.param(
            "1Pi", policy("1Pi", least="1Pi"), ["1Pi", "3Pi"], id="each of two comparisons adds the first share"
        ),
        pytest.param("1Pi", policy("1Pi"), ["1Pi", "3Pi"], id="a default alone takes the request as it is"),
        pytest.param("100Ti", policy(None, least="1Ti"), ["100Ti", "300Ti"], id="the smallest decimal of its suffix"),
        pytest.param("10Ti", policy(None, least="1Ti"), ["10Ti", "10Ti"], id="an integer"),
        pytest.param("1536Mi", policy(None, least="1Mi"), ["1536Mi", "1536Mi"], id="an integer, too"),
        pytest.param("1.5Gi", policy(None, least="1Mi"), ["1536Mi", "1536Mi"], id="the API server writes an integer"),
        pytest.param("1Pi", policy(None, least="2Pi"), ["2Pi", "2Pi"], id="raised to the minimum, a copy"),
        pytest.param("1Pi", policy(None, least="1Pi", step="1Pi"), ["1Pi", "1Pi"], id="rounded to a step, a copy"),
        pytest.param("1Pi", policy(None, "1Pi", "8Pi"), ["1Pi", "1Pi"], id="a valid value, a copy"),
        pytest.param("1Pi", None, ["1Pi", "1Pi"], id="no policy, a copy"),
        pytest.param("4Pi", policy(None, least="1Pi"), [], id="the second grows beyond the capacity"),
    ],
)
def test_request_that_is_kept_as_a_decimal_grows(
    amount: str, request_policy: RequestPolicy | None, consumed: list[str]
) -> None:
    capacity = DeviceCapacity(Q("8Pi"), request_policy)
    assert consumption(amount, capacity, OLDER) == consumed
    lawful = consumption(amount, capacity, replace(OLDER, as_specified=True))
    assert len(set(lawful)) == 1
    assert len(lawful) == 2


def test_request_that_grew_needs_more_of_other_devices() -> None:
    """It is compared with the full device before, which adds what is picked of that."""
    taken = policy(None, least="1Pi")
    full = gpu("a", capacity={"memory": DeviceCapacity(Q("1Pi"), taken)}, allow_multiple_allocations=True)
    others = [gpu(name, capacity={"memory": size}) for name, size in (("b", "1536Ti"), ("c", "2Pi"))]
    required = wants(capacity_requests=quantities({"memory": "1Pi"}))
    asked = claim(x=required, y=required)
    where = cluster(slice_of(full, *others))
    assert picked(ask(where, asked, features=OLDER)) == "x=a y=c"
    assert picked(ask(where, asked)) == "x=a y=b"


@pytest.mark.parametrize(
    ("wanted", "published", "before"),
    [
        ("memory", "memory", True),
        ("gpu.example.com/memory", "memory", False),
        ("memory", "gpu.example.com/memory", False),
        ("other.example.com/memory", "memory", None),
    ],
)
def test_capacity_is_found_with_and_without_the_drivers_domain_since_1_38(
    wanted: str, published: str, before: bool | None
) -> None:
    device = gpu("a", capacity={published: 8}, allow_multiple_allocations=True)
    asked = claim(x=wants(capacity_requests=quantities({wanted: 2})))
    for release, finds in (("1.37", bool(before)), ("1.38", before is not None)):
        outcome = ask(cluster(slice_of(device)), asked, features=Features.from_gates({}, release=release))
        assert (outcome.kind == "allocated") is finds, release
        for allocation in outcome.allocations:
            assert set(allocation.results[0].consumed_capacity) == {published}


def test_capacity_with_the_drivers_domain_counts_if_both_names_are_published() -> None:
    device = gpu("a", capacity={"memory": 1, "gpu.example.com/memory": 8}, allow_multiple_allocations=True)
    asked = claim(x=wants(capacity_requests=quantities({"memory": 2})))
    outcome = ask(cluster(slice_of(device)), asked, features=Features.from_gates({}, release="1.38"))
    consumed = outcome.allocations[0].results[0].consumed_capacity
    assert {name: str(amount) for name, amount in consumed.items()} == {"memory": "1", "gpu.example.com/memory": "2"}
