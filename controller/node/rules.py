# SPDX-License-Identifier: Apache-2.0
"""Leaves out the devices because of which the API server would refuse a slice, so that the others are published.

The API server refuses a slice as a whole, and a pool is useless until all of its slices are stored. So one device that
breaks a rule would take all devices of the node away. Such a device is a defect of this driver, or hardware that it
does not know. The rules are those of `dra_driver.kube.resource.validation`. In addition, no two devices of a pool may
have one name, because the scheduler uses no device of such a pool.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dra_driver.gpu.devices import Description, GpuDevices, LeftOut, Reason
from dra_driver.kube.resource import Device, ResourceSlice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.validation import Violation, slice_problems

_PART: Final = re.compile(r"spec\.(devices|sharedCounters)\[([0-9]+)\]")

_Place = tuple[int, int]
"""The positions of a GPU, and of a device of it."""


def slices_within_rules(
    description: Description,
    lay_out: Callable[[Sequence[GpuDevices]], tuple[ResourceSlice, ...]],
    features: SliceFeatures,
) -> tuple[tuple[ResourceSlice, ...], Description]:
    """The slices of the devices for an API server with these features, and the description of these devices, with what
    is left out. A problem that concerns no device stays in the slices.
    """
    description = _leave_out(description, _repeated(description.gpus))
    while True:
        slices = lay_out(description.gpus)
        reasons = _reasons(slices, features)
        if not reasons:
            return slices, description
        places = _places(description.gpus)
        description = _leave_out(
            description, {place: reasons[device.name] for place, device in places.items() if device.name in reasons}
        )


def _places(gpus: Sequence[GpuDevices]) -> dict[_Place, Device]:
    return {(first, second): device for first, gpu in enumerate(gpus) for second, device in enumerate(gpu.devices)}


def _repeated(gpus: Sequence[GpuDevices]) -> dict[_Place, str]:
    """The devices whose name another device keeps: the first of a GPU whose devices exclude each other, because the
    scheduler knows what excludes it, or else the first.
    """
    places = _places(gpus)
    by_name: dict[str, list[_Place]] = {}
    for place, device in places.items():
        by_name.setdefault(device.name, []).append(place)
    excluding = {place for place, device in places.items() if gpus[place[0]].overlapping and device.consumes_counters}
    kept = {next((place for place in found if place in excluding), found[0]) for found in by_name.values()}
    return {place: "the pool has another device of this name" for place in places if place not in kept}


def _leave_out(description: Description, reasons: Mapping[_Place, str]) -> Description:
    """The description without some devices, which is reported. A GPU keeps its counter set only for devices that
    consume its counters.
    """
    kept: list[GpuDevices] = []
    left_out = list(description.left_out)
    for first, gpu in enumerate(description.gpus):
        devices: list[Device] = []
        for second, device in enumerate(gpu.devices):
            reason = reasons.get((first, second))
            if reason is None:
                devices.append(device)
            else:
                text = f"device {device.name}: the API server would refuse it: {reason}"
                left_out.append(LeftOut(gpu.key, Reason.INVALID, text))
        if len(devices) < len(gpu.devices):
            gpu = replace(gpu, devices=tuple(devices))
            if not any(device.consumes_counters for device in devices):
                gpu = replace(gpu, counter_set=None, overlapping=False)
        kept += [gpu] if devices else []
    return Description(tuple(kept), tuple(left_out))


def _reasons(slices: Sequence[ResourceSlice], features: SliceFeatures) -> dict[str, str]:
    """Why devices cannot be published, by name."""
    devices = [device for slice_ in slices for device in slice_.devices]
    reasons: dict[str, str] = {}
    for slice_ in slices:
        for problem in slice_problems(slice_, features):
            for device in _concerned(problem, slice_, devices):
                reasons.setdefault(device.name, str(problem))
    return reasons


def _concerned(problem: Violation, slice_: ResourceSlice, devices: Iterable[Device]) -> Iterable[Device]:
    """The devices that must be left out because of a problem: one device, the consumers of a counter set, or all of the
    slice. `devices` are all of the pool.
    """
    part = _PART.match(problem.path)
    if part is None:
        return slice_.devices
    number = int(part[2])
    if part[1] == "devices":
        return (slice_.devices[number],)
    name = slice_.shared_counters[number].name
    return [
        device for device in devices if any(consumption.counter_set == name for consumption in device.consumes_counters)
    ]
