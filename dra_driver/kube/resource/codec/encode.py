# SPDX-License-Identifier: Apache-2.0
"""Encoding of the objects that this project writes: slices, claims and allocations, in a version of resource.k8s.io.

A field has the same name in JSON (`nodeName` for `node_name`) and the form that follows from its type. `_FORMS` has the
types with another form, and `_RENAMED` the other names.

Empty fields are left out. The API server leaves them out, too, so an object that it returned is encoded to the object
that it stores.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..claim import ALL, AllocationResult, DeviceClaim, DeviceRequest, DeviceRequirements, OpaqueConfiguration
from ..device import (
    AttributeList,
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceTaintRule,
    MalformedAttribute,
    ResourceSlice,
    Version,
    attribute_kind,
)
from ..meta import NodeSelector, ObjectMeta
from ..quantity import Quantity
from .fields import V1, Dialect

JSON = dict[str, Any]

_RENAMED: Final = {"minimum": "min", "maximum": "max", "share_id": "shareID"}


def encode_slice(resource_slice: ResourceSlice, dialect: Dialect) -> JSON:
    """A ResourceSlice as JSON for the API server."""
    return {
        "apiVersion": dialect.api_version,
        "kind": "ResourceSlice",
        "metadata": encode_meta(resource_slice.metadata),
        "spec": _fields(
            resource_slice,
            metadata=None,
            unread=None,
            devices=[_device(device, dialect) for device in resource_slice.devices],
        ),
    }


def encode_taint_rule(rule: DeviceTaintRule) -> JSON:
    """A DeviceTaintRule as JSON, in the newest version. An empty selector stays: it is not the same as none."""
    spec: JSON = {"taint": _encode(rule.taint)}
    if rule.selector is not None:
        names = {name: getattr(rule.selector, name) for name in ("driver", "pool", "device")}
        spec["deviceSelector"] = {field: name for field, name in names.items() if name is not None}
    metadata = encode_meta(rule.metadata)
    return {"apiVersion": V1.api_version, "kind": "DeviceTaintRule", "metadata": metadata, "spec": spec}


def encode_meta(meta: ObjectMeta) -> JSON:
    """Object metadata without the fields that only the API server sets."""
    return _fields(meta, creationTimestamp=None, deletionTimestamp=None)


def encode_claim_spec(claim: DeviceClaim, dialect: Dialect) -> JSON:
    """The `spec` of a ResourceClaim."""
    return {"devices": _fields(claim, requests=[_request(request, dialect) for request in claim.requests])}


def encode_allocation(allocation: AllocationResult) -> JSON:
    """The `status.allocation` of a ResourceClaim. It has the same form in all versions."""
    devices = _compact(results=_encode(allocation.results), config=_encode(allocation.config))
    return _compact(devices=devices, nodeSelector=_encode(allocation.node_selector))


def _encode(value: Any) -> Any:
    kind: Any = type(value)
    return _form(kind)(value)


@functools.cache
def _form(kind: Any) -> Callable[[Any], Any]:
    """The encoding of the values of a type."""
    if kind in _FORMS:
        return _FORMS[kind]
    if issubclass(kind, str | Quantity):
        return str  # also for members of an enumeration
    if issubclass(kind, tuple):
        return lambda values: [_encode(value) for value in values]
    if issubclass(kind, Mapping):
        return lambda values: {key: _encode(value) for key, value in values.items()}
    return _fields if dataclasses.is_dataclass(kind) else lambda value: value


def _fields(value: Any, **others: object) -> JSON:
    """The fields of a dataclass. `others` have a form of their own, or are left out (None)."""
    kind: Any = type(value)
    given = ((name, getattr(value, field)) for field, name in _names(kind) if name not in others)
    return _compact(**{name: _encode(value) for name, value in given if value or value == 0}, **others)


@functools.cache
def _names(kind: Any) -> tuple[tuple[str, str], ...]:
    """Each field of a dataclass, and its name in JSON."""
    return tuple(
        (field.name, _RENAMED.get(field.name) or _camel_case(field.name)) for field in dataclasses.fields(kind)
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _compact(**fields: object) -> JSON:
    """The fields, without absent, empty and false values. A zero is kept."""
    return {name: value for name, value in fields.items() if value is not False and value not in (None, "", [], {})}


def _device(device: Device, dialect: Dialect) -> JSON:
    attributes = {name: _attribute(value) for name, value in device.attributes.items()}
    body = _fields(device, name=None, attributes=attributes)
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


def _counters(counted: CounterSet | CounterConsumption) -> JSON:
    return _fields(counted, counters={name: {"value": str(value)} for name, value in counted.counters.items()})


def _request(request: DeviceRequest, dialect: Dialect) -> JSON:
    encoded: JSON = {"name": request.name}
    if request.exactly is not None:
        exactly = _requirements(request.exactly)
        encoded |= exactly if dialect.flat_request else {"exactly": exactly}
    if request.first_available:
        encoded["firstAvailable"] = [
            {"name": alternative.name, **_requirements(alternative.requirements)}
            for alternative in request.first_available
        ]
    return encoded


def _requirements(requirements: DeviceRequirements) -> JSON:
    return _fields(
        requirements,
        selectors=[{"cel": {"expression": expression}} for expression in requirements.selectors],
        count=None if requirements.allocation_mode == ALL else requirements.count,
        capacityRequests=None,
        capacity=_compact(requests=_encode(requirements.capacity_requests)),
    )


def _opaque(opaque: OpaqueConfiguration) -> JSON:
    return {"driver": opaque.driver, "parameters": dict(opaque.parameters)}


def _node_selector(selector: NodeSelector) -> JSON:
    return {"nodeSelectorTerms": _encode(selector.terms)}


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {
    CounterSet: _counters,
    CounterConsumption: _counters,
    OpaqueConfiguration: _opaque,
    NodeSelector: _node_selector,
}
