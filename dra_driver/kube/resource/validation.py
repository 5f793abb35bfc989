# SPDX-License-Identifier: Apache-2.0
"""Finds what the API server would refuse in a ResourceSlice, before the slice is sent.

Problems are returned and not raised, because a publisher reports all of them, and a reader of stored objects continues.

Follows pkg/apis/resource/validation of Kubernetes 1.36. For servers with counter sets beside the devices it follows
Kubernetes 1.33 and 1.34. It has the checks that matter for what this project publishes: it checks only the name of the
metadata and the number of terms of node selectors, and it does not compare the amounts of a request policy.
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
    DeviceTaint,
    MalformedAttribute,
    RequestPolicy,
    ResourceSlice,
    SliceFeatures,
    TaintEffect,
    Version,
)
from .quantity import Quantity

_NEWEST = SliceFeatures()
_PREPARE, _UNPREPARE, _EVERY_OPERATION = "NodePrepareResources", "NodeUnprepareResources", "*"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violated rule. `path` is the JSON path of the field."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def slice_problems(resource_slice: ResourceSlice, features: SliceFeatures = _NEWEST) -> list[Violation]:
    """The problems that an API server with these features has with a slice. The list is empty if the slice is valid."""
    return list(_slice(resource_slice, features))


def _slice(  # noqa: C901  # one rule of Kubernetes after the other
    slice_: ResourceSlice, features: SliceFeatures
) -> Iterator[Violation]:
    if not names.is_subdomain(slice_.metadata.name):
        yield Violation("metadata.name", f"{slice_.metadata.name!r} is not a DNS subdomain")
    if not names.is_driver_name(slice_.driver):
        yield Violation("spec.driver", f"{slice_.driver!r} is not a DNS subdomain of at most 63 characters")
    if not names.is_pool_name(slice_.pool.name):
        yield Violation("spec.pool.name", f"{slice_.pool.name!r} is not a pool name")
    if slice_.pool.generation < 0:
        yield Violation("spec.pool.generation", "must not be negative")
    if slice_.pool.resource_slice_count < 1:
        yield Violation("spec.pool.resourceSliceCount", "must be at least 1")
    places = (
        slice_.node_name,
        slice_.node_selector,
        slice_.all_nodes or None,
        slice_.per_device_node_selection or None,
    )
    if sum(place is not None for place in places) != 1:
        yield Violation(
            "spec", "exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection must be set"
        )
    if slice_.node_name is not None and not names.is_subdomain(slice_.node_name):
        yield Violation("spec.nodeName", f"{slice_.node_name!r} is not a node's name")
    if slice_.node_selector is not None and len(slice_.node_selector.terms) != 1:
        yield Violation("spec.nodeSelector", f"must have exactly one term, has {len(slice_.node_selector.terms)}")
    beside = features.counters_beside_devices
    if beside:
        yield from _counters_beside_devices(slice_)
    else:
        if slice_.devices and slice_.shared_counters:
            yield Violation("spec", "devices and sharedCounters exclude each other")
        sets = len(slice_.shared_counters)
        if sets > limits.COUNTER_SETS_PER_SLICE:
            yield Violation("spec.sharedCounters", f"has {sets} sets, more than {limits.COUNTER_SETS_PER_SLICE}")
    if slice_.partition_type_attribute is not None and not _is_qualified(slice_.partition_type_attribute):
        problem = f"{slice_.partition_type_attribute!r} is not a domain, a slash and an identifier"
        yield Violation("spec.partitionTypeAttribute", problem)
    yield from _skipped_operations(slice_.skip_node_operations)
    yield from _counter_sets(slice_.shared_counters, limited=not beside)
    yield from _devices(slice_, features)


def _is_qualified(name: str) -> bool:
    return "/" in name and names.is_qualified_name(name)


def _skipped_operations(operations: tuple[str, ...]) -> Iterator[Violation]:
    path = "spec.skipNodeOperations"
    for index, operation in enumerate(operations):
        if operation not in (_PREPARE, _UNPREPARE, _EVERY_OPERATION):
            yield Violation(f"{path}[{index}]", f"{operation!r} is not {_PREPARE}, {_UNPREPARE} or {_EVERY_OPERATION}")
    if len(set(operations)) < len(operations):
        yield Violation(path, "an operation is named twice")
    if _PREPARE in operations and not {_UNPREPARE, _EVERY_OPERATION} & set(operations):
        yield Violation(path, f"{_PREPARE} needs {_UNPREPARE}")


def _counters_beside_devices(slice_: ResourceSlice) -> Iterator[Violation]:
    """The rules of Kubernetes 1.33 and 1.34: devices consume counters of their own slice, and limits apply to sums."""
    shared = sum(len(counter_set.counters) for counter_set in slice_.shared_counters)
    if shared > limits.SHARED_COUNTERS_PER_SLICE_1_34:
        most = limits.SHARED_COUNTERS_PER_SLICE_1_34
        yield Violation("spec.sharedCounters", f"has {shared} counters, more than {most}")
    counters = {counter_set.name: counter_set.counters.keys() for counter_set in slice_.shared_counters}
    total = 0
    for index, device in enumerate(slice_.devices):
        path = f"spec.devices[{index}].consumesCounters"
        drawn = sum(len(consumption.counters) for consumption in device.consumes_counters)
        total += drawn
        if drawn > limits.CONSUMED_COUNTERS_PER_DEVICE_1_34:
            yield Violation(path, f"has {drawn} counters, more than {limits.CONSUMED_COUNTERS_PER_DEVICE_1_34}")
        for number, consumption in enumerate(device.consumes_counters):
            if consumption.counter_set not in counters:
                yield Violation(
                    f"{path}[{number}].counterSet", f"{consumption.counter_set!r} is not a counter set of the slice"
                )
                continue
            for name in consumption.counters.keys() - counters[consumption.counter_set]:
                yield Violation(
                    f"{path}[{number}].counters[{name}]", f"is not a counter of {consumption.counter_set!r}"
                )
    if total > limits.CONSUMED_COUNTERS_PER_SLICE_1_34:
        most = limits.CONSUMED_COUNTERS_PER_SLICE_1_34
        yield Violation("spec.devices", f"consume {total} counters together, more than {most}")


def _counter_sets(sets: tuple[CounterSet, ...], *, limited: bool) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, counters in enumerate(sets):
        path = f"spec.sharedCounters[{index}]"
        yield from _unique_label(counters.name, seen, f"{path}.name")
        yield from _counters(counters.counters, f"{path}.counters", limited=limited)


def _counters(counters: Mapping[str, Quantity], path: str, *, limited: bool) -> Iterator[Violation]:
    if not counters:
        yield Violation(path, "must have at least one counter")
    if limited and len(counters) > limits.COUNTERS_PER_SET:
        yield Violation(path, f"has {len(counters)} counters, more than {limits.COUNTERS_PER_SET}")
    for name in counters:
        if not names.is_label(name):
            yield Violation(f"{path}[{name}]", "is not a DNS label")


def _devices(slice_: ResourceSlice, features: SliceFeatures) -> Iterator[Violation]:
    devices = slice_.devices
    extras = not features.counters_beside_devices and any(_has_extras(device) for device in devices)
    most = limits.DEVICES_PER_SLICE_WITH_EXTRAS if extras else limits.DEVICES_PER_SLICE
    if len(devices) > most:
        yield Violation("spec.devices", f"has {len(devices)} devices, more than {most}")
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        yield from _unique_label(device.name, seen, f"{path}.name")
        yield from _device(device, path, features)
        yield from _device_nodes(device, path, slice_.per_device_node_selection)


def _has_extras(device: Device) -> bool:
    return bool(device.taints or device.consumes_counters) or any(
        isinstance(value, AttributeList) for value in device.attributes.values()
    )


def _device(device: Device, path: str, features: SliceFeatures) -> Iterator[Violation]:
    entries = len(device.attributes) + len(device.capacity)
    if entries > limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE:
        most = limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE
        yield Violation(path, f"has {entries} attributes and capacities, more than {most}")
    values = sum(len(value.items) if isinstance(value, AttributeList) else 1 for value in device.attributes.values())
    if values > limits.ATTRIBUTE_VALUES_PER_DEVICE:
        yield Violation(f"{path}.attributes", f"has {values} values, more than {limits.ATTRIBUTE_VALUES_PER_DEVICE}")
    for key, value in device.attributes.items():
        if not names.is_qualified_name(key):
            yield Violation(f"{path}.attributes[{key}]", "is not an identifier, optionally after a domain and a slash")
        if not _is_short(value):
            yield from _attribute(value, f"{path}.attributes[{key}]")
    for key, capacity in device.capacity.items():
        if not names.is_qualified_name(key):
            yield Violation(f"{path}.capacity[{key}]", "is not an identifier, optionally after a domain and a slash")
        if capacity.request_policy is not None:
            policy = f"{path}.capacity[{key}].requestPolicy"
            yield from _request_policy(capacity.request_policy, device.allow_multiple_allocations, policy)
    if features.device_taints:
        yield from _taints(device.taints, f"{path}.taints", features)
    yield from _consumptions(
        device.consumes_counters, f"{path}.consumesCounters", limited=not features.counters_beside_devices
    )
    yield from _binding_conditions(device, path)


def _device_nodes(device: Device, path: str, choose: bool) -> Iterator[Violation]:
    places = (device.node_name, device.node_selector, device.all_nodes or None)
    given = sum(place is not None for place in places)
    if choose and given != 1:
        yield Violation(path, "exactly one of nodeName, nodeSelector and allNodes must be set")
    if not choose and given:
        yield Violation(path, "nodeName, nodeSelector and allNodes need the slice's perDeviceNodeSelection")
    if device.node_name is not None and not names.is_subdomain(device.node_name):
        yield Violation(f"{path}.nodeName", f"{device.node_name!r} is not a node's name")


def _consumptions(consumptions: tuple[CounterConsumption, ...], path: str, *, limited: bool) -> Iterator[Violation]:
    if limited and len(consumptions) > limits.COUNTER_SETS_PER_DEVICE:
        yield Violation(path, f"names more than {limits.COUNTER_SETS_PER_DEVICE} counter sets")
    seen: set[str] = set()
    for index, consumption in enumerate(consumptions):
        yield from _unique_label(consumption.counter_set, seen, f"{path}[{index}].counterSet")
        yield from _counters(consumption.counters, f"{path}[{index}].counters", limited=limited)
        groups = consumption.compatibility_groups
        if len(groups) > limits.COMPATIBILITY_GROUPS:
            most = limits.COMPATIBILITY_GROUPS
            yield Violation(f"{path}[{index}].compatibilityGroups", f"has {len(groups)} entries, more than {most}")
        if len(set(groups)) < len(groups):
            yield Violation(f"{path}[{index}].compatibilityGroups", "a group is named twice")


def _taints(taints: tuple[DeviceTaint, ...], path: str, features: SliceFeatures) -> Iterator[Violation]:
    if len(taints) > features.taints_per_device:
        yield Violation(path, f"has {len(taints)} taints, more than {features.taints_per_device}")
    effects = tuple(
        effect for effect in TaintEffect if features.taints_without_effect or effect is not TaintEffect.NONE
    )
    for index, taint in enumerate(taints):
        yield from _taint(taint, f"{path}[{index}]", effects)


def _taint(taint: DeviceTaint, path: str, effects: tuple[TaintEffect, ...]) -> Iterator[Violation]:
    if not names.is_label_key(taint.key):
        yield Violation(f"{path}.key", f"{taint.key!r} is not the key of a label")
    if not names.is_label_value(taint.value):
        yield Violation(f"{path}.value", f"{taint.value!r} is not the value of a label")
    if taint.effect not in effects:
        yield Violation(f"{path}.effect", f"must be one of {', '.join(effects)}, not {taint.effect!r}")


def _binding_conditions(device: Device, path: str) -> Iterator[Violation]:
    conditions, failures = device.binding_conditions, device.binding_failure_conditions
    if bool(conditions) != bool(failures):
        yield Violation(path, "bindingConditions and bindingFailureConditions need each other")
    if len(set(conditions + failures)) < len(conditions + failures):
        yield Violation(path, "a binding condition is named twice")
    for field, listed in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        if len(listed) > limits.BINDING_CONDITIONS:
            yield Violation(f"{path}.{field}", f"has {len(listed)} entries, more than {limits.BINDING_CONDITIONS}")
        for condition in listed:
            if not names.is_label_key(condition):
                yield Violation(f"{path}.{field}", f"{condition!r} is not formed like the key of a label")


def _request_policy(policy: RequestPolicy, shared: bool, path: str) -> Iterator[Violation]:
    if not shared:
        yield Violation(path, "needs the device's allowMultipleAllocations")
    if policy.valid_values and policy.valid_range is not None:
        yield Violation(path, "validValues and validRange exclude each other")
    if policy.default is None and (policy.valid_values or policy.valid_range is not None):
        yield Violation(f"{path}.default", "is required with validValues or validRange")


def _is_short(value: AttributeValue) -> bool:
    """Whether an attribute is a short text, a number or a boolean, as most are: then it breaks no rule."""
    if isinstance(value, str):
        return value.isascii() and len(value) <= limits.ATTRIBUTE_VALUE_BYTES
    return isinstance(value, int)


def _attribute(value: AttributeValue, path: str) -> Iterator[Violation]:
    if isinstance(value, MalformedAttribute):
        yield Violation(path, "must have exactly one value")
        return
    items = value.items if isinstance(value, AttributeList) else (value,)
    if not items:
        yield Violation(path, "must not be an empty list")
    for item in items:
        text = item.text if isinstance(item, Version) else item
        if isinstance(text, str) and len(text.encode()) > limits.ATTRIBUTE_VALUE_BYTES:
            yield Violation(path, f"is longer than {limits.ATTRIBUTE_VALUE_BYTES} bytes: {text!r}")
        if isinstance(item, Version) and not item.is_strict:
            yield Violation(path, f"{item.text!r} is not a semantic version (x.y.z)")


def _unique_label(name: str, seen: set[str], path: str) -> Iterator[Violation]:
    if not names.is_label(name):
        yield Violation(path, f"{name!r} is not a DNS label of at most 63 characters")
    if name in seen:
        yield Violation(path, f"{name!r} is used twice")
    seen.add(name)
