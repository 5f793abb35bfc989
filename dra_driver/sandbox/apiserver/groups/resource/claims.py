# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and ResourceClaimTemplates: defaults, gated fields, and validation of spec and status.

The status says which devices are allocated, for whom they are reserved, and what drivers report about them.
"""

from typing import Final

from dra_driver.kube.resource import (
    ALL,
    EXACT_COUNT,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequirements,
    DeviceToleration,
    TaintEffect,
    limits,
)
from dra_driver.kube.resource.codec import V1, DecodeError, decode_claim, decode_claim_template
from dra_driver.kube.resource.names import is_qualified_name

from ... import field_errors as errors
from ... import names
from ...kinds import Context, KindStrategy
from ...objects import Object, encode, fill, pick
from ...opaque import identical, without_texts
from .. import meta
from . import rules, versions
from .rules import Problems

_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_TOLERATIONS: Final = 16
_CONSUMERS: Final = 256

_CLAIM_GATES: Final = versions.claim_spec("spec")
_TEMPLATE_GATES: Final = versions.claim_spec("spec.spec")

_CONDITIONS: Final = 8
_DATA_BYTES: Final = 10 * 1024

DeviceId = tuple[str, str, str, str]
"""The driver, pool, device and share ID."""


def _spec(obj: Object) -> Object:
    spec: Object = obj.get("spec") or {}
    return spec


def _template_spec(obj: Object) -> Object:
    return _spec(_spec(obj))


def _set_spec_defaults(spec: Object) -> None:
    for request in spec.get("devices", {}).get("requests", ()):
        forms = [request["exactly"]] if request.get("exactly") is not None else []
        for form in (*forms, *request.get("firstAvailable", ())):
            fill(form, allocationMode=EXACT_COUNT)
            if form["allocationMode"] == EXACT_COUNT and not form.get("count"):
                form["count"] = 1
            for toleration in form.get("tolerations", ()):
                fill(toleration, operator="Equal")


def set_claim_defaults(obj: Object, context: Context) -> None:
    """Set allocation modes, counts and toleration operators."""
    _set_spec_defaults(_spec(obj))


def set_template_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a template, which are those of a claim."""
    obj.setdefault("spec", {}).setdefault("metadata", {})
    _set_spec_defaults(_template_spec(obj))


def prepare_claim(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates."""
    versions.drop_disabled(new, old, _CLAIM_GATES, context.release)


def prepare_template(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates."""
    versions.drop_disabled(new, old, _TEMPLATE_GATES, context.release)


def validate_claim(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a claim, or with its change."""
    if old is not None:
        yield from _change_problems(new, old)
        return
    try:
        devices = decode_claim(without_texts(new), V1, strict=False).spec
    except DecodeError as error:
        yield rules.form_problem(error)
        return
    yield from _admin_problems(new, devices, "spec.devices", context)
    yield from _devices_problems(devices, "spec.devices", context)


def validate_template(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a template, or with its change."""
    if old is not None:
        yield from _change_problems(new, old)
        return
    try:
        template = decode_claim_template(without_texts(new), V1, strict=False)
    except DecodeError as error:
        yield rules.form_problem(error)
        return
    yield from _admin_problems(new, template.spec, "spec.spec.devices", context)
    yield from meta.label_problems(template.labels, "spec.metadata.labels")
    yield from meta.annotation_problems(template.annotations, "spec.metadata.annotations")
    yield from _devices_problems(template.spec, "spec.spec.devices", context)


def _change_problems(new: Object, old: Object) -> Problems:
    if not identical(_spec(new), _spec(old)):
        yield errors.invalid("spec", _spec(new), "field is immutable")


def _admin_problems(obj: Object, devices: DeviceClaim, path: str, context: Context) -> Problems:
    """Yield an error for admin access that the namespace does not allow."""
    namespace = context.get("namespaces", obj["metadata"].get("namespace", "")) or {"metadata": {}}
    if namespace["metadata"].get("labels", {}).get(_ADMIN_LABEL) == "true":
        return
    for index, request in enumerate(devices.requests):
        if request.exactly is not None and request.exactly.admin_access:
            text = f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing namespace"
            yield errors.forbidden(f"{path}.requests[{index}].adminAccess", text)


def _devices_problems(devices: DeviceClaim, path: str, context: Context) -> Problems:
    known = {request.name for request in devices.requests} | {name for name, _ in devices.requirements}
    yield from rules.length_problems(devices.requests, limits.REQUESTS_PER_CLAIM, f"{path}.requests")
    yield from names.listed_problems([request.name for request in devices.requests], f"{path}.requests")
    for index, request in enumerate(devices.requests):
        here = f"{path}.requests[{index}]"
        if request.exactly is not None:
            yield from _requirement_problems(request.exactly, f"{here}.exactly", context)
            yield from _derived_problems(request.exactly, (request.name,), devices, f"{here}.exactly")
        alternatives, here = request.first_available, f"{here}.firstAvailable"
        yield from rules.length_problems(alternatives, limits.ALTERNATIVES_PER_REQUEST, here)
        yield from names.listed_problems([alternative.name for alternative in alternatives], here)
        for number, alternative in enumerate(alternatives):
            yield from _requirement_problems(alternative.requirements, f"{here}[{number}]", context)
            known_as = (request.name, f"{request.name}/{alternative.name}")
            yield from _derived_problems(alternative.requirements, known_as, devices, f"{here}[{number}]")
    yield from rules.length_problems(devices.constraints, limits.CONSTRAINTS_PER_CLAIM, f"{path}.constraints")
    for index, constraint in enumerate(devices.constraints):
        yield from _constraint_problems(constraint, f"{path}.constraints[{index}]")
        yield from _reference_problems(constraint.requests, known, f"{path}.constraints[{index}].requests")
    yield from rules.length_problems(devices.config, limits.CONFIGS_PER_CLAIM, f"{path}.config")
    yield from rules.configuration_problems(
        [configuration.opaque for configuration in devices.config], f"{path}.config"
    )
    for index, config in enumerate(devices.config):
        yield from _reference_problems(config.requests, known, f"{path}.config[{index}].requests")


def _requirement_problems(wanted: DeviceRequirements, path: str, context: Context) -> Problems:
    yield from names.SUBDOMAIN.problems(wanted.device_class_name, f"{path}.deviceClassName")
    yield from rules.selector_problems(wanted.selectors, f"{path}.selectors", context)
    mode, count = wanted.allocation_mode, wanted.count
    if mode not in (ALL, EXACT_COUNT):
        yield errors.not_supported(f"{path}.allocationMode", mode, (ALL, EXACT_COUNT))
    elif mode == ALL and count != 0:
        yield errors.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == EXACT_COUNT and count <= 0:
        yield errors.invalid(f"{path}.count", count, "must be greater than zero")
    yield from rules.length_problems(wanted.tolerations, _TOLERATIONS, f"{path}.tolerations")
    for index, toleration in enumerate(wanted.tolerations):
        yield from _toleration_problems(toleration, f"{path}.tolerations[{index}]")


def _derived_problems(
    wanted: DeviceRequirements, names_of_request: tuple[str, ...], devices: DeviceClaim, path: str
) -> Problems:
    """Yield the problems of derived attributes. Constraints know their request by any of its names."""
    here = f"{path}.derivedAttributes"
    yield from rules.length_problems(wanted.derived_attributes, limits.DERIVED_ATTRIBUTES, here)
    used = {
        name
        for constraint in devices.constraints
        if not constraint.requests or set(constraint.requests) & set(names_of_request)
        for name in (constraint.match_attribute, constraint.distinct_attribute)
    }
    seen: set[str] = set()
    for index, derived in enumerate(wanted.derived_attributes):
        if "/" not in derived.name or not is_qualified_name(derived.name):
            yield errors.invalid(f"{here}[{index}].name", derived.name, "must be DOMAIN/NAME, such as example.com/half")
        elif derived.name not in used:
            text = "must be used by a constraint that applies to the request"
            yield errors.invalid(f"{here}[{index}].name", derived.name, text)
        if derived.name in seen:
            yield errors.duplicate(f"{here}[{index}].name", derived.name)
        seen.add(derived.name)
        if len(derived.expression.encode()) > limits.EXPRESSION_BYTES:
            yield errors.too_long(f"{here}[{index}].expression", limits.EXPRESSION_BYTES)


def _toleration_problems(toleration: DeviceToleration, path: str) -> Problems:
    if toleration.key:
        yield from names.LABEL_KEY.problems(toleration.key, f"{path}.key")
    yield from names.LABEL_VALUE.problems(toleration.value, f"{path}.value")
    if toleration.operator not in ("Equal", "Exists"):
        yield errors.not_supported(f"{path}.operator", toleration.operator, ("Equal", "Exists"))
    elif toleration.operator == "Exists" and toleration.value:
        yield errors.invalid(f"{path}.value", toleration.value, "must be empty for operator `Exists`")
    if toleration.effect and toleration.effect not in tuple(TaintEffect):
        yield errors.not_supported(f"{path}.effect", toleration.effect, TaintEffect)


def _constraint_problems(constraint: DeviceConstraint, path: str) -> Problems:
    fields = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    given = {field: name for field, name in fields.items() if name is not None}
    if len(given) != 1:
        yield errors.required(path, "exactly one of `matchAttribute` and `distinctAttribute` is required")
    for field, name in given.items():
        if "/" not in name or not is_qualified_name(name):
            yield errors.invalid(f"{path}.{field}", name, "must be DOMAIN/NAME, such as gpu.nvidia.com/parentUUID")


def _reference_problems(references: tuple[str, ...], known: set[str], path: str) -> Problems:
    for index, name in enumerate(references):
        if name not in known:
            text = "must be the name of a request in the claim, or the names of a request and a subrequest with a '/'"
            yield errors.invalid(f"{path}[{index}]", name, text)


def prepare_claim_status(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates, and the device status of devices that are no longer allocated."""
    versions.drop_disabled(new, old, versions.CLAIM_STATUS, context.release)
    _drop_deallocated(new, old)


def validate_claim_status(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a change of a claim's status."""
    before: Object = old or {}
    yield from _authorization_problems(new, before, context)
    yield from _status_problems(new, before)


CLAIM: Final = KindStrategy(
    default=set_claim_defaults,
    prepare=prepare_claim,
    prepare_status=prepare_claim_status,
    validate=validate_claim,
    validate_status=validate_claim_status,
    first_status={},
    returns_deleted=True,
    checks_required=False,
)
TEMPLATE: Final = KindStrategy(
    default=set_template_defaults,
    prepare=prepare_template,
    validate=validate_template,
    returns_deleted=True,
    checks_required=False,
)


def _status(claim: Object) -> Object:
    found: Object = claim.get("status") or {}
    return found


def _results(claim: Object) -> list[Object]:
    """Return the allocation results of the claim."""
    allocation = _status(claim).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def _device_id(item: Object) -> DeviceId:
    """Return the device of an allocation result or of a device status."""
    return item.get("driver", ""), item.get("pool", ""), item.get("device", ""), item.get("shareID", "")


def _drop_deallocated(new: Object, old: Object | None) -> None:
    """Drop the device status of devices that this write deallocates."""
    devices = _status(new).get("devices")
    if not devices:
        return
    gone = {_device_id(result) for result in _results(old or {})} - {_device_id(result) for result in _results(new)}
    kept = [device for device in devices if _device_id(device) not in gone]
    if kept:
        new["status"]["devices"] = kept
    else:
        del new["status"]["devices"]


def _authorization_problems(new: Object, old: Object, context: Context) -> Problems:
    """Yield errors for missing permissions to bind claims, and to report on a driver's devices (since 1.36)."""
    if context.authorize is None or not context.release.enabled("DRAResourceClaimGranularStatusAuthorization"):
        return
    before, after = _status(old), _status(new)
    if not all(
        identical(before.get(field) or None, after.get(field) or None) for field in ("allocation", "reservedFor")
    ):
        refusal = context.authorize("", "binding", "", "")
        if refusal is not None:
            fields = "status.allocation or status.reservedFor"
            text = f'changing {fields} requires resource="resourceclaims/binding", {refusal}'
            yield errors.forbidden("status.allocation", text)
    if not after.get("allocation"):
        return
    nearby = context.user.node_names == (_only_node(after["allocation"]),)
    prefixes = ("associated-node:", "arbitrary-node:") if nearby else ("arbitrary-node:",)
    for driver in sorted(_changed_drivers(before, after)):
        namespace = new["metadata"].get("namespace", "")
        refusals = [context.authorize(prefix, "driver", namespace, driver) for prefix in prefixes]
        if None not in refusals:
            text = f'changing status.devices requires resource="resourceclaims/driver", {refusals[0]}'
            yield errors.forbidden("status.devices", text)


def _changed_drivers(before: Object, after: Object) -> set[str]:
    old, new = ({_device_id(device): device for device in status.get("devices") or ()} for status in (before, after))
    return {key[0] for key in (*old, *new) if not identical(old.get(key), new.get(key))}


def _only_node(allocation: Object) -> str | None:
    """Return the node of the allocated devices, or None if the node selector has not the form of a single node."""
    match pick(allocation, "nodeSelector", "nodeSelectorTerms"):
        case [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [str(node)]}], **rest}] if not rest:
            return node
    return None


def _status_problems(new: Object, old: Object) -> Problems:
    status = _status(new)
    reserved, allocation, previous = (
        status.get("reservedFor") or [],
        status.get("allocation"),
        pick(old, "status", "allocation"),
    )
    yield from rules.length_problems(reserved, _CONSUMERS, "status.reservedFor")
    if reserved and not allocation:
        yield errors.forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    if allocation and previous and not identical(allocation, previous):
        yield errors.invalid("status.allocation", allocation, "field is immutable")
    allocated = {_device_id(result) for result in _results(new)}
    for index, device in enumerate(status.get("devices") or ()):
        yield from _device_problems(device, f"status.devices[{index}]", allocated)


def _device_problems(device: Object, path: str, allocated: set[DeviceId]) -> Problems:
    if _device_id(device) not in allocated:
        shown = "/".join(part for part in _device_id(device) if part)
        yield errors.invalid(path, shown, "must be an allocated device in the claim")
    yield from rules.length_problems(device.get("conditions") or [], _CONDITIONS, f"{path}.conditions")
    data = device.get("data", {})
    if not isinstance(data, dict):
        yield errors.invalid(f"{path}.data", data, "must be a valid JSON object")
    elif len(encode(data)) > _DATA_BYTES:
        yield errors.too_long(f"{path}.data", _DATA_BYTES)
