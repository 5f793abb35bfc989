# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's own verdict on a gang (KEP 4671, Kubernetes 1.37 with the feature gate GenericWorkload).

The group is one entry of the scheduling queue. Its pods are placed one after the other, and no pod is placed again.
The texts are those of `pkg/scheduler/schedule_one_podgroup.go` and `plugins/gangscheduling` of 1.37. Topology
constraints (KEP 5732, gate TopologyAwareWorkloadScheduling) follow `plugins/topologyaware`: the group is tried within
each domain. kube-scheduler takes the domain with the best score; here, it is the first one by name.

Preemption for a group, and CompositePodGroups (alpha), are not evaluated.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...kube.resource import ResourceClaim
from ..allocator import Features
from ..pods import Pod, Snapshot
from .board import Preference, board_of
from .objects import INITIALLY_SCHEDULED, GangMember, PodGroup, sharing

_TOO_FEW: Final = "waiting for minCount pods from a gang to appear in scheduling queue"
_NOTHING: Final = "no pods were schedulable"


class GangStatus(enum.StrEnum):
    """The reason of the group's condition, or that the group does not enter the scheduling queue."""

    SCHEDULED = "Scheduled"
    UNSCHEDULABLE = "Unschedulable"
    ERROR = "SchedulerError"
    WAITING = "Waiting"


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of a group that wait for nodes, in the order of their creation, and the pods that have a node.

    `group` is None if the pods name a PodGroup that does not exist; `name` is its name.
    """

    name: str
    group: PodGroup | None
    members: tuple[GangMember, ...]
    running: tuple[Pod, ...] = ()

    @property
    def needed(self) -> int:
        """How many of the waiting pods must get a node."""
        return 0 if self.group is None else max(0, self.group.policy.needed - len(self.running))


@dataclass(frozen=True, slots=True)
class PodResult:
    """The node of a pod, and the claims that are allocated for it. Without a node, `text` says why."""

    member: GangMember
    node: str | None = None
    claims: tuple[ResourceClaim, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The answer of the scheduler. `results` are in the order in which the pods were tried.

    If the group is not scheduled, no pod is bound: `results` has the nodes that were chosen before the group failed.
    `message` is that of the group's condition.
    """

    status: GangStatus
    message: str
    results: tuple[PodResult, ...] = ()

    @property
    def is_scheduled(self) -> bool:
        """Whether the pods with a node are bound."""
        return self.status is GangStatus.SCHEDULED

    @property
    def condition(self) -> dict[str, str] | None:
        """The condition that the scheduler writes into the group's status, without times. None if it writes none."""
        if self.status is GangStatus.WAITING:
            return None
        is_true = "True" if self.is_scheduled else "False"
        return {
            "type": INITIALLY_SCHEDULED,
            "status": is_true,
            "reason": self.status.value,
            "message": self.message,
        }

    @property
    def collisions(self) -> list[str]:
        """The claims, allocated in this attempt, that several of the bound pods share.

        The pods are bound at the same time. In 1.37, PreBind fails for all but one of the pods with `claim got
        allocated elsewhere in the meantime`, and they are tried again (kubernetes/kubernetes#140053).
        """
        bound = [result.member for result in self.results if result.node is not None] if self.is_scheduled else []
        return [f"{namespace}/{name}" for namespace, name in sharing(bound)]


def in_order(members: Iterable[GangMember]) -> list[GangMember]:
    """The members in the order in which the scheduler takes them: by priority, then as they are given, by age."""
    return sorted(members, key=lambda member: -member.pod.priority)


def waiting_text(gang: Gang) -> str:
    """Why the pods do not enter the scheduling queue. Empty if they do."""
    if gang.group is None:
        return f'waiting for pods\'s pod group "{gang.name}" to appear in scheduling queue'
    least = gang.group.policy.min_count
    if least is not None and len(gang.members) + len(gang.running) < least:
        return _TOO_FEW
    return ""


def schedule(
    gang: Gang, snapshot: Snapshot, features: Features, preference: Preference = Preference.FIRST
) -> GroupVerdict:
    """The scheduler's verdict. The snapshot contains none of the waiting pods."""
    text = waiting_text(gang)
    if text:
        return GroupVerdict(GangStatus.WAITING, text, tuple(PodResult(member, text=text) for member in gang.members))
    assert gang.group is not None
    queued = in_order(member for member in gang.members if not member.pod.gates)
    if not gang.group.policy.topology_key:
        return _within(gang, queued, snapshot, features, preference, None)
    try:
        domains = topology_domains(gang, snapshot)
    except ValueError as error:
        return _failed(f"cannot determine domain for already scheduled pods: {error}", queued)
    first: GroupVerdict | None = None
    for names in domains.values():
        verdict = _within(gang, queued, snapshot, features, preference, names)
        if verdict.status in (GangStatus.SCHEDULED, GangStatus.ERROR):
            return verdict
        first = first or verdict
    reason = f", first placement status: {first.message}" if first is not None else ""
    message = f"0/{len(domains)} placements are available{reason}"
    return GroupVerdict(GangStatus.UNSCHEDULABLE, message, first.results if first is not None else ())


def topology_domains(gang: Gang, snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """The nodes of each domain that the group may use, by the value of its label.

    Pods of the group that have a node fix the domain. Raises ValueError if they are in several domains or in none.
    """
    assert gang.group is not None
    key = gang.group.policy.topology_key
    found: dict[str, list[str]] = {}
    for name, site in sorted(snapshot.sites.items()):
        if key in site.node.labels:
            found.setdefault(site.node.labels[key], []).append(name)
    fixed: list[str] = []
    for pod in gang.running:
        site_of_pod = snapshot.sites.get(pod.node_name)
        domain = site_of_pod.node.labels.get(key) if site_of_pod is not None else None
        if domain is None:
            raise ValueError(f"no topology domain found for pod {pod}")
        fixed.append(domain)
        if domain != fixed[0]:
            raise ValueError(f"more than 1 domain found for pod group: {fixed[0]}, {domain}")
    return {domain: tuple(names) for domain, names in sorted(found.items()) if domain in (fixed or found)}


def _within(
    gang: Gang,
    queued: Sequence[GangMember],
    snapshot: Snapshot,
    features: Features,
    preference: Preference,
    names: Iterable[str] | None,
) -> GroupVerdict:
    """The verdict on the pods within some nodes, or all nodes."""
    assert gang.group is not None
    needed = gang.group.policy.needed
    board = board_of(snapshot, features, queued, preference, names)
    scheduled, results = len(gang.running), []
    for remaining, member in _counted_down(queued):
        if remaining + 1 + scheduled < needed:
            break
        choice = board.choose(member)
        if choice.error:
            results.append(PodResult(member, text=choice.error))
            return _failed(f"failed to schedule other pod from a pod group: {choice.error}", queued, results)
        if choice.node is None:
            results.append(PodResult(member, text=board.refusal(member)))
        else:
            results.append(PodResult(member, choice.node, board.place(member, choice.node)))
            scheduled += 1
    tried = len(results)
    if scheduled < needed:
        message = f"minCount ({needed}) cannot be satisfied: {scheduled} scheduled, {len(queued) - tried} remaining"
        return GroupVerdict(GangStatus.UNSCHEDULABLE, message, _completed(results, queued, message))
    if not any(result.node for result in results):
        return GroupVerdict(GangStatus.UNSCHEDULABLE, _NOTHING, tuple(results))
    return GroupVerdict(GangStatus.SCHEDULED, "", tuple(results))


def _counted_down(members: Sequence[GangMember]) -> Iterator[tuple[int, GangMember]]:
    """Each member, with the number of the members after it."""
    yield from zip(range(len(members) - 1, -1, -1), members, strict=True)


def _failed(text: str, queued: Sequence[GangMember], results: Sequence[PodResult] = ()) -> GroupVerdict:
    return GroupVerdict(GangStatus.ERROR, text, _completed(results, queued, text))


def _completed(results: Sequence[PodResult], queued: Sequence[GangMember], text: str) -> tuple[PodResult, ...]:
    """The results, and for pods that were not tried the text of the group."""
    return (*results, *(PodResult(member, text=text) for member in queued[len(results) :]))
