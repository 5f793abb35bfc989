# SPDX-License-Identifier: Apache-2.0
"""Decoding of DeviceClasses, ResourceClaims and ResourceClaimTemplates."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from ..claim import (
    ALL,
    EXACT_COUNT,
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    ClaimConfiguration,
    ConsumerReference,
    DerivedAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    DeviceStatus,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimTemplate,
)
from ..meta import EMPTY
from ..quantity import Quantity
from .fields import Dialect, Fields, node_selector, object_meta, opaque, selectors, toleration

T = TypeVar("T")

_REQUIREMENT_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)


def decode_class(value: object, dialect: Dialect, *, strict: bool = True) -> DeviceClass:
    """A DeviceClass."""
    return Fields(value, strict=strict).decode_whole(_class)


def decode_claim(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceClaim:
    """A ResourceClaim, with the allocation of its status."""
    return Fields(value, strict=strict).decode_whole(lambda top: _claim(top, dialect))


def decode_claim_template(value: object, dialect: Dialect, *, strict: bool = True) -> ResourceClaimTemplate:
    """A ResourceClaimTemplate."""
    return Fields(value, strict=strict).decode_whole(lambda top: _template(top, dialect))


def _class(top: Fields) -> DeviceClass:
    metadata, spec = object_meta(top), top.required_object("spec")
    decoded = DeviceClass(
        metadata=metadata,
        selectors=selectors(spec),
        config=_known(spec.decode_all("config", opaque)),
        extended_resource_name=spec.text("extendedResourceName"),
    )
    spec.finish()
    return decoded


def _claim(top: Fields, dialect: Dialect) -> ResourceClaim:
    metadata = object_meta(top)
    spec = _claim_spec(top.required_object("spec"), dialect)
    return ResourceClaim(metadata, spec, *(top.decode_one("status", _claim_status) or ()))


def _claim_status(
    status: Fields,
) -> tuple[AllocationResult | None, tuple[ConsumerReference, ...], tuple[DeviceStatus, ...]]:
    allocation = status.decode_one("allocation", _allocation)
    reserved = status.decode_all("reservedFor", _consumer)
    if allocation is not None and any(result.binding_conditions for result in allocation.results):
        return allocation, reserved, status.objects("devices", _device_status)
    status.ignore("devices")
    return allocation, reserved, ()


def _device_status(fields: Fields) -> DeviceStatus:
    conditions = fields.objects("conditions", lambda condition: (condition.text("type"), condition.text("status")))
    return DeviceStatus(
        fields.required_text("driver"),
        fields.required_text("pool"),
        fields.required_text("device"),
        frozenset(kind for kind, status in conditions if status == "True"),
    )


def _template(top: Fields, dialect: Dialect) -> ResourceClaimTemplate:
    metadata, template = object_meta(top), top.required_object("spec")
    labels, annotations = template.decode_one("metadata", _template_metadata) or (EMPTY, EMPTY)
    spec = _claim_spec(template.required_object("spec"), dialect)
    template.finish()
    return ResourceClaimTemplate(metadata, spec, labels, annotations)


def _template_metadata(fields: Fields) -> tuple[Mapping[str, str], Mapping[str, str]]:
    fields.ignore("creationTimestamp")
    return fields.text_map("labels"), fields.text_map("annotations")


def _claim_configuration(fields: Fields) -> ClaimConfiguration | None:
    requests, parameters = fields.texts("requests"), opaque(fields)
    return None if parameters is None else ClaimConfiguration(requests, parameters)


def _allocated_configuration(fields: Fields) -> AllocatedConfiguration | None:
    source, requests, parameters = fields.required_text("source"), fields.texts("requests"), opaque(fields)
    return None if parameters is None else AllocatedConfiguration(source, requests, parameters)


def _known(configurations: Iterable[T | None]) -> tuple[T, ...]:
    """The configurations without those of kinds that are not known."""
    return tuple(configuration for configuration in configurations if configuration is not None)


def _claim_spec(spec: Fields, dialect: Dialect) -> DeviceClaim:
    claim = spec.decode_one("devices", lambda devices: _devices(devices, dialect))
    spec.finish()
    return claim or DeviceClaim()


def _devices(devices: Fields, dialect: Dialect) -> DeviceClaim:
    return DeviceClaim(
        requests=devices.decode_all("requests", lambda fields: _request(fields, dialect)),
        constraints=devices.decode_all("constraints", _constraint),
        config=_known(devices.decode_all("config", _claim_configuration)),
    )


def _request(fields: Fields, dialect: Dialect) -> DeviceRequest:
    name = fields.required_text("name")
    alternatives = fields.decode_all("firstAvailable", _sub_request)
    exactly: DeviceRequirements | None = None
    if dialect.flat_request:
        if "exactly" in fields:
            raise fields.error(
                "exactly",
                f"is the form of resource.k8s.io/v1. In {dialect.api_version} move everything under 'exactly'"
                " one level up, beside 'name', or set apiVersion: resource.k8s.io/v1",
            )
        if not alternatives and not fields.is_newer(*_REQUIREMENT_FIELDS):
            exactly = _requirements(fields)
    else:
        misplaced = next((field for field in _REQUIREMENT_FIELDS if field in fields), None)
        if misplaced is not None:
            raise fields.error(
                misplaced,
                f"is the form of resource.k8s.io/v1beta1. In {dialect.api_version} put it under 'exactly',"
                " or set apiVersion: resource.k8s.io/v1beta1",
            )
        exactly = fields.decode_one("exactly", _requirements)
    fields.finish()
    if exactly is None and not alternatives and fields.is_newer():
        return DeviceRequest(name)
    if (exactly is None) == (not alternatives):
        raise fields.error("", "exactly one of exactly and firstAvailable must be set")
    return DeviceRequest(name, exactly, alternatives)


def _sub_request(fields: Fields) -> DeviceSubRequest:
    return DeviceSubRequest(fields.required_text("name"), _requirements(fields, alternative=True))


def _requirements(fields: Fields, *, alternative: bool = False) -> DeviceRequirements:
    mode = fields.text("allocationMode") or EXACT_COUNT
    count = fields.integer("count")
    return DeviceRequirements(
        device_class_name=fields.required_text("deviceClassName"),
        selectors=selectors(fields),
        allocation_mode=mode,
        count=(count or 0) if mode == ALL else (1 if count is None else count),
        tolerations=fields.decode_all("tolerations", toleration),
        capacity_requests=fields.decode_one("capacity", lambda capacity: _quantities(capacity, "requests")) or EMPTY,
        admin_access=False if alternative else fields.flag("adminAccess"),
        derived_attributes=fields.decode_all("derivedAttributes", _derived_attribute),
    )


def _derived_attribute(fields: Fields) -> DerivedAttribute:
    return DerivedAttribute(fields.required_text("name"), fields.required_text("expression"))


def _quantities(fields: Fields, field: str) -> Mapping[str, Quantity]:
    amounts = fields.raw_object(field) or {}
    return {key: fields.as_quantity(f"{field}[{key}]", amount) for key, amount in amounts.items()}


def _constraint(fields: Fields) -> DeviceConstraint:
    return DeviceConstraint(
        fields.texts("requests"), fields.optional_text("matchAttribute"), fields.optional_text("distinctAttribute")
    )


def _allocation(fields: Fields) -> AllocationResult:
    fields.ignore("allocationTimestamp")
    results, config = fields.decode_one("devices", _allocated_devices) or ((), ())
    return AllocationResult(results, config, node_selector(fields.object("nodeSelector")))


def _allocated_devices(fields: Fields) -> tuple[tuple[AllocatedDevice, ...], tuple[AllocatedConfiguration, ...]]:
    config = _known(fields.decode_all("config", _allocated_configuration))
    return fields.decode_all("results", _allocated_device), config


def _allocated_device(fields: Fields) -> AllocatedDevice:
    return AllocatedDevice(
        request=fields.required_text("request"),
        driver=fields.required_text("driver"),
        pool=fields.required_text("pool"),
        device=fields.required_text("device"),
        admin_access=fields.flag("adminAccess"),
        tolerations=fields.decode_all("tolerations", toleration),
        binding_conditions=fields.texts("bindingConditions"),
        binding_failure_conditions=fields.texts("bindingFailureConditions"),
        skip_node_operations=fields.texts("skipNodeOperations"),
        share_id=fields.optional_text("shareID"),
        consumed_capacity=_quantities(fields, "consumedCapacity"),
    )


def _consumer(fields: Fields) -> ConsumerReference:
    return ConsumerReference(
        resource=fields.text("resource"),
        name=fields.text("name"),
        uid=fields.text("uid"),
        api_group=fields.text("apiGroup"),
    )
