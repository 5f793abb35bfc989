# SPDX-License-Identifier: Apache-2.0
"""What the API server does to a new pod before the scheduler sees it: mutating admission, defaults, validation.

Follows the plugins of kube-apiserver 1.36 that are enabled by default and concern scheduling (Priority, LimitRanger,
DefaultTolerationSeconds, RuntimeClass), `pkg/registry/core/pod` (matchLabelKeys), and the parts of
`pkg/apis/core/validation` that concern scheduling, with their texts.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..resource import Quantity
from ..resource.codec import Fields
from .outcome import aggregated
from .policies import SYSTEM_CLASSES, LimitRange, PriorityClass, Quota, RuntimeClass, fill_in, violations
from .resources import Container, defaulted_own, is_native, read_containers, resource_list

_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '{_LABEL_VALUE.pattern}')"
)
_LABEL_BYTES: Final = 63
_REQUIRED: Final = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
_ONLY_WITHOUT_USERS: Final = (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))


def pod_errors(pod: Mapping[str, Any]) -> Iterator[str]:
    """Why the API server refuses a pod (JSON, with its defaults), one text for each mistake."""
    spec = pod["spec"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or ()):
            yield from _resources(container.get("resources") or {}, f"spec.{key}[{index}].resources")
    if spec.get("hostUsers") is False:
        for field, shown in _ONLY_WITHOUT_USERS:
            if spec.get(field):
                yield f"spec.{shown}: Forbidden: when `hostUsers` is false"
    if required is not None:
        yield from _node_selector(required)


def _resources(resources: Mapping[str, Any], path: str) -> Iterator[str]:
    limits = {name: Quantity.parse(str(value)) for name, value in (resources.get("limits") or {}).items()}
    requests = {name: Quantity.parse(str(value)) for name, value in (resources.get("requests") or {}).items()}
    for name, request in sorted(requests.items()):
        overcommits = is_native(name) and not name.startswith("hugepages-")
        limit = limits.get(name)
        if limit is None:
            if not overcommits:
                yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
        elif request != limit and not overcommits:
            yield f'{path}.requests: Invalid value: "{request}": must be equal to {name} limit of {limit}'
        elif request > limit:
            yield f'{path}.requests: Invalid value: "{request}": must be less than or equal to {name} limit of {limit}'


def _node_selector(selector: Mapping[str, Any]) -> Iterator[str]:
    terms = selector.get("nodeSelectorTerms") or ()
    if not terms:
        yield f"{_REQUIRED}.nodeSelectorTerms: Required value: must have at least one node selector term"
    for index, term in enumerate(terms):
        path = f"{_REQUIRED}.nodeSelectorTerms[{index}]"
        for number, one in enumerate(term.get("matchExpressions") or ()):
            yield from _expression(one, f"{path}.matchExpressions[{number}]")
        for number, one in enumerate(term.get("matchFields") or ()):
            yield from _field(one, f"{path}.matchFields[{number}]")


def _expression(requirement: Mapping[str, Any], path: str) -> Iterator[str]:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield f"{path}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield f"{path}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield f"{path}.values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
    else:
        yield f'{path}.operator: Invalid value: "{operator}": not a valid selector operator'
    for index, value in enumerate(values):
        if len(value.encode()) > _LABEL_BYTES:
            yield f'{path}.values[{index}]: Invalid value: "{value}": must be no more than {_LABEL_BYTES} bytes'
        if _LABEL_VALUE.fullmatch(value) is None:
            yield f'{path}.values[{index}]: Invalid value: "{value}": {_LABEL_VALUE_TEXT}'


def _field(requirement: Mapping[str, Any], path: str) -> Iterator[str]:
    operator, key, values = requirement.get("operator", ""), requirement.get("key", ""), requirement.get("values") or []
    if operator not in ("In", "NotIn"):
        yield f'{path}.operator: Invalid value: "{operator}": not a valid selector operator'
    elif len(values) != 1:
        what = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield f"{path}.values: Required value: {what}"
    if key != "metadata.name":
        yield f'{path}.key: Invalid value: "{key}": not a valid field selector key'


JSON = dict[str, Any]

_TOLERATED_FOR_A_WHILE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_WHILE_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Policies:
    """What decides about new objects."""

    priority_classes: tuple[PriorityClass, ...] = ()
    runtime_classes: tuple[RuntimeClass, ...] = ()
    limit_ranges: tuple[LimitRange, ...] = ()
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod (JSON) as it would be stored, or why the API server refuses it.

    Plugins that change pods are asked first, then validation is, whose `errors` are given together, and then plugins
    that only refuse. So a pod has errors or is `forbidden`, and never both.
    """

    pod: JSON
    errors: tuple[str, ...] = ()
    forbidden: str = ""

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why the API server refuses the pod."""
        return self.errors or ((self.forbidden,) if self.forbidden else ())


class _ForbiddenError(Exception):
    """An admission plugin refuses the pod."""


def admit_pod(pod: Mapping[str, Any], policies: Policies) -> Admitted:
    """The pod (JSON) with what admission and defaults add. Raises DecodeError for one that is malformed."""
    made = copy.deepcopy(dict(pod))
    meta = made.setdefault("metadata", {})
    namespace = meta.setdefault("namespace", "default")
    _keep_limits(made)
    ranges = [one for one in policies.limit_ranges if one.namespace == namespace]
    errors: tuple[str, ...] = ()
    try:
        for limit_range in ranges:
            fill_in(made, limit_range)
        _set_priority(made, policies.priority_classes)
        _tolerate_for_a_while(made)
        _apply_runtime_class(made, policies.runtime_classes)
        _merge_label_keys(made)
        errors = tuple(pod_errors(made))
        for limit_range in () if errors else ranges:
            _check_limits(made, limit_range)
    except _ForbiddenError as problem:
        return Admitted(made, forbidden=f'pods "{meta.get("name", "")}" is forbidden: {problem}')
    return Admitted(made, errors)


def _keep_limits(pod: JSON) -> None:
    """Limits become requests now: what a LimitRange adds later does not count for that."""
    spec = pod["spec"]
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            if resources.get("limits"):
                resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    own = spec.get("resources") or {}
    if own.get("limits"):
        fields = Fields(own, "spec.resources", strict=False)
        requests = defaulted_own(resource_list(fields, "requests"), resource_list(fields, "limits"), _containers(pod))
        own["requests"] = {name: str(quantity) for name, quantity in requests.items()}


def _containers(pod: Mapping[str, Any]) -> list[Container]:
    return read_containers(Fields(pod["spec"], "spec", strict=False))


def _set_priority(pod: JSON, classes: Sequence[PriorityClass]) -> None:
    spec = pod["spec"]
    name = spec.get("priorityClassName") or ""
    known = {one.name: one for one in (*SYSTEM_CLASSES, *classes)}
    if name and name not in known:
        raise _ForbiddenError(f"no PriorityClass with name {name} was found")
    default = min((one for one in classes if one.default), key=lambda one: one.value, default=PriorityClass("", 0))
    chosen = known[name] if name else default
    given = spec.get("priority")
    if given is not None and given != chosen.value:
        raise _ForbiddenError(
            f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller"
            f" computed {chosen.value} from the given PriorityClass name"
        )
    policy = spec.get("preemptionPolicy")
    if policy is not None and policy != chosen.preemption_policy:
        raise _ForbiddenError(
            f"the string value of PreemptionPolicy ({policy}) must not be provided in pod spec; priority admission"
            f" controller computed {chosen.preemption_policy} from the given PriorityClass name"
        )
    spec["priority"], spec["preemptionPolicy"] = chosen.value, chosen.preemption_policy
    if chosen.name:
        spec["priorityClassName"] = chosen.name


def _tolerate_for_a_while(pod: JSON) -> None:
    written = pod["spec"].get("tolerations") or []
    pod["spec"]["tolerations"] = written + [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _WHILE_SECONDS}
        for key in _TOLERATED_FOR_A_WHILE
        if not any(one.get("key", "") in ("", key) and one.get("effect", "") in ("", "NoExecute") for one in written)
    ]


def _apply_runtime_class(pod: JSON, classes: Sequence[RuntimeClass]) -> None:
    spec = pod["spec"]
    name = spec.get("runtimeClassName")
    if not name:
        if spec.get("overhead"):
            raise _ForbiddenError("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
        return
    chosen = next((one for one in classes if one.name == name), None)
    if chosen is None:
        raise _ForbiddenError(f'pod rejected: RuntimeClass "{name}" not found')
    fields = Fields(spec, "spec", strict=False)
    given = {key: str(quantity) for key, quantity in resource_list(fields, "overhead").items()}
    if given and given != chosen.overhead:
        raise _ForbiddenError("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    spec["overhead"] = dict(chosen.overhead)
    selector = dict(spec.get("nodeSelector") or {})
    for key, value in chosen.node_selector.items():
        if selector.setdefault(key, value) != value:
            raise _ForbiddenError(
                f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value};"
                f" pod.spec.nodeSelector[{key}] = {selector[key]}"
            )
    spec["nodeSelector"] = selector
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *chosen.tolerations]


def _merge_label_keys(pod: JSON) -> None:
    """Adds the pod's own values of matchLabelKeys and mismatchLabelKeys to the label selectors."""
    labels = pod["metadata"].get("labels") or {}
    for term in (*_affinity_terms(pod), *(pod["spec"].get("topologySpreadConstraints") or ())):
        selector = term.get("labelSelector")
        if selector is None:  # it matches nothing, whatever is added
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in term.get(field) or ()
            if key in labels
        ]
        if added:
            selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *added]


def _affinity_terms(pod: JSON) -> Iterator[JSON]:
    affinity = pod["spec"].get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        yield from (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ()


def _check_limits(pod: JSON, limit_range: LimitRange) -> None:
    containers = _containers(pod)
    own = Fields(pod["spec"].get("resources") or {}, "spec.resources", strict=False)
    found = list(violations(limit_range, containers, (resource_list(own, "requests"), resource_list(own, "limits"))))
    if found:
        raise _ForbiddenError(aggregated(found))
