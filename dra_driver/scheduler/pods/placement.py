# SPDX-License-Identifier: Apache-2.0
"""Validation of the fields of a pod that choose its node: affinity, spread, gates and tolerations.

Follows `pkg/apis/core/validation` and `pkg/apis/meta/v1/validation` of Kubernetes 1.36 with the default feature gates,
so numeric operators of tolerations are refused.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .names import (
    duplicate,
    forbidden,
    invalid,
    key_problems,
    label_errors,
    label_problems,
    named,
    required,
    subdomain_problems,
    unsupported,
    value_problems,
)

JSON = Mapping[str, Any]

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NODE_NAME: Final = "metadata.name"
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_ACTIONS: Final = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES: Final = ("Honor", "Ignore")
_NUMERIC: Final = ("Lt", "Gt")
_MOST_WEIGHT: Final = 100
_WITHOUT_SELECTOR: Final = "must not be specified when labelSelector is not set"


def placement_errors(spec: JSON) -> Iterator[str]:
    """The errors about affinity, scheduling gates and topology spread constraints."""
    affinity = spec.get("affinity") or {}
    yield from _node_affinity(affinity.get("nodeAffinity") or {}, "spec.affinity.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        terms, path = affinity.get(kind) or {}, f"spec.affinity.{kind}"
        for index, term in enumerate(terms.get(REQUIRED) or ()):
            yield from _pod_term(term, f"{path}.{REQUIRED}[{index}]")
        for index, weighted in enumerate(terms.get(PREFERRED) or ()):
            yield from _weight(weighted, f"{path}.{PREFERRED}[{index}]")
            yield from _pod_term(weighted.get("podAffinityTerm") or {}, f"{path}.{PREFERRED}[{index}].podAffinityTerm")
    gates = [gate.get("name") or "" for gate in spec.get("schedulingGates") or ()]
    for index, gate in enumerate(gates):
        yield from named(f"spec.schedulingGates[{index}]", gate, key_problems(gate))
        if gate in gates[:index]:
            yield duplicate(f"spec.schedulingGates[{index}]", gate)
    constraints = spec.get("topologySpreadConstraints") or ()
    for index, constraint in enumerate(constraints):
        yield from _constraint(constraint, constraints[index + 1 :], f"spec.topologySpreadConstraints[{index}]")


def _weight(term: JSON, path: str) -> Iterator[str]:
    weight = term.get("weight") or 0
    if not 1 <= weight <= _MOST_WEIGHT:
        yield invalid(f"{path}.weight", weight, f"must be in the range 1-{_MOST_WEIGHT}")


def _node_affinity(affinity: JSON, path: str) -> Iterator[str]:
    selector = affinity.get(REQUIRED)
    if selector is not None:
        terms, place = selector.get("nodeSelectorTerms") or (), f"{path}.{REQUIRED}.nodeSelectorTerms"
        if not terms:
            yield required(place, "must have at least one node selector term")
        for index, term in enumerate(terms):
            yield from _node_term(term, f"{place}[{index}]", checks_values=True)
    for index, preferred in enumerate(affinity.get(PREFERRED) or ()):
        place = f"{path}.{PREFERRED}[{index}]"
        yield from _weight(preferred, place)
        yield from _node_term(preferred.get("preference") or {}, f"{place}.preference", checks_values=False)


def _node_term(term: JSON, path: str, *, checks_values: bool) -> Iterator[str]:
    for index, requirement in enumerate(term.get("matchExpressions") or ()):
        here = f"{path}.matchExpressions[{index}]"
        yield from _requirement(requirement, here, numeric=True)
        yield from _values(requirement, here) if checks_values else ()
    for index, requirement in enumerate(term.get("matchFields") or ()):
        yield from _field(requirement, f"{path}.matchFields[{index}]")


def _requirement(requirement: JSON, path: str, *, numeric: bool = False) -> Iterator[str]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif numeric and operator in _NUMERIC:
        if len(values) != 1:
            yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    key = requirement.get("key") or ""
    yield from named(f"{path}.key", key, key_problems(key))


def _values(requirement: JSON, path: str) -> Iterator[str]:
    for index, value in enumerate(requirement.get("values") or ()):
        yield from named(f"{path}.values[{index}]", value, value_problems(value))


def _field(requirement: JSON, path: str) -> Iterator[str]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or ()
    if operator not in ("In", "NotIn"):
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    elif len(values) != 1:
        what = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", what)
    key = requirement.get("key") or ""
    if key != _NODE_NAME:
        yield invalid(f"{path}.key", key, "not a valid field selector key")
        return
    for index, value in enumerate(values):
        yield from named(f"{path}.values[{index}]", value, subdomain_problems(value))


def _label_selector(selector: JSON | None, path: str) -> Iterator[str]:
    if selector is None:
        return
    yield from label_errors(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, requirement in enumerate(selector.get("matchExpressions") or ()):
        yield from _requirement(requirement, f"{path}.matchExpressions[{index}]")
        yield from _values(requirement, f"{path}.matchExpressions[{index}]")


def _pod_term(term: JSON, path: str) -> Iterator[str]:
    yield from _label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    yield from _label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces") or ():
        yield from named(f"{path}.namespace", name, label_problems(name))
    yield from _label_keys(term, path)
    key = term.get("topologyKey") or ""
    if not key:
        yield required(f"{path}.topologyKey", "can not be empty")
    yield from named(f"{path}.topologyKey", key, key_problems(key))


def _label_keys(term: JSON, path: str) -> Iterator[str]:
    """The errors about label keys, whose values are in the label selector already."""
    selector = term.get("labelSelector")
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        keys = term.get(field) or ()
        if keys and selector is None:
            yield forbidden(f"{path}.{field}", _WITHOUT_SELECTOR)
        for index, key in enumerate(keys) if selector is not None else ():
            yield from named(f"{path}.{field}[{index}]", key, key_problems(key))
    matched = term.get("matchLabelKeys") or ()
    place = {key: index for index, key in enumerate(matched)}
    selected = set((selector or {}).get("matchLabels") or ())
    for requirement in (selector or {}).get("matchExpressions") or ():
        key = requirement.get("key") or ""
        if key in place and key in selected:
            yield invalid(f"{path}[{place[key]}]", key, "exists in both matchLabelKeys and labelSelector")
        selected.add(key)
    for index, key in enumerate(matched):
        if key in (term.get("mismatchLabelKeys") or ()):
            text = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield invalid(f"{path}.matchLabelKeys[{index}]", key, text)


def _constraint(constraint: JSON, others: Sequence[JSON], path: str) -> Iterator[str]:
    skew, key = constraint.get("maxSkew") or 0, constraint.get("topologyKey") or ""
    action = constraint.get("whenUnsatisfiable") or ""
    if skew <= 0:
        yield invalid(f"{path}.maxSkew", skew, "must be greater than zero")
    if not key:
        yield required(f"{path}.topologyKey", "can not be empty")
    if action not in _ACTIONS:
        yield unsupported(f"{path}.whenUnsatisfiable", action, _ACTIONS)
    pairs = Counter((other.get("topologyKey") or "", other.get("whenUnsatisfiable") or "") for other in others)
    if pairs[key, action]:
        yield duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
    domains = constraint.get("minDomains")
    if domains is not None and domains <= 0:
        yield invalid(f"{path}.minDomains", domains, "must be greater than zero")
    if domains is not None and action != "DoNotSchedule":
        text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        yield invalid(f"{path}.minDomains", domains, text)
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(field)
        if policy is not None and policy not in _POLICIES:
            yield unsupported(f"{path}.{field}", policy, _POLICIES)
    yield from _label_keys(constraint, path)
    yield from _label_selector(constraint.get("labelSelector"), f"{path}.labelSelector")


def toleration_errors(tolerations: Sequence[JSON]) -> Iterator[str]:
    """The errors about tolerations of taints of nodes."""
    for index, toleration in enumerate(tolerations):
        yield from _toleration(toleration, f"spec.tolerations[{index}]")


def _toleration(toleration: JSON, path: str) -> Iterator[str]:
    key, operator, value, effect = (toleration.get(field) or "" for field in ("key", "operator", "value", "effect"))
    if key:
        yield from named(f"{path}.key", key, key_problems(key))
    elif operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{path}.operator", operator, text)
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        yield invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
    if operator in ("", "Equal"):
        problems = ";".join(value_problems(value))
        if problems:
            yield invalid(f"{path}.operator", value, problems)
    elif operator == "Exists":
        if value:
            yield invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        known = ("Equal", "Exists", *(_NUMERIC if operator in _NUMERIC else ()))
        yield unsupported(f"{path}.operator", operator, known)
    if effect and effect not in _EFFECTS:
        yield unsupported(f"{path}.effect", effect, _EFFECTS)
