# SPDX-License-Identifier: Apache-2.0
"""The nodes of a cluster while the pods of a gang are placed on them, one after the other.

Each pod meets the pods that were placed before it, and the claims that these got. Where pods on one node never matter
on another node (`shapes.is_local`), each node is decided alone, and nodes of one kind with the same pods are decided
once. Elsewhere, each pod is an attempt on the whole cluster.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...kube.resource import ResourceClaim
from ..allocator import Cluster, Features, parts
from ..pods import Attempt, Pod, Refusal, Site, Snapshot
from ..pods.outcome import Code
from .objects import ClaimKey, GangMember, claim_key
from .shapes import Shapes, is_local, node_kinds


class Preference(enum.StrEnum):
    """The choice among the nodes that fit. kube-scheduler chooses randomly among nodes with the best score."""

    FIRST = "first node by name"
    LEAST_ALLOCATED = "least allocated node"
    """The node with the smallest part of cpu and memory requested, as NodeResourcesFit scores by default."""


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The node for a pod. Without one, `error` is set if the attempt ends with an error of the scheduler."""

    node: str | None = None
    error: str = ""


class GangBoard(ABC):
    """The nodes with the pods that were placed so far. `names` are the nodes that may be used."""

    def __init__(self, snapshot: Snapshot, features: Features, preference: Preference, names: Collection[str]) -> None:
        self._features = features
        self._preference = preference
        self._names = names
        self._given: dict[ClaimKey, ResourceClaim] = {}
        """The claims that were allocated for pods, by namespace and name."""
        self._start = snapshot

    @abstractmethod
    def choose(self, member: GangMember) -> NodeChoice:
        """The node for the next pod."""

    @abstractmethod
    def place(self, member: GangMember, node: str) -> tuple[ResourceClaim, ...]:
        """Places the pod on a node where it fits. Returns the claims that are allocated for it."""

    @abstractmethod
    def refusal(self, member: GangMember) -> str:
        """kube-scheduler's text for a pod that fits nowhere now."""

    def _claims(self, member: GangMember) -> list[ResourceClaim]:
        return [self._given.get(claim_key(claim), claim) for claim in member.claims]

    def _keep(self, attempt: Attempt, node: str) -> tuple[ResourceClaim, ...]:
        allocated = attempt.allocated(node)
        self._given.update((claim_key(claim), claim) for claim in allocated)
        return tuple(allocated)

    def _score(self, site: Site) -> tuple[float, int]:
        """The smaller, the better."""
        if self._preference is Preference.FIRST:
            return 0.0, 0
        return _requested(site), len(site.pods)


class _WholeBoard(GangBoard):
    """Each pod is an attempt on the whole cluster."""

    def __init__(self, snapshot: Snapshot, features: Features, preference: Preference, names: Collection[str]) -> None:
        super().__init__(snapshot, features, preference, names)
        self._snapshot = snapshot
        self._attempt: tuple[GangMember, Attempt] | None = None

    def choose(self, member: GangMember) -> NodeChoice:
        attempt = self._attempted(member)
        if attempt.errors:
            return NodeChoice(error="; ".join(sorted(attempt.errors)))
        sites = self._snapshot.sites
        fitting = [name for name in attempt.fits if name in self._names]
        return NodeChoice(min(fitting, key=lambda name: (self._score(sites[name]), name), default=None))

    def place(self, member: GangMember, node: str) -> tuple[ResourceClaim, ...]:
        attempt = self._attempted(member)
        allocated = self._keep(attempt, node)
        self._snapshot = self._snapshot.placed(attempt.placed(node), node, self._snapshot.cluster.after(allocated))
        self._attempt = None
        return allocated

    def refusal(self, member: GangMember) -> str:
        there = within(self._snapshot, self._names)
        return Attempt(member.pod, there, self._features, self._claims(member)).fit_error

    def _attempted(self, member: GangMember) -> Attempt:
        if self._attempt is None or self._attempt[0] is not member:
            attempt = Attempt(member.pod, self._snapshot, self._features, self._claims(member))
            self._attempt = (member, attempt)
        return self._attempt[1]


State = tuple[int, tuple[int, ...]]
"""The kind of a node, and the shapes of the pods that were placed there, in order."""


class _LocalBoard(GangBoard):
    """Each node is decided alone."""

    def __init__(
        self,
        snapshot: Snapshot,
        features: Features,
        preference: Preference,
        names: Collection[str],
        members: Sequence[GangMember],
    ) -> None:
        super().__init__(snapshot, features, preference, names)
        shapes = Shapes(members)
        self._shape_of = dict(zip(map(id, members), shapes.of, strict=True))
        kinds = node_kinds(shapes.examples, snapshot, features, names)
        self._nodes: dict[State, set[str]] = {(kind, ()): set(names) for kind, names in enumerate(kinds)}
        self._states = {name: state for state, names in self._nodes.items() for name in names}
        self._verdicts: dict[tuple[State, int], Refusal | None] = {}
        self._clusters = parts(snapshot.cluster, snapshot.sites)
        self._alone: dict[str, Snapshot] = {}
        self._placed: list[Pod] = []
        self._node_of: dict[ClaimKey, str] = {}

    def choose(self, member: GangMember) -> NodeChoice:
        tied = [claim for claim in self._claims(member) if claim_key(claim) in self._given]
        states = self._states_for(member, tied)
        best: tuple[tuple[float, int], str] | None = None
        for state, names in states:
            node = min(names)
            refusal = self._refusal(member, state, node, is_known=not tied)
            if refusal is not None:
                if refusal.code is Code.ERROR:
                    return NodeChoice(error=refusal.message)
                continue
            found = (self._score(self._snapshot(node).sites[node]), node)
            best = found if best is None else min(best, found)
        return NodeChoice(best[1] if best is not None else None)

    def _states_for(self, member: GangMember, tied: Sequence[ResourceClaim]) -> Iterator[tuple[State, Collection[str]]]:
        """The nodes to check. Claims that pods got before tie their other users to the nodes of these claims."""
        if not tied:
            yield from self._nodes.items()
            return
        nodes = {self._node_of[claim_key(claim)] for claim in tied}
        if len(nodes) == 1:
            yield from ((self._states[node], (node,)) for node in nodes)

    def _refusal(self, member: GangMember, state: State, node: str, *, is_known: bool) -> Refusal | None:
        if not is_known:
            return self._attempt(member, node).refuses(self._snapshot(node).sites[node])
        key = (state, self._shape_of[id(member)])
        if key not in self._verdicts:
            attempt = self._attempt(member, node)
            self._verdicts[key] = attempt.refusal or attempt.refuses(self._snapshot(node).sites[node])
        return self._verdicts[key]

    def _attempt(self, member: GangMember, node: str) -> Attempt:
        return Attempt(member.pod, self._snapshot(node), self._features, self._claims(member))

    def _snapshot(self, name: str) -> Snapshot:
        if name not in self._alone:
            self._alone[name] = one_node(self._start, name, self._clusters[name])
        return self._alone[name]

    def place(self, member: GangMember, node: str) -> tuple[ResourceClaim, ...]:
        attempt = self._attempt(member, node)
        allocated = self._keep(attempt, node)
        before = self._snapshot(node)
        self._alone[node] = before.placed(attempt.placed(node), node, before.cluster.after(allocated))
        self._placed.append(self._alone[node].pods[-1])
        self._node_of.update((claim_key(claim), node) for claim in allocated)
        state = self._states[node]
        self._nodes[state].discard(node)
        if not self._nodes[state]:
            del self._nodes[state]
        kind, history = state
        self._states[node] = (kind, (*history, self._shape_of[id(member)]))
        self._nodes.setdefault(self._states[node], set()).add(node)
        return allocated

    def refusal(self, member: GangMember) -> str:
        cluster = self._start.cluster.after(tuple(self._given.values()))
        there = within(replace(self._start, cluster=cluster, pods=(*self._start.pods, *self._placed)), self._names)
        return Attempt(member.pod, there, self._features, self._claims(member)).fit_error


def board_of(
    snapshot: Snapshot,
    features: Features,
    members: Sequence[GangMember],
    preference: Preference,
    names: Iterable[str] | None = None,
) -> GangBoard:
    """The board for these members. `names` are the nodes that may be used; by default, all of them."""
    usable = frozenset(snapshot.sites if names is None else names)
    if is_local(members, snapshot):
        return _LocalBoard(snapshot, features, preference, usable, members)
    return _WholeBoard(snapshot, features, preference, usable)


def within(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """The snapshot with these nodes only."""
    if len(names) == len(snapshot.nodes):
        return snapshot
    nodes = tuple(node for node in snapshot.nodes if node.name in names)
    cluster = snapshot.cluster
    kept = Cluster(cluster.slices, cluster.classes, tuple(node.node for node in nodes), cluster.claims)
    return replace(snapshot, cluster=kept, nodes=nodes)


def one_node(snapshot: Snapshot, name: str, cluster: Cluster) -> Snapshot:
    """The snapshot of one node; `cluster` has what concerns it."""
    site = snapshot.sites[name]
    return replace(snapshot, cluster=cluster, nodes=(site.node,), pods=(*site.pods, *snapshot.nominated.get(name, ())))


def _requested(site: Site) -> float:
    """The mean of the parts of cpu and memory that are requested. Without amounts, nothing is requested."""
    allocatable, used = site.node.allocatable, site.used
    shares = [used.get(name, 0) / allocatable[name] for name in ("cpu", "memory") if allocatable.get(name)]
    return sum(shares) / len(shares) if shares else 0.0
