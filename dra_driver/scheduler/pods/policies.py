# SPDX-License-Identifier: Apache-2.0
"""Objects of an administrator that change or refuse new pods and claims, and the rules of LimitRanges.

A LimitRange sets defaults for containers, and limits that containers and pods must keep. Follows
`plugin/pkg/admission/limitranger` of Kubernetes 1.36, its texts included.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...kube.resource import Quantity
from ...kube.resource.codec import Fields
from ...kube.resource.meta import empty
from .resources import ContainerResources, Quantities, pod_limits, pod_requests, resource_list, section, sections

CONTAINER: Final = "Container"
POD: Final = "Pod"

_ZERO: Final = Quantity(0)
_MOST_IN_THOUSANDTHS: Final = ((1 << 63) - 1) // 1000


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass. `default`: it applies to pods that name no class."""

    name: str
    value: int
    default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """A RuntimeClass: what it adds to pods. `tolerations` are as written."""

    name: str
    overhead: Mapping[str, str] = field(default_factory=empty)
    node_selector: Mapping[str, str] = field(default_factory=empty)
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class LimitRangeItem:
    """One item of a LimitRange, about containers or pods (`type`), with the API server's defaults."""

    type: str
    default: Quantities
    default_request: Quantities
    minimum: Quantities
    maximum: Quantities
    ratio: Quantities
    """The largest ratio of limit to request."""


@dataclass(frozen=True, slots=True)
class LimitRange:
    """A LimitRange of a namespace."""

    namespace: str
    name: str
    items: tuple[LimitRangeItem, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """A condition for the pods that a quota counts."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota. `used` is the usage in its status, or None if the status has none."""

    namespace: str
    name: str
    hard: Quantities
    used: Quantities | None = None
    scopes: tuple[Scope, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


SYSTEM_CLASSES: Final = (
    PriorityClass("system-cluster-critical", 2_000_000_000),
    PriorityClass("system-node-critical", 2_000_001_000),
)
"""The PriorityClasses that every cluster has."""


def decode_priority_class(value: Mapping[str, Any]) -> PriorityClass:
    """A PriorityClass. Raises DecodeError."""
    top = Fields(value, strict=False)
    return PriorityClass(
        top.required_object("metadata").required_text("name"),
        top.integer("value") or 0,
        top.flag("globalDefault"),
        top.text("preemptionPolicy") or "PreemptLowerPriority",
    )


def decode_runtime_class(value: Mapping[str, Any]) -> RuntimeClass:
    """A RuntimeClass. Raises DecodeError."""
    top = Fields(value, strict=False)
    scheduling = section(top, "scheduling")
    overhead = resource_list(section(top, "overhead"), "podFixed")
    return RuntimeClass(
        top.required_object("metadata").required_text("name"),
        {name: str(quantity) for name, quantity in overhead.items()},
        scheduling.text_map("nodeSelector"),
        tuple(scheduling.array("tolerations")),
    )


def decode_limit_range(value: Mapping[str, Any]) -> LimitRange:
    """A LimitRange. Raises DecodeError."""
    meta, spec, _ = sections(value)
    namespace = meta.text("namespace") or "default"
    return LimitRange(namespace, meta.required_text("name"), spec.objects("limits", _limits))


def _limits(fields: Fields) -> LimitRangeItem:
    kind = fields.required_text("type")
    default, request = resource_list(fields, "default"), resource_list(fields, "defaultRequest")
    least, most = resource_list(fields, "min"), resource_list(fields, "max")
    if kind == CONTAINER:
        default = {**most, **default}
        request = {**least, **default, **request}
    return LimitRangeItem(kind, default, request, least, most, resource_list(fields, "maxLimitRequestRatio"))


def decode_quota(value: Mapping[str, Any]) -> Quota:
    """A ResourceQuota. Raises DecodeError."""
    meta, spec, status = sections(value)
    hard = resource_list(status, "hard")
    return Quota(
        meta.text("namespace") or "default",
        meta.required_text("name"),
        hard or resource_list(spec, "hard"),
        resource_list(status, "used") if hard else None,
        (
            *(Scope(name) for name in spec.texts("scopes")),
            *section(spec, "scopeSelector").objects("matchExpressions", _scope),
        ),
    )


def _scope(fields: Fields) -> Scope:
    return Scope(fields.required_text("scopeName"), fields.required_text("operator"), frozenset(fields.texts("values")))


def fill_in(pod: dict[str, Any], limit_range: LimitRange) -> None:
    """Sets the defaults for limits and requests that the containers of a pod (JSON) lack."""
    default: dict[str, Quantity] = {}
    request: dict[str, Quantity] = {}
    for item in limit_range.items:
        if item.type == CONTAINER:
            default.update(item.default)
            request.update(item.default_request)
    for key in ("containers", "initContainers"):
        for container in pod["spec"].get(key) or ():
            resources = container.setdefault("resources", {})
            for which, values in (("limits", default), ("requests", request)):
                texts = {name: str(quantity) for name, quantity in values.items()}
                if texts:
                    resources[which] = {**texts, **(resources.get(which) or {})}


def violations(
    limit_range: LimitRange, containers: list[ContainerResources], own: tuple[Quantities, Quantities]
) -> Iterator[str]:
    """The limits that a pod's containers violate. `own` are the requests and limits of the pod as a whole."""
    for item in limit_range.items:
        if item.type == CONTAINER:
            for container in sorted(containers, key=lambda container: container.init):
                yield from _check(item, container.requests, container.limits)
        elif item.type == POD:
            yield from _check(item, pod_requests(containers, own[0], {}), pod_limits(containers, own[1], {}))


def _check(  # noqa: C901  # one limit after the other
    item: LimitRangeItem, requested: Quantities, limits: Quantities
) -> Iterator[str]:
    for name, least in sorted(item.minimum.items()):
        bound = f"minimum {name} usage per {item.type} is {least}"
        request, limit, enforced = _comparable(name, requested, limits, least)
        if name not in requested:
            yield f"{bound}.  No request is specified"
        elif request < enforced:
            yield f"{bound}, but request is {requested[name]}"
        elif name in limits and limit < enforced:
            yield f"{bound}, but limit is {limits[name]}"
    for name, most in sorted(item.maximum.items()):
        bound = f"maximum {name} usage per {item.type} is {most}"
        request, limit, enforced = _comparable(name, requested, limits, most)
        if name not in limits:
            yield f"{bound}.  No limit is specified"
        elif limit > enforced:
            yield f"{bound}, but limit is {limits[name]}"
        elif name in requested and request > enforced:
            yield f"{bound}, but request is {requested[name]}"
    for name, ratio in sorted(item.ratio.items()):
        bound = f"{name} max limit to request ratio per {item.type} is {ratio}"
        request, limit, _ = _comparable(name, requested, limits, ratio)
        if not request:
            yield f"{bound}, but no request is specified or request is 0"
        elif not limit:
            yield f"{bound}, but no limit is specified or limit is 0"
        elif (provided := float(limit) / float(request)) * 1000 > _thousandths(ratio):
            yield f"{bound}, but provided ratio is {provided:f}"


def _comparable(name: str, requested: Quantities, limits: Quantities, bound: Quantity) -> tuple[int, int, int]:
    """Request, limit and bound in thousandths; in whole units if thousandths of one of them do not fit 64 bits."""
    values = (requested.get(name, _ZERO), limits.get(name, _ZERO), bound)
    if all(value.value <= _MOST_IN_THOUSANDTHS for value in values):
        return _thousandths(values[0]), _thousandths(values[1]), _thousandths(values[2])
    return values[0].value, values[1].value, values[2].value


def _thousandths(quantity: Quantity) -> int:
    return -(-quantity.nanos // 10**6)
