# SPDX-License-Identifier: Apache-2.0
"""The health of one GPU, as NVML reports it when queried."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from ..calls import HungError
from ..nvml import (
    NO_DRIVER,
    DeviceHandle,
    Fabric,
    Nvml,
    NvmlError,
    Placement,
    RecoveryAction,
    RemappedRows,
    Return,
)
from ..profiles import supported_profiles

T = TypeVar("T")

DRIVER_GONE: Final = frozenset({Return.DRIVER_NOT_LOADED, Return.LIB_RM_VERSION_MISMATCH})
"""Codes that prove that the driver was unloaded, and so every GPU initialized anew since."""

_LOST: Final = frozenset({Return.GPU_IS_LOST, Return.GPU_NOT_FOUND})
_GENERAL: Final = _LOST | NO_DRIVER | DRIVER_GONE | {Return.RESET_REQUIRED}
"""Codes that concern the whole GPU or driver, whatever was asked."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one GPU. None: not supported, or could not be read this time; then `problem` may say why.

    `lost`: NVML does not reach it any more. `hung`: a call for it has not returned. `links_up`: how many NVLinks are;
    None for a GPU without. Links and fabric don't serve a GPU in MIG mode and are not looked at there. `instances`:
    where its MIG instances are, if asked for.
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
    """Look at a GPU. Raises NvmlError when the GPU as a whole fails."""
    mode = _optional(lambda: nvml.mig_mode(gpu))
    split = mode is not None and mode.current
    return Reading(
        recovery_action=_optional(lambda: nvml.recovery_action(gpu)),
        remapped_rows=_optional(lambda: nvml.remapped_rows(gpu)),
        retired_pages_pending=_optional(lambda: nvml.retired_pages_pending(gpu)),
        split=split,
        links_up=None if split else _optional(lambda: _links_up(nvml, gpu)),
        fabric=None if split else _optional(lambda: nvml.fabric(gpu)),
        instances=_optional(lambda: frozenset(_instances(nvml, gpu))) if instances else None,
    )


def failed_reading(error: NvmlError) -> Reading:
    """What it says of a GPU that it cannot be looked at. Raises the error when it concerns the driver as a whole."""
    if error.code in NO_DRIVER | DRIVER_GONE:
        raise error
    if isinstance(error, HungError):
        return Reading(hung=True)
    if error.code in _LOST or error.code is Return.NOT_FOUND:
        return Reading(lost=True)
    action = RecoveryAction.GPU_RESET if error.code is Return.RESET_REQUIRED else None
    return Reading(recovery_action=action, problem=str(error))


def _optional(query: Callable[[], T]) -> T | None:
    """None when only this query fails: the others may still tell something."""
    try:
        return query()
    except NvmlError as error:
        if error.code in _GENERAL:
            raise
        return None


def _links_up(nvml: Nvml, gpu: DeviceHandle) -> int | None:
    links = nvml.nvlinks(gpu)
    return sum(links) if links else None


def _instances(nvml: Nvml, gpu: DeviceHandle) -> Iterator[Placement]:
    if not nvml.mig_mode(gpu).current:
        return
    for profile in supported_profiles(nvml, gpu):
        for instance in nvml.gpu_instances(gpu, profile.id):
            yield nvml.gpu_instance_info(instance).placement
