# SPDX-License-Identifier: Apache-2.0
"""How what is held against a GPU begins, stays and goes."""

from copy import deepcopy
from dataclasses import replace

import pytest

from dra_driver.gpu.health.conditions import Condition, Reading
from dra_driver.gpu.health.meanings import ECC, PAGE_RETIREMENT, XID
from dra_driver.gpu.health.records import GpuRecord
from dra_driver.gpu.nvml import Fabric, FabricState, Placement, RecoveryAction, RemappedRows
from dra_driver.gpu.policy import HealthPolicy
from dra_driver.kube.resource import TaintEffect

POLICY = HealthPolicy()
GOOD_ROWS = RemappedRows(0, 0, pending=False, failed=False)
FINE = Reading(
    recovery_action=RecoveryAction.NONE,
    remapped_rows=GOOD_ROWS,
    retired_pages_pending=False,
    links_up=18,
    fabric=Fabric(FabricState.COMPLETED, "c", 1),
)


def noted(record: GpuRecord, condition: Condition, now: float, placement: Placement | None = None) -> GpuRecord:
    """The record after a condition was reported."""
    after = deepcopy(record)
    after.noted(condition, now, placement)
    return after


def looked(record: GpuRecord, reading: Reading, now: float, *, watched: bool = True) -> GpuRecord:
    """The record after the GPU was read."""
    after = deepcopy(record)
    after.looked(reading, now, POLICY, watched=watched)
    return after


def aged(record: GpuRecord, now: float, policy: HealthPolicy = POLICY) -> GpuRecord:
    """The record at a later time."""
    after = deepcopy(record)
    after.aged(now, policy)
    return after


NEW = looked(GpuRecord("GPU-a"), FINE, 0.0)


def xid(number: int) -> Condition:
    """An XID as a condition."""
    return Condition(XID, str(number))


def held(record: GpuRecord) -> list[tuple[str, str]]:
    """Keys, without their domain, and values of what is held."""
    return [(finding.key.partition("/")[2], finding.value) for finding in record.findings(POLICY)]


def test_healthy_gpu_has_no_findings() -> None:
    assert held(NEW) == []


def test_repeated_error_keeps_the_time_of_the_first() -> None:
    record = noted(noted(NEW, xid(79), 10.0), xid(79), 20.0)
    assert [(finding.value, finding.since) for finding in record.findings(POLICY)] == [("79", 10.0)]


def test_an_application_error_does_not_replace_a_fatal_one() -> None:
    record = noted(noted(NEW, xid(79), 1.0), xid(13), 2.0)
    assert [(one.value, one.effect) for one in record.findings(POLICY)] == [("13", "None"), ("79", "NoSchedule")]


@pytest.mark.parametrize(
    ("bad", "value"),
    [
        (Reading(lost=True), ("gpu-lost", "")),
        (replace(FINE, recovery_action=RecoveryAction.GPU_RESET), ("recovery-action", "gpu-reset")),
        (replace(FINE, remapped_rows=replace(GOOD_ROWS, pending=True)), ("row-remap", "pending")),
        (replace(FINE, retired_pages_pending=True), ("page-retirement", "pending")),
        (replace(FINE, links_up=17), ("nvlink", "17-of-18")),
        (replace(FINE, fabric=Fabric(FabricState.IN_PROGRESS)), ("fabric", "not-registered")),
    ],
)
def test_finding_lasts_as_long_as_its_state(bad: Reading, value: tuple[str, str]) -> None:
    record = looked(looked(NEW, bad, 1.0), bad, 2.0)
    assert held(record) == [value]
    assert record.findings(POLICY)[0].since == 1.0
    assert held(looked(record, Reading(problem="busy"), 3.0)) == [value]
    assert held(looked(record, FINE, 3.0)) == []


def test_links_that_were_never_up_are_not_missed() -> None:
    record = looked(GpuRecord("GPU-a"), replace(FINE, links_up=12), 1.0)
    assert held(record) == []
    record = looked(record, replace(FINE, links_up=4), 2.0)
    assert held(record) == [("nvlink", "4-of-12")]
    assert held(looked(record, replace(FINE, links_up=None, split=True), 3.0)) == []


def test_a_gpu_whose_events_do_not_come_through_is_unmonitored_until_they_do() -> None:
    record = looked(NEW, FINE, 1.0, watched=False)
    assert held(record) == [("unmonitored", "")]
    assert record.findings(POLICY)[0].effect == TaintEffect.NONE
    assert held(looked(record, FINE, 2.0)) == []


def test_a_lost_gpu_is_not_also_unmonitored() -> None:
    assert held(looked(NEW, Reading(lost=True), 1.0, watched=False)) == [("gpu-lost", "")]


@pytest.mark.parametrize(
    "ill",
    [
        Reading(lost=True),
        replace(FINE, recovery_action=RecoveryAction.GPU_RESET),
        replace(FINE, remapped_rows=replace(GOOD_ROWS, pending=True)),
        replace(FINE, retired_pages_pending=True),
    ],
    ids=["lost", "recovery action", "row to be remapped", "page to be retired"],
)
def test_a_fatal_error_goes_with_the_reset_that_ended_a_state(ill: Reading) -> None:
    record = looked(noted(NEW, xid(48), 1.0), ill, 2.0)
    assert ("xid", "48") in held(record)
    assert held(looked(record, FINE, 3.0)) == []


@pytest.mark.parametrize(
    ("ill", "later"),
    [
        (replace(FINE, links_up=3), FINE),
        (replace(FINE, fabric=Fabric(FabricState.IN_PROGRESS)), FINE),
        (
            replace(FINE, recovery_action=RecoveryAction.GPU_RESET),
            replace(FINE, recovery_action=RecoveryAction.NODE_REBOOT),
        ),
        (Reading(lost=True), Reading(recovery_action=RecoveryAction.GPU_RESET, problem="RESET_REQUIRED")),
        (Reading(lost=True), Reading(problem="UNKNOWN")),
    ],
    ids=["link up again", "fabric there", "more is asked for", "answers that it needs a reset", "answers badly"],
)
def test_a_fatal_error_stays_when_something_else_ends(ill: Reading, later: Reading) -> None:
    record = looked(noted(NEW, xid(48), 1.0), ill, 2.0)
    assert ("xid", "48") in held(looked(record, later, 3.0))


def test_an_error_after_the_last_bad_look_outlives_the_reset() -> None:
    record = looked(noted(NEW, xid(79), 1.0), Reading(lost=True), 2.0)
    record = noted(record, xid(64), 2.5)
    assert held(looked(record, FINE, 3.0)) == [("xid", "64")]


def test_a_reload_of_the_driver_ends_what_events_brought_and_no_state() -> None:
    record = looked(NEW, replace(FINE, remapped_rows=replace(GOOD_ROWS, failed=True)), 1.0)
    for condition in (xid(79), xid(13), Condition(ECC, "double-bit"), Condition(PAGE_RETIREMENT, "failed")):
        record = noted(record, condition, 2.0)
    record.reset(3.0, POLICY)
    assert held(record) == [("row-remap", "failed")]


@pytest.mark.parametrize(
    ("policy", "number", "seconds", "there"),
    [
        (POLICY, 13, 599.0, True),
        (POLICY, 13, 600.0, False),
        (POLICY, 94, 599.0, True),
        (POLICY, 94, 600.0, False),
        (POLICY, 79, 1e9, True),
        (HealthPolicy(clear_after=3600.0), 79, 3599.0, True),
        (HealthPolicy(clear_after=3600.0), 79, 3600.0, False),
        (HealthPolicy(quiet_after=5.0), 31, 5.0, False),
        (HealthPolicy(application_xids=frozenset({79})), 79, 600.0, False),
    ],
)
def test_finding_expires_as_the_policy_says(policy: HealthPolicy, number: int, seconds: float, there: bool) -> None:
    record = noted(NEW, xid(number), 1000.0)
    assert bool(aged(record, 1000.0 + seconds, policy).findings(policy)) is there


def test_the_quiet_time_begins_anew_with_every_error() -> None:
    record = noted(noted(NEW, xid(13), 0.0), xid(13), 500.0)
    assert held(aged(record, 1099.0)) == [("xid", "13")]
    assert held(aged(record, 1100.0)) == []


def test_time_does_not_forgive_a_state() -> None:
    policy = HealthPolicy(clear_after=1.0)
    record = looked(NEW, Reading(lost=True), 1.0)
    assert held(aged(record, 1e9, policy)) == [("gpu-lost", "")]


@pytest.mark.parametrize(
    ("instances", "there"),
    [
        (None, True),
        (frozenset({Placement(0, 4), Placement(4, 2)}), True),
        (frozenset({Placement(0, 2), Placement(4, 2)}), False),
        (frozenset[Placement](), False),
    ],
)
def test_error_confined_to_a_mig_instance_ends_with_the_instance(
    instances: frozenset[Placement] | None, there: bool
) -> None:
    record = noted(noted(NEW, xid(94), 1.0, Placement(0, 4)), xid(119), 1.0)
    after = looked(record, Reading(split=True, instances=instances), 2.0)
    assert ("xid", "119") in held(after)
    assert (("xid", "94") in held(after)) is there


def test_same_error_on_two_instances_is_two_findings() -> None:
    record = noted(noted(NEW, xid(94), 1.0, Placement(4, 2)), xid(94), 2.0, Placement(0, 4))
    assert [(one.placement, one.since) for one in record.findings(POLICY)] == [
        (Placement(0, 4), 2.0),
        (Placement(4, 2), 1.0),
    ]
    assert record.confined
    assert not NEW.confined


def test_another_policy_changes_effects_and_forgets_nothing() -> None:
    record = noted(noted(NEW, xid(79), 1.0), xid(94), 2.0)
    other = HealthPolicy(effect=TaintEffect.NO_EXECUTE, application_xids=frozenset({94}))
    assert [(one.value, one.effect, one.since) for one in record.findings(other)] == [
        ("79", "NoExecute", 1.0),
        ("94", "None", 2.0),
    ]


def after_restart(record: GpuRecord) -> GpuRecord:
    """What a new process makes of it."""
    after = GpuRecord(record.uuid)
    after.joined(record.findings(POLICY))
    return after


def test_a_restart_forgets_nothing_that_is_still_so() -> None:
    bad = replace(FINE, recovery_action=RecoveryAction.GPU_RESET, links_up=16)
    before = looked(noted(NEW, xid(48), 1.0, Placement(0, 4)), bad, 2.0)
    after = after_restart(before)
    assert after.findings(POLICY) == before.findings(POLICY)
    assert looked(after, bad, 50.0).findings(POLICY) == before.findings(POLICY)


def test_a_reset_while_nobody_watched_is_recognised() -> None:
    before = looked(noted(NEW, xid(79), 1.0), Reading(lost=True), 2.0)
    assert held(looked(after_restart(before), FINE, 50.0)) == []


def test_links_that_an_earlier_process_missed_are_missed_on() -> None:
    before = looked(NEW, replace(FINE, links_up=16), 2.0)
    again = looked(after_restart(before), replace(FINE, links_up=17), 3.0)
    assert held(again) == [("nvlink", "17-of-18")]
    assert held(looked(again, FINE, 4.0)) == []


def test_error_seen_by_two_processes_has_the_earlier_time() -> None:
    record = noted(NEW, xid(13), 900.0)
    record.joined(noted(NEW, xid(13), 500.0).findings(POLICY))
    assert [one.since for one in record.findings(POLICY)] == [500.0]
    assert held(aged(record, 1400.0)) == [("xid", "13")]
