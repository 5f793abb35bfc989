# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices: defaults, gated fields, and validation, including counters and the request policies of capacities.

Since Kubernetes 1.35, counter sets are in slices of their own. Before, devices could only consume counter sets of their
own slice.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from dra_driver.resource import limits
from dra_driver.resource.quantity import Quantity

from ... import field_errors as errors
from ... import names
from ...kinds import Context, Strategy
from ...objects import Object, timestamp
from . import rules, versions
from .rules import Problems

_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_LISTS: Final = ("bools", "ints", "strings", "versions")
_VALUES: Final = ("bool", "int", "string", "version", *_LISTS)
_FOUR: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def set_defaults(obj: Object, context: Context) -> None:
    """Set the time of taints without one."""
    for device in obj.get("spec", {}).get("devices", ()):
        for taint in device.get("taints", ()):
            taint.setdefault("timeAdded", timestamp(context.now))


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates."""
    versions.drop_disabled(new, old, versions.SLICE, context.release)


def warn(new: Object, context: Context) -> Iterable[str]:
    """Warn of a driver name with upper-case letters."""
    driver = new.get("spec", {}).get("driver", "")
    if driver != driver.lower():
        yield f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters'


def validate(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a slice, or with its change."""
    spec = new.get("spec", {})
    yield from rules.driver_problems(spec.get("driver", ""), "spec.driver")
    yield from _pool_problems(spec.get("pool", {}))
    if old is not None:
        yield from _immutable_problems(spec, old.get("spec", {}))
    yield from _node_problems(spec)
    if spec.get("partitionTypeAttribute") is not None and not context.release.enabled("DRAPartitionableDevicesType"):
        text = "may not be set while the DRAPartitionableDevicesType feature gate is disabled"
        yield errors.forbidden("spec.partitionTypeAttribute", text)
    if separate(context) and "sharedCounters" in spec and "devices" in spec:
        yield errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    yield from _devices_problems(spec, old, context)
    yield from shared_problems(spec, context)


def _name(item: Object) -> str:
    name: str = item.get("name", "")
    return name


def _pool_problems(pool: Object) -> Problems:
    yield from rules.pool_problems(pool.get("name", ""), "spec.pool.name")
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        yield errors.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        yield errors.invalid("spec.pool.generation", generation, "must be greater than or equal to zero")


def _immutable_problems(spec: Object, old: Object) -> Problems:
    for path in (("pool", "name"), ("driver",), ("nodeName",)):
        before: Any = old
        after: Any = spec
        for part in path:
            before, after = before.get(part), after.get(part)
            before, after = (({} if value is None else value) if part == "pool" else value for value in (before, after))
        if before != after:
            yield errors.invalid(f"spec.{'.'.join(path)}", after, "field is immutable")


def _node_problems(spec: Object) -> Problems:
    chosen = []
    node = spec.get("nodeName")
    if node == "":
        yield errors.invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    elif node is not None:
        chosen.append("`nodeName`")
        for problem in names.subdomain_problems(node):
            yield errors.invalid("spec.nodeName", node, problem)
    selector = spec.get("nodeSelector")
    if selector is not None:
        chosen.append("`nodeSelector`")
        yield from rules.node_selector_problems(selector, "spec.nodeSelector")
        terms = selector.get("nodeSelectorTerms") or []
        if len(terms) != 1:
            text = "must have exactly one node selector term"
            yield errors.invalid("spec.nodeSelector.nodeSelectorTerms", terms, text)
    for field in ("allNodes", "perDeviceNodeSelection"):
        value = spec.get(field)
        if value is True:
            chosen.append(f"`{field}`")
        elif value is False:
            yield errors.invalid(f"spec.{field}", False, "must be either unset or set to true")
    if not chosen:
        yield errors.required("spec", _FOUR)
    elif len(chosen) > 1:
        yield errors.invalid("spec", f"{{{', '.join(chosen)}}}", f"{_FOUR}, but multiple fields are set")


def _devices_problems(spec: Object, old: Object | None, context: Context) -> Problems:
    devices = spec.get("devices", ())
    extras = separate(context) and any(_has_extras(device) for device in devices)
    limit = limits.DEVICES_PER_SLICE_WITH_EXTRAS if extras else limits.DEVICES_PER_SLICE
    before = {_name(device): device for device in old.get("spec", {}).get("devices", ())} if old else {}

    def check(device: Object, path: str) -> Problems:
        return _device_problems(device, before.get(_name(device)), path, spec, context)

    yield from rules.set_problems(devices, limit, check, _name, "spec.devices")


def _has_extras(device: Object) -> bool:
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(name in value for value in device.get("attributes", {}).values() for name in _LISTS)


def _device_problems(device: Object, old: Object | None, path: str, spec: Object, context: Context) -> Problems:
    yield from rules.label_problems(_name(device), f"{path}.name")
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    entries = len(attributes) + len(capacity)
    if entries > limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE:
        most = limits.ATTRIBUTES_AND_CAPACITIES_PER_DEVICE
        text = f"the total number of attributes and capacities must not exceed {most}"
        yield errors.invalid(path, entries, text)
    values = sum(_value_count(value) for value in attributes.values())
    if values > limits.ATTRIBUTE_VALUES_PER_DEVICE:
        text = f"the total number of attribute values must not exceed {limits.ATTRIBUTE_VALUES_PER_DEVICE}"
        yield errors.invalid(path, values, text)
    for key, value in attributes.items():
        if not rules.is_qualified_name(key):
            yield from rules.qualified_name_problems(key, f"{path}.attributes")
        if not _is_plain_attribute(value):
            yield from _attribute_problems(value, f"{path}.attributes[{key}]")
    several = device.get("allowMultipleAllocations") is True
    for key, value in capacity.items():
        if not rules.is_qualified_name(key):
            yield from rules.qualified_name_problems(key, f"{path}.capacity")
        if value.get("requestPolicy") is not None:
            yield from policy_problems(value, several, f"{path}.capacity[{key}].requestPolicy")
    if old is None or (old.get("taints") or []) != (device.get("taints") or []):
        yield from rules.taints_problems(device.get("taints", ()), f"{path}.taints", context)
    yield from consumption_problems(device, spec, path, context)
    yield from rules.binding_problems(device, path)


def _value_count(attribute: Object) -> int:
    lists = sum(len(attribute.get(name) or ()) for name in _LISTS)
    return lists or 1


def _is_plain_attribute(value: Object) -> bool:
    """Return whether the attribute is a bool, an int or a short string. This is a fast check of the common case."""
    if len(value) != 1:
        return False
    text = value.get("string")
    if text is not None:
        return len(text.encode()) <= limits.ATTRIBUTE_VALUE_BYTES
    return "bool" in value or "int" in value


def _attribute_problems(value: Object, path: str) -> Problems:
    present = [name for name in _VALUES if value.get(name) is not None]
    for name in present:
        here, content = f"{path}.{name}", value[name]
        if name in _LISTS and not content:
            yield errors.invalid(here, content, "must not be empty if specified")
        texts = content if name in _LISTS else (content,)
        for index, text in enumerate(texts):
            place = f"{here}[{index}]" if name in _LISTS else here
            if name.startswith("version") and not _SEMVER.fullmatch(text):
                yield errors.invalid(place, text, "must be a string compatible with semver.org spec 2.0.0")
            if isinstance(text, str) and len(text.encode()) > limits.ATTRIBUTE_VALUE_BYTES:
                yield errors.too_long(place, limits.ATTRIBUTE_VALUE_BYTES)
    if len(present) != 1:
        yield errors.invalid(path, value if present else "", "exactly one value must be specified")


STRATEGY: Final = Strategy(
    default=set_defaults,
    prepare=prepare,
    validate=validate,
    warn=warn,
    generation=("spec",),
    returns_deleted=True,
    checks_required=False,
)


_SEPARATE_SINCE: Final = 35


def separate(context: Context) -> bool:
    """Return whether the release has counter sets in separate slices."""
    return context.release.minor >= _SEPARATE_SINCE


def shared_problems(spec: Object, context: Context) -> Problems:
    """Yield the problems of the counter sets."""
    apart = separate(context)

    def check(counter_set: Object, path: str) -> Problems:
        yield from rules.required_label_problems(counter_set.get("name", ""), f"{path}.name")
        yield from _counters_problems(counter_set, path, limited=apart)

    most = limits.COUNTER_SETS_PER_SLICE if apart else rules.UNLIMITED
    yield from rules.set_problems(
        spec.get("sharedCounters", ()), most, check, lambda item: item.get("name", ""), "spec.sharedCounters"
    )


def consumption_problems(device: Object, spec: Object, path: str, context: Context) -> Problems:
    """Yield the problems of the counters that a device consumes."""
    consumptions = device.get("consumesCounters", ())
    apart = separate(context)

    def check(consumption: Object, here: str) -> Problems:
        yield from rules.required_label_problems(consumption.get("counterSet", ""), f"{here}.counterSet")
        yield from _counters_problems(consumption, here, limited=apart)

    most = limits.COUNTER_SETS_PER_DEVICE if apart else rules.UNLIMITED
    yield from rules.set_problems(
        consumptions, most, check, lambda item: item.get("counterSet", ""), f"{path}.consumesCounters"
    )
    if apart:
        return
    sets = {item.get("name", ""): item.get("counters", {}) for item in spec.get("sharedCounters", ())}
    for index, consumption in enumerate(consumptions):
        here = f"{path}.consumesCounters[{index}]"
        name = consumption.get("counterSet", "")
        if name not in sets:
            text = "must reference a counterSet defined in the ResourceSlice sharedCounters"
            yield errors.invalid(f"{here}.counterSet", name, text)
            continue
        for counter in consumption.get("counters", {}):
            if counter not in sets[name]:
                text = "must reference a counter defined in the ResourceSlice sharedCounters"
                yield errors.invalid(f"{here}.counters", counter, text)


def _counters_problems(holder: Object, path: str, *, limited: bool) -> Problems:
    counters, here = holder.get("counters"), f"{path}.counters"
    if not counters:
        yield errors.required(here)
        return
    if limited and len(counters) > limits.COUNTERS_PER_SET:
        yield errors.too_many(here, len(counters), limits.COUNTERS_PER_SET)
        return
    for name in counters:
        yield from rules.label_problems(name, here)


_VALID_VALUES: Final = 10


def policy_problems(capacity: Object, several: bool, path: str) -> Problems:
    """Yield the problems of the policy in `capacity`. `several`: the device allows multiple allocations."""
    if not several:
        yield errors.forbidden(path, "allowMultipleAllocations must be true")
        return
    policy, most = capacity["requestPolicy"], rules.quantity(capacity.get("value", "0"))
    values, span = policy.get("validValues") or [], policy.get("validRange")
    if values and span is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield errors.forbidden(path, text)
        return
    for field, given in (("validValues", values), ("validRange", span)):
        if given and policy.get("default") is None:
            yield errors.required(f"{path}.default", f"required when {field} is defined")
            return
    if values:
        amounts = [rules.quantity(value) for value in values]
        yield from _values_problems(rules.quantity(policy["default"]), amounts, most, f"{path}.validValues")
    elif span is not None:
        yield from _range_problems(rules.quantity(policy["default"]), span, most, f"{path}.validRange")


def _values_problems(default: Quantity, values: list[Quantity], most: Quantity, path: str) -> Problems:
    for index in range(1, len(values)):
        if values[index - 1] > values[index]:
            yield errors.invalid(f"{path}[{index}]", str(values[index]), "values must be sorted in ascending order")

    def check(value: Quantity, here: str) -> Problems:
        if value > most:
            yield errors.invalid(here, str(value), f"option is larger than capacity value: {most}")

    yield from rules.set_problems(values, _VALID_VALUES, check, lambda value: str(value.value), path)
    if default not in values:
        yield errors.invalid(path, str(default), "default value is not valid according to the requestPolicy")


def _range_problems(default: Quantity, span: Object, most: Quantity, path: str) -> Problems:
    if span.get("min") is None:
        yield errors.required(f"{path}.min", "required when validRange is defined")
        return
    low = rules.quantity(span["min"])
    high = rules.quantity(span["max"]) if span.get("max") is not None else None
    if low > most:
        yield errors.invalid(f"{path}.min", str(low), f"min is larger than capacity value: {most}")
    if default < low:
        yield errors.invalid(f"{path}.min", str(default), f"default is less than min: {low}")
    if high is not None:
        if low > high:
            yield errors.invalid(f"{path}.max", str(low), f"min is larger than max: {high}")
        if high > most:
            yield errors.invalid(f"{path}.max", str(high), f"max is larger than capacity value: {most}")
        if default > high:
            yield errors.invalid(f"{path}.max", str(default), f"default is more than max: {high}")
    if span.get("step") is not None:
        step = rules.quantity(span["step"])
        if low + step > most:
            text = f"one step {low + step} is larger than capacity value: {most}"
            yield errors.invalid(f"{path}.step", str(step), text)
        for value in (default, high):
            if value is not None and step.value and (value.value - low.value) % step.value:
                text = f"value is not a multiple of a given step ({step}) from ({low})"
                yield errors.invalid(f"{path}.step", str(value), text)
