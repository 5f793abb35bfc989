# SPDX-License-Identifier: Apache-2.0
"""Names, counts, allocation modes and tolerations of requests, as kube-apiserver validates them."""

from collections.abc import Iterable, Iterator

from ...resource import ALL, EXACT_COUNT, DeviceClass, DeviceRequirements, TaintEffect
from ...resource.names import is_label, is_label_key, is_label_value, is_qualified_name, is_subdomain
from .finding import Issue, error, warning
from .subject import Context, Subject, is_device_api

INVALID_NAME = error("invalid-name", "An object, class, request or alternative has a name that Kubernetes refuses.")
DUPLICATE_NAME = error("duplicate-name", "Two requests, or two alternatives of one, have the same name.")
INVALID_COUNT = error("invalid-count", "A request's count and allocation mode do not go together.")
ZERO_COUNT = warning("zero-count", "The API server takes a count of 0 as 1.")
INVALID_TOLERATION = error("invalid-toleration", "A toleration is not one that the API server takes.")
RULES = (INVALID_NAME, DUPLICATE_NAME, INVALID_COUNT, ZERO_COUNT, INVALID_TOLERATION)


def check_names(subject: Subject, context: Context) -> Iterator[Issue]:
    """Names of the object and of its requests."""
    source = subject.source
    if not is_device_api(source) or subject.form is None:
        return
    if "name" in source.metadata:
        if not is_subdomain(source.name):
            yield Issue(INVALID_NAME, "metadata.name", _not_a_subdomain(source.metadata["name"]))
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
            yield Issue(INVALID_NAME, f"{one.path}.deviceClassName", _not_a_subdomain(one.value.device_class_name))


def check_requests(subject: Subject, context: Context) -> Iterator[Issue]:
    """Counts, modes, capacity keys and tolerations."""
    claim = subject.claim
    for one in claim.requirements() if claim is not None else ():
        yield from _count(one.value, one.path)
        yield from _tolerations(one.value, f"{one.path}.tolerations")
        for key in one.value.capacity_requests:
            if not is_qualified_name(key):
                problem = f"{key!r} is not an identifier, optionally after a domain and a slash"
                yield Issue(INVALID_NAME, f"{one.path}.capacity.requests[{key}]", problem)


def check_extended_resource(subject: Subject, context: Context) -> Iterator[Issue]:
    """The extended resource name of a class."""
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
            problem = f"{name!r} is not a DNS label: use at most 63 lower case letters, digits and inner hyphens"
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


def _not_a_subdomain(name: object) -> str:
    return f"{name!r} is not a DNS subdomain: use lower case letters, digits, and inner hyphens and dots"
