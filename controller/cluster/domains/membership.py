# SPDX-License-Identifier: Apache-2.0
"""Which nodes are members of a domain, and with which index. Pure.

A node is a member while a channel of it is allocated to a claim of the domain. A member in an NVLink fabric gets the
label, for which the DaemonSet starts a daemon on it, and the daemon's pod gets a row in the object of the node's
clique. nvidia-imex reads its list of nodes only when it starts, so a node keeps its index as long as the domain exists,
and the number of slots never changes while there are daemons.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dra_driver.domains.names import clique_name
from dra_driver.domains.objects import MOST_SLOTS, Clique, ComputeDomain, DaemonReport, Member
from dra_driver.kube.resource.meta import empty

from .facts import DomainState
from .pods import PodFacts, newest_pods


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a domain.

    `inside` has the clique of each member in a fabric, and `outside` the members without one. `unknown` are members
    that publish no channel at the moment, or whose fabric is not ready: nothing changes for them. `labelled` and
    `unlabelled` are nodes that must get and lose the label. `cliques` are the objects as they should be. `moving` nodes
    have a daemon for another clique, which has to end first. `surplus` has the full clique of each node for which
    there is no slot.
    """

    inside: Mapping[str, str] = field(default_factory=empty)
    outside: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    labelled: tuple[str, ...] = ()
    unlabelled: tuple[str, ...] = ()
    cliques: tuple[Clique, ...] = ()
    moving: frozenset[str] = frozenset()
    surplus: Mapping[str, Clique] = field(default_factory=empty)


def membership(state: DomainState, namespace: str, most_nodes: int) -> Membership:
    """The members of a domain with these facts. `namespace` is that of the driver. A clique has at least `most_nodes`
    slots.
    """
    uid = state.domain.uid
    claimed = state.claimed
    settled = {node for node in claimed if node in state.fabric and state.fabric[node].settled}
    inside = {node: state.fabric[node].clique for node in sorted(settled) if state.fabric[node].clique}
    unknown = claimed - settled
    pods = newest_pods(pod for pod in state.pods if pod.address and pod.node in state.nodes)
    stored = {facts.clique.clique: facts.clique for facts in state.cliques if facts.clique.clique}
    kept = {name: _kept_rows(clique, pods) for name, clique in stored.items()}
    where = {row.node: name for name, rows in kept.items() for row in rows}
    moving = frozenset(node for node, clique in inside.items() if where.get(node, clique) != clique)
    wanted = {node for node in inside if node not in moving and node not in state.rivals}
    has_label = {name for name, node in state.nodes.items() if node.label == uid}
    cliques, surplus = [], {}
    for name in sorted({*stored, *inside.values()}):
        joining = [node for node, clique in inside.items() if clique == name and node in pods and node not in where]
        before = stored.get(name) or Clique(clique_name(uid, name), namespace, uid, name, 0)
        if name in stored or joining:
            known = _known_indices(before, state.domain.status)
            slots = slots_of(state.domain, most_nodes, state.sizes.get(name, 0), before.slots)
            if before.slots and (before.members or kept.get(name)):
                slots = before.slots
            made, left_out = _clique(replace(before, slots=slots), known, kept.get(name, []), joining, pods, inside)
            cliques.append(replace(made, namespace=namespace, domain_uid=uid))
            surplus.update(dict.fromkeys(left_out, made))
    return Membership(
        inside,
        frozenset(settled - inside.keys()),
        frozenset(unknown),
        tuple(sorted(wanted - has_label)),
        tuple(sorted(has_label - wanted - unknown)),
        tuple(cliques),
        moving,
        surplus,
    )


def slots_of(domain: ComputeDomain, *numbers: int) -> int:
    """The number of slots of a clique: the largest of these numbers and that of the domain's spec, up to a limit."""
    return min(max(domain.num_nodes, *numbers), MOST_SLOTS)


def _kept_rows(clique: Clique, pods: Mapping[str, PodFacts]) -> list[Member]:
    """The rows whose node has a daemon. What another pod reported is not kept."""
    rows: dict[str, Member] = {}
    for row in clique.members:
        if row.node in pods and row.node not in rows:
            address = pods[row.node].address
            report = row.report if row.address == address else DaemonReport()
            rows[row.node] = replace(row, address=address, clique=clique.clique, report=report)
    return list(rows.values())


def _known_indices(clique: Clique, status: Mapping[str, object]) -> dict[str, int]:
    """The index of each node. The status of the domain is a second copy, for an object that was deleted or edited:
    if the row and the status agree, the annotation is wrong.
    """
    reported: dict[str, int] = {}
    nodes = status.get("nodes")
    for node in nodes if isinstance(nodes, list) else []:
        index = node.get("index", -1)
        if node.get("cliqueID") == clique.clique and type(index) is int and index >= 0:
            reported[node["name"]] = index
    rows = {row.node: row.index for row in clique.members}
    known = {**reported, **({} if clique.indices else rows), **clique.indices}
    known |= {node: index for node, index in rows.items() if reported.get(node) == index}
    return known


def _clique(
    clique: Clique,
    known: Mapping[str, int],
    kept: Iterable[Member],
    joining: Iterable[str],
    pods: Mapping[str, PodFacts],
    members: Iterable[str],
) -> tuple[Clique, list[str]]:
    """The clique with its rows and indices, and the nodes for which there is no slot."""
    rows: dict[str, Member] = {}
    used: set[int] = set()
    late = []
    for row in kept:
        index = known.get(row.node, row.index)
        if index in used or not 0 <= index < clique.slots:
            late.append(row.node)
        else:
            rows[row.node] = replace(row, index=index)
            used.add(index)
    had = {row.node for row in clique.members}
    # The nodes that are away are in the order in which they left.
    indices = {node: index for node, index in known.items() if node in rows or node not in had}
    indices |= {node: index for node, index in known.items() if node not in indices and node not in late}
    newcomers = [*late, *joining]
    surplus: list[str] = []
    for node in sorted(newcomers, key=lambda node: node not in indices):
        slot = _index(node, indices, used, clique.slots, {*rows, *newcomers}, set(members))
        if slot is None:
            surplus.append(node)
            continue
        used.add(slot)
        indices = {**{other: other_slot for other, other_slot in indices.items() if other_slot != slot}, node: slot}
        rows[node] = Member(node, pods[node].address, clique.clique, slot)
    return replace(clique, members=tuple(rows.values()), indices=indices), surplus


def _index(
    node: str, indices: Mapping[str, int], used: set[int], slots: int, here: set[str], members: set[str]
) -> int | None:
    """The index of a node that joins: its own, or one that was never used, or that of the node that is away for the
    longest time. A member that is away will come back, so its index is taken last.
    """
    own = indices.get(node)
    if own is not None and own not in used and 0 <= own < slots:
        return own
    taken = used | set(indices.values())
    free = next((index for index in range(slots) if index not in taken), None)
    if free is not None:
        return free
    away = [(other in members, index) for other, index in indices.items() if other not in here and index not in used]
    return min(away, key=lambda entry: entry[0])[1] if away else None
