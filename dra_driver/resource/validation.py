# SPDX-License-Identifier: Apache-2.0
"""What the API server would refuse in a ResourceSlice, found before it is sent.

Returns problems instead of raising: a publisher reports all of them, and a reader of stored
objects may go on. Follows pkg/apis/resource/validation of Kubernetes 1.36, as far as this project publishes:
metadata is checked for its name only, node selectors for the number of their terms, and request policies not
for how their amounts fit together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from . import limits, names
from .device import (
    AttributeList,
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceTaint,
    MalformedAttribute,
    TaintEffect,
)
from .quantity import Quantity
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
    """What the API server would hold against `resource_slice`; empty when it is valid."""
    return list(_slice(resource_slice))


def _slice(slice_: ResourceSlice) -> Iterator[Problem]:
    if not names.is_subdomain(slice_.metadata.name):
        yield Problem("metadata.name", f"{slice_.metadata.name!r} is not a DNS subdomain")
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
    if slice_.node_name is not None and not names.is_subdomain(slice_.node_name):
        yield Problem("spec.nodeName", f"{slice_.node_name!r} is not a node's name")
    if slice_.node_selector is not None and len(slice_.node_selector.terms) != 1:
        yield Problem("spec.nodeSelector", f"must have exactly one term, has {len(slice_.node_selector.terms)}")
    if slice_.devices and slice_.shared_counters:
        yield Problem("spec", "devices and sharedCounters exclude each other")
    yield from _counter_sets(slice_.shared_counters)
    yield from _devices(slice_.devices, slice_.per_device_node_selection)


def _counter_sets(sets: tuple[CounterSet, ...]) -> Iterator[Problem]:
    if len(sets) > limits.COUNTER_SETS_PER_SLICE:
        yield Problem("spec.sharedCounters", f"has {len(sets)} sets, more than {limits.COUNTER_SETS_PER_SLICE}")
    seen: set[str] = set()
    for index, counters in enumerate(sets):
        path = f"spec.sharedCounters[{index}]"
        yield from _unique_label(counters.name, seen, f"{path}.name")
        yield from _counters(counters.counters, f"{path}.counters")


def _counters(counters: Mapping[str, Quantity], path: str) -> Iterator[Problem]:
    if not 1 <= len(counters) <= limits.COUNTERS_PER_SET:
        yield Problem(path, f"must have 1 to {limits.COUNTERS_PER_SET} counters, has {len(counters)}")
    for name in counters:
        if not names.is_label(name):
            yield Problem(f"{path}[{name}]", "is not a DNS label")


def _devices(devices: tuple[Device, ...], choose_nodes: bool) -> Iterator[Problem]:
    extras = any(_has_extras(device) for device in devices)
    most = limits.DEVICES_PER_SLICE_WITH_EXTRAS if extras else limits.DEVICES_PER_SLICE
    if len(devices) > most:
        yield Problem("spec.devices", f"has {len(devices)} devices, more than {most}")
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        yield from _unique_label(device.name, seen, f"{path}.name")
        yield from _device(device, path)
        yield from _device_nodes(device, path, choose_nodes)


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
    for key, capacity in device.capacity.items():
        if not names.is_qualified_name(key):
            yield Problem(f"{path}.capacity[{key}]", "is not an identifier, optionally after a domain and a slash")
        yield from _request_policy(capacity, device.allow_multiple_allocations, f"{path}.capacity[{key}].requestPolicy")
    if len(device.taints) > limits.TAINTS_PER_DEVICE:
        yield Problem(f"{path}.taints", f"has {len(device.taints)} taints, more than {limits.TAINTS_PER_DEVICE}")
    for index, taint in enumerate(device.taints):
        yield from _taint(taint, f"{path}.taints[{index}]")
    yield from _consumptions(device.consumes_counters, f"{path}.consumesCounters")
    yield from _binding_conditions(device, path)


def _device_nodes(device: Device, path: str, choose: bool) -> Iterator[Problem]:
    places = (device.node_name, device.node_selector, device.all_nodes or None)
    given = sum(place is not None for place in places)
    if choose and given != 1:
        yield Problem(path, "exactly one of nodeName, nodeSelector and allNodes must be set")
    if not choose and given:
        yield Problem(path, "nodeName, nodeSelector and allNodes need the slice's perDeviceNodeSelection")
    if device.node_name is not None and not names.is_subdomain(device.node_name):
        yield Problem(f"{path}.nodeName", f"{device.node_name!r} is not a node's name")


def _consumptions(consumptions: tuple[CounterConsumption, ...], path: str) -> Iterator[Problem]:
    if len(consumptions) > limits.COUNTER_SETS_PER_DEVICE:
        yield Problem(path, f"names more than {limits.COUNTER_SETS_PER_DEVICE} counter sets")
    seen: set[str] = set()
    for index, consumption in enumerate(consumptions):
        yield from _unique_label(consumption.counter_set, seen, f"{path}[{index}].counterSet")
        yield from _counters(consumption.counters, f"{path}[{index}].counters")


def _taint(taint: DeviceTaint, path: str) -> Iterator[Problem]:
    if not names.is_label_key(taint.key):
        yield Problem(f"{path}.key", f"{taint.key!r} is not the key of a label")
    if not names.is_label_value(taint.value):
        yield Problem(f"{path}.value", f"{taint.value!r} is not the value of a label")
    if taint.effect not in tuple(TaintEffect):
        yield Problem(f"{path}.effect", f"must be one of {', '.join(TaintEffect)}, not {taint.effect!r}")


def _binding_conditions(device: Device, path: str) -> Iterator[Problem]:
    conditions, failures = device.binding_conditions, device.binding_failure_conditions
    if bool(conditions) != bool(failures):
        yield Problem(path, "bindingConditions and bindingFailureConditions need each other")
    if len(set(conditions + failures)) < len(conditions + failures):
        yield Problem(path, "a binding condition is named twice")
    for field, listed in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        if len(listed) > limits.BINDING_CONDITIONS:
            yield Problem(f"{path}.{field}", f"has {len(listed)} entries, more than {limits.BINDING_CONDITIONS}")
        for condition in listed:
            if not names.is_label_key(condition):
                yield Problem(f"{path}.{field}", f"{condition!r} is not formed like the key of a label")


def _request_policy(capacity: DeviceCapacity, shared: bool, path: str) -> Iterator[Problem]:
    policy = capacity.request_policy
    if policy is None:
        return
    if not shared:
        yield Problem(path, "needs the device's allowMultipleAllocations")
    if policy.valid_values and policy.valid_range is not None:
        yield Problem(path, "validValues and validRange exclude each other")
    if policy.default is None and (policy.valid_values or policy.valid_range is not None):
        yield Problem(f"{path}.default", "is required with validValues or validRange")


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
