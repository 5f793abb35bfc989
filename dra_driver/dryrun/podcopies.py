# SPDX-License-Identifier: Apache-2.0
"""How many copies of a whole pod fit: each goes to the first node that takes it, until none does or a quota refuses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..allocation import Cluster, Features
from ..resource import ResourceClaim
from ..scheduling import Attempt, Pod, Snapshot
from .admission import Admission
from .replicas import Copies, parts, separate
from .wholepod import given_claims, held_claims
from .workload import Demand
from .world import World


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
    """The node of each copy, as long as there is one."""
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
    """Whether what is on one node never matters on another."""
    beyond = pod.spread or pod.affinity or pod.anti_affinity or pod.volumes or snapshot.with_anti_affinity
    return not beyond and separate(snapshot.cluster)


def _nodes_apart(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Each node as if it were the only one."""
    pieces = parts(snapshot.cluster, snapshot.sites)
    for name, site in snapshot.sites.items():
        pods = (*site.pods, *snapshot.nominated.get(name, ()))
        yield replace(snapshot, cluster=pieces[name], nodes=(site.node,), pods=pods)
