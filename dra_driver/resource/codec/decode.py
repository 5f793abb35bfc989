# SPDX-License-Identifier: Apache-2.0
"""JSON objects of resource.k8s.io (any served version) into the vocabulary.

Checks form only: types, required fields and, when strict, that every field is known. What the
API server would refuse on other grounds is `dra_driver.resource.validation`'s to say, because a
stored object may break rules that are newer than itself.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..claim import (
    ALL,
    EXACT_COUNT,
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    ClaimConfiguration,
    ConsumerReference,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimTemplate,
)
from ..classes import DeviceClass, OpaqueConfiguration
from ..device import (
    AttributeList,
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceTaint,
    DeviceToleration,
    MalformedAttribute,
    RequestPolicy,
    RequestRange,
)
from ..meta import EMPTY, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta, OwnerReference
from ..quantity import Quantity
from ..semver import Version
from ..slices import ResourcePool, ResourceSlice
from .dialect import BY_API_VERSION, DIALECTS, GROUP, Dialect
from .fields import DecodeError, Fields, json_type

_SCALAR_TYPES: dict[str, type] = {"string": str, "int": int, "bool": bool, "version": str}
_LIST_TYPES: dict[str, type] = {"strings": str, "ints": int, "bools": bool, "versions": str}
_REQUIREMENT_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)

_DEVICE_FIELDS = ("attributes", "capacity", "consumesCounters", "taints", "nodeName", "nodeSelector", "allNodes")

Decoded = ResourceSlice | DeviceClass | ResourceClaim | ResourceClaimTemplate | Node


def decode(value: object, *, strict: bool = True) -> Decoded:
    """The object that `value` (parsed JSON or YAML) describes.

    `strict` refuses unknown fields. Raises DecodeError, naming the field, for anything that is not
    a well-formed ResourceSlice, DeviceClass, ResourceClaim, ResourceClaimTemplate or Node.
    """
    if not isinstance(value, Mapping):
        raise DecodeError("", f"a Kubernetes object is a mapping, not {json_type(value)}")
    api_version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        raise DecodeError("", "not a Kubernetes object: apiVersion and kind are missing")
    if (api_version, kind) == ("v1", "Node"):
        return decode_node(value, strict=strict)
    dialect = BY_API_VERSION.get(api_version)
    if dialect is None:
        hint = f" (use {', '.join(d.api_version for d in DIALECTS)})" if api_version.startswith(GROUP + "/") else ""
        raise DecodeError("apiVersion", f"{api_version!r} is not supported for kind {kind!r}{hint}")
    decoders: dict[str, Callable[..., Decoded]] = {
        "ResourceSlice": decode_slice,
        "DeviceClass": decode_class,
        "ResourceClaim": decode_claim,
        "ResourceClaimTemplate": decode_claim_template,
    }
    if kind not in decoders:
        raise DecodeError("kind", f"{kind!r} of {api_version} is not supported (use {', '.join(decoders)})")
    return decoders[kind](value, dialect, strict=strict)


def decode_slice(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceSlice:
    """A ResourceSlice."""
    top = Fields(value, strict=strict)
    metadata = _object_meta(top)
    spec = top.required_object("spec")
    pool = spec.required_object("pool")
    decoded = ResourceSlice(
        metadata=metadata,
        driver=spec.required_text("driver"),
        pool=ResourcePool(
            pool.required_text("name"), pool.required_integer("generation"), pool.required_integer("resourceSliceCount")
        ),
        node_name=spec.text("nodeName") or None,
        node_selector=_node_selector(spec.object("nodeSelector")),
        all_nodes=spec.flag("allNodes"),
        per_device_node_selection=spec.flag("perDeviceNodeSelection"),
        devices=spec.objects("devices", lambda fields: _device(fields, dialect)),
        shared_counters=spec.objects("sharedCounters", _counter_set),
    )
    pool.finish()
    spec.finish()
    top.finish()
    return decoded


def decode_class(value: object, dialect: Dialect, *, strict: bool = True) -> DeviceClass:
    """A DeviceClass."""
    top = Fields(value, strict=strict)
    metadata = _object_meta(top)
    spec = top.required_object("spec")
    decoded = DeviceClass(
        metadata=metadata,
        selectors=spec.objects("selectors", _selector),
        config=spec.objects("config", _class_configuration),
        extended_resource_name=spec.text("extendedResourceName"),
    )
    spec.finish()
    top.finish()
    return decoded


def decode_claim(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceClaim:
    """A ResourceClaim, with the allocation of its status."""
    top = Fields(value, strict=strict)
    metadata = _object_meta(top)
    spec = _claim_spec(top.required_object("spec"), dialect)
    allocation: AllocationResult | None = None
    reserved: tuple[ConsumerReference, ...] = ()
    status = top.object("status")
    if status is not None:
        allocated = status.object("allocation")
        allocation = None if allocated is None else _allocation(allocated)
        reserved = status.objects("reservedFor", _consumer)
        status.ignore("devices")
        status.finish()
    top.finish()
    return ResourceClaim(metadata, spec, allocation, reserved)


def decode_claim_template(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceClaimTemplate:
    """A ResourceClaimTemplate."""
    top = Fields(value, strict=strict)
    metadata = _object_meta(top)
    template = top.required_object("spec")
    labels: Mapping[str, str] = EMPTY
    annotations: Mapping[str, str] = EMPTY
    inner = template.object("metadata")
    if inner is not None:
        labels, annotations = inner.text_map("labels"), inner.text_map("annotations")
        inner.ignore("creationTimestamp")
        inner.finish()
    decoded = ResourceClaimTemplate(
        metadata, _claim_spec(template.required_object("spec"), dialect), labels, annotations
    )
    template.finish()
    top.finish()
    return decoded


def decode_node(value: object, *, strict: bool = True) -> Node:
    """The metadata of a core/v1 Node; the rest of it is not read."""
    top = Fields(value, strict=strict)
    node = Node(_object_meta(top))
    top.ignore_rest()
    return node


def _object_meta(top: Fields) -> ObjectMeta:
    top.ignore("apiVersion", "kind")
    fields = top.object("metadata")
    if fields is None:
        return ObjectMeta()
    meta = ObjectMeta(
        name=fields.text("name"),
        namespace=fields.text("namespace"),
        uid=fields.text("uid"),
        generate_name=fields.text("generateName"),
        resource_version=fields.text("resourceVersion"),
        creation_timestamp=_timestamp(fields, "creationTimestamp"),
        deletion_timestamp=_timestamp(fields, "deletionTimestamp"),
        labels=fields.text_map("labels"),
        annotations=fields.text_map("annotations"),
        owner_references=fields.objects("ownerReferences", _owner),
    )
    fields.ignore("generation", "finalizers", "managedFields", "selfLink", "deletionGracePeriodSeconds")
    fields.finish()
    return meta


def _timestamp(fields: Fields, name: str) -> str:
    """An RFC 3339 time. YAML loaders make a datetime of an unquoted one."""
    value = fields.take(name)
    if value is None or isinstance(value, str):
        return value or ""
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).replace("+00:00", "Z")
    raise fields.error(name, f"must be a time, not {json_type(value)}")


def _owner(fields: Fields) -> OwnerReference:
    owner = OwnerReference(
        fields.text("apiVersion"),
        fields.text("kind"),
        fields.text("name"),
        fields.text("uid"),
        fields.flag("controller"),
    )
    fields.ignore("blockOwnerDeletion")
    fields.finish()
    return owner


def _node_selector(fields: Fields | None) -> NodeSelector | None:
    if fields is None:
        return None
    selector = NodeSelector(fields.objects("nodeSelectorTerms", _node_selector_term))
    fields.finish()
    return selector


def _node_selector_term(fields: Fields) -> NodeSelectorTerm:
    term = NodeSelectorTerm(
        fields.objects("matchExpressions", _node_requirement), fields.objects("matchFields", _node_requirement)
    )
    fields.finish()
    return term


def _node_requirement(fields: Fields) -> NodeSelectorRequirement:
    requirement = NodeSelectorRequirement(
        fields.required_text("key"), fields.required_text("operator"), fields.texts("values")
    )
    fields.finish()
    return requirement


def _counter_set(fields: Fields) -> CounterSet:
    counters = CounterSet(fields.required_text("name"), _counters(fields))
    fields.finish()
    return counters


def _counter_consumption(fields: Fields) -> CounterConsumption:
    consumption = CounterConsumption(fields.required_text("counterSet"), _counters(fields))
    fields.finish()
    return consumption


def _counters(fields: Fields) -> dict[str, Quantity]:
    return {name: counter.value for name, counter in _capacities(fields, "counters").items()}


def _capacities(fields: Fields, field: str) -> dict[str, DeviceCapacity]:
    values = fields.raw_object(field) or {}
    decoded: dict[str, DeviceCapacity] = {}
    for name, value in values.items():
        if type(value) is dict and len(value) == 1 and type(text := value.get("value")) is str:
            decoded[name] = DeviceCapacity(fields.as_quantity(f"{field}[{name}].value", text))
        else:
            decoded[name] = _capacity(Fields(value, f"{field}[{name}]", fields))
    return decoded


def _capacity(fields: Fields) -> DeviceCapacity:
    value = fields.quantity("value")
    if value is None:
        raise fields.error("value", "is required")
    policy: RequestPolicy | None = None
    policy_fields = fields.object("requestPolicy")
    if policy_fields is not None:
        values = policy_fields.array("validValues")
        policy = RequestPolicy(
            default=policy_fields.quantity("default"),
            valid_values=tuple(policy_fields.as_quantity(f"validValues[{i}]", v) for i, v in enumerate(values)),
            valid_range=_request_range(policy_fields.object("validRange")),
        )
        policy_fields.finish()
    fields.finish()
    return DeviceCapacity(value, policy)


def _request_range(fields: Fields | None) -> RequestRange | None:
    if fields is None:
        return None
    minimum = fields.quantity("min")
    if minimum is None:
        raise fields.error("min", "is required")
    decoded = RequestRange(minimum, fields.quantity("max"), fields.quantity("step"))
    fields.finish()
    return decoded


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
        consumes_counters=body.objects("consumesCounters", _counter_consumption),
        node_name=body.optional_text("nodeName"),
        node_selector=_node_selector(body.object("nodeSelector")),
        all_nodes=body.flag("allNodes"),
        taints=body.objects("taints", _taint),
        binds_to_node=body.flag("bindsToNode"),
        binding_conditions=body.texts("bindingConditions"),
        binding_failure_conditions=body.texts("bindingFailureConditions"),
        allow_multiple_allocations=body.flag("allowMultipleAllocations"),
    )
    body.ignore("nodeAllocatableResourceMappings")
    body.finish()
    if body is not fields:
        fields.finish()
    return device


def _attributes(fields: Fields) -> dict[str, AttributeValue]:
    values = fields.raw_object("attributes") or {}
    return {name: _attribute(fields, name, value) for name, value in values.items()}


def _attribute(fields: Fields, name: str, value: object) -> AttributeValue:
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
    taint = DeviceTaint(
        key=fields.required_text("key"),
        effect=fields.required_text("effect"),
        value=fields.text("value"),
        time_added=_timestamp(fields, "timeAdded"),
    )
    fields.finish()
    return taint


def _toleration(fields: Fields) -> DeviceToleration:
    toleration = DeviceToleration(
        key=fields.text("key"),
        operator=fields.text("operator") or "Equal",
        value=fields.text("value"),
        effect=fields.text("effect"),
        toleration_seconds=fields.integer("tolerationSeconds"),
    )
    fields.finish()
    return toleration


def _selector(fields: Fields) -> str:
    cel = fields.required_object("cel")
    expression = cel.required_text("expression")
    cel.finish()
    fields.finish()
    return expression


def _opaque(fields: Fields) -> OpaqueConfiguration:
    opaque = fields.required_object("opaque")
    parameters = opaque.raw_object("parameters")
    if parameters is None:
        raise opaque.error("parameters", "is required")
    decoded = OpaqueConfiguration(opaque.required_text("driver"), parameters)
    opaque.finish()
    return decoded


def _class_configuration(fields: Fields) -> OpaqueConfiguration:
    decoded = _opaque(fields)
    fields.finish()
    return decoded


def _claim_configuration(fields: Fields) -> ClaimConfiguration:
    decoded = ClaimConfiguration(fields.texts("requests"), _opaque(fields))
    fields.finish()
    return decoded


def _allocated_configuration(fields: Fields) -> AllocatedConfiguration:
    decoded = AllocatedConfiguration(fields.required_text("source"), fields.texts("requests"), _opaque(fields))
    fields.finish()
    return decoded


def _claim_spec(spec: Fields, dialect: Dialect) -> DeviceClaim:
    devices = spec.object("devices")
    claim = DeviceClaim()
    if devices is not None:
        claim = DeviceClaim(
            requests=devices.objects("requests", lambda fields: _request(fields, dialect)),
            constraints=devices.objects("constraints", _constraint),
            config=devices.objects("config", _claim_configuration),
        )
        devices.finish()
    spec.finish()
    return claim


def _request(fields: Fields, dialect: Dialect) -> DeviceRequest:
    name = fields.required_text("name")
    alternatives = fields.objects("firstAvailable", _sub_request)
    exactly: DeviceRequirements | None = None
    if dialect.flat_request:
        if "exactly" in fields:
            raise fields.error(
                "exactly",
                f"is the form of resource.k8s.io/v1. In {dialect.api_version} move everything under 'exactly'"
                " one level up, beside 'name', or set apiVersion: resource.k8s.io/v1",
            )
        if not alternatives:
            exactly = _requirements(fields)
    else:
        misplaced = next((field for field in _REQUIREMENT_FIELDS if field in fields), None)
        if misplaced is not None:
            raise fields.error(
                misplaced,
                f"is the form of resource.k8s.io/v1beta1. In {dialect.api_version} put it under 'exactly',"
                " or set apiVersion: resource.k8s.io/v1beta1",
            )
        inner = fields.object("exactly")
        if inner is not None:
            exactly = _requirements(inner)
            inner.finish()
    fields.finish()
    if (exactly is None) == (not alternatives):
        raise fields.error("", "exactly one of exactly and firstAvailable must be set")
    return DeviceRequest(name, exactly, alternatives)


def _sub_request(fields: Fields) -> DeviceSubRequest:
    decoded = DeviceSubRequest(fields.required_text("name"), _requirements(fields, alternative=True))
    fields.finish()
    return decoded


def _requirements(fields: Fields, *, alternative: bool = False) -> DeviceRequirements:
    mode = fields.text("allocationMode") or EXACT_COUNT
    count = fields.integer("count")
    capacity = fields.object("capacity")
    requests: Mapping[str, Quantity] = EMPTY
    if capacity is not None:
        amounts = capacity.raw_object("requests") or {}
        requests = {key: capacity.as_quantity(f"requests[{key}]", amount) for key, amount in amounts.items()}
        capacity.finish()
    return DeviceRequirements(
        device_class_name=fields.required_text("deviceClassName"),
        selectors=fields.objects("selectors", _selector),
        allocation_mode=mode,
        count=(count or 0) if mode == ALL else (1 if count is None else count),
        tolerations=fields.objects("tolerations", _toleration),
        capacity_requests=requests,
        admin_access=False if alternative else fields.flag("adminAccess"),
    )


def _constraint(fields: Fields) -> DeviceConstraint:
    constraint = DeviceConstraint(
        fields.texts("requests"), fields.optional_text("matchAttribute"), fields.optional_text("distinctAttribute")
    )
    fields.finish()
    return constraint


def _allocation(fields: Fields) -> AllocationResult:
    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfiguration, ...] = ()
    devices = fields.object("devices")
    if devices is not None:
        results = devices.objects("results", _allocated_device)
        config = devices.objects("config", _allocated_configuration)
        devices.finish()
    allocation = AllocationResult(results, config, _node_selector(fields.object("nodeSelector")))
    fields.ignore("allocationTimestamp")
    fields.finish()
    return allocation


def _allocated_device(fields: Fields) -> AllocatedDevice:
    consumed: dict[str, Any] = dict(fields.raw_object("consumedCapacity") or {})
    decoded = AllocatedDevice(
        request=fields.required_text("request"),
        driver=fields.required_text("driver"),
        pool=fields.required_text("pool"),
        device=fields.required_text("device"),
        admin_access=fields.flag("adminAccess"),
        tolerations=fields.objects("tolerations", _toleration),
        binding_conditions=fields.texts("bindingConditions"),
        binding_failure_conditions=fields.texts("bindingFailureConditions"),
        share_id=fields.optional_text("shareID"),
        consumed_capacity={
            key: fields.as_quantity(f"consumedCapacity[{key}]", value) for key, value in consumed.items()
        },
    )
    fields.finish()
    return decoded


def _consumer(fields: Fields) -> ConsumerReference:
    decoded = ConsumerReference(
        resource=fields.text("resource"),
        name=fields.text("name"),
        uid=fields.text("uid"),
        api_group=fields.text("apiGroup"),
    )
    fields.finish()
    return decoded
