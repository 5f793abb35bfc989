# SPDX-License-Identifier: Apache-2.0
"""The health of one GPU: querying NVML, and converting NVML's reports to keys and values of taints (see `meanings`).

The bits of a fabric's health mask are those of NVML_GPU_FABRIC_HEALTH_MASK_* in nvml.h.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ..fabric import SwitchFacts
from ..facts import Gpu
from ..nvml import (
    NO_DRIVER,
    DeviceHandle,
    Event,
    EventType,
    Fabric,
    FabricState,
    Nvml,
    NvmlError,
    Placement,
    RecoveryAction,
    RemappedRows,
    Return,
)
from ..profiles import supported_profiles
from ..threads import HungError
from .meanings import (
    ECC,
    FABRIC,
    GPU_LOST,
    HUNG,
    NVLINK,
    PAGE_RETIREMENT,
    RECOVERY_ACTION,
    RECOVERY_ACTION_CHANGED,
    ROW_REMAP,
    XID,
    links_value,
)

T = TypeVar("T")

DRIVER_GONE: Final = frozenset({Return.DRIVER_NOT_LOADED, Return.LIB_RM_VERSION_MISMATCH})
"""Codes which prove that the driver was unloaded, so that all GPUs were initialized again since."""

_LOST: Final = frozenset({Return.GPU_IS_LOST, Return.GPU_NOT_FOUND})
_GENERAL: Final = _LOST | NO_DRIVER | DRIVER_GONE | {Return.RESET_REQUIRED}
"""Codes that concern the whole GPU or driver, whatever was queried."""

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
"""The events to register for. Single-bit errors, which ECC corrects, are not among them."""

_TRUE = 1  # of the two-bit fields of the health mask: 0 not supported, 2 false
_HEALTH_BITS: Final = {
    4: "route-unhealthy",
    2: "route-recovery",
    6: "access-timeout-recovery",
    0: "degraded-bandwidth",
}
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK, _CONFIGURATION_GOOD = 8, 0xF, (0, 1)


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of one GPU when it was read. None means that a value is not supported or could not be read; then
    `problem` may have the reason.

    `lost`: NVML does not reach the GPU any more. `hung`: a call for it has not returned. `links_up` is the number of
    NVLinks that are up, and None for a GPU without NVLinks. In MIG mode, a GPU does not use NVLinks and fabric, so
    these are not read. `instances` has the placements of its MIG instances, if requested.
    """

    lost: bool = False
    hung: bool = False
    recovery_action: RecoveryAction | None = None
    remapped_rows: RemappedRows | None = None
    retired_pages_pending: bool | None = None
    split: bool = False
    links_up: int | None = None
    fabric: Fabric | None = None
    instances: frozenset[Placement] | None = None
    problem: str | None = None


def read_gpu(nvml: Nvml, gpu: DeviceHandle, *, instances: bool = False) -> Reading:
    """Read the state of a GPU. Raises NvmlError if the GPU as a whole fails."""
    mode = _optional(lambda: nvml.mig_mode(gpu))
    split = mode is not None and mode.current
    return Reading(
        recovery_action=_optional(lambda: nvml.recovery_action(gpu)),
        remapped_rows=_optional(lambda: nvml.remapped_rows(gpu)),
        retired_pages_pending=_optional(lambda: nvml.retired_pages_pending(gpu)),
        split=split,
        links_up=None if split else _optional(lambda: _links_up(nvml, gpu)),
        fabric=None if split else _optional(lambda: nvml.fabric(gpu)),
        instances=_optional(lambda: frozenset(_instances(nvml, gpu, split))) if instances and mode else None,
    )


def failed_reading(error: NvmlError) -> Reading:
    """The state of a GPU that cannot be read. Raises the error if it concerns the driver as a whole."""
    if error.code in NO_DRIVER | DRIVER_GONE:
        raise error
    if isinstance(error, HungError):
        return Reading(hung=True)
    if error.code in _LOST or error.code is Return.NOT_FOUND:
        return Reading(lost=True)
    action = RecoveryAction.GPU_RESET if error.code is Return.RESET_REQUIRED else None
    return Reading(recovery_action=action, problem=str(error))


def _optional(query: Callable[[], T]) -> T | None:
    """The answer, or None if only this query fails, because the others may still have an answer."""
    try:
        return query()
    except NvmlError as error:
        if error.code in _GENERAL:
            raise
        return None


def _links_up(nvml: Nvml, gpu: DeviceHandle) -> int | None:
    links = nvml.nvlinks(gpu)
    return sum(links) if links else None


def _instances(nvml: Nvml, gpu: DeviceHandle, split: bool) -> Iterator[Placement]:
    for profile in supported_profiles(nvml, gpu) if split else ():
        for instance in nvml.gpu_instances(gpu, profile.id):
            yield nvml.gpu_instance_info(instance).placement


@dataclass(frozen=True, slots=True)
class Condition:
    """A current problem: the key and value of a taint."""

    key: str
    value: str


def event_condition(event: Event) -> Condition | None:
    """The problem that an event reports. None if the event only means that the state must be read."""
    if event.type is EventType.XID:
        return None if event.data == RECOVERY_ACTION_CHANGED else Condition(XID, str(event.data))
    known = _EVENTS.get(event.type)
    return None if known is None else Condition(*known)


def reading_values(reading: Reading, expected_links: int) -> dict[str, set[str]]:
    """The problems in a state that was read: values by key. Keys that could not be read are missing. `expected_links`
    is the largest number of NVLinks that were up.
    """
    found: dict[str, set[str]] = {}
    if reading.lost:
        found[GPU_LOST] = {""}
    elif reading.hung:
        found[GPU_LOST] = {HUNG}
    elif reading.problem is None:
        found[GPU_LOST] = set()
    action, rows = reading.recovery_action, reading.remapped_rows
    if action is not None:
        found[RECOVERY_ACTION] = set() if action is RecoveryAction.NONE else {_action_value(action)}
    if rows is not None:
        found[ROW_REMAP] = _true({"failed": rows.failed, "pending": rows.pending})
    if reading.retired_pages_pending is not None:
        found[PAGE_RETIREMENT] = _true({"pending": reading.retired_pages_pending})
    if reading.split:
        found |= {NVLINK: set(), FABRIC: set()}
    if reading.links_up is not None:
        down = reading.links_up < expected_links
        found[NVLINK] = {links_value(reading.links_up, expected_links)} if down else set()
    if reading.fabric is not None:
        found[FABRIC] = set(_fabric_values(reading.fabric))
    return found


def switch_values(gpu: Gpu, switches: SwitchFacts) -> Set[str] | None:
    """The problems that Fabric Manager reports about a GPU: values of FABRIC. None if the GPU has no NVSwitch
    partitions.
    """
    unsupported = any(gpu.module_id in partition.modules for partition in switches.unsupported)
    if not (unsupported or switches.of_module(gpu.module_id)):
        return None
    failed = not switches.failed.isdisjoint({gpu.uuid, str(gpu.pci_address)})
    return _true({"nvlink-failed": failed, "partition-unsupported": unsupported})


def _true(values: Mapping[str, bool]) -> set[str]:
    """The values that are true."""
    return {value for value, is_true in values.items() if is_true}


def without_links(reading: Reading) -> Reading:
    """The state of a GPU with NVSwitch partitions. While none of them is active, its NVLinks are down, and it does not
    join the fabric. That is no problem.
    """
    fabric, up = reading.fabric, reading.links_up
    joined = fabric is None or fabric.state in (FabricState.COMPLETED, FabricState.NOT_SUPPORTED)
    if joined and up != 0:
        return reading
    return replace(reading, links_up=None, fabric=Fabric(FabricState.NOT_SUPPORTED))


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
