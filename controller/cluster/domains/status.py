# SPDX-License-Identifier: Apache-2.0
"""The status of a domain, and why it is not ready. Pure.

`status` and `nodes` are the fields of NVIDIA's driver. TemplateCreated, DaemonsReady and DomainUp are
conditions, which say why.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.domains.objects import NOT_READY, OUTSIDE_FABRIC, READY, Member
from dra_driver.kube.api.client import JSON
from dra_driver.process.words import listed

from .facts import DomainState
from .membership import Membership
from .pods import FAILED, IMAGE, UNSCHEDULABLE, PodFacts, newest_pods

UP: Final = "UP"
NAME_TAKEN: Final = "NameTaken"
WRITE_FAILED: Final = "WriteFailed"
NO_ACCOUNT: Final = "ServiceAccountMissing"
TOO_MANY: Final = "TooManyNodes"
OTHER_DOMAIN: Final = "NodeInOtherDomain"
IMEX_FAILED: Final = "ImexFailed"
NO_NODES: Final = "NoNodes"

CANNOT_START: Final = (TOO_MANY, OTHER_DOMAIN, UNSCHEDULABLE, IMAGE, FAILED, IMEX_FAILED)
"""Why a daemon cannot start, which is also told by Events. The worst one comes first."""
_WAITING: Final = ("NodeUnknown", "CliqueChanging", "PodMissing", "PodStarting", "ImexNotReady")
_NAMED = 3  # nodes in a message


@dataclass(frozen=True, slots=True)
class DaemonProblem:
    """Why the daemon of a node is not ready."""

    node: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class DomainCondition:
    """A condition without its time."""

    type: str
    is_true: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DomainStatus:
    """The status of a domain, and the troubles of its nodes."""

    is_ready: bool
    nodes: tuple[JSON, ...]
    conditions: tuple[DomainCondition, ...]
    troubles: tuple[DaemonProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class DomainProblem:
    """Why objects of a domain cannot be as they should be: a reason and a message."""

    reason: str
    message: str


def domain_status(
    state: DomainState, members: Membership, template: DomainProblem | None, daemons: DomainProblem | None
) -> DomainStatus:
    """The status of a domain. `template` and `daemons` are the problems of its objects."""
    rows = {row.node: row for clique in members.cliques for row in clique.members}
    pods = newest_pods(state.pods)
    troubles = tuple(
        trouble
        for node in sorted({*members.inside, *members.unknown})
        if (trouble := _trouble(node, state, members, rows.get(node), pods.get(node))) is not None
    )
    claimed = state.claimed
    inside = [rows[node] for node in (*members.inside, *members.unknown) if node in rows]
    shown = [_node(row.node, row.address, row.clique, row.index, _is_up(row)) for row in inside]
    shown += [_node(node, "", "", OUTSIDE_FABRIC, True) for node in members.outside]
    shown.sort(key=lambda row: str(row["name"]))
    ready = _daemons_ready(len(claimed), len(inside), troubles, daemons)
    up = _domain_up(len(claimed), state.domain.num_nodes, ready, inside)
    return DomainStatus(up.is_true, tuple(shown), (template_created(template), ready, up), troubles)


def host_managed_status(template: DomainProblem | None) -> DomainStatus:
    """The status of a domain without daemons of ours."""
    text = "the administrator runs nvidia-imex on the nodes"
    conditions = tuple(DomainCondition(name, True, "HostManaged", text) for name in ("DaemonsReady", "DomainUp"))
    return DomainStatus(True, (), (template_created(template), *conditions))


def template_created(problem: DomainProblem | None) -> DomainCondition:
    """The condition of the workload's template."""
    if problem is not None:
        return DomainCondition("TemplateCreated", False, problem.reason, problem.message)
    return DomainCondition("TemplateCreated", True, "Created", "the ResourceClaimTemplate exists")


def encode_status(status: DomainStatus, generation: int, before: Mapping[str, Any], now: str) -> JSON:
    """The status as JSON. The time of a condition changes only with its status."""
    known = {condition.get("type"): condition for condition in before.get("conditions") or []}
    conditions = []
    for condition in status.conditions:
        truth, earlier = str(condition.is_true), known.get(condition.type) or {}
        since = earlier.get("lastTransitionTime") if earlier.get("status") == truth else None
        conditions.append(
            {
                "type": condition.type,
                "status": truth,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": since or now,
            }
        )
    return {
        "status": READY if status.is_ready else NOT_READY,
        "nodes": list(status.nodes),
        "conditions": conditions,
    }


def _node(name: str, address: str, clique: str, index: int, ready: bool) -> JSON:
    status = READY if ready else NOT_READY
    return {"name": name, "ipAddress": address, "cliqueID": clique, "index": index, "status": status}


def _is_up(row: Member) -> bool:
    return row.report.ready and row.report.domain_state in ("", UP)


def _trouble(
    node: str, state: DomainState, members: Membership, row: Member | None, pod: PodFacts | None
) -> DaemonProblem | None:
    """Why the daemon of a node is not ready, or None if it is."""
    if node in members.surplus:
        clique = members.surplus[node]
        return DaemonProblem(
            node,
            TOO_MANY,
            f"clique {clique.clique} has {len(clique.members)} daemons in {clique.slots} slots, and cannot get more"
            " slots while it has daemons: set a larger --max-nodes-per-imex-domain of dra-cluster-controller, and"
            " create the ComputeDomain again",
        )
    if node in state.rivals:
        text = f"ComputeDomain {state.rivals[node]} has claims on the node, which can be in one domain at a time"
        return DaemonProblem(node, OTHER_DOMAIN, text)
    if node in members.moving:
        return DaemonProblem(
            node, "CliqueChanging", "the NVLink clique of the node has changed, and its daemon starts anew"
        )
    if node in members.unknown and (row is None or not row.report.ready):
        text = "the node publishes no channel, or its NVLink fabric is not ready: see its ResourceSlices"
        return DaemonProblem(node, "NodeUnknown", text)
    if row is not None and row.report.ready:
        return None
    if pod is None:
        text = "the node has no daemon yet: see kubectl describe of the domain's DaemonSet if this lasts"
        return DaemonProblem(node, "PodMissing", text)
    if pod.trouble is not None:
        more = f" (nvidia-imex: {row.report.message})" if row is not None and row.report.message else ""
        return DaemonProblem(node, pod.trouble[0], f"pod {pod.name}: {pod.trouble[1]}{more}")
    if row is None:
        return DaemonProblem(node, "PodStarting", f"pod {pod.name} is starting")
    if row.report.message and not row.report.state:
        return DaemonProblem(node, IMEX_FAILED, row.report.message)
    text = row.report.message or f"nvidia-imex is {row.report.state or 'starting'}"
    return DaemonProblem(node, "ImexNotReady", text)


def _daemons_ready(
    claimed: int, inside: int, troubles: Iterable[DaemonProblem], problem: DomainProblem | None
) -> DomainCondition:
    def condition(is_true: bool, reason: str, message: str) -> DomainCondition:
        return DomainCondition("DaemonsReady", is_true, reason, message)

    found: defaultdict[str, list[DaemonProblem]] = defaultdict(list)
    for trouble in troubles:
        found[trouble.reason].append(trouble)
    if problem is not None:
        return condition(False, problem.reason, problem.message)
    if not claimed:
        return condition(False, NO_NODES, "no channel of this domain is allocated to a claim of its namespace yet")
    for reason in (*CANNOT_START, *_WAITING):
        if some := found[reason]:
            waiting = sum(map(len, found.values()))
            return condition(False, reason, f"{waiting} of {claimed} nodes are not ready: {_named(some)}")
    if not inside:
        return condition(True, "NotNeeded", "no node of the domain is in an NVLink fabric")
    return condition(True, "AllReady", "the daemons of all nodes are ready")


def _domain_up(claimed: int, wanted: int, daemons: DomainCondition, rows: Iterable[Member]) -> DomainCondition:
    def condition(is_true: bool, reason: str, message: str) -> DomainCondition:
        return DomainCondition("DomainUp", is_true, reason, message)

    if not claimed:
        return condition(False, NO_NODES, daemons.message)
    if not daemons.is_true:
        return condition(False, "DaemonsNotReady", daemons.message)
    apart = [
        DaemonProblem(row.node, "", f"the domain is {row.report.domain_state}. {row.report.message}".strip(" ."))
        for row in rows
        if not _is_up(row)
    ]
    if apart:
        return condition(False, "NotConnected", _named(sorted(apart, key=lambda trouble: trouble.node)))
    if claimed < wanted:
        return condition(False, "WaitingForNodes", f"{claimed} of {wanted} nodes (spec.numNodes) have claims")
    return condition(True, "Up", "all nodes with claims are up")


def _named(troubles: list[DaemonProblem]) -> str:
    """The troubles of the first nodes. Equal texts are told once."""
    by_text: defaultdict[str, list[str]] = defaultdict(list)
    for trouble in troubles:
        by_text[trouble.text].append(trouble.node)
    told = []
    for text, nodes in list(by_text.items())[:_NAMED]:
        told.append(f"{listed(nodes, _NAMED)}: {text}")
    left = sum(map(len, list(by_text.values())[_NAMED:]))
    return "; ".join(told) + (f"; and {left} more" if left else "")
