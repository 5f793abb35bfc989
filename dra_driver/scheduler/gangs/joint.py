# SPDX-License-Identifier: Apache-2.0
"""Whether any assignment of a gang's pods to nodes and devices exists: all pods at once, unlike kube-scheduler.

Pods that share a claim without an allocation are one unit, because its devices are on one node. Units of one shape are
interchangeable, and so are nodes of one kind (`shapes`). The question is how many units of each shape go to each kind
of node (`packing`). Whether a node holds some units is one allocation of all their claims together, which tries all
devices and alternatives (`room`). Each assignment that is found is checked by the rules for single pods (`assignment`).

The search decides as the API describes it, without defects of a release. Rules that concern several nodes (affinity,
spread constraints, volumes, devices that nodes share) are left out of the packing, which only makes more possible: a
proof that there is no packing holds with them, too. If the check refuses a packing because of them, pods are placed one
after the other in many orders, as far as the time allows.
"""

import random
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..allocator import Features, separate
from ..pods import Snapshot
from ..pods.objects import AffinityTerm
from .assignment import GangPlacement, verified
from .board import Preference, board_of, within
from .objects import ClaimKey, GangMember, claim_key, sharing
from .packing import BinKind, Clock, OutOfTimeError, pack
from .room import NodeRoom, Parts
from .shapes import Unit, is_local, node_kinds, units_by_shape
from .verdict import Gang, in_order, topology_domains

SECONDS: Final = 10.0
"""The default time limit of a search."""
_MOST_ORDERS: Final = 200
"""How many orders are tried if rules concern several nodes."""


@dataclass(frozen=True, slots=True)
class JointAnswer:
    """An assignment of enough pods, or a proof that there is none. If neither is known, both are empty.

    `placements` are in an order in which the rules for single pods accept each of them.
    """

    placements: tuple[GangPlacement, ...] = ()
    proof: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether the answer is known."""
        return bool(self.placements or self.proof)


def assign(gang: Gang, snapshot: Snapshot, features: Features, seconds: float = SECONDS) -> JointAnswer:
    """An assignment that the scheduler could find if it searched for all pods at once.

    The snapshot contains none of the waiting pods. The search ends after `seconds`.
    """
    members = in_order(member for member in gang.members if not member.pod.gates)
    needed = max(1, gang.needed)
    if len(members) < needed:
        return JointAnswer(proof=f"{needed} pods are needed, and {len(members)} wait for a node")
    search = _Search(tuple(members), needed, snapshot, replace(features, as_specified=True), Clock(seconds))
    if gang.group is None or not gang.group.policy.topology_key:
        return search.answer()
    try:
        domains = topology_domains(gang, snapshot)
    except ValueError as error:
        return JointAnswer(proof=str(error))
    return search.in_domains(gang.group.policy.topology_key, domains)


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for nodes for at least `needed` of the members, until the clock ends it."""

    members: Sequence[GangMember]
    needed: int
    snapshot: Snapshot
    features: Features
    clock: Clock

    def in_domains(self, key: str, domains: Mapping[str, Sequence[str]]) -> JointAnswer:
        """An assignment within one of the domains, which are names of nodes by the value of the label `key`, or a proof
        for all of them.
        """
        reasons: dict[str, None] = {}
        are_decided = True
        for names in domains.values():
            answer = replace(self, snapshot=within(self.snapshot, names)).answer()
            if answer.placements:
                checked = verified(answer.placements, self.snapshot, self.features)
                if checked is not None:
                    return JointAnswer(tuple(checked))
            are_decided = are_decided and bool(answer.proof)
            reasons[answer.proof] = None
        if not are_decided:
            return JointAnswer()
        texts = "; ".join(reasons) or "there is no node"
        return JointAnswer(proof=f"in each of {len(domains)} domains of {key}: {texts}")

    def answer(self) -> JointAnswer:
        """An assignment to any nodes of the snapshot, or a proof that there is none."""
        members, snapshot = self.members, self.snapshot
        apart = self._too_few_domains()
        if apart:
            return JointAnswer(proof=apart)
        shared = sharing(members)
        try:
            if not shared or separate(snapshot.cluster):
                answer = self._packed(_units(members, shared))
                is_whole = not shared or self.needed == len(members)
                if answer.placements or (answer.proof and is_whole):
                    return answer
                if is_local(members, snapshot) and is_whole:
                    return JointAnswer()
            if shared and not (self.features.node_allocatable_resources and snapshot.taking):
                fewer = self._packed([(_without(member, shared),) for member in members])
                if fewer.proof:
                    return fewer
            together = self._together()
            return together if together.is_decided else self._in_many_orders()
        except OutOfTimeError:
            return JointAnswer()

    def _too_few_domains(self) -> str:
        """A proof by anti-affinity: pods that must be apart are more than there are values of the label."""
        by_term: dict[AffinityTerm, list[GangMember]] = defaultdict(list)
        for member in self.members:
            for term in member.pod.anti_affinity:
                if term.matches(member.pod, self._labels_of(member)):
                    by_term[term].append(member)
        for term, apart in by_term.items():
            key = term.topology_key
            values = {site.node.labels.get(key) for site in self.snapshot.sites.values()}
            if None not in values and len(apart) - len(values) > len(self.members) - self.needed:
                return f"{len(apart)} pods must have different values of {key}, and nodes have {len(values)}"
        return ""

    def _labels_of(self, member: GangMember) -> Mapping[str, str]:
        """The labels of the member's namespace."""
        return self.snapshot.labels_of(member.pod.namespace)

    def _packed(self, units: Sequence[Unit]) -> JointAnswer:
        """The answer of the packing of these units, each of them whole. Raises OutOfTimeError."""
        shapes = units_by_shape(units)
        firsts = [alike[0] for alike in shapes]
        kinds = node_kinds([member for unit in firsts for member in unit], self.snapshot, self.features)
        pieces = Parts(self.snapshot)
        bins = [BinKind(len(names), NodeRoom(pieces.of(names[0]), firsts, self.features).holds) for names in kinds]
        demand, values = tuple(map(len, shapes)), tuple(map(len, firsts))
        found = pack(bins, demand, values, self.needed, self.clock)
        if found.bins is None:
            return JointAnswer(proof=found.reason)
        left = [list(alike) for alike in shapes]
        free = [list(names) for names in kinds]
        placements: list[GangPlacement] = []
        for kind, pattern in found.bins:
            self.clock.check()
            node = free[kind].pop(0)
            chosen = [left[shape].pop(0) for shape, count in enumerate(pattern) for _ in range(count)]
            placed = NodeRoom(pieces.of(node), chosen, self.features).place_all() if chosen else []
            if placed is None:
                return JointAnswer()
            placements += placed
        return JointAnswer(tuple(verified(placements, self.snapshot, self.features) or ()))

    def _together(self) -> JointAnswer:
        """The answer for pods that attract each other: all of them are in one domain of the label of their affinity."""
        snapshot = self.snapshot
        for term in self.members[0].pod.affinity:
            if all(
                term in member.pod.affinity and term.matches(member.pod, self._labels_of(member))
                for member in self.members
            ):
                break
        else:
            return JointAnswer()
        domains: dict[str, list[str]] = defaultdict(list)
        for name, site in sorted(snapshot.sites.items()):
            if term.topology_key in site.node.labels:
                domains[site.node.labels[term.topology_key]].append(name)
        if len(domains) == 1:
            return JointAnswer()
        answer = self.in_domains(term.topology_key, domains)
        others = (pod for site in snapshot.sites.values() for pod in site.pods)
        attracted = any(term.matches(pod, snapshot.labels_of(pod.namespace)) for pod in others)
        # Other pods may attract to several domains.
        return answer if answer.placements or not attracted else JointAnswer()

    def _in_many_orders(self) -> JointAnswer:
        """Places the pods one after the other, in one order after the other. Raises OutOfTimeError."""
        chance = random.Random(len(self.members))  # noqa: S311 - the same orders each time
        order = list(self.members)
        for number in range(_MOST_ORDERS):
            for preference in Preference:
                placements = self._one_by_one(order, preference)
                is_enough = len(placements) >= self.needed
                checked = verified(placements, self.snapshot, self.features) if is_enough else None
                if checked:
                    return JointAnswer(tuple(checked))
            order = list(reversed(self.members)) if number == 0 else order
            if number:
                chance.shuffle(order)
        return JointAnswer()

    def _one_by_one(self, order: Sequence[GangMember], preference: Preference) -> list[GangPlacement]:
        board = board_of(self.snapshot, self.features, order, preference)
        placements: list[GangPlacement] = []
        for index, member in enumerate(order):
            self.clock.check()
            choice = board.choose(member)
            if choice.node is not None:
                placements.append(GangPlacement(member, choice.node, board.place(member, choice.node)))
            elif len(placements) + len(order) - index - 1 < self.needed:
                break
        return placements


def _units(members: Sequence[GangMember], shared: Mapping[ClaimKey, Sequence[int]]) -> list[Unit]:
    """The members as units. Members that share claims are one unit."""
    unit_of = list(range(len(members)))
    for users in shared.values():
        merged = {unit_of[user] for user in users}
        unit_of = [min(merged) if unit in merged else unit for unit in unit_of]
    units: dict[int, list[GangMember]] = defaultdict(list)
    for unit, member in zip(unit_of, members, strict=True):
        units[unit].append(member)
    return [tuple(unit) for unit in units.values()]


def _without(member: GangMember, shared: Container[ClaimKey]) -> GangMember:
    """The member without claims that it shares. If it does not fit without them, it does not fit with them."""
    return GangMember(member.pod, tuple(claim for claim in member.claims if claim_key(claim) not in shared))
