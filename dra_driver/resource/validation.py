# SPDX-License-Identifier: Apache-2.0
"""What the API server would refuse in a ResourceSlice, found before it is sent.

Returns problems instead of raising: a publisher reports all of them, and a reader of stored
objects may go on. Follows pkg/apis/resource/validation of Kubernetes 1.36.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from . import limits, names
from .device import AttributeList, AttributeValue, CounterSet, Device, MalformedAttribute
from .semver import Version
from .slices import ResourceSlice


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule. `path` is the JSON path of the field."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def slice_problems(resource_slice: ResourceSlice) -> list[Problem]:
    """Everything that the API server would hold against `resource_slice`; empty when it is valid."""
    return list(_slice(resource_slice))


def _slice(slice_: ResourceSlice) -> Iterator[Problem]:
    if not names.is_driver_name(slice_.driver):
        yield Problem("spec.driver", f"{slice_.driver!r} is not a DNS subdomain of at most 63 characters")
    if not names.is_pool_name(slice_.pool.name):
        yield Problem("spec.pool.name", f"{slice_.pool.name!r} is not a pool name")
    if slice_.pool.generation < 0:
        yield Problem("spec.pool.generation", "must not be negative")
    if slice_.pool.resource_slice_count < 1:
        yield Problem("spec.pool.resourceSliceCount", "must be at least 1")
    places = (
        slice_.node_name,
        slice_.node_selector,
        slice_.all_nodes or None,
        slice_.per_device_node_selection or None,
    )
    if sum(place is not None for place in places) != 1:
        yield Problem("spec", "exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection must be set")
    if slice_.devices and slice_.shared_counters:
        yield Problem("spec", "devices and sharedCounters exclude each other")
    yield from _counter_sets(slice_.shared_counters)
    yield from _devices(slice_.devices)


def _counter_sets(sets: tuple[CounterSet, ...]) -> Iterator[Problem]:
    if len(sets) > limits.COUNTER_SETS_PER_SLICE:
        yield Problem("spec.sharedCounters", f"has {len(sets)} sets, more than {limits.COUNTER_SETS_PER_SLICE}")
    seen: set[str] = set()
    for index, counters in enumerate(sets):
        path = f"spec.sharedCounters[{index}]"
        yield from _unique_label(counters.name, seen, f"{path}.name")
        if not 1 <= len(counters.counters) <= limits.COUNTERS_PER_SET:
            yield Problem(
                f"{path}.counters", f"must have 1 to {limits.COUNTERS_PER_SET} counters, has {len(counters.counters)}"
            )
        for name in counters.counters:
            if not names.is_label(name):
                yield Problem(f"{path}.counters[{name}]", "is not a DNS label")


def _devices(devices: tuple[Device, ...]) -> Iterator[Problem]:
    extras = any(_has_extras(device) for device in devices)
    most = limits.DEVICES_PER_SLICE_WITH_EXTRAS if extras else limits.DEVICES_PER_SLICE
    if len(devices) > most:
        yield Problem("spec.devices", f"has {len(devices)} devices, more than {most}")
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        yield from _unique_label(device.name, seen, f"{path}.name")
        yield from _device(device, path)


def _has_extras(device: Device) -> bool:
    return bool(device.taints or device.consumes_counters) or any(
        isinstance(value, AttributeList) for value in device.attributes.values()
    )


def _device(device: Device, path: str) -> Iterator[Problem]:
    entries = len(device.attributes) + len(device.capacity)
    if entries > limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE:
        most = limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE
        yield Problem(path, f"has {entries} attributes and capacities, more than {most}")
    values = sum(len(value.items) if isinstance(value, AttributeList) else 1 for value in device.attributes.values())
    if values > limits.ATTRIBUTE_VALUES_PER_DEVICE:
        yield Problem(f"{path}.attributes", f"has {values} values, more than {limits.ATTRIBUTE_VALUES_PER_DEVICE}")
    for key, value in device.attributes.items():
        if not names.is_qualified_name(key):
            yield Problem(f"{path}.attributes[{key}]", "is not an identifier, optionally after a domain and a slash")
        yield from _attribute(value, f"{path}.attributes[{key}]")
    for key in device.capacity:
        if not names.is_qualified_name(key):
            yield Problem(f"{path}.capacity[{key}]", "is not an identifier, optionally after a domain and a slash")
    if len(device.taints) > limits.TAINTS_PER_DEVICE:
        yield Problem(f"{path}.taints", f"has {len(device.taints)} taints, more than {limits.TAINTS_PER_DEVICE}")
    if len(device.consumes_counters) > limits.COUNTER_SETS_PER_DEVICE:
        yield Problem(f"{path}.consumesCounters", f"names more than {limits.COUNTER_SETS_PER_DEVICE} counter sets")
    for index, consumption in enumerate(device.consumes_counters):
        if not 1 <= len(consumption.counters) <= limits.COUNTERS_PER_SET:
            yield Problem(
                f"{path}.consumesCounters[{index}].counters", f"must have 1 to {limits.COUNTERS_PER_SET} counters"
            )


def _attribute(value: AttributeValue, path: str) -> Iterator[Problem]:
    if isinstance(value, MalformedAttribute):
        yield Problem(path, "must have exactly one value")
        return
    items = value.items if isinstance(value, AttributeList) else (value,)
    if not items:
        yield Problem(path, "must not be an empty list")
    for item in items:
        text = item.text if isinstance(item, Version) else item
        if isinstance(text, str) and len(text.encode()) > limits.ATTRIBUTE_VALUE_BYTES:
            yield Problem(path, f"is longer than {limits.ATTRIBUTE_VALUE_BYTES} bytes: {text!r}")
        if isinstance(item, Version) and not item.is_strict:
            yield Problem(path, f"{item.text!r} is not a semantic version (x.y.z)")


def _unique_label(name: str, seen: set[str], path: str) -> Iterator[Problem]:
    if not names.is_label(name):
        yield Problem(path, f"{name!r} is not a DNS label of at most 63 characters")
    if name in seen:
        yield Problem(path, f"{name!r} is used twice")
    seen.add(name)
