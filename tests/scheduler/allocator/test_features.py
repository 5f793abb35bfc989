# SPDX-License-Identifier: Apache-2.0
"""Feature gates by name, and which of Kubernetes' allocators they select."""

from dataclasses import fields, replace

import pytest

from dra_driver.scheduler.allocator import ISSUES, Defects, ErrorKind, Features
from dra_driver.scheduler.allocator.features import Variant

from .build import Requests, ask, claim, gpu, picked, quantities, slice_of, wants

GATES = {field.name for field in fields(Features)} - {"list_constraints", "release", "as_specified", "without_defects"}


@pytest.mark.parametrize(
    ("gates", "variant"),
    [
        ({}, Variant.INCUBATING),
        ({"DRAConsumableCapacity": False}, Variant.INCUBATING),
        ({"DRAConsumableCapacity": False, "DRADeviceBindingConditions": False}, Variant.STABLE),
        ({"DRAConsumableCapacity": False, "DRAResourceClaimDeviceStatus": False}, Variant.STABLE),
        ({"DRAListTypeAttributes": True}, Variant.EXPERIMENTAL),
    ],
)
def test_oldest_allocator_that_supports_all_features_is_used(gates: dict[str, bool], variant: Variant) -> None:
    assert Features.from_gates(gates).variant is variant


def test_constraints_on_lists_need_the_newest_allocator() -> None:
    assert Features(list_constraints=True).variant is Variant.EXPERIMENTAL


def test_lists_are_not_compared_before_1_37() -> None:
    older = Features.from_gates({"DRAListTypeAttributes": True}, release="1.36")
    assert older.variant is Variant.INCUBATING


def test_unknown_gates_and_releases_are_refused() -> None:
    with pytest.raises(ValueError, match="DRANothing"):
        Features.from_gates({"DRANothing": True})
    for release in ("1.2", "1.32", "1.36.x", "1.37.", ""):
        with pytest.raises(ValueError, match="cannot be imitated"):
            Features(release=release)


def test_allocator_as_specified_has_no_defects() -> None:
    assert Features(as_specified=True).defects == Defects()
    assert Features().defects != Defects()


def test_single_defect_can_be_left_out() -> None:
    older = Features(release="1.36")
    before, after = older.defects, replace(older, without_defects=frozenset({"distinct_forgets"})).defects
    assert before.distinct_forgets
    assert after == replace(before, distinct_forgets=False)


def test_reported_defects_are_defects() -> None:
    assert set(ISSUES) <= {field.name for field in fields(Defects)}


ALPHA = {
    *("list_attributes", "compatibility_groups", "derived_attributes", "optional_node_operations"),
    "node_allocatable_resources",
}


@pytest.mark.parametrize(
    ("release", "on"),
    [
        ("1.34", {"admin_access", "prioritized_list", "claim_device_status", "device_taint_rules"}),
        ("1.35", {"admin_access", "prioritized_list", "claim_device_status", "device_taint_rules"}),
        ("1.36", GATES - ALPHA - {"fractional_capacity"}),
        ("1.37", GATES - ALPHA),
        ("1.38", GATES - ALPHA),
    ],
)
def test_release_brings_its_own_defaults(release: str, on: set[str]) -> None:
    features = Features.from_gates({}, release=release)
    assert {name for name in GATES if getattr(features, name)} == on
    assert Features.from_gates({"DRAListTypeAttributes": True}, release=release).list_attributes


def test_default_release_is_what_the_fields_default_to() -> None:
    assert Features.from_gates({}) == Features()


@pytest.mark.parametrize(
    ("features", "requests"),
    [
        (Features(prioritized_list=False), {"x": [wants()]}),
        (Features(admin_access=False), {"x": wants(admin_access=True)}),
    ],
)
def test_request_for_a_disabled_feature_is_an_error(features: Features, requests: Requests) -> None:
    outcome = ask(slice_of(gpu("a")), claim(**requests), features=features)
    assert (picked(outcome), outcome.fatal) == (ErrorKind.FEATURE_DISABLED, True)
    assert "DRA" in outcome.message


def test_oldest_allocator_ignores_requests_for_capacity_and_shares() -> None:
    stable = Features(consumable_capacity=False, binding_conditions=False)
    asked = claim(x=wants(capacity_requests=quantities({"memory": 99})))
    assert picked(ask(slice_of(gpu("a")), asked, features=stable)) == "x=a"


def test_selectors_of_the_oldest_allocator_see_no_device_as_shared() -> None:
    offered = slice_of(gpu("a", allow_multiple_allocations=True), gpu("b"))
    asked = claim(x=wants(1, "device.allowMultipleAllocations"))
    assert picked(ask(offered, asked)) == "x=a"
    assert picked(ask(offered, asked, features=Features(consumable_capacity=False))) == "x=a"
    stable = Features(consumable_capacity=False, binding_conditions=False)
    assert picked(ask(offered, asked, features=stable)) == "unavailable"


@pytest.mark.parametrize(("release", "compares"), [("1.36", False), ("1.37", True)])
def test_gate_of_list_attributes_lets_constraints_compare_lists_since_1_37(release: str, compares: bool) -> None:
    assert Features.from_gates({"DRAListTypeAttributes": True}, release=release).list_constraints is compares
    assert not Features.from_gates({}, release=release).list_constraints
