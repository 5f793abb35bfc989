# SPDX-License-Identifier: Apache-2.0
"""From events and looks at a GPU to what is wrong with it."""

from dataclasses import replace

import pytest

from dra_driver.gpu.health.conditions import Condition, Reading, event_condition, reading_values
from dra_driver.gpu.health.meanings import (
    ECC,
    FABRIC,
    GPU_LOST,
    MEANINGS,
    NVLINK,
    PAGE_RETIREMENT,
    RECOVERY_ACTION,
    ROW_REMAP,
    XID,
)
from dra_driver.gpu.nvml import DeviceHandle, Event, EventType, Fabric, FabricState, RecoveryAction, RemappedRows

FINE = Reading(
    recovery_action=RecoveryAction.NONE,
    remapped_rows=RemappedRows(0, 0, pending=False, failed=False),
    retired_pages_pending=False,
    links_up=18,
    fabric=Fabric(FabricState.COMPLETED, "c", 1, health_mask=0b0000_0001_10_10_10_10),
)
ROWS = RemappedRows(1, 1, pending=False, failed=False)


@pytest.mark.parametrize(
    ("kind", "data", "condition"),
    [
        (EventType.XID, 79, Condition(XID, "79")),
        (EventType.XID, 13, Condition(XID, "13")),
        (EventType.XID, 154, None),
        (EventType.GPU_RECOVERY_ACTION, 1, None),
        (EventType.DOUBLE_BIT_ECC, 1, Condition(ECC, "double-bit")),
        (EventType.SINGLE_BIT_ECC_STORM, 1, Condition(ECC, "single-bit-storm")),
        (EventType.NON_FATAL_POISON, 1, Condition(ECC, "contained")),
        (EventType.FATAL_POISON, 1, Condition(ECC, "uncontained")),
        (EventType.DRAM_RETIREMENT, 1, Condition(PAGE_RETIREMENT, "retired")),
        (EventType.DRAM_RETIREMENT_FAILURE, 1, Condition(PAGE_RETIREMENT, "failed")),
        (EventType.GPU_UNAVAILABLE, 1, Condition(GPU_LOST, "unavailable")),
    ],
)
def test_an_event_says_what_is_wrong_or_only_calls_for_a_look(
    kind: EventType, data: int, condition: Condition | None
) -> None:
    assert event_condition(Event(DeviceHandle(object()), kind, data)) == condition


def completed(*, status: int = 0, mask: int = 0) -> Fabric:
    """A fabric that the GPU has registered with."""
    return Fabric(FabricState.COMPLETED, "c", 1, status=status, health_mask=mask)


@pytest.mark.parametrize(
    ("reading", "found"),
    [
        (FINE, set()),
        (Reading(), set()),
        (Reading(lost=True), {Condition(GPU_LOST, "")}),
        (
            replace(FINE, recovery_action=RecoveryAction.DRAIN_AND_RESET),
            {Condition(RECOVERY_ACTION, "drain-and-reset")},
        ),
        (replace(FINE, remapped_rows=ROWS), set()),
        (replace(FINE, remapped_rows=replace(ROWS, pending=True)), {Condition(ROW_REMAP, "pending")}),
        (
            replace(FINE, remapped_rows=replace(ROWS, pending=True, failed=True)),
            {Condition(ROW_REMAP, "pending"), Condition(ROW_REMAP, "failed")},
        ),
        (replace(FINE, retired_pages_pending=True), {Condition(PAGE_RETIREMENT, "pending")}),
        (replace(FINE, links_up=16), {Condition(NVLINK, "16-of-18")}),
        (replace(FINE, links_up=None, split=True), set()),
        (replace(FINE, fabric=Fabric(FabricState.NOT_SUPPORTED)), set()),
        (replace(FINE, fabric=Fabric(FabricState.NOT_STARTED)), {Condition(FABRIC, "not-registered")}),
        (replace(FINE, fabric=Fabric(FabricState.IN_PROGRESS, status=9)), {Condition(FABRIC, "not-registered")}),
        (replace(FINE, fabric=completed(status=999)), {Condition(FABRIC, "registration-failed")}),
        (replace(FINE, fabric=completed(mask=0)), set()),
        (replace(FINE, fabric=completed(mask=0b01)), {Condition(FABRIC, "degraded-bandwidth")}),
        (replace(FINE, fabric=completed(mask=0b01 << 2)), {Condition(FABRIC, "route-recovery")}),
        (replace(FINE, fabric=completed(mask=0b01 << 4)), {Condition(FABRIC, "route-unhealthy")}),
        (replace(FINE, fabric=completed(mask=0b01 << 6)), {Condition(FABRIC, "access-timeout-recovery")}),
        (replace(FINE, fabric=completed(mask=4 << 8)), {Condition(FABRIC, "incorrect-configuration")}),
        (
            replace(FINE, fabric=completed(mask=5 << 8 | 0b01 << 4)),
            {Condition(FABRIC, "incorrect-configuration"), Condition(FABRIC, "route-unhealthy")},
        ),
        (replace(FINE, fabric=completed(mask=0b10 << 12 | 0b10 << 14)), set()),  # no partition, no global manager
    ],
)
def test_a_look_says_what_is_wrong(reading: Reading, found: set[Condition]) -> None:
    values = reading_values(reading, expected_links=18)
    assert {Condition(key, value) for key, each in values.items() for value in each} == found


@pytest.mark.parametrize(
    ("reading", "known"),
    [
        (FINE, {GPU_LOST, RECOVERY_ACTION, ROW_REMAP, PAGE_RETIREMENT, NVLINK, FABRIC}),
        (Reading(lost=True), {GPU_LOST}),
        (Reading(problem="nvmlDeviceGetHandleByUUID: UNKNOWN"), set()),
        (Reading(remapped_rows=ROWS), {GPU_LOST, ROW_REMAP}),
        (Reading(split=True), {GPU_LOST, NVLINK, FABRIC}),
    ],
)
def test_a_look_says_only_what_it_could_see(reading: Reading, known: set[str]) -> None:
    assert reading_values(reading, expected_links=18).keys() == known


@pytest.mark.parametrize("action", [one for one in RecoveryAction if one is not RecoveryAction.NONE])
def test_every_recovery_action_has_a_meaning(action: RecoveryAction) -> None:
    (value,) = reading_values(replace(FINE, recovery_action=action), 18)[RECOVERY_ACTION]
    assert (RECOVERY_ACTION, value) in MEANINGS
