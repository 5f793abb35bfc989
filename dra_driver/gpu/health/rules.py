# SPDX-License-Identifier: Apache-2.0
"""From NVML's reports to keys and values of taints (see `meanings`). Pure.

The bits of a fabric's health mask are those of NVML_GPU_FABRIC_HEALTH_MASK_* in nvml.h.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..nvml import Event, EventType, Fabric, FabricState, RecoveryAction
from .meanings import (
    ECC,
    FABRIC,
    GPU_LOST,
    HUNG,
    NVLINK,
    PAGE_RETIREMENT,
    RECOVERY_ACTION,
    ROW_REMAP,
    XID,
    links_value,
)
from .queries import Reading
from .xids import RECOVERY_ACTION_CHANGED

_EVENTS: Final = {
    EventType.DOUBLE_BIT_ECC: (ECC, "double-bit"),
    EventType.SINGLE_BIT_ECC_STORM: (ECC, "single-bit-storm"),
    EventType.NON_FATAL_POISON: (ECC, "contained"),
    EventType.FATAL_POISON: (ECC, "uncontained"),
    EventType.DRAM_RETIREMENT: (PAGE_RETIREMENT, "retired"),
    EventType.DRAM_RETIREMENT_FAILURE: (PAGE_RETIREMENT, "failed"),
    EventType.GPU_UNAVAILABLE: (GPU_LOST, "unavailable"),
}

WATCHED: Final = EventType.XID | EventType.GPU_RECOVERY_ACTION | EventType(sum(_EVENTS))
"""The events worth registering for. Single errors that ECC corrects are not."""

_TRUE = 1  # of the two-bit fields of the health mask: 0 not supported, 2 false
_HEALTH_BITS: Final = {
    4: "route-unhealthy",
    2: "route-recovery",
    6: "access-timeout-recovery",
    0: "degraded-bandwidth",
}
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK, _CONFIGURATION_GOOD = 8, 0xF, (0, 1)


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong now: a taint's key and value."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one look found wrong. Of keys that are not `known`, it could not tell."""

    found: frozenset[Condition]
    known: frozenset[str]


def event_condition(event: Event) -> Condition | None:
    """What an event says; None for one that only tells to look at the GPU's state."""
    if event.type is EventType.XID:
        return None if event.data == RECOVERY_ACTION_CHANGED else Condition(XID, str(event.data))
    known = _EVENTS.get(event.type)
    return None if known is None else Condition(*known)


def reading_conditions(reading: Reading, expected_links: int) -> Conditions:
    """What a look says. `expected_links`: how many NVLinks were up at best."""
    found: set[Condition] = set()
    known: set[str] = set()

    def tell(key: str, *values: str) -> None:
        known.add(key)
        found.update(Condition(key, value) for value in values)

    if reading.lost:
        tell(GPU_LOST, "")
    elif reading.hung:
        tell(GPU_LOST, HUNG)
    elif reading.problem is None:
        tell(GPU_LOST)
    if reading.recovery_action is not None:
        asked = reading.recovery_action is not RecoveryAction.NONE
        tell(RECOVERY_ACTION, *([_action_value(reading.recovery_action)] if asked else []))
    rows = reading.remapped_rows
    if rows is not None:
        tell(ROW_REMAP, *(["failed"] if rows.failed else []), *(["pending"] if rows.pending else []))
    if reading.retired_pages_pending is not None:
        tell(PAGE_RETIREMENT, *(["pending"] if reading.retired_pages_pending else []))
    if reading.split:
        tell(NVLINK)
        tell(FABRIC)
    if reading.links_up is not None:
        down = reading.links_up < expected_links
        tell(NVLINK, *([links_value(reading.links_up, expected_links)] if down else []))
    if reading.fabric is not None:
        tell(FABRIC, *_fabric_values(reading.fabric))
    return Conditions(frozenset(found), frozenset(known))


def _action_value(action: RecoveryAction) -> str:
    """`gpu-reset` for GPU_RESET."""
    return action.name.lower().replace("_", "-")


def _fabric_values(fabric: Fabric) -> Iterator[str]:
    if fabric.state is FabricState.NOT_SUPPORTED:
        return
    if fabric.state is not FabricState.COMPLETED:
        yield "not-registered"
    elif fabric.status:
        yield "registration-failed"
    else:
        mask = fabric.health_mask
        if mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK not in _CONFIGURATION_GOOD:
            yield "incorrect-configuration"
        for shift, value in _HEALTH_BITS.items():
            if mask >> shift & 0b11 == _TRUE:
                yield value
