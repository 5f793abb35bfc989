# SPDX-License-Identifier: Apache-2.0
"""Encoding of the objects that this project writes: slices, claims and allocations, in a version of resource.k8s.io.

Empty fields are left out. The API server leaves them out, too, so an object that it returned is encoded to the object
that it stores.
"""

from collections.abc import Mapping
from typing import Any

from ..claim import (
    ALL,
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    DeviceClaim,
    DeviceRequest,
    DeviceRequirements,
    OpaqueConfiguration,
)
from ..device import (
    AttributeList,
    AttributeValue,
    CounterConsumption,
    Device,
    DeviceCapacity,
    DeviceTaint,
    DeviceToleration,
    MalformedAttribute,
    RequestPolicy,
    ResourceSlice,
    Version,
    attribute_kind,
)
from ..meta import NodeSelector, NodeSelectorRequirement, ObjectMeta
from ..quantity import Quantity
from .fields import Dialect

JSON = dict[str, Any]


def encode_slice(resource_slice: ResourceSlice, dialect: Dialect) -> JSON:
    """A ResourceSlice as JSON for the API server."""
    spec = _compact(
        driver=resource_slice.driver,
        pool={
            "name": resource_slice.pool.name,
            "generation": resource_slice.pool.generation,
            "resourceSliceCount": resource_slice.pool.resource_slice_count,
        },
        nodeName=resource_slice.node_name,
        nodeSelector=_node_selector(resource_slice.node_selector),
        allNodes=resource_slice.all_nodes,
        perDeviceNodeSelection=resource_slice.per_device_node_selection,
        devices=[_device(device, dialect) for device in resource_slice.devices],
        sharedCounters=[
            {"name": counters.name, "counters": _counters(counters.counters)}
            for counters in resource_slice.shared_counters
        ],
    )
    return {
        "apiVersion": dialect.api_version,
        "kind": "ResourceSlice",
        "metadata": encode_meta(resource_slice.metadata),
        "spec": spec,
    }


def encode_meta(meta: ObjectMeta) -> JSON:
    """Object metadata without the fields that only the API server sets."""
    return _compact(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        generateName=meta.generate_name,
        resourceVersion=meta.resource_version,
        labels=dict(meta.labels),
        annotations=dict(meta.annotations),
        ownerReferences=[
            _compact(
                apiVersion=owner.api_version,
                kind=owner.kind,
                name=owner.name,
                uid=owner.uid,
                controller=owner.controller,
            )
            for owner in meta.owner_references
        ],
    )


def encode_claim_spec(claim: DeviceClaim, dialect: Dialect) -> JSON:
    """The `spec` of a ResourceClaim."""
    devices = _compact(
        requests=[_request(request, dialect) for request in claim.requests],
        constraints=[
            _compact(
                requests=list(constraint.requests),
                matchAttribute=constraint.match_attribute,
                distinctAttribute=constraint.distinct_attribute,
            )
            for constraint in claim.constraints
        ],
        config=[_compact(requests=list(config.requests), opaque=_opaque(config.opaque)) for config in claim.config],
    )
    return {"devices": devices}


def encode_allocation(allocation: AllocationResult) -> JSON:
    """The `status.allocation` of a ResourceClaim. It has the same form in all versions."""
    devices = _compact(
        results=[_allocated_device(result) for result in allocation.results],
        config=[_allocated_configuration(config) for config in allocation.config],
    )
    return _compact(devices=devices, nodeSelector=_node_selector(allocation.node_selector))


def _compact(**fields: object) -> JSON:
    """The fields without those that are absent, empty or false. A zero is kept."""
    return {name: value for name, value in fields.items() if value is not False and value not in (None, "", [], {})}


def _quantity(value: Quantity | None) -> str | None:
    return None if value is None else str(value)


def _node_selector(selector: NodeSelector | None) -> JSON | None:
    if selector is None:
        return None
    terms = [
        _compact(
            matchExpressions=[_node_requirement(requirement) for requirement in term.match_expressions],
            matchFields=[_node_requirement(requirement) for requirement in term.match_fields],
        )
        for term in selector.terms
    ]
    return {"nodeSelectorTerms": terms}


def _node_requirement(requirement: NodeSelectorRequirement) -> JSON:
    return _compact(key=requirement.key, operator=requirement.operator, values=list(requirement.values))


def _counters(counters: Mapping[str, Quantity]) -> JSON:
    return {name: {"value": str(value)} for name, value in counters.items()}


def _device(device: Device, dialect: Dialect) -> JSON:
    body = _compact(
        attributes={name: _attribute(value) for name, value in device.attributes.items()},
        capacity={name: _capacity(capacity) for name, capacity in device.capacity.items()},
        consumesCounters=[_consumption(consumption) for consumption in device.consumes_counters],
        nodeName=device.node_name,
        nodeSelector=_node_selector(device.node_selector),
        allNodes=device.all_nodes,
        taints=[encode_taint(taint) for taint in device.taints],
        bindsToNode=device.binds_to_node,
        bindingConditions=list(device.binding_conditions),
        bindingFailureConditions=list(device.binding_failure_conditions),
        allowMultipleAllocations=device.allow_multiple_allocations,
    )
    return {"name": device.name, "basic": body} if dialect.nested_device else {"name": device.name, **body}


def _attribute(value: AttributeValue) -> JSON:
    match value:
        case AttributeList():
            return {value.kind: [item.text if isinstance(item, Version) else item for item in value.items]}
        case MalformedAttribute():
            return dict(value.fields)
        case Version():
            return {"version": value.text}
    return {attribute_kind(value): value}


def _capacity(capacity: DeviceCapacity) -> JSON:
    return _compact(value=str(capacity.value), requestPolicy=_request_policy(capacity.request_policy))


def _request_policy(policy: RequestPolicy | None) -> JSON | None:
    if policy is None:
        return None
    bounds = policy.valid_range
    return _compact(
        default=_quantity(policy.default),
        validValues=[str(value) for value in policy.valid_values],
        validRange=bounds
        and _compact(min=str(bounds.minimum), max=_quantity(bounds.maximum), step=_quantity(bounds.step)),
    )


def _consumption(consumption: CounterConsumption) -> JSON:
    return {"counterSet": consumption.counter_set, "counters": _counters(consumption.counters)}


def encode_taint(taint: DeviceTaint) -> JSON:
    """A device taint."""
    return _compact(key=taint.key, value=taint.value, effect=str(taint.effect), timeAdded=taint.time_added)


def _toleration(toleration: DeviceToleration) -> JSON:
    return _compact(
        key=toleration.key,
        operator=toleration.operator,
        value=toleration.value,
        effect=toleration.effect,
        tolerationSeconds=toleration.toleration_seconds,
    )


def _opaque(opaque: OpaqueConfiguration) -> JSON:
    return {"driver": opaque.driver, "parameters": dict(opaque.parameters)}


def _request(request: DeviceRequest, dialect: Dialect) -> JSON:
    encoded: JSON = {"name": request.name}
    if request.exactly is not None:
        exactly = _requirements(request.exactly)
        if dialect.flat_request:
            encoded.update(exactly)
        else:
            encoded["exactly"] = exactly
    if request.first_available:
        encoded["firstAvailable"] = [
            {"name": alternative.name, **_requirements(alternative.requirements)}
            for alternative in request.first_available
        ]
    return encoded


def _requirements(requirements: DeviceRequirements) -> JSON:
    return _compact(
        deviceClassName=requirements.device_class_name,
        selectors=[{"cel": {"expression": expression}} for expression in requirements.selectors],
        allocationMode=requirements.allocation_mode,
        count=None if requirements.allocation_mode == ALL else requirements.count,
        adminAccess=requirements.admin_access,
        tolerations=[_toleration(toleration) for toleration in requirements.tolerations],
        capacity=_compact(requests={key: str(value) for key, value in requirements.capacity_requests.items()}),
    )


def _allocated_device(result: AllocatedDevice) -> JSON:
    return _compact(
        request=result.request,
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        adminAccess=result.admin_access,
        tolerations=[_toleration(toleration) for toleration in result.tolerations],
        bindingConditions=list(result.binding_conditions),
        bindingFailureConditions=list(result.binding_failure_conditions),
        shareID=result.share_id,
        consumedCapacity={key: str(value) for key, value in result.consumed_capacity.items()},
    )


def _allocated_configuration(config: AllocatedConfiguration) -> JSON:
    return _compact(source=config.source, requests=list(config.requests), opaque=_opaque(config.opaque))
