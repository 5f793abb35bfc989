# SPDX-License-Identifier: Apache-2.0
"""Decoding of ResourceSlices and DeviceTaintRules."""

from ..device import (
    AttributeList,
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    MalformedAttribute,
    NodeAllocatableResource,
    RequestPolicy,
    RequestRange,
    ResourceMapping,
    ResourceOverhead,
    ResourcePool,
    ResourceSlice,
    Version,
)
from ..quantity import Quantity
from .fields import Dialect, Fields, json_type, node_selector, object_meta, timestamp

_SCALAR_TYPES: dict[str, type] = {"string": str, "int": int, "bool": bool, "version": str}
_LIST_TYPES: dict[str, type] = {"strings": str, "ints": int, "bools": bool, "versions": str}
_DEVICE_FIELDS = ("attributes", "capacity", "consumesCounters", "taints", "nodeName", "nodeSelector", "allNodes")


def decode_slice(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceSlice:
    """A ResourceSlice."""
    return Fields(value, strict=strict).decode_whole(lambda top: _slice(top, dialect))


def decode_taint_rule(value: object, *, strict: bool = True) -> DeviceTaintRule:
    """A DeviceTaintRule, which has the same form in all versions."""
    return Fields(value, strict=strict).decode_whole(_taint_rule)


def _taint_rule(top: Fields) -> DeviceTaintRule:
    metadata, spec = object_meta(top), top.required_object("spec")
    top.ignore("status")
    taint = spec.required_object("taint").decoded_by(_taint)
    selector = spec.decode_one("deviceSelector", _device_selector)
    spec.finish()
    return DeviceTaintRule(metadata, taint, selector)


def _device_selector(fields: Fields) -> DeviceTaintSelector:
    return DeviceTaintSelector(
        fields.optional_text("driver"), fields.optional_text("pool"), fields.optional_text("device")
    )


def _slice(top: Fields, dialect: Dialect) -> ResourceSlice:
    metadata = object_meta(top)
    spec = top.required_object("spec")
    pool = spec.required_object("pool")
    decoded = ResourceSlice(
        metadata=metadata,
        driver=spec.required_text("driver"),
        pool=ResourcePool(
            pool.required_text("name"), pool.required_integer("generation"), pool.required_integer("resourceSliceCount")
        ),
        node_name=spec.text("nodeName") or None,
        node_selector=node_selector(spec.object("nodeSelector")),
        all_nodes=spec.flag("allNodes"),
        per_device_node_selection=spec.flag("perDeviceNodeSelection"),
        devices=spec.decode_all("devices", lambda fields: _device(fields, dialect)),
        shared_counters=spec.decode_all("sharedCounters", _counter_set),
        skip_node_operations=spec.texts("skipNodeOperations"),
        partition_type_attribute=spec.text("partitionTypeAttribute") or None,
    )
    pool.finish()
    spec.finish()
    return decoded


def _counter_set(fields: Fields) -> CounterSet:
    return CounterSet(fields.required_text("name"), _counters(fields))


def _counter_consumption(fields: Fields) -> CounterConsumption:
    groups = fields.texts("compatibilityGroups")
    return CounterConsumption(fields.required_text("counterSet"), _counters(fields), groups)


def _counters(fields: Fields) -> dict[str, Quantity]:
    return {name: counter.value for name, counter in _capacities(fields, "counters").items()}


def _capacities(fields: Fields, field: str) -> dict[str, DeviceCapacity]:
    values = fields.raw_object(field) or {}
    decoded: dict[str, DeviceCapacity] = {}
    for name, value in values.items():
        if type(value) is dict and len(value) == 1 and type(text := value.get("value")) is str:
            decoded[name] = DeviceCapacity(fields.as_quantity(f"{field}[{name}].value", text))
        else:
            decoded[name] = Fields(value, f"{field}[{name}]", fields).decoded_by(_capacity)
    return decoded


def _capacity(fields: Fields) -> DeviceCapacity:
    return DeviceCapacity(_required_quantity(fields, "value"), fields.decode_one("requestPolicy", _request_policy))


def _request_policy(fields: Fields) -> RequestPolicy:
    values = fields.array("validValues")
    return RequestPolicy(
        default=fields.quantity("default"),
        valid_values=tuple(fields.as_quantity(f"validValues[{i}]", value) for i, value in enumerate(values)),
        valid_range=fields.decode_one("validRange", _request_range),
    )


def _request_range(fields: Fields) -> RequestRange:
    return RequestRange(_required_quantity(fields, "min"), fields.quantity("max"), fields.quantity("step"))


def _required_quantity(fields: Fields, field: str) -> Quantity:
    value = fields.quantity(field)
    if value is None:
        raise fields.error(field, "is required")
    return value


def _device(fields: Fields, dialect: Dialect) -> Device:
    name = fields.required_text("name")
    if dialect.nested_device:
        misplaced = next((field for field in _DEVICE_FIELDS if field in fields), None)
        if misplaced is not None:
            raise fields.error(
                misplaced,
                f"is the form of resource.k8s.io/v1. In {dialect.api_version} put it under 'basic',"
                " or set apiVersion: resource.k8s.io/v1",
            )
        body = fields.object("basic") or Fields({}, "basic", fields)
    else:
        if "basic" in fields:
            raise fields.error(
                "basic",
                f"is the form of resource.k8s.io/v1beta1. In {dialect.api_version} move everything under 'basic'"
                " one level up, beside 'name', or set apiVersion: resource.k8s.io/v1beta1",
            )
        body = fields
    device = Device(
        name=name,
        attributes=_attributes(body),
        capacity=_capacities(body, "capacity"),
        consumes_counters=body.decode_all("consumesCounters", _counter_consumption),
        node_name=body.optional_text("nodeName"),
        node_selector=node_selector(body.object("nodeSelector")),
        all_nodes=body.flag("allNodes"),
        taints=body.decode_all("taints", _taint),
        binds_to_node=body.flag("bindsToNode"),
        binding_conditions=body.texts("bindingConditions"),
        binding_failure_conditions=body.texts("bindingFailureConditions"),
        allow_multiple_allocations=body.flag("allowMultipleAllocations"),
        node_allocatable_resources=_node_resources(body),
    )
    if body.take("nodeAllocatableResourceMappings") is not None:
        body.skip("nodeAllocatableResourceMappings")
    body.finish()
    return device


def _node_resources(fields: Fields) -> dict[str, NodeAllocatableResource]:
    name = "nodeAllocatableResources"
    values = fields.raw_object(name) or {}
    return {
        resource: Fields(value, f"{name}[{resource}]", fields).decoded_by(_node_resource)
        for resource, value in values.items()
    }


def _node_resource(fields: Fields) -> NodeAllocatableResource:
    return NodeAllocatableResource(
        fields.decode_one("mapping", _resource_mapping), fields.decode_one("overhead", _resource_overhead)
    )


def _resource_mapping(fields: Fields) -> ResourceMapping:
    return ResourceMapping(
        fields.quantity("deviceMultiplier"), fields.text("capacityKey"), fields.quantity("capacityMultiplier")
    )


def _resource_overhead(fields: Fields) -> ResourceOverhead:
    return ResourceOverhead(fields.quantity("perPod"), fields.quantity("perContainer"))


def _attributes(fields: Fields) -> dict[str, AttributeValue]:
    values = fields.raw_object("attributes") or {}
    return {name: _attribute(fields, name, value) for name, value in values.items()}


def _attribute(  # noqa: C901  # one branch for each type of an attribute
    fields: Fields, name: str, value: object
) -> AttributeValue:
    if type(value) is dict and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "string" and type(content) is str:
            return content
    path = f"attributes[{name}]"
    if not isinstance(value, dict):
        raise fields.error(path, f"must be an object such as {{string: a100}}, not {json_type(value)}")
    present = {kind: content for kind, content in value.items() if content is not None}
    for kind, content in list(present.items()):
        if kind in _SCALAR_TYPES:
            if type(content) is not _SCALAR_TYPES[kind]:
                raise fields.error(f"{path}.{kind}", f"must be of type {kind}, not {json_type(content)}")
        elif kind in _LIST_TYPES:
            if type(content) is not list or any(type(item) is not _LIST_TYPES[kind] for item in content):
                raise fields.error(f"{path}.{kind}", f"must be a list of {kind}")
        elif fields.strict:
            known = ", ".join((*_SCALAR_TYPES, *_LIST_TYPES))
            raise fields.error(f"{path}.{kind}", f"unknown field (an attribute has one of {known})")
        else:
            fields.skip(f"{path}.{kind}")
            del present[kind]
    if len(present) != 1:
        return MalformedAttribute(present)
    ((kind, content),) = present.items()
    if kind in _LIST_TYPES:
        return AttributeList(kind, tuple(Version(item) if kind == "versions" else item for item in content))
    if kind == "version":
        return Version(content)
    result: str | int | bool = content
    return result


def _taint(fields: Fields) -> DeviceTaint:
    return DeviceTaint(
        key=fields.required_text("key"),
        effect=fields.required_text("effect"),
        value=fields.text("value"),
        time_added=timestamp(fields, "timeAdded"),
    )
