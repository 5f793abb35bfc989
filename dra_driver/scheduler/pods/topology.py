# SPDX-License-Identifier: Apache-2.0
"""The filters that count pods by topology: InterPodAffinity and PodTopologySpread of kube-scheduler 1.36.

Follows `pkg/scheduler/framework/plugins/interpodaffinity` and `podtopologyspread`. Pods are counted by place: for each
label of a node that a term or a constraint names, by its value. Spread constraints for all pods that an administrator
configures are not known here; the built-in ones only score nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ...kube.releases import has_rule
from ...kube.resource.meta import EMPTY
from ..allocator import Features
from .node_filters import RequiredAffinity, untolerated
from .objects import NOTHING, AffinityTerm, ClusterNode, Pod, SpreadConstraint
from .outcome import Code, Filter, Refusal
from .snapshot import Site, Snapshot

_PLUGIN: Final = "InterPodAffinity"
_AFFINITY: Final = Refusal(_PLUGIN, ("node(s) didn't match pod affinity rules",))
_ANTI: Final = Refusal(_PLUGIN, ("node(s) didn't match pod anti-affinity rules",), Code.UNSCHEDULABLE)
_EXISTING: Final = Refusal(_PLUGIN, ("node(s) didn't satisfy existing pods anti-affinity rules",), Code.UNSCHEDULABLE)

Place = tuple[str, str]
"""A node label's key and value."""
Counts = Counter[Place]

_SPREAD: Final = "PodTopologySpread"
_SKEWED: Final = Refusal(_SPREAD, ("node(s) didn't match pod topology spread constraints",), Code.UNSCHEDULABLE)
_NO_LABEL: Final = Refusal(_SPREAD, ("node(s) didn't match pod topology spread constraints (missing required label)",))


def between_pods(pod: Pod, snapshot: Snapshot) -> Filter | None:
    """Refuses nodes by the affinity and anti-affinity of the pod, and the anti-affinity of other pods."""
    if not (pod.affinity or pod.anti_affinity or snapshot.with_anti_affinity):
        return None
    counted = _PodAffinity(pod, snapshot)
    return counted.refuses if counted.needed else None


class _PodAffinity:
    """Counts the pods that match, by place. The changes of a site are counted when the site is evaluated."""

    def __init__(self, pod: Pod, snapshot: Snapshot) -> None:
        self._pod = pod
        self._labels = snapshot.labels_of(pod.namespace)
        self._affinity = tuple(_resolved(term, pod, snapshot) for term in pod.affinity)
        self._anti = tuple(_resolved(term, pod, snapshot) for term in pod.anti_affinity)
        self._wanted, self._avoided, self._avoiding = Counts(), Counts(), Counts()
        for node, other in snapshot.with_anti_affinity:
            self._count_avoiding(self._avoiding, other, node.labels, 1)
        if self._affinity or self._anti:
            for site in snapshot.sites.values():
                for other in site.pods:
                    self._count(self._wanted, self._avoided, other, site.node.labels, 1)

    @property
    def needed(self) -> bool:
        """Whether the filter can refuse a node. If not, the scheduler skips it, even for pods that it adds later."""
        return bool(self._avoiding or self._affinity or self._anti)

    def refuses(self, site: Site) -> Refusal | None:
        wanted, avoided, avoiding = self._wanted, self._avoided, self._avoiding
        labels = site.node.labels
        if site.changes:
            wanted, avoided, avoiding = wanted.copy(), avoided.copy(), avoiding.copy()
            for other, times in site.changes:
                self._count(wanted, avoided, other, labels, times)
                self._count_avoiding(avoiding, other, labels, times)
        if not self._has_company(wanted, labels):
            return _AFFINITY
        if any(avoided[term.topology_key, labels.get(term.topology_key, "")] > 0 for term in self._anti):
            return _ANTI
        if avoiding and any(avoiding[place] > 0 for place in labels.items()):
            return _EXISTING
        return None

    def _has_company(self, wanted: Counts, labels: Mapping[str, str]) -> bool:
        if any(term.topology_key not in labels for term in self._affinity):
            return False
        if all(wanted[term.topology_key, labels[term.topology_key]] > 0 for term in self._affinity):
            return True
        # the first pod of a group with affinity to itself may run on any node
        return not any(wanted.values()) and _matches_all(self._affinity, self._pod)

    def _count(self, wanted: Counts, avoided: Counts, other: Pod, labels: Mapping[str, str], times: int) -> None:
        if self._affinity and _matches_all(self._affinity, other):
            for place in _places(self._affinity, labels):
                wanted[place] += times
        for term in self._anti:
            if term.topology_key in labels and term.matches(other, EMPTY):
                avoided[term.topology_key, labels[term.topology_key]] += times

    def _count_avoiding(self, avoiding: Counts, other: Pod, labels: Mapping[str, str], times: int) -> None:
        for term in other.anti_affinity:
            if term.topology_key in labels and term.matches(self._pod, self._labels):
                avoiding[term.topology_key, labels[term.topology_key]] += times


def _matches_all(terms: Iterable[AffinityTerm], pod: Pod) -> bool:
    return all(term.matches(pod, EMPTY) for term in terms)


def _places(terms: Iterable[AffinityTerm], labels: Mapping[str, str]) -> Iterator[Place]:
    for term in terms:
        if term.topology_key in labels:
            yield term.topology_key, labels[term.topology_key]


def _resolved(term: AffinityTerm, pod: Pod, snapshot: Snapshot) -> AffinityTerm:
    """The term with its namespace selector replaced by the names of the namespaces that it matches.

    The scheduler adds the names but keeps the selector (a defect of 1.36 and 1.37), and then applies it to namespaces
    without labels. A selector that only excludes (NotIn, DoesNotExist) therefore selects all namespaces.
    """
    selector = term.namespace_selector
    if selector.nothing or selector.matches(EMPTY):
        return term
    names = {*snapshot.all_namespaces, pod.namespace}
    selected = (name for name in names if selector.matches(snapshot.labels_of(name)))
    return replace(term, namespaces=term.namespaces.union(selected), namespace_selector=NOTHING)


def spread(pod: Pod, snapshot: Snapshot, features: Features) -> Filter | None:
    """Refuses nodes where the pod would violate its topology spread constraints."""
    return _Spread(pod, snapshot, features).refuses if pod.spread else None


class _Spread:
    """How many matching pods each domain of each constraint has."""

    def __init__(self, pod: Pod, snapshot: Snapshot, features: Features) -> None:
        self._pod = pod
        self._empty_counts_none = has_rule(features.release, "empty_spread_selector_counts_none")
        self._constraints = pod.spread
        self._required = RequiredAffinity(pod)
        self._counts = [Counter[str]() for _ in pod.spread]
        for site in snapshot.sites.values():
            for index in self._counting(site.node):
                constraint = pod.spread[index]
                domain = site.node.labels[constraint.topology_key]
                self._counts[index][domain] += self._matching(constraint, site.pods)

    def refuses(self, site: Site) -> Refusal | None:
        labels = site.node.labels
        counting = self._counting(site.node) if site.changes else ()
        for index, constraint in enumerate(self._constraints):
            domain = labels.get(constraint.topology_key)
            if domain is None:
                return _NO_LABEL
            counts = self._counts[index]
            if index in counting:
                counts = counts.copy()
                counts[domain] += sum(
                    times
                    for other, times in site.changes
                    if other.namespace == self._pod.namespace and constraint.selector.matches(other.labels)
                )
            least = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
            own = constraint.selector.matches(self._pod.labels)
            if counts[domain] + own - least > constraint.max_skew:
                return _SKEWED
        return None

    def _counting(self, node: ClusterNode) -> tuple[int, ...]:
        """The constraints for which the node counts: it must have the labels of all of them."""
        if any(constraint.topology_key not in node.labels for constraint in self._constraints):
            return ()
        return tuple(index for index, one in enumerate(self._constraints) if self._includes(one, node))

    def _includes(self, constraint: SpreadConstraint, node: ClusterNode) -> bool:
        if constraint.honors_affinity and not self._required.matches(node):
            return False
        return not constraint.honors_taints or untolerated(node.taints, self._pod.tolerations) is None

    def _matching(self, constraint: SpreadConstraint, pods: tuple[Pod, ...]) -> int:
        """Pods of the namespace that the selector matches. Up to 1.37, an empty selector counts none."""
        selector = constraint.selector
        if selector.everything and self._empty_counts_none:
            return 0
        return sum(
            not other.deleted and other.namespace == self._pod.namespace and selector.matches(other.labels)
            for other in pods
        )
