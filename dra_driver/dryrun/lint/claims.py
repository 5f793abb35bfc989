# SPDX-License-Identifier: Apache-2.0
"""Requests and constraints of claims, as kube-apiserver validates them: names, counts, limits, tolerations."""

import difflib
import json
from collections.abc import Iterable, Iterator

from ...resource import (
    ALL,
    EXACT_COUNT,
    DeviceClass,
    DeviceConstraint,
    DeviceRequirements,
    OpaqueConfiguration,
    TaintEffect,
    limits,
)
from ...resource.names import is_driver_name, is_label, is_label_key, is_label_value, is_qualified_name, is_subdomain
from .catalog import Known
from .finding import Issue, Rule, error, warning
from .subject import STAND_IN, ClaimSpec, Context, Subject, is_device_api

INVALID_NAME = error("invalid-name", "An object, class, request or alternative has a name that Kubernetes refuses.")
DUPLICATE_NAME = error("duplicate-name", "Two requests, or two alternatives of one, have the same name.")
INVALID_COUNT = error("invalid-count", "A request's count and allocation mode do not go together.")
ZERO_COUNT = warning("zero-count", "The API server changes a count of 0 to 1.")
INVALID_TOLERATION = error("invalid-toleration", "The API server refuses a toleration.")
TOO_MANY = error("too-many", "A list is longer than the API server accepts, or a claim asks for too many devices.")
TOO_LARGE = error("too-large", "Opaque parameters are larger than the API server accepts.")
CONSTRAINT_REQUEST = error("constraint-names-no-request", "A constraint names a request that the claim does not have.")
CONSTRAINT_ATTRIBUTE = error("constraint-attribute", "A constraint has not exactly one well-formed attribute.")
CONSTRAINT_UNMET = warning("constraint-never-met", "No known device that a request selects has the attribute.")
RULES = (
    INVALID_NAME,
    DUPLICATE_NAME,
    INVALID_COUNT,
    ZERO_COUNT,
    INVALID_TOLERATION,
    TOO_MANY,
    TOO_LARGE,
    CONSTRAINT_REQUEST,
    CONSTRAINT_ATTRIBUTE,
    CONSTRAINT_UNMET,
)


def check_names(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the names of the object and of its requests."""
    source = subject.source
    if not is_device_api(source) or subject.form is None:
        return
    if "name" in source.metadata:
        if not is_subdomain(source.name):
            yield Issue(INVALID_NAME, "metadata.name", not_a_subdomain(source.metadata["name"]))
    elif not source.metadata.get("generateName"):
        yield Issue(INVALID_NAME, "metadata", "the object has no name: set metadata.name")
    claim = subject.claim
    if claim is None:
        return
    requests = claim.devices.requests
    yield from _names(((f"{claim.path}.requests[{index}]", one.name) for index, one in enumerate(requests)))
    for index, request in enumerate(requests):
        path = f"{claim.path}.requests[{index}].firstAvailable"
        yield from _names((f"{path}[{number}]", one.name) for number, one in enumerate(request.first_available))
    for one in claim.requirements():
        if not is_subdomain(one.value.device_class_name):
            yield Issue(INVALID_NAME, f"{one.path}.deviceClassName", not_a_subdomain(one.value.device_class_name))


def check_requests(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check counts, modes, capacity keys and tolerations."""
    claim = subject.claim
    for one in claim.requirements() if claim is not None else ():
        yield from _count(one.value, one.path)
        yield from _tolerations(one.value, f"{one.path}.tolerations")
        for key in one.value.capacity_requests:
            if not is_qualified_name(key):
                problem = f"{key!r} is not an identifier, optionally after a domain and a slash"
                yield Issue(INVALID_NAME, f"{one.path}.capacity.requests[{key}]", problem)


def check_extended_resource(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the extended resource name of a class."""
    if isinstance(subject.decoded, DeviceClass) and subject.decoded.extended_resource_name:
        name = subject.decoded.extended_resource_name
        domain, slash, _ = name.partition("/")
        if not slash or not is_label_key(name) or f".{domain}".endswith(".kubernetes.io"):
            problem = f"{name!r} is not an extended resource: use DOMAIN/NAME with a domain outside of kubernetes.io"
            yield Issue(INVALID_NAME, "spec.extendedResourceName", problem)


def _names(named: Iterable[tuple[str, str]]) -> Iterator[Issue]:
    seen: set[str] = set()
    for path, name in named:
        if not is_label(name):
            problem = f"{name!r} is not a DNS label: use at most 63 lowercase letters, digits and inner hyphens"
            yield Issue(INVALID_NAME, f"{path}.name", problem)
        if name in seen:
            yield Issue(DUPLICATE_NAME, f"{path}.name", f"{name!r} is used twice: rename one")
        seen.add(name)


def _count(wanted: DeviceRequirements, path: str) -> Iterator[Issue]:
    if wanted.allocation_mode == ALL:
        if wanted.count:
            problem = f"count {wanted.count} does not go with allocationMode {ALL}: remove one of them"
            yield Issue(INVALID_COUNT, f"{path}.count", problem)
    elif wanted.allocation_mode != EXACT_COUNT:
        problem = f"must be {EXACT_COUNT} or {ALL}, not {wanted.allocation_mode!r}"
        yield Issue(INVALID_COUNT, f"{path}.allocationMode", problem)
    elif wanted.count < 0:
        yield Issue(INVALID_COUNT, f"{path}.count", f"must be at least 1, not {wanted.count}")
    elif wanted.count == 0:
        problem = "0 is taken as 1: say 1, or remove the request if no device is wanted"
        yield Issue(ZERO_COUNT, f"{path}.count", problem)


def _tolerations(wanted: DeviceRequirements, path: str) -> Iterator[Issue]:
    for index, one in enumerate(wanted.tolerations):
        place = f"{path}[{index}]"
        if one.key and not is_label_key(one.key):
            yield Issue(INVALID_TOLERATION, f"{place}.key", f"{one.key!r} is not the key of a taint")
        if one.operator not in ("Equal", "Exists"):
            problem = f"must be Equal or Exists, not {one.operator!r}"
            yield Issue(INVALID_TOLERATION, f"{place}.operator", problem)
        elif one.operator == "Exists" and one.value:
            problem = "must be empty with operator Exists: remove it, or use operator Equal"
            yield Issue(INVALID_TOLERATION, f"{place}.value", problem)
        elif not is_label_value(one.value):
            yield Issue(INVALID_TOLERATION, f"{place}.value", f"{one.value!r} is not the value of a taint")
        if one.effect and one.effect not in tuple(TaintEffect):
            problem = f"must be one of {', '.join(TaintEffect)}, not {one.effect!r}"
            yield Issue(INVALID_TOLERATION, f"{place}.effect", problem)


def not_a_subdomain(name: object) -> str:
    """What is wrong with a name that Kubernetes refuses."""
    return f"{name!r} is not a DNS subdomain: use lower case letters, digits, and inner hyphens and dots"


_TOLERATIONS = 16


def check_limits(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the lengths of lists and the sizes of configurations."""
    claim, one = subject.claim, subject.decoded
    lists: list[tuple[str, int, int]] = []
    opaques: list[tuple[str, OpaqueConfiguration]] = []
    if isinstance(one, DeviceClass):
        lists = [
            ("spec.selectors", len(one.selectors), limits.SELECTORS_PER_LIST),
            ("spec.config", len(one.config), limits.CONFIGS_PER_CLAIM),
        ]
        opaques = [(f"spec.config[{index}]", opaque) for index, opaque in enumerate(one.config)]
    elif claim is not None:
        lists = list(_lists(claim))
        opaques = [(path, opaque) for path, _, opaque in claim.configs()]
        yield from _total(claim)
    for path, length, most in lists:
        if length > most:
            yield Issue(TOO_MANY, path, f"has {length} entries, at most {most} are accepted")
    most = limits.OPAQUE_PARAMETERS_BYTES
    for path, opaque in opaques:
        size = len(json.dumps(opaque.parameters, separators=(",", ":"), default=str).encode())
        if size > most:
            yield Issue(TOO_LARGE, f"{path}.opaque.parameters", f"has {size} bytes, at most {most} are accepted")


def _lists(claim: ClaimSpec) -> Iterator[tuple[str, int, int]]:
    devices = claim.devices
    yield f"{claim.path}.requests", len(devices.requests), limits.REQUESTS_PER_CLAIM
    yield f"{claim.path}.constraints", len(devices.constraints), limits.CONSTRAINTS_PER_CLAIM
    yield f"{claim.path}.config", len(devices.config), limits.CONFIGS_PER_CLAIM
    for index, request in enumerate(devices.requests):
        path = f"{claim.path}.requests[{index}].firstAvailable"
        yield path, len(request.first_available), limits.ALTERNATIVES_PER_REQUEST
    for one in claim.requirements():
        yield f"{one.path}.selectors", len(one.value.selectors), limits.SELECTORS_PER_LIST
        yield f"{one.path}.tolerations", len(one.value.tolerations), _TOLERATIONS


def _total(claim: ClaimSpec) -> Iterator[Issue]:
    """Check the number of devices of the claim. Of each request, the smallest alternative counts."""
    least = 0
    for request in claim.devices.requests:
        choices = [request.exactly] if request.exactly is not None else []
        choices += [one.requirements for one in request.first_available]
        least += min((max(one.count, 1) for one in choices), default=0)
    if least > limits.RESULTS_PER_CLAIM:
        most = limits.RESULTS_PER_CLAIM
        problem = f"the claim asks for at least {least} devices, it can be given {most}: use several claims"
        yield Issue(TOO_MANY, f"{claim.path}.requests", problem)


def check_constraints(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the constraints of a claim."""
    claim = subject.claim
    for index, constraint in enumerate(claim.devices.constraints if claim is not None else ()):
        assert claim is not None
        path = f"{claim.path}.constraints[{index}]"
        yield from request_names(claim, constraint.requests, f"{path}.requests", CONSTRAINT_REQUEST)
        malformed = list(_form(constraint, path))
        yield from malformed or _unmet(claim, constraint, path, context)


def request_names(claim: ClaimSpec, names: tuple[str, ...], path: str, rule: Rule) -> Iterator[Issue]:
    """Check that each name is that of a request, or `request/alternative`, and occurs once."""
    known = {*claim.requests, *(one.name for one in claim.requirements() if STAND_IN not in one.name.split("/"))}
    for index, name in enumerate(names):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            there = f"there is {', '.join(sorted(known))}" if known else "it has none"
            hint = f"; did you mean {close[0]!r}?" if close else f" ({there})"
            yield Issue(rule, f"{path}[{index}]", f"{name!r} is no request of the claim{hint}")
        elif name in names[:index]:
            yield Issue(rule, f"{path}[{index}]", f"{name!r} is named twice: remove one")


def _form(constraint: DeviceConstraint, path: str) -> Iterator[Issue]:
    attributes = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    given = {field: name for field, name in attributes.items() if name is not None}
    if len(given) != 1:
        yield Issue(CONSTRAINT_ATTRIBUTE, path, "must have exactly one of matchAttribute and distinctAttribute")
    for field, name in given.items():
        domain, slash, _ = name.partition("/")
        if not slash or not is_qualified_name(name) or not is_driver_name(domain):
            problem = f"{name!r} must be DOMAIN/ATTRIBUTE, such as gpu.nvidia.com/parentUUID"
            yield Issue(CONSTRAINT_ATTRIBUTE, f"{path}.{field}", problem)


def _unmet(claim: ClaimSpec, constraint: DeviceConstraint, path: str, context: Context) -> Iterator[Issue]:
    """Check that known devices have the attribute: a device without it meets no constraint."""
    field = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    for one in claim.covered(constraint.requests):
        candidates = context.catalog.candidates(one.value)
        if not candidates or any(_has(device, name) for device in candidates):
            continue
        published = {
            key if "/" in key else f"{each.driver}/{key}" for each in candidates for key in each.device.attributes
        }
        # Compared without their domains, which would make all of them look alike.
        known = {key.rpartition("/")[2].lower(): key for key in sorted(published)}
        close = difflib.get_close_matches(name.rpartition("/")[2].lower(), known, n=1)
        hint = f"; did you mean {known[close[0]]!r}?" if close else ""
        yield Issue(
            CONSTRAINT_UNMET,
            f"{path}.{field}",
            f"none of the {len(candidates)} known devices that request {one.name!r} selects has"
            f" attribute {name!r}: no device will do{hint}",
        )


def _has(known: Known, name: str) -> bool:
    domain, _, identifier = name.partition("/")
    return name in known.device.attributes or (domain == known.driver and identifier in known.device.attributes)
