# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses, ResourceClaims and their templates from JSON."""

from collections.abc import Mapping
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
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    DeviceSubRequest,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimTemplate,
)
from ..meta import EMPTY
from ..quantity import Quantity
from .decode_parts import node_selector, object_meta, opaque, selector, toleration
from .fields import Dialect, Fields

_REQUIREMENT_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)


def decode_class(value: object, dialect: Dialect, *, strict: bool = True) -> DeviceClass:
    """A DeviceClass."""
    top = Fields(value, strict=strict)
    metadata = object_meta(top)
    spec = top.required_object("spec")
    decoded = DeviceClass(
        metadata=metadata,
        selectors=spec.objects("selectors", selector),
        config=spec.objects("config", _class_configuration),
        extended_resource_name=spec.text("extendedResourceName"),
    )
    spec.finish()
    top.finish()
    return decoded


def decode_claim(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceClaim:
    """A ResourceClaim, with the allocation of its status."""
    top = Fields(value, strict=strict)
    metadata = object_meta(top)
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
    metadata = object_meta(top)
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


def _class_configuration(fields: Fields) -> OpaqueConfiguration:
    decoded = opaque(fields)
    fields.finish()
    return decoded


def _claim_configuration(fields: Fields) -> ClaimConfiguration:
    decoded = ClaimConfiguration(fields.texts("requests"), opaque(fields))
    fields.finish()
    return decoded


def _allocated_configuration(fields: Fields) -> AllocatedConfiguration:
    decoded = AllocatedConfiguration(fields.required_text("source"), fields.texts("requests"), opaque(fields))
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
        selectors=fields.objects("selectors", selector),
        allocation_mode=mode,
        count=(count or 0) if mode == ALL else (1 if count is None else count),
        tolerations=fields.objects("tolerations", toleration),
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
    allocation = AllocationResult(results, config, node_selector(fields.object("nodeSelector")))
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
        tolerations=fields.objects("tolerations", toleration),
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
