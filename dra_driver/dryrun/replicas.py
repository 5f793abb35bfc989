# SPDX-License-Identifier: Apache-2.0
"""How many copies of a demand fit, one after the other, and where they go.

Each copy gets claims of its own, and goes to the first node that has what it needs. A node that has no room for a copy
has none for the following copies. If nodes share no pool, nodes that are alike take the same number, so that only one
of each kind is filled. Copies of a whole pod are placed by all rules of the scheduler, until no node takes one or a
quota refuses it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..allocation import Cluster, Features, allocate, allocate_all
from ..command import InputError
from ..resource import ResourceClaim
from ..resource.codec import Decoded
from ..scheduling import Attempt, Pod, Snapshot
from .admission import Admission
from .evaluate import evaluate
from .wholepod import given_claims, held_claims
from .workload import Demand, extended_claims
from .world import World

MOST_COPIES: Final = 10_000
"""The largest number of copies that are counted."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The number of copies on each node, in the order of the nodes. `more`: more would fit than were counted."""

    by_node: Mapping[str, int] = field(default_factory=dict)
    more: bool = False

    @property
    def count(self) -> int:
        return sum(self.by_node.values())


def only(demands: Sequence[Demand]) -> Demand:
    """The demand to copy. The pods of one workload are one demand. Raises InputError if there are several."""
    first = demands[0]
    for other in demands[1:]:
        if _wants(other) != _wants(first):
            raise InputError(
                f"--replicas counts copies of one pod, template or claim, and there are {first.name} and {other.name}"
            )
    return first


def fitting_nodes(demand: Demand, objects: Sequence[Decoded], features: Features) -> Sequence[str]:
    """The nodes on which the demand fits, in their order."""
    cluster = Cluster.of(objects)
    outcomes = allocate_all(cluster, pending_claims(demand, cluster, features), features)
    if all(group.outcome.kind != "allocated" for group in outcomes.groups):
        return ()  # there is no need to know why
    return evaluate([demand], objects, features)[0].fitting


def count_copies(
    demand: Demand, objects: Sequence[Decoded], fitting: Sequence[str], features: Features, most: int = MOST_COPIES
) -> Copies:
    """Up to `most` copies of `demand`, which by itself fits on the nodes `fitting`."""
    cluster = Cluster.of(objects)
    claims = pending_claims(demand, cluster, features)
    if not fitting:
        return Copies()
    if not separate(cluster):
        return _fill_together(cluster, claims, fitting, features, most)
    alike = {name: group.nodes[0] for group in allocate_all(cluster, claims, features).groups for name in group.nodes}
    pieces = parts(cluster, {alike[name] for name in fitting})
    room: dict[str, _Room] = {}
    by_node: dict[str, int] = {}
    left = most
    for name in fitting:
        model = alike[name]
        if model not in room:
            room[model] = _fill(pieces[model], claims, model, features, most)
        found = room[model]
        if left == 0:
            return Copies(by_node, more=True)
        by_node[name] = min(left, found.count)
        left -= by_node[name]
        if found.count > by_node[name] or found.more:
            return Copies(by_node, more=True)
    return Copies(by_node)


def pending_claims(demand: Demand, cluster: Cluster, features: Features) -> list[ResourceClaim]:
    """The claims that the scheduler has to allocate for the demand. Raises InputError."""
    claims = [claim for claim in demand.claims if claim.allocation is None]
    return claims + extended_claims(demand, cluster.classes, features)


def _wants(demand: Demand) -> object:
    """The properties that distinguish demands, without their names."""
    requests = [(one.request, one.resource, one.count, one.short_lived) for one in demand.extended]
    spec = demand.submitted["spec"] if demand.submitted is not None else {}
    rest = {name: value for name, value in spec.items() if name != "resourceClaims"}
    return [one.spec for one in demand.claims], requests, rest


@dataclass(frozen=True, slots=True)
class _Room:
    """The copies that a node takes, and the cluster with them."""

    count: int
    more: bool
    cluster: Cluster


def _fill(cluster: Cluster, claims: Sequence[ResourceClaim], node: str, features: Features, most: int) -> _Room:
    """Copies on one node until no more fit, or until there are `most`. Without devices, there is no limit."""
    for count in range(most):
        outcome = allocate(cluster, claims, node, features)
        if outcome.kind != "allocated":
            return _Room(count, False, cluster)
        if all(one.admin_access for given in outcome.allocations for one in given.results):
            return _Room(most, True, cluster)
        taken = [replace(claim, allocation=given) for claim, given in zip(claims, outcome.allocations, strict=True)]
        cluster = cluster.after(taken)
    return _Room(most, allocate(cluster, claims, node, features).kind == "allocated", cluster)


def _fill_together(
    cluster: Cluster, claims: Sequence[ResourceClaim], nodes: Iterable[str], features: Features, most: int
) -> Copies:
    """Copies on nodes that share pools, one node after the other."""
    by_node: dict[str, int] = {}
    more = False
    for name in nodes:
        room = _fill(cluster, claims, name, features, most - sum(by_node.values()))
        cluster, more = room.cluster, room.more
        if room.count:
            by_node[name] = room.count
        if more:
            break
    return Copies(by_node, more)


def separate(cluster: Cluster) -> bool:
    """Whether each pool belongs to one node only."""
    owners: dict[tuple[str, str], str] = {}
    return all(
        one.node_name and owners.setdefault((one.driver, one.pool.name), one.node_name) == one.node_name
        for one in cluster.slices
    )


def parts(cluster: Cluster, names: Iterable[str]) -> dict[str, Cluster]:
    """The part of the cluster that concerns each node, if all pools are separate."""
    owner = {(one.driver, one.pool.name): one.node_name for one in cluster.slices}
    slices, claims = defaultdict(list), defaultdict(list)
    for one in cluster.slices:
        slices[one.node_name].append(one)
    for claim in cluster.claims:
        results = claim.allocation.results if claim.allocation is not None else ()
        for node in {owner.get((one.driver, one.pool)) for one in results}:
            claims[node].append(claim)
    return {
        name: Cluster(tuple(slices[name]), cluster.classes, (cluster.node_by_name[name],), tuple(claims[name]))
        for name in names
    }


def count_pod_copies(demand: Demand, world: World, cluster: Cluster, features: Features, most: int) -> Copies:
    """Up to `most` copies of the pod of a demand, each with claims of its own. Raises InputError."""
    snapshot = world.at(cluster, features)
    admission = Admission(world)
    stored = admission.pod(demand, snapshot)
    claims = held_claims(demand, snapshot.cluster)
    new = [claim for claim in claims if claim.allocation is None]
    if stored.rejects or admission.claims(new, snapshot):
        return Copies()
    own = admission.known(stored.pod)
    if own is not None:
        snapshot = snapshot.without(own, claims)
    each: tuple[Pod | ResourceClaim, ...] = (stored.pod, *new)
    by_node: dict[str, int] = {}
    for count, node in enumerate(_places(stored.pod, claims, snapshot, features)):
        if count == most:
            return Copies(by_node, more=True)
        by_node[node] = by_node.get(node, 0) + 1
        if any(admission.count(one, snapshot) for one in each):  # the next copy
            break
    return Copies(by_node)


def _places(pod: Pod, claims: Sequence[ResourceClaim], snapshot: Snapshot, features: Features) -> Iterator[str]:
    """The node of each copy, until no node accepts one."""
    for piece in _nodes_apart(snapshot) if _is_local(pod, snapshot) else [snapshot]:
        there = piece
        while (node := _first(attempt := Attempt(pod, there, features, claims))) is not None:
            yield node
            there = there.placed(pod, node, there.cluster.after(given_claims(attempt, node)))


def _first(attempt: Attempt) -> str | None:
    if attempt.gates or attempt.refusal is not None:
        return None
    sites = attempt.snapshot.sites
    node = next((name for name, site in sites.items() if attempt.refuses(site) is None), None)
    return None if node is None or attempt.binding_error(node) else node


def _is_local(pod: Pod, snapshot: Snapshot) -> bool:
    """Whether pods on one node never matter on another node."""
    beyond = pod.spread or pod.affinity or pod.anti_affinity or pod.volumes or snapshot.with_anti_affinity
    return not beyond and separate(snapshot.cluster)


def _nodes_apart(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Each node as if it were the only one."""
    pieces = parts(snapshot.cluster, snapshot.sites)
    for name, site in snapshot.sites.items():
        pods = (*site.pods, *snapshot.nominated.get(name, ()))
        yield replace(snapshot, cluster=pieces[name], nodes=(site.node,), pods=pods)
