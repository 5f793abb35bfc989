# SPDX-License-Identifier: Apache-2.0
"""matchAttribute and distinctAttribute on values of every type, lists included."""

import pytest

from dra_driver.kube.resource import AttributeList, AttributeValue, DeviceConstraint, MalformedAttribute, Version
from dra_driver.scheduler.allocator import ErrorKind, Features

from .build import DRIVER, Requests, ask, claim, distinct, gpu, match, picked, slice_of, wants

SCALARS = Features()
LISTS = Features(list_constraints=True)
AB = AttributeList("strings", ("a", "b"))
BC = AttributeList("strings", ("b", "c"))
CD = AttributeList("strings", ("c", "d"))
NONE = AttributeList("strings", ())


def alike(*values: object, features: Features = SCALARS, constraint: DeviceConstraint | None = None) -> bool:
    """Whether devices with these values of attribute x can be had together."""
    devices = [gpu(f"gpu-{n}", attributes={"x": value}) for n, value in enumerate(values)]
    outcome = ask(slice_of(*devices), claim(constraint or match("x"), r=wants(len(values))), features=features)
    return outcome.kind == "allocated"


def differ(*values: object, features: Features = SCALARS) -> bool:
    """Whether devices with these values of attribute x can be had for requests that must differ."""
    devices = [gpu(f"gpu-{n}", attributes={"x": value}) for n, value in enumerate(values)]
    requests: Requests = {f"r{n}": wants(1) for n in range(len(values))}
    return ask(slice_of(*devices), claim(distinct("x"), **requests), features=features).kind == "allocated"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("a", "a", True),
        ("a", "b", False),
        (1, 1, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ("1", 1, False),
        (Version("1.0.0"), Version("1.0.0"), True),
        (Version("1.0.0"), Version("1.0.0+build"), False),
        (Version("1.0.0"), "1.0.0", False),
        (MalformedAttribute({"string": "a", "int": 1}), "a", True),
        ("a", MalformedAttribute({"string": "a", "int": 1}), True),
        (1, MalformedAttribute({"string": "a", "int": 1}), False),
    ],
)
def test_values_are_compared_with_their_type(one: AttributeValue, other: AttributeValue, equal: bool) -> None:
    assert alike(one, other) is equal
    if not isinstance(one, MalformedAttribute) and not isinstance(other, MalformedAttribute):
        assert differ(one, other) is not equal


def test_list_never_matches_a_second_device() -> None:
    assert alike(AB)
    assert not alike(AB, AB)
    assert not differ(AB, CD)


@pytest.mark.parametrize(
    ("values", "common"),
    [
        ((AB, BC), True),
        ((AB, CD), False),
        ((AB, BC, CD), False),
        ((AB, "a"), True),
        (("a", AB, AB), True),
        ((AB, 1), False),
        ((NONE,), False),
        ((AttributeList("ints", (1, 2)), 2), True),
        ((AttributeList("versions", (Version("1.0.0"),)), Version("1.0.0")), True),
        ((AttributeList("versions", (Version("1.0.0"),)), "1.0.0"), False),
        ((MalformedAttribute({"string": "z", "strings": ["a"]}), AB), True),
    ],
)
def test_lists_match_if_they_have_a_common_value(values: tuple[AttributeValue, ...], common: bool) -> None:
    assert alike(*values, features=LISTS) is common


@pytest.mark.parametrize(
    ("values", "disjoint"), [((AB, CD), True), ((AB, BC), False), ((AB, "c"), True), ((NONE, NONE), False)]
)
def test_lists_are_distinct_when_they_have_nothing_in_common(
    values: tuple[AttributeValue, ...], disjoint: bool
) -> None:
    assert differ(*values, features=LISTS) is disjoint


def test_devices_can_omit_the_domain_of_the_driver() -> None:
    devices = [gpu("a", attributes={f"{DRIVER}/x": "v"}), gpu("b", attributes={"x": "v"})]
    assert picked(ask(slice_of(*devices), claim(match("x"), r=wants(2)))) == "r=a r=b"


def test_attribute_of_another_domain_is_found_by_its_full_name() -> None:
    other = DeviceConstraint(match_attribute="other.example.com/x")
    assert not alike("v", "v", constraint=other)


def test_constraint_needs_an_attribute() -> None:
    assert picked(ask(slice_of(gpu("a")), claim(DeviceConstraint(), r=wants()))) == ErrorKind.UNSUPPORTED_CONSTRAINT


def test_oldest_allocator_does_not_know_distinct() -> None:
    stable = Features(consumable_capacity=False, binding_conditions=False)
    where = slice_of(gpu("a", attributes={"x": 1}))
    assert picked(ask(where, claim(distinct("x"), r=wants()), features=stable)) == ErrorKind.UNSUPPORTED_CONSTRAINT
    assert picked(ask(where, claim(match("x"), r=wants()), features=stable)) == "r=a"
