# SPDX-License-Identifier: Apache-2.0
"""Trials: the answers of the nodes of a cluster to a demand, without a change or with one.

A `ClaimTrial` asks the allocator about claims alone, and a `PodTrial` asks all filters of the scheduler about a pod.
Verdicts (`evaluate`), refusals (`refusals`), suggestions (`changes`) and defects (`defects`) are made from trials, and
treat both in the same way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Protocol

from ..errors import NodeSelectorError
from ..kube.resource import Node, ResourceClaim
from ..kube.resource.meta import empty
from ..scheduler.allocator import Cluster, ErrorKind, Features, Group, NodeOutcome, Outcomes, allocate, allocate_all
from ..scheduler.allocator.nodes import is_at
from ..scheduler.pods import Attempt, Pod, Site, Snapshot
from ..scheduler.pods.devices import PLUGIN as DEVICES
from .extended import extended_claims, is_of_driver, unserved
from .selection import OpenLabels, Requirements, opened, possible_domains, sorted_by_needs
from .workload import Demand

MOST_SITES = 20
"""The number of nodes on which a changed pod is tried. The nodes on which it is most likely to help are first."""


class Trial(Protocol):
    """What the nodes answer to a demand."""

    @property
    def cluster(self) -> Cluster:
        """The cluster before the demand is placed."""

    @property
    def features(self) -> Features:
        """The rules of the scheduler."""

    @property
    def needs(self) -> Mapping[str, Requirements]:
        """What has to be assumed of the labels of nodes."""

    @property
    def unserved(self) -> tuple[str, ...]:
        """Extended resources of the driver that nothing serves."""

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Extended resources of device plugins, of which simulated nodes are taken to have enough."""

    @property
    def node(self) -> str | None:
        """The first node that accepts the demand; None if there is none."""

    @property
    def fitting(self) -> tuple[str, ...]:
        """The nodes that accept the demand and on which it starts. Nodes of which nothing has to be assumed are first.

        Empty if an error ends the scheduling of the pod.
        """

    @property
    def binding_errors(self) -> Mapping[str, str]:
        """The nodes that accept the demand, but to which it cannot be bound, and why."""

    @property
    def without_devices(self) -> "ClaimTrial":
        """The claims on the nodes that lack devices for them and nothing else."""

    def allocated(self, node: str) -> list[ResourceClaim]:
        """The claims with the devices that a node gives to the demand, which fits there."""

    def decided_by_devices(self, node: str) -> "tuple[ClaimTrial, Outcomes] | None":
        """The claims alone, and all answers of the allocator, if devices decide on every node; else None."""


@dataclass(frozen=True, eq=False)
class ClaimTrial:
    """Claims to allocate, all without an allocation, and the nodes on which they may be.

    The pod cannot be on the nodes that `away` names with the reasons. They are no nodes of the cluster of this trial:
    neither an answer nor a change that would help may come from them.
    """

    cluster: Cluster
    claims: Sequence[ResourceClaim]
    features: Features
    away: Mapping[str, str] = field(default_factory=empty)
    needs: Mapping[str, Requirements] = field(default_factory=empty)
    unserved: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()

    @cached_property
    def outcomes(self) -> Outcomes:
        """The answer of each node."""
        return allocate_all(self.cluster, self.claims, self.features)

    @property
    def has_invalid_selector(self) -> bool:
        """Whether a selector of the claims or of their classes does not compile. No change is tried then."""
        return any(group.outcome.error_kind is ErrorKind.CEL_COMPILE for group in self.outcomes.groups)

    @property
    def fitting_groups(self) -> Sequence[Group]:
        """The nodes that accept the claims, grouped by equal answers."""
        groups = self.outcomes.groups
        fatal = any(group.outcome.fatal for group in groups)
        return [] if fatal else [group for group in groups if group.outcome.kind == "allocated"]

    @property
    def fitting(self) -> tuple[str, ...]:
        """The nodes that accept the claims."""
        names = {name for group in self.fitting_groups for name in group.nodes}
        return sorted_by_needs((node.name for node in self.cluster.nodes if node.name in names), self.needs)

    @property
    def node(self) -> str | None:
        """The first node that accepts the claims."""
        return next((group.nodes[0] for group in self.outcomes.groups if group.outcome.kind == "allocated"), None)

    @property
    def binding_errors(self) -> Mapping[str, str]:
        """Claims are not bound to nodes."""
        return {}

    @property
    def without_devices(self) -> "ClaimTrial":
        """The trial itself: nodes that lack anything else are `away`."""
        return self

    def allocated(self, node: str) -> list[ResourceClaim]:
        """The claims with the devices of the node."""
        return self.allocated_by(self.outcomes[node])

    def allocated_by(self, outcome: NodeOutcome) -> list[ResourceClaim]:
        """The claims with the devices of an answer."""
        pairs = zip(self.claims, outcome.allocations, strict=True)
        return [replace(claim, allocation=allocation) for claim, allocation in pairs]

    def decided_by_devices(self, node: str) -> "tuple[ClaimTrial, Outcomes] | None":  # of any node
        """Devices alone decide."""
        return self, self.outcomes

    def only_on(self, node: str) -> NodeOutcome:
        """The answer of one node, without that of the others."""
        return allocate(self.cluster, self.claims, node, self.features)

    def instead(self, index: int, claim: ResourceClaim) -> "ClaimTrial":
        """The trial with another claim in place of the one with this index."""
        return replace(self, claims=[*self.claims[:index], claim, *self.claims[index + 1 :]])

    def released(self, claims: Collection[ResourceClaim]) -> "ClaimTrial":
        """The trial after claims of the cluster are gone."""
        return replace(self, cluster=self.cluster.after(released=claims))


@dataclass(frozen=True, eq=False)
class PodTrial:
    """A pod on the nodes of a snapshot, or only on `sites`, which may be changed nodes."""

    attempt: Attempt
    needs: Mapping[str, Requirements] = field(default_factory=empty)
    sites: Sequence[Site] | None = None
    unserved: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    daemon_node: str = ""
    """The node of a pod of a DaemonSet. Of its refusals, only that of this node counts."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of the snapshot."""
        return self.attempt.snapshot.cluster

    @property
    def features(self) -> Features:
        """The rules of the attempt."""
        return self.attempt.features

    @property
    def waits(self) -> str:
        """Why no node is asked: scheduling gates, a refusal before any node, or no nodes. Empty if nodes are asked."""
        attempt = self.attempt
        waiting = attempt.gates or ((attempt.refusal,) if attempt.refusal is not None else ())
        if waiting or not attempt.snapshot.sites:
            return "; ".join(refusal.message for refusal in waiting) or attempt.fit_error
        return ""

    @property
    def node(self) -> str | None:
        """The first node whose filters accept the pod."""
        if self.attempt.refusal is not None:
            return None
        sites = self.attempt.snapshot.sites.values() if self.sites is None else self.sites
        return next((site.node.name for site in sites if self.attempt.refuses(site) is None), None)

    @property
    def event(self) -> str:
        """The message of the scheduler's Event."""
        return "" if self.attempt.gates else self.attempt.event

    @cached_property
    def accepting(self) -> tuple[str, ...]:
        """The nodes whose filters accept the pod. Empty if an error ends the attempt."""
        if self.waits or self.attempt.errors:
            return ()
        accepting = (name for name, refusal in self.attempt.refusals.items() if refusal is None)
        return sorted_by_needs(accepting, self.needs)

    @cached_property
    def binding_errors(self) -> Mapping[str, str]:
        """The nodes whose filters accept the pod, but to which it cannot be bound, and why."""
        return {name: error for name in self.accepting if (error := self.attempt.binding_error(name))}

    @property
    def fitting(self) -> tuple[str, ...]:
        """The nodes that accept the pod, and to which it can be bound."""
        return tuple(name for name in self.accepting if name not in self.binding_errors)

    def allocated(self, node: str) -> list[ResourceClaim]:
        """The claims that are allocated for the pod on a node."""
        return self.attempt.allocated(node)

    def decided_by_devices(self, node: str) -> tuple[ClaimTrial, Outcomes] | None:
        """The claims alone, if all nodes accept the pod."""
        decided = self.attempt.devices.decided(self.attempt.snapshot.sites[node])
        if decided is None or self.binding_errors or len(self.accepting) < len(self.attempt.snapshot.sites):
            return None
        pending, outcomes = decided
        return ClaimTrial(self.cluster, pending, self.features), outcomes

    @cached_property
    def without_devices(self) -> ClaimTrial:
        """The claims on the nodes that lack devices for them and nothing else.

        Nodes whose device plugins serve a part of the pod's resources are left out.
        """
        attempt = self.attempt
        lacking = {site.node.name: attempt.devices.decided(site) for site in self.refused_by(DEVICES)}
        first = next((decided for decided in lacking.values() if decided is not None), None)
        nodes = tuple(node for node in self.cluster.nodes if first is not None and lacking.get(node.name) is first)
        claims = () if first is None else first[0]
        return ClaimTrial(replace(self.cluster, nodes=nodes), claims, self.features)

    def refused_by(self, plugin: str) -> Iterator[Site]:
        """The nodes that refuse the pod by a filter of the scheduler."""
        for name, refusal in self.attempt.refusals.items():
            if refusal is not None and refusal.plugin == plugin:
                yield self.attempt.snapshot.sites[name]

    def changed(self, attempt: Attempt, sites: Iterable[Site]) -> "PodTrial":
        """The trial of a changed pod on the first of these nodes."""
        return replace(self, attempt=attempt, sites=tuple(sites)[:MOST_SITES])


def claim_trial(  # all that decides about claims
    demand: Demand,
    pod: Pod | None,
    claims: Sequence[ResourceClaim],
    cluster: Cluster,
    features: Features,
    labels: OpenLabels,
) -> ClaimTrial:
    """The trial of a demand's claims that are not allocated, and of its extended resources. `pod` is its pod, or None
    for a claim by itself.
    """
    pending = [claim for claim in claims if claim.allocation is None]
    pending += extended_claims(demand, cluster.classes, features)
    missing = unserved(demand, cluster.classes, features)
    away: dict[str, str] = {}
    needs: dict[str, Requirements] = {}
    for node in cluster.nodes:
        wanted = () if pod is None else labels.needs(pod, node)
        offered = [resource for resource in missing if is_of_driver(resource) or node.name not in labels.nodes]
        reason = _kept_away(node, demand, claims)
        if pod is not None and wanted is None:
            reason = reason or _not_selected(pod, node, labels)
        if reason := reason or _not_offered(node, offered):
            away[node.name] = reason
        elif wanted:
            needs[node.name] = wanted
    if away:
        cluster = replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name not in away))
    return ClaimTrial(
        cluster,
        pending,
        features,
        away,
        needs,
        unserved=tuple(resource for resource in missing if is_of_driver(resource)),
        not_judged=tuple(resource for resource in missing if not is_of_driver(resource)),
    )


def pod_trial(  # all that decides about a pod
    pod: Pod,
    claims: Sequence[ResourceClaim],
    snapshot: Snapshot,
    features: Features,
    labels: OpenLabels,
    daemon_node: str = "",
) -> PodTrial:
    """The trial of a pod with these claims. If no node accepts it, values of unknown topology keys are assumed."""
    first: PodTrial | None = None
    for domains in chain(((),), possible_domains(pod, snapshot, labels)):
        there = opened(pod, snapshot, labels, domains)
        attempt = Attempt(pod, there.snapshot, features, claims)
        trial = PodTrial(
            attempt,
            there.needs,
            unserved=_unserved(attempt),
            not_judged=there.not_judged,
            daemon_node=daemon_node,
        )
        first = first or trial
        if trial.fitting:
            return trial
    assert first is not None
    return first


def _unserved(attempt: Attempt) -> tuple[str, ...]:
    """The resources of the driver that neither a DeviceClass nor a device plugin serves."""
    snapshot = attempt.snapshot
    offered = {name for node in snapshot.nodes for name, amount in node.allocatable.items() if amount}
    of_driver = (name for name in attempt.pod.amounts if is_of_driver(name))
    return tuple(name for name in of_driver if name not in snapshot.served and name not in offered)


def _kept_away(node: Node, demand: Demand, claims: Iterable[ResourceClaim]) -> str:
    """Why the pod cannot go to the node: its node name, or a claim with devices elsewhere. Else empty."""
    for claim in claims:
        selector = claim.allocation.node_selector if claim.allocation is not None else None
        try:
            if selector is not None and not is_at(selector, node):
                return f"claim {claim.metadata} is allocated, and its devices are not available there"
        except NodeSelectorError as error:
            return f"claim {claim.metadata} is allocated with a node selector that cannot be used: {error}"
    if demand.node_name and demand.node_name != node.name:
        return f"the pod is bound to node {demand.node_name}"
    for request in demand.extended:
        if request.resource in node.plugin_resources:
            return f"a device plugin offers {request.resource} there, which is not evaluated"
    return ""


def _not_selected(pod: Pod, node: Node, labels: OpenLabels) -> str:
    """Why the pod's node selector and node affinity do not match the node."""
    if pod.node_affinity is not None and labels.needs(replace(pod, node_affinity=None), node) is not None:
        return "the pod's node affinity does not match it"
    wrong = {key: value for key, value in pod.node_selector.items() if node.metadata.labels.get(key) != value}
    for key, value in wrong.items():
        if key in node.metadata.labels:
            return f"the pod's nodeSelector wants {key}={value}"
    if labels.assumed.get(node.name):
        selector = " and ".join(f"{key}={value}" for key, value in wrong.items())
        return f"the pod's nodeSelector wants {selector}, and pods that are placed there need other labels"
    return "".join(f"the pod's nodeSelector wants {key}={value}" for key, value in list(wrong.items())[:1])


def _not_offered(node: Node, resources: Iterable[str]) -> str:
    """Why the node does not offer all of these extended resources, which no DeviceClass serves. Empty if it does."""
    missing = [resource for resource in resources if resource not in node.plugin_resources]
    return f"no DeviceClass and no device plugin offers {' and '.join(missing)}" if missing else ""
