# SPDX-License-Identifier: Apache-2.0
"""Findings, their conversion to device taints, and back. The published taints survive a restart of the process.

A finding of a MIG instance taints the whole GPU and the devices whose memory slices overlap those of the instance. A
finding of a GPU taints all its devices. The API stores the time that is sent for a taint. So an unchanged taint is sent
with the time with which it was published.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ...kube.resource import Device, DeviceTaint, ResourceSlice, TaintEffect
from ...kube.resource.device import SliceFeatures
from ...kube.resource.limits import TAINTS_PER_DEVICE
from ..devices import GPU_TYPE, MIG_TYPE, PCI_BUS_ID, VGPU_TYPE, GpuDevices
from ..fabric_marks import FabricTrouble
from ..nvml import Placement
from ..policy import HealthPolicy
from .meanings import FABRIC, MEANINGS, meaning

_EVERY_FEATURE = SliceFeatures()
_STRENGTH: Final = {TaintEffect.NONE: 0, TaintEffect.NO_SCHEDULE: 1, TaintEffect.NO_EXECUTE: 2}
_UUIDS: Final = {GPU_TYPE: "uuid", MIG_TYPE: "parentUUID", VGPU_TYPE: "parentUUID"}
_MEMORY_SLICE = re.compile(r"memory-slice-(\d+)|memorySlice(\d+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a GPU, in the form of the taint that reports it.

    `key` is the taint's key (`gpu.nvidia.com/xid`), and `value` the details (the XID). `since` is in seconds of the
    epoch. `placement` has the memory slices of the affected MIG instance, and is None for the whole GPU. `message`
    tells people what is wrong and what to do.
    """

    gpu_uuid: str
    key: str
    value: str
    effect: TaintEffect
    since: float
    message: str
    placement: Placement | None = None


def activation_findings(troubles: Iterable[FabricTrouble], policy: HealthPolicy) -> tuple[Finding, ...]:
    """The findings of the GPUs whose NVSwitch partition could not be activated."""
    value = "activation-failed"
    means = MEANINGS[FABRIC, value]
    since = {gpu: trouble.since for trouble in troubles for gpu in trouble.gpus}
    return tuple(Finding(gpu, FABRIC, value, means.effect(policy), at, means.text) for gpu, at in sorted(since.items()))


def concerns(finding: Finding, gpu: GpuDevices, device: str) -> bool:
    """Whether a finding affects this device of this GPU."""
    if finding.gpu_uuid not in (gpu.key, *gpu.others):
        return False
    place = gpu.placements.get(device)
    return finding.placement is None or place is None or place.overlaps(finding.placement)


def taint(
    gpus: Sequence[GpuDevices], findings: Iterable[Finding], features: SliceFeatures = _EVERY_FEATURE
) -> tuple[GpuDevices, ...]:
    """The devices with their taints, in the order of keys.

    If several findings have the same key, the worst one counts, and among equally bad ones the oldest. An API server
    that limits the number of taints gets the worst of them. Devices are tainted even if the API server stores no
    taints, so that the caller can tell which of them to withdraw.
    """
    most = features.taints_per_device or TAINTS_PER_DEVICE
    ordered = sorted(findings, key=worst_first)
    if not features.taints_without_effect:
        ordered = [finding for finding in ordered if finding.effect is not TaintEffect.NONE]

    def tainted(gpu: GpuDevices, device: Device) -> Device:
        taints = {taint.key: taint for taint in device.taints}
        for finding in ordered:
            if concerns(finding, gpu, device.name) and len(taints) < most:
                taints.setdefault(finding.key, _taint(finding))
        by_key = tuple(taints[key] for key in sorted(taints))
        return device if by_key == device.taints else replace(device, taints=by_key)

    return tuple(replace(gpu, devices=tuple(tainted(gpu, device) for device in gpu.devices)) for gpu in gpus)


def keep_times(desired: Sequence[ResourceSlice], stored: Iterable[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    """The desired slices, with the published times for taints that are already published."""
    published = {
        (slice_.pool.name, device.name, *_content(each)): each.time_added
        for slice_ in stored
        for device in slice_.devices
        for each in device.taints
        if each.time_added
    }
    if not published:
        return tuple(desired)

    def kept(pool: str, device: Device) -> Device:
        if not device.taints:
            return device
        times = [published.get((pool, device.name, *_content(taint)), taint.time_added) for taint in device.taints]
        pairs = zip(device.taints, times, strict=True)
        return replace(device, taints=tuple(replace(taint, time_added=time) for taint, time in pairs))

    return tuple(
        replace(slice_, devices=tuple(kept(slice_.pool.name, device) for device in slice_.devices))
        for slice_ in desired
    )


def published_findings(slices: Iterable[ResourceSlice], policy: HealthPolicy, not_before: float) -> tuple[Finding, ...]:
    """The findings in published taints, by GPU. Ignores taints that this driver does not set, and taints from before
    `not_before` (seconds of the epoch: when the node booted).
    """
    return tuple(
        finding
        for uuid, devices in devices_by_gpu(slices).items()
        for finding in _gpu_findings(uuid, devices, policy)
        if finding.since >= not_before
    )


def devices_by_gpu(slices: Iterable[ResourceSlice]) -> dict[str, list[Device]]:
    """The devices in published slices by the UUID of their GPU. A vfio device does not have it, and is recognized by
    its PCI address. Ignores devices that have no GPU in NVML.
    """
    every = [device for slice_ in slices for device in slice_.devices]
    at = {device.attributes.get(PCI_BUS_ID): uuid for device in every if (uuid := _gpu_uuid(device))}
    gpus: dict[str, list[Device]] = {}
    for device in every:
        uuid = _gpu_uuid(device) or at.get(device.attributes.get(PCI_BUS_ID))
        if uuid:
            gpus.setdefault(uuid, []).append(device)
    return gpus


def _gpu_uuid(device: Device) -> str | None:
    attribute = _UUIDS.get(str(device.attributes.get("type")))
    uuid = None if attribute is None else device.attributes.get(attribute)
    return uuid if isinstance(uuid, str) else None


def _gpu_findings(uuid: str, devices: Sequence[Device], policy: HealthPolicy) -> Iterable[Finding]:
    since: dict[tuple[str, str], float] = {}
    for device in devices:
        for taint in device.taints:
            time = _seconds(taint.time_added)
            if time is not None:
                content = (taint.key, taint.value)
                since[content] = min(since.get(content, time), time)
    general = [
        Finding(uuid, key, value, means.effect(policy), time, means.text)
        for (key, value), time in since.items()
        if (means := meaning(key, value, policy)) is not None
    ]
    for key in sorted({finding.key for finding in general}):
        # A device shows only the first of the findings that affect it, in this order.
        shown_first = sorted((finding for finding in general if finding.key == key), key=worst_first)
        values = [finding.value for finding in shown_first]
        for rank, finding in enumerate(shown_first):
            for place in _places(devices, key, finding.value, values[:rank]):
                yield replace(finding, placement=place)


def _places(devices: Sequence[Device], key: str, value: str, hiding: Sequence[str]) -> list[Placement | None]:
    """The places of a finding on the GPU: the memory slices of devices with its taint, without those of devices that it
    does not affect. A device is not affected if it has no taint with this key, or one that would not hide the finding.
    """
    shown = [(device, next((taint.value for taint in device.taints if taint.key == key), None)) for device in devices]
    tainted = [device for device, other in shown if other == value]
    clean = [device for device, other in shown if other != value and other not in hiding]
    if not clean:
        return [None]
    return list(_runs(_all_slices(tainted) - _all_slices(clean))) or [None]


def _all_slices(devices: Iterable[Device]) -> frozenset[int]:
    return frozenset().union(*map(_device_slices, devices))


def _runs(slices: frozenset[int]) -> Iterable[Placement]:
    for start in sorted(slices):
        if start - 1 not in slices:
            size = next(size for size in range(1, len(slices) + 1) if start + size not in slices)
            yield Placement(start, size)


def _device_slices(device: Device) -> frozenset[int]:
    """The memory slices of a published MIG device, from its counters or capacities."""
    if device.attributes.get("type") != MIG_TYPE:
        return frozenset()
    names = [*device.capacity, *(name for drawn in device.consumes_counters for name in drawn.counters)]
    found = (_MEMORY_SLICE.fullmatch(name) for name in names)
    return frozenset(int(match[1] or match[2]) for match in found if match)


def worst_first(finding: Finding) -> tuple[int, float, str, str]:
    """A sort key: the strongest effect first, and among equal ones the oldest."""
    return -_STRENGTH[finding.effect], finding.since, finding.key, finding.value


def _taint(finding: Finding) -> DeviceTaint:
    time = datetime.fromtimestamp(int(finding.since), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return DeviceTaint(finding.key, finding.effect, finding.value, time)


def _content(taint: DeviceTaint) -> tuple[str, str, str]:
    return taint.key, taint.value, taint.effect


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
