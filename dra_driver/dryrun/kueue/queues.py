# SPDX-License-Identifier: Apache-2.0
"""Whether a queue of Kueue has quota for a workload, and for which flavors.

Follows the documentation of ClusterQueues, cohorts and ResourceFlavors, and `available` in `pkg/cache/scheduler` of
Kueue (commit ff69552, after 0.19). Of each group of resources, the first flavor counts that suits the pods and has all
amounts. Preemption, fair sharing, admission checks and workloads that wait before this one are not evaluated.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from ...kube.resource import DeviceTaint, DeviceToleration, Quantity
from ...kube.resource.claim import tolerates
from ...kube.resource.codec import DecodeError
from ...scheduler.allocator import Cluster, Features
from ...scheduler.pods import Pod, PodDecoder
from ..documents import Document, within
from ..queueverdict import QueueCharge, QueueVerdict
from ..workload import Demand
from .charges import Accountant, NotAdmittedError
from .objects import QUEUE_LABEL, FlavorFacts, FlavorResource, Kueue, QuotaLimits, QuotaNode

_ZERO: Final = Quantity.of(0)
_UNLIMITED: Final = QuotaLimits(_ZERO)
_BLOCKING: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class QuotaTree:
    """The ClusterQueues and Cohorts. What a node may use is its own quota and what its cohort does not need."""

    kueue: Kueue

    @cached_property
    def _children(self) -> Mapping[str, Sequence[QuotaNode]]:
        """The queues and cohorts of each cohort."""
        found: dict[str, list[QuotaNode]] = defaultdict(list)
        for node in (*self.kueue.queues.values(), *self.kueue.cohorts.values()):
            if node.parent:
                found[node.parent].append(node)
        return found

    def available(self, node: QuotaNode, key: FlavorResource) -> int:
        """The billionths of a resource of a flavor that the node may still use. Negative if more is used than there
        is.
        """
        total, used = self._quota(node, key), self._used(node, key)
        if not node.parent:
            return total - used
        limits = node.limits.get(key, _UNLIMITED)
        own = self._kept(node, key)
        of_parent = self.available(self._cohort(node.parent), key)
        if limits.borrowing is not None:
            lent_by_own = total - own - max(0, used - own)
            of_parent = min(of_parent, lent_by_own + limits.borrowing.nanos)
        return max(0, own - used) + of_parent

    def _cohort(self, name: str) -> QuotaNode:
        """A cohort. One without an object has no quota of its own."""
        return self.kueue.cohorts.get(name) or QuotaNode(name, "", (), {})

    def _is_cohort(self, node: QuotaNode) -> bool:
        return self.kueue.queues.get(node.name) is not node

    def _quota(self, node: QuotaNode, key: FlavorResource) -> int:
        """The quota of the node and what its members lend."""
        own = node.limits.get(key, _UNLIMITED).nominal.nanos
        members = self._children.get(node.name, ()) if self._is_cohort(node) else ()
        return own + sum(self._quota(member, key) - self._kept(member, key) for member in members)

    def _kept(self, node: QuotaNode, key: FlavorResource) -> int:
        """The part of the quota that the node does not lend."""
        lending = node.limits.get(key, _UNLIMITED).lending
        return 0 if lending is None else max(0, self._quota(node, key) - lending.nanos)

    def _used(self, node: QuotaNode, key: FlavorResource) -> int:
        """The usage of a node. For a cohort, the usage of its members beyond the quota that they do not lend."""
        if not self._is_cohort(node):
            return node.used.get(key, _ZERO).nanos
        return sum(
            max(0, self._used(member, key) - self._kept(member, key)) for member in self._children.get(node.name, ())
        )


@dataclass(frozen=True)
class QueueAdmission:
    """Judges workloads in their order. The quota of an admitted workload is in use for later workloads."""

    kueue: Kueue
    cluster: Cluster
    features: Features

    def verdicts(self, workloads: Iterable[tuple[str, str, Sequence[Demand]]]) -> Iterator[QueueVerdict]:
        """The verdict on each workload: its name, its queue, and the demands of its pods."""
        kueue = self.kueue
        for name, queue, demands in workloads:
            verdict, kueue = self._verdict(name, queue, demands, kueue)
            yield verdict

    def _verdict(self, name: str, queue: str, demands: Sequence[Demand], kueue: Kueue) -> tuple[QueueVerdict, Kueue]:
        namespace = demands[0].pod.namespace or "default"
        verdict = QueueVerdict(name, queue)
        if kueue.mappings is None and any(demand.claims for demand in demands):
            return replace(verdict, reasons=("Kueue's configuration is not known",), is_known=False), kueue
        if (namespace, queue) not in kueue.local:
            known = not kueue.unknown
            return replace(verdict, reasons=(f"there is no LocalQueue {namespace}/{queue}",), is_known=known), kueue
        cluster_queue, is_stopped = kueue.local[namespace, queue]
        verdict = replace(verdict, cluster_queue=cluster_queue)
        node = kueue.queues.get(cluster_queue)
        if node is None:
            return replace(verdict, reasons=(f"there is no ClusterQueue {cluster_queue}",)), kueue
        if is_stopped or node.stopped:
            return replace(verdict, reasons=("the queue is stopped (stopPolicy)",)), kueue
        try:
            pods = [(demand, _pod(demand)) for demand in demands if demand.submitted is not None]
            charges = tuple(Accountant(kueue, self.cluster, self.features).charges(pods))
        except (NotAdmittedError, DecodeError) as error:
            return replace(verdict, reasons=(str(error),)), kueue
        covered = {resource for group in node.groups for resource in group.resources}
        charges = tuple(charge for charge in charges if charge.resource != "pods" or "pods" in covered)
        verdict = _assigned(replace(verdict, charges=charges), node, [pod for _, pod in pods], kueue)
        if not verdict.admits:
            return verdict, kueue
        used = dict(node.used)
        for resource, amount in _sums(charges).items():
            key = verdict.flavors[resource], resource
            used[key] = used.get(key, _ZERO) + amount
        return verdict, replace(kueue, queues={**kueue.queues, node.name: replace(node, used=used)})


def _pod(demand: Demand) -> Pod:
    """The pod of a demand. Raises DecodeError."""
    return PodDecoder().decode(demand.submitted or {})


def _sums(charges: Iterable[QueueCharge]) -> dict[str, Quantity]:
    found: dict[str, Quantity] = {}
    for charge in charges:
        found[charge.resource] = found.get(charge.resource, _ZERO) + charge.amount
    return found


def _assigned(verdict: QueueVerdict, node: QuotaNode, pods: Sequence[Pod], kueue: Kueue) -> QueueVerdict:
    """The verdict with the flavors, or with the reasons why there is no quota."""
    wanted = _sums(verdict.charges)
    covered = {resource for group in node.groups for resource in group.resources}
    reasons = [f"ClusterQueue {node.name} does not cover {name}" for name in wanted if name not in covered]
    flavors: dict[str, str] = {}
    tree = QuotaTree(kueue)
    for group in node.groups:
        amounts = {name: amount for name, amount in wanted.items() if name in group.resources}
        if not amounts:
            continue
        refused = []
        for name in group.flavors:
            problems = [*_unsuitable(name, kueue.flavors.get(name), pods), *_lacking(tree, node, name, amounts)]
            if not problems:
                flavors.update(dict.fromkeys(amounts, name))
                break
            refused += problems
        else:
            reasons += refused or [f"ClusterQueue {node.name} has no flavor for {', '.join(amounts)}"]
    notes = []
    if reasons and node.preempts:
        notes.append(f"ClusterQueue {node.name} may preempt other workloads, which is not evaluated")
    return replace(verdict, flavors=flavors if not reasons else {}, reasons=tuple(reasons), notes=tuple(notes))


def _lacking(tree: QuotaTree, node: QuotaNode, flavor: str, amounts: Mapping[str, Quantity]) -> Iterator[str]:
    """What a flavor lacks of the amounts."""
    for resource, amount in amounts.items():
        left = tree.available(node, (flavor, resource))
        if amount.nanos > left:
            limits = node.limits.get((flavor, resource), _UNLIMITED)
            free = Quantity(max(0, left), limits.nominal.format)
            text = f"flavor {flavor}: {resource} needs {amount}, and {free} of {limits.nominal} is free"
            yield f"{text}, with what cohort {node.parent} lends" if node.parent else text


def _unsuitable(name: str, flavor: FlavorFacts | None, pods: Iterable[Pod]) -> Iterator[str]:
    """Why pods do not suit a flavor: other labels of nodes, or taints."""
    if flavor is None:
        yield f"flavor {name}: there is no ResourceFlavor of this name"
        return
    for pod in pods:
        for key, value in pod.node_selector.items():
            if key in flavor.labels and flavor.labels[key] != value:
                yield f"flavor {name}: its nodes have {key}={flavor.labels[key]}, and the pod wants {value}"
                return
        given = (*pod.tolerations, *map(_toleration, flavor.tolerations))
        for entry in flavor.taints:
            taint = DeviceTaint(str(entry.get("key")), str(entry.get("effect")), str(entry.get("value") or ""))
            if taint.effect in _BLOCKING and not any(tolerates(toleration, taint) for toleration in given):
                yield f"flavor {name}: its nodes have the taint {taint.key}, which the pod does not tolerate"
                return


def _toleration(value: Mapping[str, Any]) -> DeviceToleration:
    return DeviceToleration(
        str(value.get("key") or ""),
        str(value.get("operator") or "Equal"),
        str(value.get("value") or ""),
        str(value.get("effect") or ""),
    )


def queue_names(documents: Iterable[Document]) -> dict[str, str]:
    """The name of the LocalQueue of each workload that is in one, by kind and name of the workload as demands have it.

    The label is that of the workload, or of the pods that it makes.
    """
    found = {}
    for document in documents:
        places = (document.value, within(document.value, "spec", "template"))
        labels = (within(place, "metadata", "labels").get(QUEUE_LABEL) for place in places)
        queue = next((label for label in labels if isinstance(label, str)), "")
        if queue:
            found[f"{document.kind} {document.name}"] = queue
    return found


def in_queues(demands: Iterable[Demand], queues: Mapping[str, str]) -> Iterator[tuple[str, str, list[Demand]]]:
    """The workloads among the demands that are in a queue: name, queue, and the demands of all their pods."""
    found: dict[str, list[Demand]] = {}
    for demand in demands:
        name = demand.name.partition(",")[0]
        if name in queues:
            found.setdefault(name, []).append(demand)
    return ((name, queues[name], of_workload) for name, of_workload in found.items())
