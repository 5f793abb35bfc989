# SPDX-License-Identifier: Apache-2.0
"""Taints and tolerations."""

import pytest

from dra_driver.allocation import Features
from dra_driver.allocation.candidates import blocking_taint
from dra_driver.resource import DeviceTaint, DeviceToleration

from .build import ask, claim, gpu, picked, slice_of, wants, wants_all

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
def test_a_toleration_covers_a_taint(toleration: DeviceToleration, tolerates: bool) -> None:
    assert (blocking_taint([SICK], [toleration]) is None) is tolerates


@pytest.mark.parametrize(
    ("effect", "blocks"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("Unheard", False)]
)
def test_some_effects_block(effect: str, blocks: bool) -> None:
    assert (blocking_taint([DeviceTaint("k", effect)], []) is not None) is blocks


def test_every_taint_has_to_be_tolerated() -> None:
    other = DeviceTaint("old", "NoExecute")
    assert blocking_taint([SICK, other], [DeviceToleration("sick", "Exists")]) is other


def test_tainted_devices_are_passed_over_and_make_all_unavailable() -> None:
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
