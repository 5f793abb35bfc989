# SPDX-License-Identifier: Apache-2.0
"""Labels that a node may have although they are not known, and what verdicts assume of them.

Simulated nodes, and nodes of which only ResourceSlices are known, have unknown labels: those of a cloud or an
administrator. A pod that selects such a label may still be placed there. The verdict then names what it assumes of the
node. All pods that are placed on one node must agree on its labels: assumptions of earlier pods count for later ones. A
label that the node has is never assumed to have another value. A node with the labels of the driver
(`dra_driver.gpu.labels`) has no other label of the driver, since these tell of its hardware.

An assumption is a list of requirements on labels, as in a node selector. It is possible if one value, or the absence of
the label, meets all requirements on the same label.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Final

from ..gpu.labels import PRODUCT_LABEL, tells_of_hardware
from ..kube.resource import Node, NodeSelectorRequirement, NodeSelectorTerm
from ..kube.resource.meta import empty
from ..scheduler.allocator.nodes import label_matches, term_matches
from ..scheduler.pods import Pod, Snapshot
from ..scheduler.pods.node_filters import usable_terms
from ..scheduler.pods.resources import is_extended
from .extended import is_of_driver
from .world import ROOM

Requirements = tuple[NodeSelectorRequirement, ...]

_MOST_DOMAINS: Final = 8
_SHOWN: Final = 3
"""The number of values of a requirement that are listed."""
_ANY: Final = "assumed"
"""The beginning of a value that stands for any value."""
_TEXTS: Final = {
    "In": "the node has {}",
    "NotIn": "the node does not have {}",
    "Exists": "the node has the label {}",
    "DoesNotExist": "the node does not have the label {}",
    "Gt": "the node has a number greater than {1} in the label {0}",
    "Lt": "the node has a number less than {1} in the label {0}",
}


@dataclass(frozen=True, slots=True)
class OpenLabels:
    """The nodes some of whose labels are unknown, and what placed pods assume of them."""

    nodes: frozenset[str] = frozenset()
    assumed: Mapping[str, Requirements] = field(default_factory=empty)

    def needs(self, pod: Pod, node: Node) -> Requirements | None:
        """The assumptions about the node that make the pod's node selector and node affinity match it.

        None if they cannot match.
        """
        labels = node.metadata.labels
        selected = [NodeSelectorRequirement(key, "In", (value,)) for key, value in pod.node_selector.items()]
        terms: Iterable[NodeSelectorTerm | None] = [None]
        if pod.node_affinity is not None:
            terms = usable_terms(pod.node_affinity)
        found = [one for term in terms if (one := self._needs_of(term, selected, node, labels)) is not None]
        return min(found, key=len, default=None)

    def _needs_of(
        self,
        term: NodeSelectorTerm | None,
        selected: Sequence[NodeSelectorRequirement],
        node: Node,
        labels: Mapping[str, str],
    ) -> Requirements | None:
        """The same for the node selector and one of the alternative terms of the affinity."""
        wanted = [*selected, *(term.match_expressions if term is not None else ())]
        unknown = [requirement for requirement in wanted if self.is_unknown(node.name, requirement.key, labels)]
        known = [requirement for requirement in wanted if requirement not in unknown]
        if not all(label_matches(requirement, labels) for requirement in known):
            return None
        if term is not None and term.match_fields and not term_matches(replace(term, match_expressions=()), node):
            return None
        needs = tuple(dict.fromkeys(unknown))
        return needs if _values([*self.assumed.get(node.name, ()), *needs]) is not None else None

    def is_unknown(self, node: str, key: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels may have another one with this key."""
        if node not in self.nodes or key in labels:
            return False
        return not (PRODUCT_LABEL in labels and tells_of_hardware(key))

    def labelled(self, node: Node, needs: Requirements | None) -> Node:
        """The node with labels that meet `needs`, which are those of `needs`, and all that is assumed of it already."""
        values = _values([*self.assumed.get(node.name, ()), *(needs or ())])
        if not values:
            return node
        labels = {**{key: value for key, value in values.items() if value is not None}, **node.metadata.labels}
        return replace(node, metadata=replace(node.metadata, labels=labels))

    def after(self, node: str, needs: Requirements) -> "OpenLabels":
        """The assumptions after a pod with these `needs` is placed on the node."""
        if not needs:
            return self
        everything = tuple(dict.fromkeys((*self.assumed.get(node, ()), *needs)))
        return replace(self, assumed={**self.assumed, node: everything})


@dataclass(frozen=True, eq=False)
class Opened:
    """A snapshot for one pod, in which each open node has labels that the pod needs there, as far as that is possible.

    `needs` is what is assumed of these nodes, by their names. `not_judged` are extended resources of device plugins,
    of which open nodes are taken to have enough.
    """

    snapshot: Snapshot
    needs: Mapping[str, Requirements] = field(default_factory=empty)
    not_judged: tuple[str, ...] = ()


def opened(pod: Pod, snapshot: Snapshot, labels: OpenLabels, domains: Requirements = ()) -> Opened:
    """The snapshot for a pod. `domains` is what is assumed of topology keys that the open nodes do not have."""
    if not labels.nodes:
        return Opened(snapshot)
    not_judged = tuple(
        name for name in pod.amounts if is_extended(name) and name not in snapshot.served and not is_of_driver(name)
    )
    room = dict.fromkeys(not_judged, ROOM)
    given = {domain.key for domain in domains}
    apart = [NodeSelectorRequirement(term.topology_key, "DoesNotExist") for term in pod.anti_affinity]
    topology = [*domains, *(requirement for requirement in apart if requirement.key not in given)]
    needs: dict[str, Requirements] = {}
    nodes = []
    for node in snapshot.nodes:
        if node.name in labels.nodes:
            wanted = labels.needs(pod, node.node)
            if wanted is not None:
                more = [of for of in topology if labels.is_unknown(node.name, of.key, node.labels)]
                wanted = needs[node.name] = tuple(dict.fromkeys((*wanted, *more)))
            node = replace(node, node=labels.labelled(node.node, wanted), allocatable={**room, **node.allocatable})
        nodes.append(node)
    return Opened(replace(snapshot, nodes=tuple(nodes)), needs, not_judged)


def possible_domains(pod: Pod, snapshot: Snapshot, labels: OpenLabels) -> Iterator[Requirements]:
    """Assumptions about topology keys of the pod that nodes with unknown labels lack: the value of another node, or a
    new value.

    At most _MOST_DOMAINS, so that clusters with many zones get an answer soon.
    """
    keys = {constraint.topology_key for constraint in pod.spread}
    keys |= {term.topology_key for term in (*pod.affinity, *pod.anti_affinity)}
    there = [node for node in snapshot.nodes if node.name in labels.nodes]
    lacking = sorted(key for key in keys if any(labels.is_unknown(node.name, key, node.labels) for node in there))
    choices = []
    for key in lacking:
        values = sorted({node.labels[key] for node in snapshot.nodes if key in node.labels})
        same = [NodeSelectorRequirement(key, "In", (value,)) for value in values]
        choices.append([*same, NodeSelectorRequirement(key, "Exists")])
    return islice(product(*choices), _MOST_DOMAINS) if choices else iter(())


ALL_KNOWN: Final = OpenLabels()
"""All labels of all nodes are known."""


def assumption_texts(needs: Iterable[NodeSelectorRequirement]) -> tuple[str, ...]:
    """The assumptions as texts that follow "assuming": `the node has pool=gpus`."""
    return tuple(_text(need) for need in needs)


def _text(requirement: NodeSelectorRequirement) -> str:
    text = _TEXTS[requirement.operator]
    if requirement.operator in ("In", "NotIn"):
        pairs = [f"{requirement.key}={value}" for value in requirement.values[:_SHOWN]]
        more = len(requirement.values) - _SHOWN
        return text.format(" or ".join([*pairs, *([f"one of {more} other values"] if more > 0 else [])]))
    return text.format(requirement.key, *requirement.values)


def _values(requirements: Sequence[NodeSelectorRequirement]) -> dict[str, str | None] | None:
    """A value for each label that meets all requirements on it: None if the label is absent.

    None if there is no such value for some label.
    """
    by_key: dict[str, list[NodeSelectorRequirement]] = defaultdict(list)
    for requirement in requirements:
        by_key[requirement.key].append(requirement)
    found: dict[str, str | None] = {}
    for key, its in by_key.items():
        meeting = [
            candidate for candidate in _candidates(its) if all(_meets(requirement, candidate) for requirement in its)
        ]
        if not meeting:
            return None
        found[key] = meeting[0]
    return found


def _candidates(requirements: Collection[NodeSelectorRequirement]) -> Iterator[str | None]:
    """The absence of the label, and values among which one meets the requirements if any value does."""
    yield None
    given = [value for requirement in requirements for value in requirement.values]
    yield from given
    for number in (int(value) for value in given if value.lstrip("+-").isdigit()):
        for distance in range(1, len(given) + 1):
            yield str(number + distance)
            yield str(number - distance)
    for number in range(len(given) + 1):
        yield f"{_ANY}-{number}"


def _meets(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    return label_matches(requirement, {} if value is None else {requirement.key: value})


def sorted_by_needs(nodes: Iterable[str], needs: Mapping[str, Requirements]) -> tuple[str, ...]:
    """The nodes, those first of which nothing has to be assumed."""
    return tuple(sorted(nodes, key=lambda name: bool(needs.get(name))))
