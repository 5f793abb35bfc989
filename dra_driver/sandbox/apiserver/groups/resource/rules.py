# SPDX-License-Identifier: Apache-2.0
"""Rules that several kinds of resource.k8s.io share: names, selectors, opaque configuration, tolerations, references.

References name the requests of a claim. Constraints, configurations and allocation results contain references.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ... import names
from ...field_errors import FieldError
from ...kinds import Context
from ...objects import Object, encode

DEVICE_CONFIGS: Final = 32
RESERVED_FOR: Final = 256
UNLIMITED: Final = -1
_TAINT_EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
_MORE_TAINTS_SINCE: Final = 35
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_NATIVE_DOMAIN: Final = "kubernetes.io/"

Problems = Iterator[FieldError]


def driver_problems(name: str, path: str) -> Problems:
    """Yield the problems of a driver name."""
    if not name:
        yield errors.required(path)
        return
    if len(name) > limits.DRIVER_NAME_BYTES:
        yield errors.too_long(path, limits.DRIVER_NAME_BYTES)
    for problem in names.subdomain_problems(name.lower()):
        yield errors.invalid(path, name, problem)


def pool_problems(name: str, path: str) -> Problems:
    """Yield the problems of a pool name."""
    if not name:
        yield errors.required(path)
        return
    if len(name) > limits.POOL_NAME_BYTES:
        yield errors.too_long(path, limits.POOL_NAME_BYTES)
    for part in name.split("/"):
        for problem in names.subdomain_problems(part):
            yield errors.invalid(path, part, problem)


def label_problems(name: str, path: str) -> Problems:
    """Yield the problems of a device, request or counter name."""
    for problem in names.label_problems(name):
        yield errors.invalid(path, name, problem)


def uid_problems(uid: str, path: str) -> Problems:
    """Yield the problems of a share ID."""
    if not _UID.fullmatch(uid):
        text = (
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` "
            "with lowercase hexadecimal characters"
        )
        yield errors.invalid(path, uid, text)


def qualified_name_problems(name: str, path: str) -> Problems:
    """Yield the problems of an attribute or capacity name."""
    domain, slash, identifier = name.rpartition("/")
    if slash:
        if not domain:
            yield errors.invalid(path, "", "the domain must not be empty")
        else:
            yield from driver_problems(domain, path)
        if not identifier:
            yield errors.invalid(path, "", "the name must not be empty")
            return
    if len(identifier) > limits.IDENTIFIER_BYTES:
        yield errors.too_long(path, limits.IDENTIFIER_BYTES)
    for problem in names.identifier_problems(identifier):
        yield errors.invalid(path, identifier, problem)


def fully_qualified_name_problems(name: str, path: str) -> Problems:
    """Yield the problems of a matchAttribute or distinctAttribute."""
    yield from qualified_name_problems(name, path)
    if "/" not in name:
        text = "a fully qualified name must be a domain and a name separated by a slash"
        yield errors.invalid(path, name, text)


def set_problems(
    items: Iterable[Any],
    limit: int,
    check: Callable[[Any, str], Iterable[FieldError]],
    key: Callable[[Any], Any],
    path: str,
) -> Problems:
    """Yield the problems of a list without duplicates. The items of a list that is too long are not checked."""
    items = list(items)
    if 0 <= limit < len(items):
        yield errors.too_many(path, len(items), limit)
        return
    seen = set()
    for index, item in enumerate(items):
        yield from check(item, f"{path}[{index}]")
    for index, item in enumerate(items):
        identity = key(item)
        if identity in seen:
            yield errors.duplicate(f"{path}[{index}]", identity)
        seen.add(identity)


def list_problems(
    items: Iterable[Any], limit: int, check: Callable[[Any, str], Iterable[FieldError]], path: str
) -> Problems:
    """Yield the problems of a list that may have duplicates. The items of an overlong list are not checked."""
    items = list(items)
    if len(items) > limit:
        yield errors.too_many(path, len(items), limit)
        return
    for index, item in enumerate(items):
        yield from check(item, f"{path}[{index}]")


def selector_problems(selectors: Iterable[Object], path: str, context: Context) -> Problems:
    """Yield the problems of a list of device selectors."""

    def check(selector: Object, here: str) -> Problems:
        cel = selector.get("cel")
        if cel is None:
            yield errors.required(f"{here}.cel")
            return
        expression = cel.get("expression", "")
        if len(expression.encode()) > limits.EXPRESSION_BYTES:
            yield errors.too_long(f"{here}.cel.expression", limits.EXPRESSION_BYTES)
        elif context.check_cel is not None:
            problem = context.check_cel(expression)
            if problem is not None:
                yield errors.invalid(f"{here}.cel.expression", expression, problem)

    yield from list_problems(selectors, limits.SELECTORS_PER_LIST, check, path)


def device_configuration_problems(config: Object, path: str) -> Problems:
    """Yield the problems of a configuration's `opaque` part."""
    opaque = config.get("opaque")
    if opaque is None:
        yield errors.required(f"{path}.opaque")
        return
    yield from driver_problems(opaque.get("driver", ""), f"{path}.opaque.driver")
    parameters = f"{path}.opaque.parameters"
    yield from raw_object_problems(opaque.get("parameters"), parameters, limits.OPAQUE_PARAMETERS_BYTES)


def raw_object_problems(value: Any, path: str, limit: int) -> Problems:
    """Yield the problems of raw JSON that must be an object of at most `limit` bytes."""
    if value is None:
        yield errors.required(path)
    elif len(encode(value)) > limit:
        yield errors.too_long(path, limit)
    elif not isinstance(value, dict):
        yield errors.FieldError(
            "FieldValueInvalid", path, 'Invalid value: "<value omitted>": must be a valid JSON object'
        )


def _effects(context: Context) -> tuple[str, ...]:
    return _TAINT_EFFECTS if context.release.minor >= _MORE_TAINTS_SINCE else _TAINT_EFFECTS[:-1]


def toleration_problems(toleration: Object, path: str, context: Context) -> Problems:
    """Yield the problems of a device toleration, after defaults were set."""
    if toleration.get("key"):
        yield from label_name_problems(toleration["key"], f"{path}.key")
    value = toleration.get("value", "")
    match toleration.get("operator", ""):
        case "Exists":
            if value:
                yield errors.invalid(f"{path}.value", value, "must be empty for operator `Exists`")
        case "Equal":
            for problem in names.label_value_problems(value):
                yield errors.invalid(f"{path}.value", value, problem)
        case "":
            yield errors.required(f"{path}.operator")
        case other:
            yield errors.not_supported(f"{path}.operator", other, ("Equal", "Exists"))
    effect = toleration.get("effect", "")
    if effect and effect not in _effects(context):
        yield errors.not_supported(f"{path}.effect", effect, _effects(context))


def label_name_problems(name: str, path: str) -> Problems:
    """Yield the problems of a name in the form of a label key."""
    for problem in names.label_key_problems(name):
        yield errors.invalid(path, name, problem)


def binding_problems(device: Object, path: str) -> Problems:
    """Yield the problems of the binding conditions of a device or of an allocation result."""
    conditions = device.get("bindingConditions") or []
    failures = device.get("bindingFailureConditions") or []
    for field, values in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        here = f"{path}.{field}"
        yield from list_problems(values, limits.BINDING_CONDITIONS, label_name_problems, here)
        for index, value in enumerate(values):
            if value in values[:index]:
                yield errors.duplicate(f"{here}[{index}]", value)
            if field == "bindingFailureConditions" and value in conditions:
                text = "bindingFailureConditions must not overlap with bindingConditions"
                yield errors.invalid(f"{here}[{index}]", value, text)
    if failures and not conditions:
        text = "bindingConditions are required to use bindingFailureConditions"
        yield errors.invalid(f"{path}.bindingConditions", conditions, text)
    if conditions and not failures:
        text = "bindingFailureConditions are required to use bindingConditions"
        yield errors.invalid(f"{path}.bindingFailureConditions", failures, text)


def node_selector_problems(selector: Object, path: str) -> Problems:
    """Yield an error if a NodeSelector has no terms."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        yield errors.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")


def is_extended_resource_name(name: str) -> bool:
    """Return whether a resource name is valid for an extended resource: qualified, and not one of Kubernetes."""
    native = "/" not in name or _NATIVE_DOMAIN in name
    return not native and not name.startswith("requests.") and not names.label_key_problems(f"requests.{name}")


_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)

RequestNames = Mapping[str, frozenset[str]]
"""The names of the subrequests of each request."""


def request_names(spec: Object) -> RequestNames:
    """Return the requests in a claim's spec that configurations and results may refer to."""
    return {
        request.get("name", ""): frozenset(sub.get("name", "") for sub in request.get("firstAvailable", ()))
        for request in spec.get("devices", {}).get("requests", ())
    }


def reference_problems(name: str, path: str, known: RequestNames) -> Problems:
    """Yield the problems of a reference `request` or `request/subrequest`."""
    parts = name.split("/")
    if len(parts) > 2:
        yield errors.invalid(path, name, _REFERENCE)
        return
    for part in parts:
        yield from label_problems(part, path)
    if parts[0] not in known or (len(parts) == 2 and parts[1] not in known[parts[0]]):
        yield errors.invalid(path, name, _REFERENCE)


def references_problems(references: Any, path: str, known: RequestNames) -> Problems:
    """Yield the problems of a list of references."""

    def check(name: str, here: str) -> Problems:
        return reference_problems(name, here, known)

    yield from set_problems(references, limits.REQUESTS_PER_CLAIM, check, lambda name: name, path)
