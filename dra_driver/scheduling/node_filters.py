# SPDX-License-Identifier: Apache-2.0
"""The filters that look at one node only: NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts,
NodeDeclaredFeatures and NodeResourcesFit of kube-scheduler 1.36 (`pkg/scheduler/framework/plugins`).
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from ..allocation.nodes import NODE_NAME_FIELD, NodeSelectorError, check_term, term_matches
from ..resource import DeviceTaint, DeviceToleration, NodeSelector, NodeSelectorTerm
from ..resource.claim import tolerates
from .decode import ANY_ADDRESS
from .objects import ClusterNode, HostPort, Pod
from .outcome import Code, Refusal
from .resources import is_extended
from .snapshot import Site

_UNSCHEDULABLE: Final = Refusal("NodeUnschedulable", ("node(s) were unschedulable",))
_OTHER_NAME: Final = Refusal("NodeName", ("node(s) didn't match the requested node name",))
_TAINTED: Final = Refusal("TaintToleration", ("node(s) had untolerated taint(s)",))
_NOT_SELECTED: Final = Refusal("NodeAffinity", ("node(s) didn't match Pod's node affinity/selector",))
_CONFLICT: Final = Refusal("NodeAffinity", ("pod affinity terms conflict",))
_NO_PORTS: Final = Refusal(
    "NodePorts", ("node(s) didn't have free ports for the requested pod ports",), Code.UNSCHEDULABLE
)
_NO_FEATURES: Final = Refusal("NodeDeclaredFeatures", ("node(s) didn't match Pod's required features",))

_CORDONED: Final = DeviceTaint("node.kubernetes.io/unschedulable", "NoSchedule")


class Unschedulable:
    """Refuses cordoned nodes unless the pod tolerates the taint of cordoned nodes."""

    def __init__(self, pod: Pod) -> None:
        self._tolerated = any(tolerates(one, _CORDONED) for one in pod.tolerations)

    def refuses(self, site: Site) -> Refusal | None:
        return _UNSCHEDULABLE if site.node.unschedulable and not self._tolerated else None


class Named:
    """Refuses all nodes except the one that the pod names."""

    def __init__(self, pod: Pod) -> None:
        self._name = pod.node_name

    def refuses(self, site: Site) -> Refusal | None:
        return _OTHER_NAME if self._name != site.node.name else None


def untolerated(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that keeps pods away and that no toleration covers."""
    every = tuple(tolerations)
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(tolerates(one, taint) for one in every):
            return taint
    return None


class Tainted:
    """Refuses nodes with a taint that the pod does not tolerate."""

    def __init__(self, pod: Pod) -> None:
        self._tolerations = pod.tolerations

    def refuses(self, site: Site) -> Refusal | None:
        taints = site.node.taints
        return _TAINTED if taints and untolerated(taints, self._tolerations) is not None else None


class RequiredAffinity:
    """A pod's node selector and required node affinity. A term that cannot be evaluated matches nothing."""

    def __init__(self, pod: Pod) -> None:
        self._labels = pod.node_selector
        self._terms = None if pod.node_affinity is None else tuple(_usable(pod.node_affinity))

    def matches(self, node: ClusterNode) -> bool:
        """Whether the node is one that the pod wants."""
        if any(node.labels.get(key) != value for key, value in self._labels.items()):
            return False
        return self._terms is None or any(term_matches(term, node.node) for term in self._terms)


def _usable(selector: NodeSelector) -> Iterable[NodeSelectorTerm]:
    for term in selector.terms:
        if term.match_expressions or term.match_fields:
            try:
                check_term(term)
            except NodeSelectorError:
                continue
            yield term


class Affinity:
    """NodeAffinity. `names` are the only nodes to look at, None for all."""

    def __init__(self, pod: Pod, names: frozenset[str] | None) -> None:
        self._required = RequiredAffinity(pod)
        self.names = names

    def refuses(self, site: Site) -> Refusal | None:
        return None if self._required.matches(site.node) else _NOT_SELECTED


def prepare_affinity(pod: Pod) -> Affinity | Refusal | None:
    """The filter, a refusal of the pod, or None if the pod has neither node selector nor node affinity."""
    if pod.node_affinity is None:
        return Affinity(pod, None) if pod.node_selector else None
    names: frozenset[str] | None = frozenset()
    for term in pod.node_affinity.terms:
        of_term: frozenset[str] | None = None
        for requirement in term.match_fields:
            if requirement.key == NODE_NAME_FIELD and requirement.operator == "In":
                values = frozenset(requirement.values)
                of_term = values if of_term is None else of_term & values
        if of_term is None:  # terms are alternatives, and this one leaves all nodes open
            return Affinity(pod, None)
        names = (names or frozenset()) | of_term
    if pod.node_affinity.terms and not names:
        return _CONFLICT
    return Affinity(pod, names if pod.node_affinity.terms else None)


class Ports:
    """Refuses nodes on which a host port that the pod needs is in use."""

    def __init__(self, pod: Pod) -> None:
        self._wanted = pod.host_ports

    def refuses(self, site: Site) -> Refusal | None:
        return _NO_PORTS if any(_collide(one, other) for one in self._wanted for other in site.ports) else None


def _collide(one: HostPort, other: HostPort) -> bool:
    if one.port != other.port or one.protocol != other.protocol:
        return False
    return one.ip == other.ip or ANY_ADDRESS in (one.ip, other.ip)


class Features:
    """Refuses nodes whose kubelet does not declare a feature that the pod needs."""

    def __init__(self, pod: Pod) -> None:
        self._needed = pod.features

    def refuses(self, site: Site) -> Refusal | None:
        return None if self._needed <= site.node.features else _NO_FEATURES


_PLUGIN = "NodeResourcesFit"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a node has too little, in the units of `Amounts`: `pods` is the number of pods."""

    resource: str
    wanted: int
    used: int
    allocatable: int

    @property
    def free(self) -> int:
        return self.allocatable - self.used

    @property
    def reason(self) -> str:
        return "Too many pods" if self.resource == "pods" else f"Insufficient {self.resource}"

    @property
    def final(self) -> bool:
        """Whether even the empty node would have too little. The scheduler never applies this to the number of pods."""
        return self.resource != "pods" and self.wanted > self.allocatable


class Resources:
    """Refuses nodes with too few resources.

    Resources that a DeviceClass serves are not checked on nodes without them.
    """

    def __init__(self, pod: Pod, served: Container[str]) -> None:
        """`served` are the extended resources that DeviceClasses serve."""
        self._wanted = [(name, amount) for name, amount in sorted(pod.amounts.items()) if amount and name != "pods"]
        self._by_slices = frozenset(name for name, _ in self._wanted if is_extended(name) and name in served)

    def shortages(self, site: Site) -> list[Shortage]:
        """What the node has too little of, in the scheduler's order."""
        allocatable, used = site.node.allocatable, site.used
        room = allocatable.get("pods", 0)
        lacking = [Shortage("pods", 1, len(site.pods), room)] if len(site.pods) + 1 > room else []
        for name, amount in self._wanted:
            there = allocatable.get(name, 0)
            if amount > there - used.get(name, 0) and (there or name not in self._by_slices):
                lacking.append(Shortage(name, amount, used.get(name, 0), there))
        lacking.sort(key=lambda one: _ORDER.get(one.resource, len(_ORDER)))
        return lacking

    def refuses(self, site: Site) -> Refusal | None:
        lacking = self.shortages(site)
        if not lacking:
            return None
        code = Code.UNRESOLVABLE if any(one.final for one in lacking) else Code.UNSCHEDULABLE
        return Refusal(_PLUGIN, tuple(one.reason for one in lacking), code)


_ORDER = {"pods": 0, "cpu": 1, "memory": 2, "ephemeral-storage": 3}
