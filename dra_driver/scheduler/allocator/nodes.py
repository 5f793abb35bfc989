# SPDX-License-Identifier: Apache-2.0
"""Where devices are: node names, all nodes, and node selectors.

Follows k8s.io/component-helpers nodeaffinity and apimachinery's label requirements: a selector that
cannot be parsed is an error as soon as a node is compared with it, an empty term matches nothing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from ...errors import NodeSelectorError
from ...kube.resource import Device, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ResourceSlice
from ...kube.resource.names import is_label_key, is_label_value

Place = str | NodeSelector | bool | None
"""A node's name, a selector, True for all nodes, or None for nowhere."""

NODE_NAME_FIELD: Final = "metadata.name"

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64 = range(-(1 << 63), 1 << 63)


def place(where: ResourceSlice | Device) -> Place:
    """The place of a slice or a device. A node name has precedence over all nodes, and all nodes over a selector."""
    return where.node_name or where.all_nodes or where.node_selector


def is_at(where: Place, node: Node) -> bool:
    """Whether `node` is (in) that place. NodeSelectorError for a selector that cannot be evaluated."""
    if isinstance(where, NodeSelector):
        return selector_matches(where, node)
    return where is True or where == node.name


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Whether any term of `selector` matches `node`."""
    terms = [term for term in selector.terms if term.match_expressions or term.match_fields]
    for term in terms:  # all terms are parsed before any term is compared
        check_term(term)
    return any(term_matches(term, node) for term in terms)


def check_term(term: NodeSelectorTerm) -> None:
    """Raises NodeSelectorError for a term that Kubernetes cannot evaluate."""
    for requirement in term.match_expressions:
        _check_label_requirement(requirement)
    for requirement in term.match_fields:
        _check_field_requirement(requirement)


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether a term matches `node`. `check_term` must have accepted the term, and it must have requirements."""
    labels = node.metadata.labels
    if not all(label_matches(requirement, labels) for requirement in term.match_expressions):
        return False
    fields = {NODE_NAME_FIELD: node.name}
    return all(
        (fields.get(requirement.key, "") == requirement.values[0]) == (requirement.operator == "In")
        for requirement in term.match_fields
    )


def _one_of(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    return value is not None and value in requirement.values


def _compare(requirement: NodeSelectorRequirement, value: str | None, wanted: Callable[[int, int], bool]) -> bool:
    number = None if value is None else _int64(value)
    bound = _int64(requirement.values[0])
    return number is not None and bound is not None and wanted(number, bound)


_OPERATORS: Final[Mapping[str, Callable[[NodeSelectorRequirement, str | None], bool]]] = {
    "In": _one_of,
    "NotIn": lambda requirement, value: not _one_of(requirement, value),
    "Exists": lambda requirement, value: value is not None,
    "DoesNotExist": lambda requirement, value: value is None,
    "Gt": lambda requirement, value: _compare(requirement, value, int.__gt__),
    "Lt": lambda requirement, value: _compare(requirement, value, int.__lt__),
}


def label_matches(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether an object with these labels meets the requirement."""
    return _OPERATORS[requirement.operator](requirement, labels.get(requirement.key))


def _int64(text: str) -> int | None:
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number in _INT64 else None


def _check_label_requirement(requirement: NodeSelectorRequirement) -> None:
    operator, values = requirement.operator, requirement.values
    if operator not in _OPERATORS:
        raise NodeSelectorError(f"{requirement.key}: operator {operator!r} is none of {', '.join(_OPERATORS)}")
    if not is_label_key(requirement.key):
        raise NodeSelectorError(f"{requirement.key!r} is not a label key")
    if operator in ("In", "NotIn") and not values:
        raise NodeSelectorError(f"{requirement.key}: operator {operator} needs values")
    if operator in ("Exists", "DoesNotExist") and values:
        raise NodeSelectorError(f"{requirement.key}: operator {operator} takes no values")
    if operator in ("Gt", "Lt") and (len(values) != 1 or _int64(values[0]) is None):
        raise NodeSelectorError(f"{requirement.key}: operator {operator} needs one integer")
    for value in values:
        if not is_label_value(value):
            raise NodeSelectorError(f"{requirement.key}: {value!r} is not a label value")


def _check_field_requirement(requirement: NodeSelectorRequirement) -> None:
    if requirement.operator not in ("In", "NotIn"):
        raise NodeSelectorError(f"{requirement.key}: a field's operator is In or NotIn, not {requirement.operator!r}")
    if len(requirement.values) != 1:
        raise NodeSelectorError(f"{requirement.key}: a field is compared with one value, not {len(requirement.values)}")
