# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and ResourceClaimTemplates: defaults, gated fields, and validation of spec and status.

The status says which devices are allocated, for whom they are reserved, and what drivers report about them.
"""

from typing import Any, Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ... import names
from ...kinds import Context, Strategy
from ...objects import Object
from .. import meta
from . import rules, versions
from .rules import Problems, RequestNames, reference_problems, references_problems, request_names

_MODES: Final = ("All", "ExactCount")
_TOLERATIONS: Final = 16
_ONE: Final = "exactly one of `exactly` or `firstAvailable` is required"

_CLAIM_GATES: Final = versions.claim_spec("spec")
_TEMPLATE_GATES: Final = versions.claim_spec("spec.spec")


def _spec(obj: Object) -> Object:
    spec: Object = obj.get("spec") or {}
    return spec


def _template_spec(obj: Object) -> Object:
    return _spec(_spec(obj))


def _set_spec_defaults(spec: Object) -> None:
    for request in spec.get("devices", {}).get("requests", ()):
        forms = [request["exactly"]] if request.get("exactly") is not None else []
        for form in (*forms, *request.get("firstAvailable", ())):
            if not form.get("allocationMode"):
                form["allocationMode"] = "ExactCount"
            if form["allocationMode"] == "ExactCount" and not form.get("count"):
                form["count"] = 1
            _set_operators(form.get("tolerations", ()))


def _set_operators(tolerations: Any) -> None:
    for toleration in tolerations:
        toleration.setdefault("operator", "Equal")


def set_claim_defaults(obj: Object, context: Context) -> None:
    """Set allocation modes, counts and toleration operators."""
    _set_spec_defaults(_spec(obj))
    allocation = (obj.get("status") or {}).get("allocation") or {}
    for result in allocation.get("devices", {}).get("results", ()):
        _set_operators(result.get("tolerations", ()))


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
        if _spec(new) != _spec(old):
            yield errors.invalid("spec", _spec(new), "field is immutable")
        return
    yield from admin_problems(new, _spec(new), "spec", context)
    yield from _spec_problems(_spec(new), "spec", context)


def validate_template(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a template, or with its change."""
    if old is not None:
        if _spec(new) != _spec(old):
            yield errors.invalid("spec", _spec(new), "field is immutable")
        return
    yield from admin_problems(new, _template_spec(new), "spec.spec", context)
    inner = _spec(new).get("metadata", {})
    yield from meta.label_problems(inner.get("labels"), "spec.metadata.labels")
    yield from meta.annotation_problems(inner.get("annotations"), "spec.metadata.annotations")
    yield from _spec_problems(_template_spec(new), "spec.spec", context)


def admin_problems(obj: Object, spec: Object, path: str, context: Context) -> Problems:
    """Yield an error for admin access that the namespace does not allow."""
    for index, request in enumerate(spec.get("devices", {}).get("requests", ())):
        if (request.get("exactly") or {}).get("adminAccess") is True:
            yield from admin_label_problems(obj, f"{path}.devices.requests[{index}].adminAccess", context)
            return


def admin_label_problems(obj: Object, path: str, context: Context) -> Problems:
    """Yield an error unless the object's namespace has the label for admin access."""
    label = context.release.admin_access_label
    if not label:
        return
    namespace = context.get("namespaces", obj["metadata"].get("namespace", "")) or {"metadata": {}}
    if namespace["metadata"].get("labels", {}).get(label) != "true":
        text = f"admin access to devices requires the `{label}: true` label on the containing namespace"
        yield errors.forbidden(path, text)


def _spec_problems(spec: Object, path: str, context: Context) -> Problems:
    devices, path = spec.get("devices", {}), f"{path}.devices"
    known = request_names(spec)

    def request(item: Object, here: str) -> Problems:
        return _request_problems(item, here, context)

    def constraint(item: Object, here: str) -> Problems:
        return _constraint_problems(item, here, known, context)

    def config(item: Object, here: str) -> Problems:
        yield from references_problems(item.get("requests", ()), f"{here}.requests", known)
        yield from rules.device_configuration_problems(item, here)

    yield from rules.set_problems(
        devices.get("requests", ()), limits.REQUESTS_PER_CLAIM, request, _name, f"{path}.requests"
    )
    yield from rules.list_problems(
        devices.get("constraints", ()), limits.CONSTRAINTS_PER_CLAIM, constraint, f"{path}.constraints"
    )
    yield from rules.list_problems(devices.get("config", ()), limits.CONFIGS_PER_CLAIM, config, f"{path}.config")


def _name(item: Object) -> str:
    name: str = item.get("name", "")
    return name


def _request_problems(request: Object, path: str, context: Context) -> Problems:
    yield from rules.label_problems(_name(request), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or []
    if exactly is not None and alternatives:
        yield errors.invalid(path, None, f"{_ONE}, but multiple fields are set")
    elif exactly is not None:
        yield from _form_problems(exactly, f"{path}.exactly", context)
    elif alternatives:

        def check(alternative: Object, here: str) -> Problems:
            yield from rules.label_problems(_name(alternative), f"{here}.name")
            yield from _form_problems(alternative, here, context)

        yield from rules.set_problems(
            alternatives, limits.ALTERNATIVES_PER_REQUEST, check, _name, f"{path}.firstAvailable"
        )
    else:
        yield errors.required(path, _ONE)


def _form_problems(form: Object, path: str, context: Context) -> Problems:
    class_name = form.get("deviceClassName", "")
    if not class_name:
        yield errors.required(f"{path}.deviceClassName")
    for problem in names.subdomain_problems(class_name) if class_name else ():
        yield errors.invalid(f"{path}.deviceClassName", class_name, problem)
    yield from rules.selector_problems(form.get("selectors", ()), f"{path}.selectors", context)
    mode, count = form.get("allocationMode"), form.get("count", 0)
    if mode == "All" and count != 0:
        yield errors.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount" and count <= 0:
        yield errors.invalid(f"{path}.count", count, "must be greater than zero")
    elif mode not in _MODES:
        yield errors.not_supported(f"{path}.allocationMode", mode, _MODES)
    yield from rules.list_problems(
        form.get("tolerations", ()),
        _TOLERATIONS,
        lambda toleration, here: rules.toleration_problems(toleration, here, context),
        f"{path}.tolerations",
    )


def _constraint_problems(constraint: Object, path: str, known: RequestNames, context: Context) -> Problems:
    yield from references_problems(constraint.get("requests", ()), f"{path}.requests", known)
    for field in ("matchAttribute", "distinctAttribute"):
        if constraint.get(field) is not None:
            yield from rules.fully_qualified_name_problems(constraint[field], f"{path}.{field}")
            return
    if context.release.enabled("DRAConsumableCapacity"):
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        yield errors.required(path, text)
    else:
        yield errors.required(f"{path}.matchAttribute")


def prepare_claim_status(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates, and the device status of devices that are no longer allocated."""
    versions.drop_disabled(new, old, versions.CLAIM_STATUS, context.release)
    drop_deallocated(new, old)


def validate_claim_status(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a change of a claim's status."""
    before: Object = old or {}
    yield from _admin_result_problems(new, before, context)
    yield from authorization_problems(new, before, context)
    yield from status_problems(new, before, request_names(_spec(new)))


def _admin_result_problems(new: Object, old: Object, context: Context) -> Problems:
    if any(result.get("adminAccess") for result in results(old)):
        return
    for index, result in enumerate(results(new)):
        if result.get("adminAccess"):
            path = f"status.allocation.devices.results[{index}].adminAccess"
            yield from admin_label_problems(new, path, context)
            return


CLAIM: Final = Strategy(
    default=set_claim_defaults,
    prepare=prepare_claim,
    prepare_status=prepare_claim_status,
    validate=validate_claim,
    validate_status=validate_claim_status,
    first_status={},
    returns_deleted=True,
    checks_required=False,
)
TEMPLATE: Final = Strategy(
    default=set_template_defaults,
    prepare=prepare_template,
    validate=validate_template,
    returns_deleted=True,
    checks_required=False,
)


_SOURCES: Final = ("FromClaim", "FromClass")
_CONDITIONS: Final = 8
_DATA_BYTES: Final = 10 * 1024

DeviceId = tuple[str, str, str, str]
"""The driver, pool, device and share ID."""


def _status(claim: Object) -> Object:
    found: Object = claim.get("status") or {}
    return found


def results(claim: Object) -> list[Object]:
    """Return the allocation results of the claim."""
    allocation = _status(claim).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def device_id(item: Object) -> DeviceId:
    """Return the device of an allocation result or of a device status."""
    return item.get("driver", ""), item.get("pool", ""), item.get("device", ""), item.get("shareID", "")


def drop_deallocated(new: Object, old: Object | None) -> None:
    """Drop the device status of devices that this write deallocates."""
    devices = _status(new).get("devices")
    if not devices:
        return
    gone = {device_id(result) for result in results(old or {})} - {device_id(result) for result in results(new)}
    kept = [device for device in devices if device_id(device) not in gone]
    if kept:
        new["status"]["devices"] = kept
    else:
        del new["status"]["devices"]


def authorization_problems(new: Object, old: Object, context: Context) -> Problems:
    """Yield errors for missing permissions to bind claims, and to report on a driver's devices (since 1.36)."""
    if context.authorize is None or not context.release.enabled("DRAResourceClaimGranularStatusAuthorization"):
        return
    before, after = _status(old), _status(new)
    if any((before.get(field) or None) != (after.get(field) or None) for field in ("allocation", "reservedFor")):
        refusal = context.authorize("", "binding", "", "")
        if refusal is not None:
            text = (
                "changing status.allocation or status.reservedFor requires "
                f'resource="resourceclaims/binding", {refusal}'
            )
            yield errors.forbidden("status.allocation", text)
    if not after.get("allocation"):
        return
    node = _only_node(after["allocation"])
    nearby = len(context.user.node_names) == 1 and context.user.node_names[0] == node
    prefixes = ("associated-node:", "arbitrary-node:") if nearby else ("arbitrary-node:",)
    for driver in sorted(_changed_drivers(before, after)):
        refusals = [
            context.authorize(prefix, "driver", new["metadata"].get("namespace", ""), driver) for prefix in prefixes
        ]
        if None not in refusals:
            text = f'changing status.devices requires resource="resourceclaims/driver", {refusals[0]}'
            yield errors.forbidden("status.devices", text)


def _changed_drivers(before: Object, after: Object) -> set[str]:
    old = {device_id(device): device for device in before.get("devices") or ()}
    new = {device_id(device): device for device in after.get("devices") or ()}
    return {key[0] for key in (*old, *new) if old.get(key) != new.get(key)}


def _only_node(allocation: Object) -> str | None:
    """Return the node of the allocated devices, or None if they are not on exactly one node."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return None
    fields = terms[0].get("matchFields") or []
    if len(fields) != 1 or fields[0].get("key") != "metadata.name" or fields[0].get("operator") != "In":
        return None
    values = fields[0].get("values") or []
    return values[0] if len(values) == 1 else None


def status_problems(new: Object, old: Object, known: RequestNames) -> Problems:
    """Yield the problems of a status, or with its change."""
    status, before = _status(new), _status(old)
    reserved = status.get("reservedFor") or []
    yield from rules.set_problems(
        reserved, rules.RESERVED_FOR, _consumer_problems, lambda user: user.get("uid", ""), "status.reservedFor"
    )
    allocated = {device_id(result) for result in results(new)}

    def device(item: Object, path: str) -> Problems:
        return _device_problems(item, path, allocated)

    yield from rules.set_problems(status.get("devices") or (), rules.UNLIMITED, device, device_id, "status.devices")
    allocation, previous = status.get("allocation"), before.get("allocation")
    if reserved and not allocation:
        yield errors.forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    elif new["metadata"].get("deletionTimestamp") and not _all_in(reserved, before.get("reservedFor") or []):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield errors.forbidden("status.reservedFor", text)
    if allocation and previous:
        if allocation != previous:
            yield errors.invalid("status.allocation", allocation, "field is immutable")
    elif allocation:
        yield from _allocation_problems(allocation, known)


def _all_in(items: list[Any], others: list[Any]) -> bool:
    return all(item in others for item in items)


def _consumer_problems(user: Object, path: str) -> Problems:
    for field in ("resource", "name", "uid"):
        if not user.get(field):
            yield errors.required(f"{path}.{field}")


def _allocation_problems(allocation: Object, known: RequestNames) -> Problems:
    devices, path = allocation.get("devices") or {}, "status.allocation.devices"

    def result(item: Object, here: str) -> Problems:
        yield from reference_problems(item.get("request", ""), f"{here}.request", known)
        yield from _device_name_problems(item, here)
        yield from rules.binding_problems(item, here)
        if item.get("shareID") is not None:
            yield from rules.uid_problems(item["shareID"], f"{here}.shareID")

    def config(item: Object, here: str) -> Problems:
        source = item.get("source", "")
        if not source:
            yield errors.required(f"{here}.source")
        elif source not in _SOURCES:
            yield errors.not_supported(f"{here}.source", source, _SOURCES)
        yield from references_problems(item.get("requests", ()), f"{here}.requests", known)
        yield from rules.device_configuration_problems(item, here)

    yield from rules.list_problems(devices.get("results", ()), limits.RESULTS_PER_CLAIM, result, f"{path}.results")
    configs = devices.get("config", ())
    yield from rules.list_problems(configs, 2 * rules.DEVICE_CONFIGS, config, f"{path}.config")
    if allocation.get("nodeSelector") is not None:
        yield from rules.node_selector_problems(allocation["nodeSelector"], "status.allocation.nodeSelector")


def _device_name_problems(item: Object, path: str) -> Problems:
    yield from rules.driver_problems(item.get("driver", ""), f"{path}.driver")
    yield from rules.pool_problems(item.get("pool", ""), f"{path}.pool")
    yield from rules.label_problems(item.get("device", ""), f"{path}.device")


def _device_problems(item: Object, path: str, allocated: set[DeviceId]) -> Problems:
    yield from _device_name_problems(item, path)
    if item.get("shareID") is not None:
        yield from rules.uid_problems(item["shareID"], f"{path}.shareID")
    if device_id(item) not in allocated:
        shown = "/".join(part for part in device_id(item) if part)
        yield errors.invalid(path, shown, "must be an allocated device in the claim")
    conditions = item.get("conditions") or []
    if len(conditions) > _CONDITIONS:
        yield errors.too_many(f"{path}.conditions", len(conditions), _CONDITIONS)
    if item.get("data") is not None:
        yield from rules.raw_object_problems(item["data"], f"{path}.data", _DATA_BYTES)
