# SPDX-License-Identifier: Apache-2.0
"""The filters that check one node only: NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts,
NodeDeclaredFeatures and NodeResourcesFit of kube-scheduler 1.36 (`pkg/scheduler/framework/plugins`).
"""

from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...errors import NodeSelectorError
from ...kube.resource import DeviceTaint, DeviceToleration, NodeSelector, NodeSelectorTerm
from ...kube.resource.claim import tolerates
from ..allocator.nodes import NODE_NAME_FIELD, check_term, term_matches
from .decode import ANY_ADDRESS
from .objects import ClusterNode, HostPort, Pod
from .outcome import Code, Filter, Prepared, Refusal
from .resources import is_extended
from .snapshot import Site, Snapshot

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

_PLUGIN = "NodeResourcesFit"

_ORDER = {"pods": 0, "cpu": 1, "memory": 2, "ephemeral-storage": 3}


def unschedulable(pod: Pod, _: Snapshot) -> Filter | None:
    """Refuses cordoned nodes unless the pod tolerates the taint of cordoned nodes."""
    if any(tolerates(toleration, _CORDONED) for toleration in pod.tolerations):
        return None
    return lambda site: _UNSCHEDULABLE if site.node.unschedulable else None


def named(pod: Pod, _: Snapshot) -> Filter | None:
    """Refuses all nodes except the node that the pod names."""
    if not pod.node_name:
        return None
    return lambda site: None if site.node.name == pod.node_name else _OTHER_NAME


def untolerated(taints: Iterable[DeviceTaint], tolerations: Collection[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that keeps pods away and that no toleration covers."""
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            tolerates(toleration, taint) for toleration in tolerations
        ):
            return taint
    return None


def tainted(pod: Pod, _: Snapshot) -> Filter:
    """Refuses nodes with a taint that the pod does not tolerate."""
    return lambda site: _TAINTED if site.node.taints and untolerated(site.node.taints, pod.tolerations) else None


class RequiredAffinity:
    """A pod's node selector and required node affinity."""

    def __init__(self, pod: Pod) -> None:
        self._labels = pod.node_selector
        self._terms = None if pod.node_affinity is None else tuple(usable_terms(pod.node_affinity))

    def matches(self, node: ClusterNode) -> bool:
        """Whether the pod's node selector and node affinity match the node."""
        if any(node.labels.get(key) != value for key, value in self._labels.items()):
            return False
        return self._terms is None or any(term_matches(term, node.node) for term in self._terms)


def usable_terms(selector: NodeSelector) -> Iterator[NodeSelectorTerm]:
    """The terms that can match. A term that is empty or cannot be evaluated matches no node."""
    for term in selector.terms:
        if term.match_expressions or term.match_fields:
            with suppress(NodeSelectorError):
                check_term(term)
                yield term


def only_nodes(pod: Pod) -> frozenset[str] | None:
    """The nodes that the pod's node affinity names. None if it leaves other nodes open."""
    named_by_term = []
    for term in pod.node_affinity.terms if pod.node_affinity is not None else ():
        fields = [
            match_field
            for match_field in term.match_fields
            if match_field.key == NODE_NAME_FIELD and match_field.operator == "In"
        ]
        if not fields:  # terms are alternatives, and this term allows all nodes
            return None
        named_by_term.append(frozenset.intersection(*(frozenset(field.values) for field in fields)))
    return frozenset().union(*named_by_term) if named_by_term else None


def affinity(pod: Pod, _: Snapshot) -> Prepared:
    """Refuses nodes that the pod's node selector or node affinity does not match."""
    names = only_nodes(pod)
    if names is not None and not names:
        return _CONFLICT
    if pod.node_affinity is None and not pod.node_selector:
        return None
    required = RequiredAffinity(pod)
    return lambda site: None if required.matches(site.node) else _NOT_SELECTED


def ports(pod: Pod, _: Snapshot) -> Filter | None:
    """Refuses nodes on which a host port that the pod needs is in use."""
    if not pod.host_ports:
        return None
    return lambda site: (
        _NO_PORTS if any(_collide(host_port, other) for host_port in pod.host_ports for other in site.ports) else None
    )


def _collide(one: HostPort, other: HostPort) -> bool:
    if one.port != other.port or one.protocol != other.protocol:
        return False
    return one.ip == other.ip or ANY_ADDRESS in (one.ip, other.ip)


def declared_features(pod: Pod, _: Snapshot) -> Filter | None:
    """Refuses nodes whose kubelet does not declare a feature that the pod needs."""
    if not pod.features:
        return None
    return lambda site: None if pod.features <= site.node.features else _NO_FEATURES


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a node has too little, in the units of `Amounts`: `pods` is the number of pods."""

    resource: str
    wanted: int
    used: int
    allocatable: int

    @property
    def free(self) -> int:
        """What the running pods leave."""
        return self.allocatable - self.used

    @property
    def reason(self) -> str:
        """kube-scheduler's text."""
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
        lacking.sort(key=lambda shortage: _ORDER.get(shortage.resource, len(_ORDER)))
        return lacking

    def refuses(self, site: Site) -> Refusal | None:
        """A refusal if the node lacks resources."""
        lacking = self.shortages(site)
        if not lacking:
            return None
        code = Code.UNRESOLVABLE if any(shortage.final for shortage in lacking) else Code.UNSCHEDULABLE
        return Refusal(_PLUGIN, tuple(shortage.reason for shortage in lacking), code)
