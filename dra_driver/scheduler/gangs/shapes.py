# SPDX-License-Identifier: Apache-2.0
"""Which pods of a gang, and which nodes, are interchangeable.

Two pods have one shape if they ask for the same and every node answers them equally. Two nodes have one kind if they
answer every number of pods of these shapes equally: the filters refuse them for the same reasons, they have the same
amounts of resources, and their devices are equivalent (`allocator.equivalence`). This holds only for gangs whose pods
on one node never matter on another node (`is_local`).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...kube.resource import ObjectMeta, ResourceClaim
from ..allocator import Features, equivalent_nodes, separate
from ..pods import Attempt, Pod, Site, Snapshot
from ..pods.objects import claim_for
from .objects import ClaimKey, GangMember, claim_key, sharing

_COUNTED: Final = frozenset({"cpu", "memory", "pods"})
"""Resources by which the scheduler prefers nodes, besides those that pods request."""


def is_local(members: Iterable[GangMember], snapshot: Snapshot) -> bool:
    """Whether pods on one node never matter on another node, and no two nodes share devices."""
    pods = [member.pod for member in members]
    beyond = any(pod.spread or pod.affinity or pod.anti_affinity or pod.volumes for pod in pods)
    return not beyond and not snapshot.with_anti_affinity and separate(snapshot.cluster)


def alone(pod: Pod) -> Pod:
    """The pod without what other nodes decide: affinity, spread constraints and volumes. It fits wherever the pod does.

    Anti-affinity stays: pods on other nodes can only add refusals to it.
    """
    return replace(pod, affinity=(), spread=(), volumes=())


class _Keys:
    """Describes what a pod asks for, as values that are equal for interchangeable pods."""

    def __init__(self) -> None:
        self._specs: dict[int, str] = {}

    def of(self, member: GangMember, shared: Mapping[ClaimKey, Hashable]) -> Hashable:
        """The key of a member. `shared` are the claims that other pods use, too, with what stands for each."""
        pod = member.pod
        fields = (
            *(pod.namespace, pod.node_name, pod.amounts, pod.pod_level, pod.tolerations, pod.node_selector),
            *(pod.node_affinity, pod.host_ports, pod.disks, pod.extended, pod.features, pod.priority),
            *([claim.containers for claim in pod.claims], pod.extended_claim),
            *(pod.affinity, pod.anti_affinity, pod.spread, pod.volumes),
            pod.labels if pod.affinity or pod.anti_affinity or pod.spread else None,
        )
        return repr(fields), tuple(self._claim(claim, shared) for claim in member.claims)

    def _claim(self, claim: ResourceClaim, shared: Mapping[ClaimKey, Hashable]) -> Hashable:
        key = claim_key(claim)
        if claim.allocation is not None:
            return key
        if id(claim.spec) not in self._specs:  # members keep their claims alive
            self._specs[id(claim.spec)] = repr(claim.spec)
        return self._specs[id(claim.spec)], shared.get(key)


class Shapes:
    """The shapes of the members of a gang. Members with equal numbers are interchangeable."""

    def __init__(self, members: Sequence[GangMember]) -> None:
        keys, numbers = _Keys(), dict[Hashable, int]()
        shared = {key: key for key in sharing(members)}
        self.of = [numbers.setdefault(keys.of(member, shared), len(numbers)) for member in members]
        """The shape of each member."""
        self.examples = [members[self.of.index(number)] for number in range(len(numbers))]
        """The first member of each shape."""


Unit = tuple[GangMember, ...]
"""Pods that must be on one node, because they share claims."""


def units_by_shape(units: Iterable[Unit]) -> list[list[Unit]]:
    """The units in lists. The units of a list are interchangeable."""
    keys = _Keys()
    found: dict[Hashable, list[Unit]] = {}
    for unit in units:
        shared = {key: number for number, key in enumerate(sharing(unit))}
        found.setdefault(tuple(keys.of(member, shared) for member in unit), []).append(unit)
    return list(found.values())


def node_kinds(
    shapes: Sequence[GangMember], snapshot: Snapshot, features: Features, names: Iterable[str] | None = None
) -> list[list[str]]:
    """The nodes (of `names`, or all) by their kind, each list and the kinds sorted by the names of the nodes."""
    attempts = [Attempt(alone(member.pod), snapshot, features, member.claims) for member in shapes]
    wanted = _resources(attempts)
    apart = sorted({term.topology_key for member in shapes for term in member.pod.anti_affinity})
    devices = {
        name: number
        for number, group in enumerate(equivalent_nodes(snapshot.cluster, _claims(shapes, snapshot), features))
        for name in group
    }
    kinds: dict[Hashable, list[str]] = {}
    for name in sorted(snapshot.sites if names is None else names):
        site = snapshot.sites[name]
        key = (
            devices[name],
            _amounts(site, wanted),
            tuple(attempt.refusal or attempt.refusals[name] for attempt in attempts),
            tuple(key in site.node.labels for key in apart),
            name if _is_special(site, snapshot, attempts) else "",
        )
        kinds.setdefault(key, []).append(name)
    return list(kinds.values())


def _claims(shapes: Iterable[GangMember], snapshot: Snapshot) -> list[ResourceClaim]:
    """What the shapes may want of devices: their claims, and those for extended resources."""
    found = [claim for member in shapes for claim in member.claims if claim.allocation is None]
    for member in shapes:
        served = [request for request in member.pod.extended if request.resource in snapshot.served]
        if served:
            found.append(claim_for(served, ObjectMeta(namespace=member.pod.namespace), snapshot.served))
    return found


def _resources(attempts: Iterable[Attempt]) -> frozenset[str] | None:
    """The resources that decide. None: all of them, because devices take resources of their nodes."""
    names = set(_COUNTED)
    for attempt in attempts:
        if attempt.features.node_allocatable_resources and attempt.snapshot.taking:
            return None
        names.update(attempt.pod.amounts, (request.resource for request in attempt.pod.extended))
    return frozenset(names)


def _amounts(site: Site, wanted: frozenset[str] | None) -> Hashable:
    allocatable, used = site.node.allocatable, site.used
    names = sorted(allocatable if wanted is None else wanted)
    return tuple((allocatable.get(name, 0), used.get(name, 0)) for name in names), len(site.pods)


def _is_special(site: Site, snapshot: Snapshot, attempts: Iterable[Attempt]) -> bool:
    """Whether the node has something that is not compared, and so is equal to no other node."""
    if site.node.name in snapshot.nominated:
        return True
    pods = [attempt.pod for attempt in attempts]
    return any((pod.host_ports and site.ports) or pod.disks or pod.node_name for pod in pods)
