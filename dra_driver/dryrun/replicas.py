# SPDX-License-Identifier: Apache-2.0
"""How many copies of a demand fit, one after the other, and where they go.

Each copy gets claims of its own, and goes to the first node that has what it needs. A node that has no room for a copy
has none for the following copies. If nodes share no pool, nodes that are alike take the same number, so that only one
of each kind is filled. Copies of a whole pod are placed by all rules of the scheduler, until no node takes one or a
quota refuses it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final

from ..kube.resource import ResourceClaim
from ..kube.resource.codec import Decoded
from ..process.command import InputError
from ..scheduler.allocator import Cluster, Features, parts, separate
from ..scheduler.pods import Attempt, Pod, Snapshot
from .admission import Admission, held_claims, valid_pod
from .selection import ALL_KNOWN, OpenLabels, opened
from .trial import ClaimTrial, claim_trial
from .workload import Demand
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
        """The number of copies on all nodes."""
        return sum(self.by_node.values())


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many copies fit `now`, and on an idle cluster. `wanted` is MOST_COPIES for all that fit, and these have to be
    at least as many as the manifest asks for (`asked`).
    """

    wanted: int
    now: Copies
    idle: Copies
    asked: int = 1

    @property
    def fit(self) -> bool:
        """Whether as many copies fit as are wanted."""
        return self.now.count >= (self.asked if self.wanted == MOST_COPIES else self.wanted)


def only(demands: Sequence[Demand]) -> Demand:
    """The demand to copy. The pods of one workload are one demand. Raises InputError if there are several."""
    first = demands[0]
    for other in demands[1:]:
        if _wants(other) != _wants(first):
            raise InputError(
                f"--replicas counts copies of one pod, template or claim, and there are {first.name} and {other.name}"
            )
    return first


def count_copies(
    demand: Demand,
    objects: Sequence[Decoded],
    features: Features,
    most: int = MOST_COPIES,
    labels: OpenLabels = ALL_KNOWN,
) -> Copies:
    """Up to `most` copies of the claims of `demand`. All copies assume the same of labels. Raises InputError."""
    pod, rejects = (None, ()) if demand.submitted is None else valid_pod(demand)
    if rejects:
        return Copies()
    trial = claim_trial(demand, pod, demand.claims, Cluster.of(objects), features, labels)
    return _counted(_places_of_claims(trial), most)


def _counted(places: Iterator[str], most: int) -> Copies:
    """Up to `most` copies, of which `places` gives the nodes."""
    by_node: dict[str, int] = {}
    for count, node in enumerate(places):
        if count == most:
            return Copies(by_node, more=True)
        by_node[node] = by_node.get(node, 0) + 1
    return Copies(by_node)


def _wants(demand: Demand) -> object:
    """The properties that distinguish demands, without their names."""
    requests = [(request.request, request.resource, request.count, request.short_lived) for request in demand.extended]
    spec = demand.submitted["spec"] if demand.submitted is not None else {}
    rest = {name: value for name, value in spec.items() if name != "resourceClaims"}
    return [claim.spec for claim in demand.claims], requests, rest


def _places_of_claims(trial: ClaimTrial) -> Iterator[str]:
    """The node of each copy of the claims, one node after the other. If nothing is used up, this never ends."""
    cluster = trial.cluster
    alike = {name: group.nodes[0] for group in trial.fitting_groups for name in group.nodes}
    pieces = parts(cluster, set(alike.values())) if separate(cluster) else {}
    room: dict[str, int] = {}
    for node in cluster.nodes:
        model = alike.get(node.name)
        if model in room:
            yield from repeat(node.name, room[model])
        elif model is not None and pieces:
            room[model] = 0
            for _ in _filling(replace(trial, cluster=pieces[model]), model):
                room[model] += 1
                yield node.name
        elif model is not None:
            for after in _filling(replace(trial, cluster=cluster), node.name):
                cluster = after
                yield node.name


def _filling(trial: ClaimTrial, node: str) -> Iterator[Cluster]:
    """The cluster with one copy on the node, with two copies, and so on."""
    while (outcome := trial.only_on(node)).kind == "allocated":
        if all(result.admin_access for given in outcome.allocations for result in given.results):
            yield from repeat(trial.cluster)  # such access uses up nothing
        trial = replace(trial, cluster=trial.cluster.after(trial.allocated_by(outcome)))
        yield trial.cluster


def count_pod_copies(
    demand: Demand, world: World, cluster: Cluster, features: Features, most: int, labels: OpenLabels = ALL_KNOWN
) -> Copies:
    """Up to `most` copies of the pod of a demand, each with claims of its own. All copies assume the same of labels.

    Raises InputError.
    """
    snapshot = world.at(cluster, features)
    admission = Admission(world)
    stored = admission.pod(demand, snapshot)
    claims = held_claims(demand, snapshot.cluster)
    new = [claim for claim in claims if claim.allocation is None]
    if stored.rejects or admission.claims(new, snapshot):
        return Copies()
    own = admission.known(stored.pod.namespace, stored.pod.name)
    if own is not None:
        snapshot = snapshot.without(own, claims)
    snapshot = opened(stored.pod, snapshot, labels).snapshot
    each: tuple[Pod | ResourceClaim, ...] = (stored.pod, *new)

    def admitted() -> Iterator[str]:
        for node in _places(stored.pod, claims, snapshot, features):
            yield node
            if any(admission.count(object_, snapshot) for object_ in each):  # the next copy
                return

    return _counted(admitted(), most)


def _places(pod: Pod, claims: Sequence[ResourceClaim], snapshot: Snapshot, features: Features) -> Iterator[str]:
    """The node of each copy, until no node accepts one."""
    for piece in _nodes_apart(snapshot) if _is_local(pod, snapshot) else [snapshot]:
        there = piece
        while (node := _first(attempt := Attempt(pod, there, features, claims))) is not None:
            yield node
            there = there.placed(pod, node, there.cluster.after(attempt.allocated(node)))


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
