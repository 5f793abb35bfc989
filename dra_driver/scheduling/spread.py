# SPDX-License-Identifier: Apache-2.0
"""PodTopologySpread: constraints that must be met (`pkg/scheduler/framework/plugins/podtopologyspread`, 1.36).

Constraints for all pods that an administrator configures are not known here; the built-in ones only score.
"""

from collections import Counter
from typing import Final

from .node_filters import RequiredAffinity, untolerated
from .objects import ClusterNode, Pod, SpreadConstraint
from .outcome import Code, Refusal
from .snapshot import Site, Snapshot

_PLUGIN: Final = "PodTopologySpread"
_SKEWED: Final = Refusal(_PLUGIN, ("node(s) didn't match pod topology spread constraints",), Code.UNSCHEDULABLE)
_NO_LABEL: Final = Refusal(_PLUGIN, ("node(s) didn't match pod topology spread constraints (missing required label)",))


class Spread:
    """How many matching pods each domain of each constraint has."""

    def __init__(self, pod: Pod, snapshot: Snapshot) -> None:
        self._pod = pod
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
        if any(one.topology_key not in node.labels for one in self._constraints):
            return ()
        return tuple(index for index, one in enumerate(self._constraints) if self._includes(one, node))

    def _includes(self, constraint: SpreadConstraint, node: ClusterNode) -> bool:
        if constraint.honors_affinity and not self._required.matches(node):
            return False
        return not constraint.honors_taints or untolerated(node.taints, self._pod.tolerations) is None

    def _matching(self, constraint: SpreadConstraint, pods: tuple[Pod, ...]) -> int:
        """Pods of the namespace that the selector matches. One that matches everything counts nothing, as in 1.36."""
        selector = constraint.selector
        if selector.everything:
            return 0
        return sum(
            not other.deleted and other.namespace == self._pod.namespace and selector.matches(other.labels)
            for other in pods
        )
