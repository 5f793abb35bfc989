# SPDX-License-Identifier: Apache-2.0
"""Taints and tolerations."""

import pytest

from dra_driver.kube.resource import DeviceTaint, DeviceTaintRule, DeviceTaintSelector, DeviceToleration, ObjectMeta
from dra_driver.scheduler.allocator import Features, with_taint_rules
from dra_driver.scheduler.allocator.candidates import blocking_taint

from .build import DRIVER, ask, claim, gpu, picked, slice_of, wants, wants_all

SICK = DeviceTaint("sick", "NoSchedule", "very")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (DeviceToleration("sick", "Equal", "very"), True),
        (DeviceToleration("sick", "", "very"), True),
        (DeviceToleration("sick", "Equal", "a bit"), False),
        (DeviceToleration("sick", "Exists"), True),
        (DeviceToleration("", "Exists"), True),
        (DeviceToleration("old", "Exists"), False),
        (DeviceToleration("sick", "Exists", effect="NoSchedule"), True),
        (DeviceToleration("sick", "Exists", effect="NoExecute"), False),
        (DeviceToleration("sick", "Like", "very"), False),
        (DeviceToleration("sick", "Exists", toleration_seconds=0), True),
    ],
)
def test_toleration_covers_a_taint(toleration: DeviceToleration, tolerates: bool) -> None:
    assert (blocking_taint([SICK], [toleration]) is None) is tolerates


@pytest.mark.parametrize(
    ("effect", "blocks"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("Unheard", False)]
)
def test_taints_with_some_effects_block(effect: str, blocks: bool) -> None:
    assert (blocking_taint([DeviceTaint("k", effect)], []) is not None) is blocks


def test_every_taint_has_to_be_tolerated() -> None:
    other = DeviceTaint("old", "NoExecute")
    assert blocking_taint([SICK, other], [DeviceToleration("sick", "Exists")]) is other


def test_tainted_devices_are_skipped_and_make_a_request_for_all_fail() -> None:
    where = slice_of(gpu("a", taints=(SICK,)), gpu("b"))
    tolerant = (DeviceToleration("sick", "Exists"),)
    assert picked(ask(where, claim(x=wants()))) == "x=b"
    assert picked(ask(where, claim(x=wants_all()))) == "unavailable"
    assert picked(ask(where, claim(x=wants(tolerations=tolerant)))) == "x=a"
    assert picked(ask(where, claim(x=wants_all(tolerations=tolerant)))) == "x=a x=b"
    assert picked(ask(where, claim(x=wants()), features=Features(device_taints=False))) == "x=a"


def test_tolerations_are_copied_to_the_results() -> None:
    tolerant = (DeviceToleration("sick", "Exists"),)
    outcome = ask(slice_of(gpu("a")), claim(x=[wants(tolerations=tolerant)]))
    assert outcome.allocations[0].results[0].tolerations == tolerant


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        (DeviceTaintSelector(), ["gpu-0", "gpu-1"]),
        (DeviceTaintSelector(device="gpu-1"), ["gpu-1"]),
        (DeviceTaintSelector(DRIVER, "pool", "gpu-0"), ["gpu-0"]),
        (DeviceTaintSelector("other.example.com"), []),
        (DeviceTaintSelector(pool="node-b"), []),
        (DeviceTaintSelector(driver=""), []),
    ],
)
def test_taint_rule_selects_devices_of_equal_names(selector: DeviceTaintSelector, tainted: list[str]) -> None:
    rule = DeviceTaintRule(ObjectMeta(name="rule"), SICK, selector)
    (after,) = with_taint_rules([slice_of(gpu("gpu-0"), gpu("gpu-1"))], [rule], without_selector=True)
    assert [device.name for device in after.devices if device.taints == (SICK,)] == tainted


def test_taints_of_rules_come_after_those_of_the_driver() -> None:
    own, second = DeviceTaint("own", "None"), DeviceTaint("second", "NoExecute")
    rules = [
        DeviceTaintRule(ObjectMeta(name=taint.key), taint, DeviceTaintSelector(device="gpu-0"))
        for taint in (SICK, second)
    ]
    (after,) = with_taint_rules([slice_of(gpu("gpu-0", taints=(own,)))], rules, without_selector=True)
    assert after.devices[0].taints == (own, SICK, second)


@pytest.mark.parametrize("without_selector", [True, False])
def test_taint_rule_without_a_selector_selects_every_device_or_none(without_selector: bool) -> None:
    rule = DeviceTaintRule(ObjectMeta(name="rule"), SICK)
    (after,) = with_taint_rules([slice_of(gpu("gpu-0"))], [rule], without_selector=without_selector)
    assert bool(after.devices[0].taints) is without_selector
