# SPDX-License-Identifier: Apache-2.0
"""Requests and constraints of claims, as kube-apiserver validates them: names, counts, limits, tolerations."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ...kube.resource import ALL, EXACT_COUNT, DeviceClass, DeviceConstraint, DeviceRequirements, TaintEffect, limits
from ...kube.resource.names import (
    is_driver_name,
    is_label,
    is_label_key,
    is_label_value,
    is_qualified_name,
    is_subdomain,
)
from .catalog import CandidateDevice
from .constraints import check_satisfiable
from .finding import LintIssue, LintRule
from .subject import STAND_IN, ClaimSpec, LintContext, Requirement, Subject

_TOLERATIONS: Final = 16


def check_name(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check the name of an object of resource.k8s.io."""
    metadata = subject.document.metadata
    if subject.form is None:
        return
    if "name" in metadata:
        if not is_subdomain(subject.document.own_name):
            yield LintIssue(LintRule.INVALID_NAME, "metadata.name", not_a_subdomain(metadata["name"]))
    elif not metadata.get("generateName"):
        yield LintIssue(LintRule.INVALID_NAME, "metadata", "the object has no name: set metadata.name")


def check_class(class_: DeviceClass, context: LintContext) -> Iterator[LintIssue]:
    """Check the extended resource name of a class, and the lengths of its lists."""
    yield from _length("spec.selectors", class_.selectors, limits.SELECTORS_PER_LIST)
    yield from _length("spec.config", class_.config, limits.CONFIGS_PER_CLAIM)
    if name := class_.extended_resource_name:
        domain, slash, _ = name.partition("/")
        if not slash or not is_label_key(name) or f".{domain}".endswith(".kubernetes.io"):
            problem = f"{name!r} is not an extended resource: use DOMAIN/NAME with a domain outside of kubernetes.io"
            yield LintIssue(LintRule.INVALID_NAME, "spec.extendedResourceName", problem)


def check_claim(claim: ClaimSpec, context: LintContext) -> Iterator[LintIssue]:
    """Check the names of requests, the lengths of lists, the number of devices, and the constraints."""
    devices, path = claim.devices, f"{claim.path}.requests"
    yield from _names((f"{path}[{index}]", request.name) for index, request in enumerate(devices.requests))
    yield from _length(path, devices.requests, limits.REQUESTS_PER_CLAIM)
    yield from _length(f"{claim.path}.constraints", devices.constraints, limits.CONSTRAINTS_PER_CLAIM)
    yield from _length(f"{claim.path}.config", devices.config, limits.CONFIGS_PER_CLAIM)
    least = 0
    for index, request in enumerate(devices.requests):
        place, alternatives = f"{path}[{index}].firstAvailable", request.first_available
        yield from _names((f"{place}[{number}]", alternative.name) for number, alternative in enumerate(alternatives))
        yield from _length(place, alternatives, limits.ALTERNATIVES_PER_REQUEST)
        choices = [request.exactly] if request.exactly is not None else []
        choices += [alternative.requirements for alternative in alternatives]
        least += min((max(choice.count, 1) for choice in choices), default=0)
    if least > (most := limits.RESULTS_PER_CLAIM):
        problem = f"the claim asks for at least {least} devices, it can be given {most}: use several claims"
        yield LintIssue(LintRule.TOO_MANY, path, problem)
    for index, constraint in enumerate(devices.constraints):
        place = f"{claim.path}.constraints[{index}]"
        yield from request_names(claim, constraint.requests, f"{place}.requests", LintRule.CONSTRAINT_NAMES_NO_REQUEST)
        malformed = list(_form(constraint, place))
        findings = malformed or list(_unmet(claim, constraint, place, context))
        yield from findings or check_satisfiable(claim, constraint, place, context)


def check_request(requirement: Requirement, context: LintContext) -> Iterator[LintIssue]:
    """Check the class name, the count and mode, the capacity keys, and the lists of a request."""
    wanted, path = requirement.value, requirement.path
    if not is_subdomain(wanted.device_class_name):
        yield LintIssue(LintRule.INVALID_NAME, f"{path}.deviceClassName", not_a_subdomain(wanted.device_class_name))
    yield from _count(wanted, path)
    yield from _tolerations(wanted, f"{path}.tolerations")
    yield from _length(f"{path}.selectors", wanted.selectors, limits.SELECTORS_PER_LIST)
    yield from _length(f"{path}.tolerations", wanted.tolerations, _TOLERATIONS)
    for key in wanted.capacity_requests:
        if not is_qualified_name(key):
            problem = f"{key!r} is not an identifier, optionally after a domain and a slash"
            yield LintIssue(LintRule.INVALID_NAME, f"{path}.capacity.requests[{key}]", problem)


def _length(path: str, entries: Sequence[object], most: int) -> Iterator[LintIssue]:
    if len(entries) > most:
        yield LintIssue(LintRule.TOO_MANY, path, f"has {len(entries)} entries, at most {most} are accepted")


def _names(named: Iterable[tuple[str, str]]) -> Iterator[LintIssue]:
    seen: set[str] = set()
    for path, name in named:
        if not is_label(name):
            problem = f"{name!r} is not a DNS label: use at most 63 lowercase letters, digits and inner hyphens"
            yield LintIssue(LintRule.INVALID_NAME, f"{path}.name", problem)
        if name in seen:
            yield LintIssue(LintRule.DUPLICATE_NAME, f"{path}.name", f"{name!r} is used twice: rename one")
        seen.add(name)


def _count(wanted: DeviceRequirements, path: str) -> Iterator[LintIssue]:
    if wanted.allocation_mode == ALL:
        if wanted.count:
            problem = f"count {wanted.count} does not go with allocationMode {ALL}: remove one of them"
            yield LintIssue(LintRule.INVALID_COUNT, f"{path}.count", problem)
    elif wanted.allocation_mode != EXACT_COUNT:
        problem = f"must be {EXACT_COUNT} or {ALL}, not {wanted.allocation_mode!r}"
        yield LintIssue(LintRule.INVALID_COUNT, f"{path}.allocationMode", problem)
    elif wanted.count < 0:
        yield LintIssue(LintRule.INVALID_COUNT, f"{path}.count", f"must be at least 1, not {wanted.count}")
    elif wanted.count == 0:
        problem = "0 is taken as 1: say 1, or remove the request if no device is wanted"
        yield LintIssue(LintRule.ZERO_COUNT, f"{path}.count", problem)


def _tolerations(wanted: DeviceRequirements, path: str) -> Iterator[LintIssue]:
    for index, toleration in enumerate(wanted.tolerations):
        place = f"{path}[{index}]"
        if toleration.key and not is_label_key(toleration.key):
            problem = f"{toleration.key!r} is not the key of a taint"
            yield LintIssue(LintRule.INVALID_TOLERATION, f"{place}.key", problem)
        if toleration.operator not in ("Equal", "Exists"):
            problem = f"must be Equal or Exists, not {toleration.operator!r}"
            yield LintIssue(LintRule.INVALID_TOLERATION, f"{place}.operator", problem)
        elif toleration.operator == "Exists" and toleration.value:
            problem = "must be empty with operator Exists: remove it, or use operator Equal"
            yield LintIssue(LintRule.INVALID_TOLERATION, f"{place}.value", problem)
        elif not is_label_value(toleration.value):
            problem = f"{toleration.value!r} is not the value of a taint"
            yield LintIssue(LintRule.INVALID_TOLERATION, f"{place}.value", problem)
        if toleration.effect and toleration.effect not in tuple(TaintEffect):
            problem = f"must be one of {', '.join(TaintEffect)}, not {toleration.effect!r}"
            yield LintIssue(LintRule.INVALID_TOLERATION, f"{place}.effect", problem)


def not_a_subdomain(name: object) -> str:
    """Why Kubernetes refuses a name."""
    return f"{name!r} is not a DNS subdomain: use lower case letters, digits, and inner hyphens and dots"


def request_names(claim: ClaimSpec, names: tuple[str, ...], path: str, rule: LintRule) -> Iterator[LintIssue]:
    """Check that each name is that of a request, or `request/alternative`, and occurs once."""
    known = {
        *claim.requests,
        *(requirement.name for requirement in claim.requirements() if STAND_IN not in requirement.name.split("/")),
    }
    for index, name in enumerate(names):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            there = f"there is {', '.join(sorted(known))}" if known else "it has none"
            hint = f"; did you mean {close[0]!r}?" if close else f" ({there})"
            yield LintIssue(rule, f"{path}[{index}]", f"{name!r} is no request of the claim{hint}")
        elif name in names[:index]:
            yield LintIssue(rule, f"{path}[{index}]", f"{name!r} is named twice: remove one")


def _form(constraint: DeviceConstraint, path: str) -> Iterator[LintIssue]:
    attributes = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    given = {field: name for field, name in attributes.items() if name is not None}
    if len(given) != 1:
        yield LintIssue(
            LintRule.CONSTRAINT_ATTRIBUTE, path, "must have exactly one of matchAttribute and distinctAttribute"
        )
    for field, name in given.items():
        domain, slash, _ = name.partition("/")
        if not slash or not is_qualified_name(name) or not is_driver_name(domain):
            problem = f"{name!r} must be DOMAIN/ATTRIBUTE, such as gpu.nvidia.com/parentUUID"
            yield LintIssue(LintRule.CONSTRAINT_ATTRIBUTE, f"{path}.{field}", problem)


def _unmet(claim: ClaimSpec, constraint: DeviceConstraint, path: str, context: LintContext) -> Iterator[LintIssue]:
    """Check that known devices have the attribute: a device without it meets no constraint."""
    field = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    for requirement in claim.covered(constraint.requests):
        candidates = context.catalog.candidates(requirement.value)
        if not candidates or any(_has(device, name) for device in candidates):
            continue
        published = {
            key if "/" in key else f"{each.driver}/{key}" for each in candidates for key in each.device.attributes
        }
        # Compared without their domains, which would make all of them look alike.
        known = {key.rpartition("/")[2].lower(): key for key in sorted(published)}
        close = difflib.get_close_matches(name.rpartition("/")[2].lower(), known, n=1)
        hint = f"; did you mean {known[close[0]]!r}?" if close else ""
        yield LintIssue(
            LintRule.CONSTRAINT_NEVER_MET,
            f"{path}.{field}",
            f"none of the {len(candidates)} known devices that request {requirement.name!r} selects has"
            f" attribute {name!r}: no device will do{hint}",
        )


def _has(known: CandidateDevice, name: str) -> bool:
    domain, _, identifier = name.partition("/")
    return name in known.device.attributes or (domain == known.driver and identifier in known.device.attributes)
