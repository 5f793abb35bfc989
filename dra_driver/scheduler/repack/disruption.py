# SPDX-License-Identifier: Apache-2.0
"""Which pods may be moved, and how much harm it does.

A pod is moved by its controller: it is evicted, and the controller makes a new one. So a pod stays if the eviction API
would refuse it, if no controller would make it again, if the new pod would keep the devices of the old one, or if a
quota would refuse the new pod. All pods of a plan are evicted one after the other, so a PodDisruptionBudget has to
allow one disruption.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ..pods import Pod, Quotas, Snapshot
from ..pods.objects import DisruptionBudget, LabelSelector
from ..pods.policies import SYSTEM_CLASSES, Quota
from .build import Movability

MAKE_AGAIN: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "Job"})
"""The kinds of controllers that are known to make a pod again wherever it fits."""
_BOUND: Final = {"DaemonSet": "a DaemonSet keeps it on its node", "Node": "it belongs to its node (a static pod)"}
_CRITICAL: Final = min(known.value for known in SYSTEM_CLASSES)


@dataclass(frozen=True, eq=False)
class Disruption:
    """Judges the pods of a cluster. `most_priority` is that of the demand: pods that are more important stay.

    `never` selects pods that stay, and `only` the pods that may be moved. `owners` are further kinds of controllers
    that make pods again.
    """

    snapshot: Snapshot
    quotas: Sequence[Quota] = ()
    most_priority: int = _CRITICAL - 1
    never: LabelSelector | None = None
    only: LabelSelector | None = None
    owners: frozenset[str] = frozenset()
    _exceeded: dict[str, Mapping[str, str]] = field(default_factory=dict, init=False)

    def __call__(self, pod: Pod) -> Movability:
        """Whether the pod may be moved."""
        why = self._own(pod) or self._asked(pod) or self._refused(pod)
        if why:
            return Movability(stays=why)
        return Movability((pod.priority, int(pod.owner[0] == "Job")))

    def _own(self, pod: Pod) -> str:
        """Why the pod cannot be moved."""
        kind, name = pod.owner
        if pod.deleted:
            return "it is being deleted"
        if not kind:
            return "no controller makes it again"
        if kind in _BOUND:
            return _BOUND[kind]
        if kind not in MAKE_AGAIN | self.owners:
            return f"{kind} {name} is not known to make it again (--owner {kind} if it does)"
        if pod.group:
            return f"it belongs to PodGroup {pod.group}, which is placed as a whole"
        kept = [claim.claim for claim in pod.claims if claim.claim is not None and not claim.from_template]
        if kept:
            return f"the new pod would use ResourceClaim {kept[0]}, which keeps its devices"
        return ""

    def _asked(self, pod: Pod) -> str:
        """Why the user wants that the pod stays."""
        if self.never is not None and self.never.matches(pod.labels):
            return "--never selects it"
        if self.only is not None and not self.only.matches(pod.labels):
            return "-l does not select it"
        if pod.priority > min(self.most_priority, _CRITICAL - 1):
            return f"its priority {pod.priority} is higher than that of the demand"
        return ""

    def _refused(self, pod: Pod) -> str:
        """Why the API server would refuse the eviction, or the new pod."""
        budgets = [budget for budget in self._budgets.get(pod.namespace, ()) if budget.selector.matches(pod.labels)]
        if len(budgets) > 1:
            return "several PodDisruptionBudgets select it, so that it cannot be evicted"
        if any(budget.allowed < 1 and pod.name not in budget.disrupted for budget in budgets):
            return "its PodDisruptionBudget allows no disruption now"
        usage = self._quotas.usage(pod)
        exceeded = self._exceeded_in(pod.namespace)
        return next((exceeded[name] for name in usage if name in exceeded), "")

    def _exceeded_in(self, namespace: str) -> Mapping[str, str]:
        """Resources of which a quota is exceeded, so that a new pod that uses them is refused."""
        if namespace not in self._exceeded:
            self._exceeded[namespace] = {
                name: f"ResourceQuota {quota.name} is exceeded ({name}: {used} of {quota.hard[name]}), so that the new"
                " pod is refused"
                for quota in self.quotas
                if quota.namespace == namespace
                for name, used in self._quotas.used(quota).items()
                if name in quota.hard and used > quota.hard[name]
            }
        return self._exceeded[namespace]

    @cached_property
    def _quotas(self) -> Quotas:
        return Quotas(self.snapshot)

    @cached_property
    def _budgets(self) -> Mapping[str, Sequence[DisruptionBudget]]:
        found: dict[str, list[DisruptionBudget]] = defaultdict(list)
        for budget in self.snapshot.budgets:
            found[budget.namespace].append(budget)
        return found
