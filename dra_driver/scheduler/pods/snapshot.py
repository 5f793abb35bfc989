# SPDX-License-Identifier: Apache-2.0
"""A cluster at one moment, as the scheduler sees it, prepared once for any number of pods.

Pods that have ended, pods on nodes that do not exist, and pending pods without a nominated node use nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...kube.resource import Device, DeviceClass, ResourceClaim
from ...kube.resource.meta import empty
from ..allocator import Cluster
from .objects import Amounts, ClusterNode, DisruptionBudget, HostPort, Pod, served
from .storage import PersistentVolume, StorageCapacity, StorageClass, VolumeClaim

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Storage:
    """Volumes and what belongs to them, by name; claims by namespace and name."""

    volumes: Mapping[str, PersistentVolume] = field(default_factory=empty)
    claims: Mapping[tuple[str, str], VolumeClaim] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=empty)
    attach_limits: Mapping[str, Mapping[str, int]] = field(default_factory=empty)
    """How many volumes of each driver may be attached, by the node's name."""
    tracks_capacity: Mapping[str, bool] = field(default_factory=empty)
    """Whether a CSI driver reports its capacity, by the driver's name."""
    capacities: Sequence[StorageCapacity] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """A node and the pods on it, as they are or with some pods removed or added to evaluate a change.

    `used` is what the pods request. `changes` are the pods that were removed (-1) or added (1).
    """

    node: ClusterNode
    pods: tuple[Pod, ...]
    used: Amounts
    changes: tuple[tuple[Pod, int], ...] = ()
    ports: frozenset[HostPort] = frozenset()
    """Host ports in use. As in 1.36, a port that two pods use is free when one of the pods is removed."""

    def without(self, pods: Sequence[Pod]) -> "Site":
        """The site without these pods."""
        left = {id(pod) for pod in pods}
        return Site(
            self.node,
            tuple(pod for pod in self.pods if id(pod) not in left),
            self._used(pods, -1),
            (*self.changes, *((pod, -1) for pod in pods)),
            self.ports.difference(*(pod.host_ports for pod in pods)),
        )

    def with_pods(self, pods: Sequence[Pod]) -> "Site":
        """The site with these pods on it as well."""
        return Site(
            self.node,
            (*self.pods, *pods),
            self._used(pods, 1),
            (*self.changes, *((pod, 1) for pod in pods)),
            self.ports.union(*(pod.host_ports for pod in pods)),
        )

    def _used(self, pods: Iterable[Pod], times: int) -> Amounts:
        used = dict(self.used)
        for pod in pods:
            for name, amount in pod.amounts.items():
                used[name] = used.get(name, 0) + times * amount
        return used


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All objects that decide on which nodes a pod fits. `cluster` has the devices of the same nodes."""

    cluster: Cluster
    nodes: tuple[ClusterNode, ...] = ()
    pods: tuple[Pod, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=empty)
    """Labels of the namespaces that have any besides their name."""
    storage: Storage = Storage()
    budgets: tuple[DisruptionBudget, ...] = ()
    extended_resources: bool = True
    """Whether DeviceClasses serve extended resources (feature gate DRAExtendedResource)."""

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """Every node with its pods, by the node's name."""
        on: dict[str, list[Pod]] = {node.name: [] for node in self.nodes}
        for pod in self.pods:
            if pod.node_name in on and not pod.ended:
                on[pod.node_name].append(pod)
        return {node.name: _site(node, on[node.name]) for node in self.nodes}

    @cached_property
    def served(self) -> Mapping[str, DeviceClass]:
        """The DeviceClass that serves each extended resource."""
        return served(self.cluster.classes) if self.extended_resources else {}

    @cached_property
    def taking(self) -> Mapping[tuple[str, str, str], Device]:
        """The devices that take resources of their node, by driver, pool and name."""
        return {
            (slice_.driver, slice_.pool.name, device.name): device
            for slice_ in self.cluster.slices
            for device in slice_.devices
            if device.node_allocatable_resources
        }

    @cached_property
    def nominated(self) -> Mapping[str, Sequence[Pod]]:
        """Pending pods by the node that preemption has chosen for them."""
        by_node: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods:
            if pod.nominated_node and not pod.node_name and not pod.ended:
                by_node[pod.nominated_node].append(pod)
        return by_node

    @cached_property
    def with_anti_affinity(self) -> Sequence[tuple[ClusterNode, Pod]]:
        """The running pods with required anti-affinity, and their nodes."""
        return [(site.node, pod) for site in self.sites.values() for pod in site.pods if pod.anti_affinity]

    @cached_property
    def volumes_in_use(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the volume claims that running pods use."""
        return frozenset(
            (pod.namespace, volume.claim)
            for site in self.sites.values()
            for pod in site.pods
            for volume in pod.volumes
            if not volume.ephemeral
        )

    @cached_property
    def all_namespaces(self) -> frozenset[str]:
        """The known namespaces and the namespaces of all pods."""
        return frozenset((*self.namespaces, *(pod.namespace for pod in self.pods)))

    def placed(self, pod: Pod, node: str, cluster: Cluster) -> "Snapshot":
        """The snapshot with the pod on the node; `cluster` has what its claims hold then."""
        there = replace(pod, node_name=node, phase="Running")
        after = replace(self, cluster=cluster, pods=(*self.pods, there))
        site = self.sites[node]
        avoiding = [(site.node, there)] if there.anti_affinity else []
        after.__dict__.update(
            sites={**self.sites, node: _site(site.node, [*site.pods, there])},
            nominated=self.nominated,
            with_anti_affinity=[*self.with_anti_affinity, *avoiding],
        )
        return after

    def without(self, pod: Pod, keeping: Collection[ResourceClaim] = ()) -> "Snapshot":
        """The snapshot without one of its pods and without the claims that were made for it, except `keeping`."""
        kept = set(map(id, keeping))
        made = [
            claim
            for claim in self.cluster.claims
            if id(claim) not in kept
            and any(owner.controller and owner.uid == pod.uid for owner in claim.metadata.owner_references)
        ]
        cluster = self.cluster.after(released=made)
        after = replace(self, cluster=cluster, pods=tuple(other for other in self.pods if other is not pod))
        if not (pod.node_name or pod.nominated_node):
            self._pass_on(after)
        return after

    def with_cluster(self, cluster: Cluster) -> "Snapshot":
        """The snapshot with other claims: `cluster` has the same nodes."""
        after = replace(self, cluster=cluster)
        self._pass_on(after)
        return after

    def _pass_on(self, other: "Snapshot") -> None:
        """Passes the computed indexes to another snapshot, which has the same pods on and for the nodes."""
        other.__dict__.update(sites=self.sites, nominated=self.nominated, with_anti_affinity=self.with_anti_affinity)

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace. An unknown namespace has only the label with its name."""
        return {**self.namespaces.get(namespace, {}), NAMESPACE_LABEL: namespace}


def _site(node: ClusterNode, pods: Sequence[Pod]) -> Site:
    return replace(Site(node, (), {}).with_pods(pods), changes=())
