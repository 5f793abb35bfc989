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
    clock = Clock(seconds)
    ideal = replace(features, as_specified=True)
    if gang.group is None or not gang.group.policy.topology_key:
        return _assign(members, needed, snapshot, ideal, clock)
    try:
        domains = topology_domains(gang, snapshot)
    except ValueError as error:
        return JointAnswer(proof=str(error))
    return _in_domains(gang.group.policy.topology_key, domains, members, needed, snapshot, ideal, clock)


def _in_domains(  # noqa: PLR0913, PLR0917  # the domains, and what is to be assigned
    key: str,
    domains: Mapping[str, Sequence[str]],
    members: Sequence[GangMember],
    needed: int,
    snapshot: Snapshot,
    features: Features,
    clock: Clock,
) -> JointAnswer:
    """An assignment within one of the domains, or a proof for all of them."""
    reasons: dict[str, None] = {}
    are_decided = True
    for names in domains.values():
        answer = _assign(members, needed, within(snapshot, names), features, clock)
        if answer.placements:
            checked = verified(answer.placements, snapshot, features)
            if checked is not None:
                return JointAnswer(tuple(checked))
        are_decided = are_decided and bool(answer.proof)
        reasons[answer.proof] = None
    if not are_decided:
        return JointAnswer()
    return JointAnswer(proof=f"in each of {len(domains)} domains of {key}: {'; '.join(reasons) or 'there is no node'}")


def _assign(
    members: Sequence[GangMember], needed: int, snapshot: Snapshot, features: Features, clock: Clock
) -> JointAnswer:
    apart = _too_few_domains(members, needed, snapshot)
    if apart:
        return JointAnswer(proof=apart)
    shared = sharing(members)
    is_separate = separate(snapshot.cluster)
    try:
        answer = JointAnswer()
        if is_separate or not shared:
            answer = _packed(_units(members, shared), needed, snapshot, features, clock)
            is_whole = not shared or needed == len(members)
            if answer.placements or (answer.proof and is_whole):
                return answer
            if is_local(members, snapshot) and is_whole:
                return JointAnswer()
        if shared and not (features.node_allocatable_resources and snapshot.taking):
            fewer = _packed([(_without(member, shared),) for member in members], needed, snapshot, features, clock)
            if fewer.proof:
                return fewer
        together = _together(members, needed, snapshot, features, clock)
        return together if together.is_decided else _in_many_orders(members, needed, snapshot, features, clock)
    except OutOfTimeError:
        return JointAnswer()


def _together(
    members: Sequence[GangMember], needed: int, snapshot: Snapshot, features: Features, clock: Clock
) -> JointAnswer:
    """The answer for pods that attract each other: all of them are in one domain of the label of their affinity."""
    for term in members[0].pod.affinity:
        if all(
            term in member.pod.affinity and term.matches(member.pod, _labels_of(member, snapshot)) for member in members
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
    answer = _in_domains(term.topology_key, domains, members, needed, snapshot, features, clock)
    others = (pod for site in snapshot.sites.values() for pod in site.pods)
    attracted = any(term.matches(pod, snapshot.labels_of(pod.namespace)) for pod in others)
    return answer if answer.placements or not attracted else JointAnswer()  # other pods may attract to several domains


def _labels_of(member: GangMember, snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.labels_of(member.pod.namespace)


def _too_few_domains(members: Sequence[GangMember], needed: int, snapshot: Snapshot) -> str:
    """A proof by anti-affinity: pods that must be apart are more than there are values of the label."""
    by_term: dict[AffinityTerm, list[GangMember]] = defaultdict(list)
    for member in members:
        for term in member.pod.anti_affinity:
            if term.matches(member.pod, snapshot.labels_of(member.pod.namespace)):
                by_term[term].append(member)
    for term, apart in by_term.items():
        values = {site.node.labels.get(term.topology_key) for site in snapshot.sites.values()}
        if None not in values and len(apart) - len(values) > len(members) - needed:
            return f"{len(apart)} pods must have different values of {term.topology_key}, and nodes have {len(values)}"
    return ""


def _packed(units: Sequence[Unit], needed: int, snapshot: Snapshot, features: Features, clock: Clock) -> JointAnswer:
    """The answer of the packing of these units, each of them whole. Raises OutOfTimeError."""
    shapes = units_by_shape(units)
    firsts = [alike[0] for alike in shapes]
    kinds = node_kinds([member for unit in firsts for member in unit], snapshot, features)
    pieces = Parts(snapshot)
    bins = [BinKind(len(names), NodeRoom(pieces.of(names[0]), firsts, features).holds) for names in kinds]
    demand, values = tuple(map(len, shapes)), tuple(map(len, firsts))
    found = pack(bins, demand, values, needed, clock)
    if found.bins is None:
        return JointAnswer(proof=found.reason)
    left = [list(alike) for alike in shapes]
    free = [list(names) for names in kinds]
    placements: list[GangPlacement] = []
    for kind, pattern in found.bins:
        clock.check()
        node = free[kind].pop(0)
        chosen = [left[shape].pop(0) for shape, count in enumerate(pattern) for _ in range(count)]
        placed = NodeRoom(pieces.of(node), chosen, features).place_all() if chosen else []
        if placed is None:
            return JointAnswer()
        placements += placed
    return JointAnswer(tuple(verified(placements, snapshot, features) or ()))


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


def _in_many_orders(
    members: Sequence[GangMember], needed: int, snapshot: Snapshot, features: Features, clock: Clock
) -> JointAnswer:
    """Places the pods one after the other, in one order after the other. Raises OutOfTimeError."""
    chance = random.Random(len(members))  # noqa: S311 - the same orders each time
    order = list(members)
    for number in range(_MOST_ORDERS):
        for preference in Preference:
            placements = _one_by_one(order, needed, snapshot, features, preference, clock)
            checked = verified(placements, snapshot, features) if len(placements) >= needed else None
            if checked:
                return JointAnswer(tuple(checked))
        order = list(reversed(members)) if number == 0 else order
        if number:
            chance.shuffle(order)
    return JointAnswer()


def _one_by_one(
    members: Sequence[GangMember],
    needed: int,
    snapshot: Snapshot,
    features: Features,
    preference: Preference,
    clock: Clock,
) -> list[GangPlacement]:
    board = board_of(snapshot, features, members, preference)
    placements: list[GangPlacement] = []
    for index, member in enumerate(members):
        clock.check()
        choice = board.choose(member)
        if choice.node is not None:
            placements.append(GangPlacement(member, choice.node, board.place(member, choice.node)))
        elif len(placements) + len(members) - index - 1 < needed:
            break
    return placements
