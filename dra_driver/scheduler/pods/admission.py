# SPDX-License-Identifier: Apache-2.0
"""The steps of the API server for a new pod before the scheduler sees it: mutating admission, defaults, validation.

Follows the plugins of kube-apiserver 1.36 that are enabled by default and concern scheduling (Priority, LimitRanger,
DefaultTolerationSeconds, RuntimeClass) and `pkg/registry/core/pod` (matchLabelKeys). `validation` has the rules for
fields, `form` those for types.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...kube.resource.codec import Fields
from .form import checked_pod
from .outcome import aggregated
from .placement import PREFERRED, REQUIRED
from .policies import SYSTEM_CLASSES, LimitRange, PriorityClass, Quota, RuntimeClass, fill_in, violations
from .resources import ContainerResources, defaulted_own, read_containers, resource_list, section
from .validation import pod_errors

JSON = dict[str, Any]

_TOLERATED_FOR_A_WHILE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_WHILE_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Policies:
    """The objects that decide whether and how new objects are admitted."""

    priority_classes: tuple[PriorityClass, ...] = ()
    runtime_classes: tuple[RuntimeClass, ...] = ()
    limit_ranges: tuple[LimitRange, ...] = ()
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pod (JSON) as it would be stored, or why the API server refuses it.

    Plugins that change pods run first. Then validation runs and reports all its `errors`. Plugins that only refuse run
    last. A pod therefore has errors or is `forbidden`, but never both.
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
    """The pod (JSON) with what admission and defaults add. Raises DecodeError for values of wrong types."""
    made = checked_pod(pod)
    meta = made.setdefault("metadata", {})
    namespace = meta.setdefault("namespace", "default")
    made.setdefault("spec", {})
    _set_defaults(made)
    ranges = [limit_range for limit_range in policies.limit_ranges if limit_range.namespace == namespace]
    errors: tuple[str, ...] = ()
    try:
        for limit_range in ranges:
            fill_in(made, limit_range)
        _set_priority(made, policies.priority_classes)
        _tolerate_for_a_while(made)
        runtime_class = _apply_runtime_class(made, policies.runtime_classes)
        _merge_label_keys(made)
        errors = tuple(pod_errors(made))
        if not errors:
            for limit_range in ranges:
                _check_limits(made, limit_range)
            _check_overhead(made, runtime_class)
    except _ForbiddenError as problem:
        return Admitted(made, forbidden=f'pods "{meta.get("name", "")}" is forbidden: {problem}')
    return Admitted(made, errors)


def _set_defaults(pod: JSON) -> None:
    """Limits become requests before a LimitRange adds its limits, so those do not become requests."""
    spec = pod["spec"]
    for container in _raw_containers(spec):
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        for port in container.get("ports") or () if spec.get("hostNetwork") else ():
            port["hostPort"] = port.get("hostPort") or port.get("containerPort") or 0
    own = spec.get("resources") or {}
    if own.get("limits") or own.get("requests"):
        fields = Fields(own, "spec.resources", strict=False)
        given = resource_list(fields, "requests"), resource_list(fields, "limits")
        requests, limits = defaulted_own(*given, _containers(pod))
        own["requests"] = {name: str(quantity) for name, quantity in requests.items()}
        own["limits"] = {name: str(quantity) for name, quantity in limits.items()}


def _raw_containers(spec: JSON) -> Iterator[JSON]:
    for key in ("containers", "initContainers"):
        yield from spec.get(key) or ()


def _containers(pod: Mapping[str, Any]) -> list[ContainerResources]:
    return read_containers(Fields(pod["spec"], "spec", strict=False))


def _set_priority(pod: JSON, classes: Sequence[PriorityClass]) -> None:
    spec = pod["spec"]
    name = spec.get("priorityClassName") or ""
    known = {class_.name: class_ for class_ in (*SYSTEM_CLASSES, *classes)}
    if name and name not in known:
        raise _ForbiddenError(f"no PriorityClass with name {name} was found")
    default = min(
        (class_ for class_ in classes if class_.default), key=lambda class_: class_.value, default=PriorityClass("", 0)
    )
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
        if not any(
            toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")
            for toleration in written
        )
    ]


def _apply_runtime_class(pod: JSON, classes: Sequence[RuntimeClass]) -> RuntimeClass | None:
    spec = pod["spec"]
    name = spec.get("runtimeClassName")
    if not name:
        return None
    chosen = next((class_ for class_ in classes if class_.name == name), None)
    if chosen is None:
        raise _ForbiddenError(f'pod rejected: RuntimeClass "{name}" not found')
    if chosen.overhead:
        given = resource_list(Fields(spec, "spec", strict=False), "overhead")
        if given and given != resource_list(Fields({"overhead": chosen.overhead}), "overhead"):
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
    return chosen


def _check_overhead(pod: JSON, runtime_class: RuntimeClass | None) -> None:
    if "overhead" in pod["spec"] and (runtime_class is None or not runtime_class.overhead):
        raise _ForbiddenError("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")


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
        terms = affinity.get(kind) or {}
        yield from terms.get(REQUIRED) or ()
        yield from (weighted.get("podAffinityTerm") or {} for weighted in terms.get(PREFERRED) or ())


def _check_limits(pod: JSON, limit_range: LimitRange) -> None:
    own = section(Fields(pod["spec"], "spec", strict=False), "resources")
    requests, limits = resource_list(own, "requests"), resource_list(own, "limits")
    found = list(violations(limit_range, _containers(pod), (requests, limits)))
    if found:
        raise _ForbiddenError(aggregated(found))
