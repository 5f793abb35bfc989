# SPDX-License-Identifier: Apache-2.0
"""The device variable: domains, defaults, malformed attributes; and what an expression reads of it."""

import pytest

from dra_driver.kube.resource import Device, MalformedAttribute, Version
from dra_driver.scheduler.cel import Reads, compile_selector

from .support import DEVICE, DRIVER, LISTS, WITH_LISTS, WITHOUT_LISTS, answer


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.driver == 'gpu.example.com' && !device.allowMultipleAllocations", True),
        ("device.attributes['gpu.example.com'].count == 7", True),
        ("device.attributes['net.example.com'].speed == 100", True),
        ("device.attributes['gpu.example.com/count'].size() == 0", True),
        ("device.attributes['none'].size() == 0 && has(device.attributes.none)", True),
        ("'none' in device.attributes || 'none' in device.capacity", False),
        ("device.attributes.size() == 2 && device.attributes['gpu.example.com'].size() == 4", True),
        ("device.attributes['none'].x == 1", "no_such_key"),
        ("'count' in device.attributes['gpu.example.com'] && !(dyn(1) in device.attributes['gpu.example.com'])", True),
        ("device.attributes['gpu.example.com'].map(k, k).sort() == ['count', 'model', 'shared', 'version']", True),
        ("device.attributes.exists(d, d == 'net.example.com')", True),
        ("device.attributes['gpu.example.com'].model.x == 1", "no_such_key"),
        ("device.attributes['gpu.example.com'].model < 5", "no_such_overload"),
        ("device.attributes['gpu.example.com'].model == 5", False),
        ("device['driver'] == 'x'", "compile:no_matching_overload"),
    ],
)
def test_maps_have_two_levels_and_a_default(expression: str, expected: bool | str) -> None:
    assert answer(expression) == expected


@pytest.mark.parametrize(
    "device",
    [
        LISTS,
        Device("a", attributes={"x": MalformedAttribute({})}),
        Device("b", attributes={"x": Version("1.2")}),
    ],
)
def test_an_attribute_without_a_value_fails_every_expression(device: Device) -> None:
    assert answer("true", device, WITHOUT_LISTS) == "device_attribute"
    assert answer("true", DEVICE) is True


def test_attribute_with_several_values_has_that_of_the_first_field() -> None:
    device = Device("a", attributes={"x": MalformedAttribute({"string": "a", "int": 1, "strings": ["b"]})})
    assert answer("device.attributes['gpu.example.com'].x == 1", device, WITHOUT_LISTS) is True
    assert answer("device.attributes['gpu.example.com'].x == ['b']", device, WITH_LISTS) is True


def test_a_quantity_changes_within_one_evaluation_only() -> None:
    selector = compile_selector("device.capacity['gpu.example.com'].memory.add(quantity('0.5')).isInteger()")
    assert [selector.matches(DRIVER, DEVICE) for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("expression", "reads"),
    [
        ("device.driver == 'a' && device.allowMultipleAllocations", Reads()),
        ("device.attributes['d'].a == 1 || has(device.attributes['d'].b)", Reads(frozenset({("d", "a"), ("d", "b")}))),
        ("device.capacity.d.?m.hasValue()", Reads(capacities=frozenset({("d", "m")}))),
        ("device.attributes[device.driver].a == 1", Reads(everything=True)),
        ("device.attributes['d'].exists(k, true)", Reads(everything=True)),
        ("'a' in device.attributes['d']", Reads(everything=True)),
        ("cel.bind(a, device.attributes['d'], a.x == 1)", Reads(everything=True)),
        ("{'a': 1}[device.attributes['d'].k] == 1", Reads(frozenset({("d", "k")}))),
    ],
)
def test_reads_are_what_the_value_depends_on(expression: str, reads: Reads) -> None:
    assert compile_selector(expression).reads == reads
