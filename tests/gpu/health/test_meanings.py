# SPDX-License-Identifier: Apache-2.0
"""What each taint means: effects under a policy, XIDs by NVIDIA's catalog."""

import pytest

from dra_driver.gpu.health.conditions import WATCHED, event_condition
from dra_driver.gpu.health.meanings import (
    APPLICATION_XIDS,
    CATALOG,
    FABRIC,
    GPU_LOST,
    MEANINGS,
    NVLINK,
    UNMONITORED,
    XID,
    Advice,
    Gravity,
    Lasts,
    expected_links,
    links_value,
    meaning,
)
from dra_driver.gpu.nvml import DeviceHandle, Event, EventType
from dra_driver.gpu.policy import HealthPolicy
from dra_driver.kube.resource import Device, DeviceTaint, ObjectMeta, ResourcePool, ResourceSlice, TaintEffect
from dra_driver.kube.resource.validation import slice_problems

NONE, NO_SCHEDULE, NO_EXECUTE = TaintEffect.NONE, TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE
USUAL, EVICTING, SILENT = HealthPolicy(), HealthPolicy(effect=NO_EXECUTE), HealthPolicy(effect=NONE)


def xid_effects(number: int) -> tuple[TaintEffect, ...]:
    """The effect of an XID's taint under the three policies."""
    return tuple(
        one.effect(policy) for policy in (USUAL, EVICTING, SILENT) if (one := meaning(XID, str(number), policy))
    )


@pytest.mark.parametrize("number", sorted(APPLICATION_XIDS))
def test_errors_of_applications_keep_nobody_away(number: int) -> None:
    assert xid_effects(number) == (NONE, NONE, NONE)


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143, 145, 158, 9999])
def test_errors_of_the_gpu_have_the_effect_that_the_policy_says_and_stay_until_a_reset(number: int) -> None:
    assert xid_effects(number) == (NO_SCHEDULE, NO_EXECUTE, NONE)
    means = meaning(XID, str(number), USUAL)
    assert means is not None
    assert means.lasts is Lasts.RESET


@pytest.mark.parametrize("number", [8, 32, 63, 92, 94, 121, 137])
def test_errors_that_need_no_reset_evict_nobody_and_pass(number: int) -> None:
    assert xid_effects(number) == (NO_SCHEDULE, NO_SCHEDULE, NONE)
    means = meaning(XID, str(number), USUAL)
    assert means is not None
    assert means.lasts is Lasts.QUIET


def test_the_policy_may_take_more_xids_for_errors_of_applications() -> None:
    policy = HealthPolicy(application_xids=frozenset({94, 79}), effect=NO_EXECUTE)
    effects = {number: one.effect(policy) for number in (13, 79, 94, 48) if (one := meaning(XID, str(number), policy))}
    assert effects == {13: NONE, 79: NONE, 94: NONE, 48: NO_EXECUTE}


def test_the_text_says_what_it_is_and_what_to_do() -> None:
    texts = {number: one.text for number in (79, 94, 9999) if (one := meaning(XID, str(number), USUAL))}
    assert texts == {
        79: "XID 79: the GPU has fallen off the bus; power the node off and on; replace the GPU if it comes again",
        94: "XID 94: memory error, contained to one application; restart the application; the GPU itself can be used",
        9999: "XID 9999: not in the catalog of this driver; end what uses the GPU and reset it, or reboot the node",
    }


def test_texts_fit_a_line() -> None:
    assert CATALOG[48][1] is Advice.RESET_GPU
    assert not [text for text in (one.text for one in MEANINGS.values()) if "\n" in text or len(text) > 140]


@pytest.mark.parametrize(
    ("key", "value"),
    [(XID, "x"), (XID, ""), (NVLINK, "down"), (FABRIC, ""), ("example.com/other", "1"), (GPU_LOST, "1")],
)
def test_a_foreign_taint_means_nothing(key: str, value: str) -> None:
    assert meaning(key, value, USUAL) is None


def test_the_official_keys_keep_their_effects() -> None:
    official = {(GPU_LOST, ""): NO_SCHEDULE, (UNMONITORED, ""): NONE}
    assert {content: MEANINGS[content].effect(USUAL) for content in official} == official


def test_a_value_of_links_tells_how_many_should_be_up() -> None:
    assert expected_links(links_value(16, 18)) == 18
    means = meaning(NVLINK, links_value(16, 18), EVICTING)
    assert means is not None
    assert (means.gravity, means.effect(EVICTING)) == (Gravity.DEGRADED, NO_SCHEDULE)


def test_every_event_that_is_registered_for_means_something_or_calls_for_a_look() -> None:
    device = DeviceHandle(object())
    conditions = {kind: event_condition(Event(device, kind, 48)) for kind in EventType if kind & WATCHED}
    looks = {kind for kind, condition in conditions.items() if condition is None}
    assert looks == {EventType.GPU_RECOVERY_ACTION}
    assert EventType.SINGLE_BIT_ECC not in conditions
    assert all(meaning(one.key, one.value, USUAL) for one in conditions.values() if one)


def test_every_key_and_value_passes_the_rules_of_the_api() -> None:
    contents = {*MEANINGS, (XID, "79")} - {content for content in MEANINGS if content[0] == NVLINK}
    contents.add((NVLINK, links_value(0, 18)))
    devices = tuple(
        Device(f"gpu-{index}", taints=(DeviceTaint(key, NO_SCHEDULE, value),))
        for index, (key, value) in enumerate(sorted(contents))
    )
    pool = ResourcePool("node-a", 1, 1)
    one = ResourceSlice(ObjectMeta(name="a"), "gpu.nvidia.com", pool, node_name="node-a", devices=devices)
    assert slice_problems(one) == []
