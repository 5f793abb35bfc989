# SPDX-License-Identifier: Apache-2.0
"""ResourceClaim and ResourceClaimTemplate: defaults, gated fields, validation of the spec."""

from typing import Any, Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ... import names
from ...kinds import Context, Strategy
from ...objects import Object
from .. import meta
from . import claim_status, gates, rules
from .rules import Problems, RequestNames, references_problems, request_names

_MODES: Final = ("All", "ExactCount")
_TOLERATIONS: Final = 16
_ONE: Final = "exactly one of `exactly` or `firstAvailable` is required"

_CLAIM_GATES: Final = gates.claim_spec("spec")
_TEMPLATE_GATES: Final = gates.claim_spec("spec.spec")


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
    """Allocation modes, counts and toleration operators."""
    _set_spec_defaults(_spec(obj))
    allocation = (obj.get("status") or {}).get("allocation") or {}
    for result in allocation.get("devices", {}).get("results", ()):
        _set_operators(result.get("tolerations", ()))


def set_template_defaults(obj: Object, context: Context) -> None:
    """As of a claim."""
    obj.setdefault("spec", {}).setdefault("metadata", {})
    _set_spec_defaults(_template_spec(obj))


def prepare_claim(new: Object, old: Object | None, context: Context) -> None:
    """Drops fields behind disabled gates."""
    gates.drop_disabled(new, old, _CLAIM_GATES, context.release)


def prepare_template(new: Object, old: Object | None, context: Context) -> None:
    """Drops fields behind disabled gates."""
    gates.drop_disabled(new, old, _TEMPLATE_GATES, context.release)


def validate_claim(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a claim, or with its change."""
    if old is not None:
        if _spec(new) != _spec(old):
            yield errors.invalid("spec", _spec(new), "field is immutable")
        return
    yield from admin_problems(new, _spec(new), "spec", context)
    yield from _spec_problems(_spec(new), "spec", context)


def validate_template(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a template, or with its change."""
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
    """Admin access that the namespace does not allow."""
    for index, request in enumerate(spec.get("devices", {}).get("requests", ())):
        if (request.get("exactly") or {}).get("adminAccess") is True:
            yield from admin_label_problems(obj, f"{path}.devices.requests[{index}].adminAccess", context)
            return


def admin_label_problems(obj: Object, path: str, context: Context) -> Problems:
    """Refuses admin access unless the object's namespace has the label for it."""
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
    """Drops fields behind disabled gates, and the device status of what is no longer allocated."""
    gates.drop_disabled(new, old, gates.CLAIM_STATUS, context.release)
    claim_status.drop_deallocated(new, old)


def validate_claim_status(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a change of a claim's status."""
    before: Object = old or {}
    yield from _admin_result_problems(new, before, context)
    yield from claim_status.authorization_problems(new, before, context)
    yield from claim_status.validate(new, before, request_names(_spec(new)))


def _admin_result_problems(new: Object, old: Object, context: Context) -> Problems:
    if any(result.get("adminAccess") for result in claim_status.results(old)):
        return
    for index, result in enumerate(claim_status.results(new)):
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
