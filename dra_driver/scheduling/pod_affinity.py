# SPDX-License-Identifier: Apache-2.0
"""InterPodAffinity: required affinity and anti-affinity between pods, also of those that run already.

Follows `pkg/scheduler/framework/plugins/interpodaffinity` of Kubernetes 1.36. Pods are counted by topology: for each
label of a node that a term names, by its value.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..resource.meta import EMPTY
from .objects import NOTHING, AffinityTerm, Pod
from .outcome import Code, Refusal
from .snapshot import Site, Snapshot

_PLUGIN: Final = "InterPodAffinity"
_AFFINITY: Final = Refusal(_PLUGIN, ("node(s) didn't match pod affinity rules",))
_ANTI: Final = Refusal(_PLUGIN, ("node(s) didn't match pod anti-affinity rules",), Code.UNSCHEDULABLE)
_EXISTING: Final = Refusal(_PLUGIN, ("node(s) didn't satisfy existing pods anti-affinity rules",), Code.UNSCHEDULABLE)

Place = tuple[str, str]
"""A node label's key and value."""
Counts = Counter[Place]


class PodAffinity:
    """How many pods match in which places; what changes at one site is counted anew for it."""

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
        """Whether it can refuse anything. Without that the scheduler skips it, whatever pods it adds later."""
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
        # the first pod of a group that wants to be together may go anywhere
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
    """The term with its namespace selector replaced by the names of the namespaces that it matches."""
    selector = term.namespace_selector
    if selector.nothing or selector.everything:
        return term
    names = {*snapshot.all_namespaces, pod.namespace}
    selected = (name for name in names if selector.matches(snapshot.labels_of(name)))
    return replace(term, namespaces=term.namespaces.union(selected), namespace_selector=NOTHING)
