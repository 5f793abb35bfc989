# SPDX-License-Identifier: Apache-2.0
"""The answers about groups of pods, one group after the other. A group that is scheduled uses up what it gets."""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...kube.releases import NEWEST_RELEASED, default_gates, is_since
from ...kube.resource import Node
from ...scheduler.allocator import Cluster, Features
from ...scheduler.gangs import (
    Gang,
    GangMember,
    GangStatus,
    GroupVerdict,
    JointAnswer,
    PodGroup,
    Preference,
    assign,
    schedule,
)
from ...scheduler.gangs.objects import sharing
from ...scheduler.pods import ClusterNode, Pod, Snapshot
from ..admission import Admission, held_claims, valid_pod
from ..sources import Source
from ..workload import Demand
from ..world import ROOM
from .changes import GangChange, helpful, without_sharing
from .grouping import PodsOfGroup

_ONE_BY_ONE: Final = (
    "kube-scheduler places the pods one after the other and never places a pod again, so what an early pod takes can be"
    " missing for a later one (kubernetes/kubernetes#138765)"
)
_OF_ALLOCATOR: Final = (
    "known defects of kube-scheduler {} keep a pod from devices that it could have: by the rules of the API, the"
    " scheduler schedules the group. dra-dryrun fit names the defect"
)
_COLLISION: Final = (
    "pods that share {} are bound at the same time: binding can fail for some of them with `claim got allocated"
    " elsewhere in the meantime`, and they are tried again (kubernetes/kubernetes#140053)"
)
_MOST_USERS: Final = 256
"""The most consumers in `status.reservedFor` of a claim."""
_HOSTNAME: Final = "kubernetes.io/hostname"
_NOT_HERE: Final = "spec.schedulingGroup"
"""A part of the notes of demands that say that groups are not evaluated."""


class GangOutcome(enum.StrEnum):
    """Whether kube-scheduler schedules a group."""

    SCHEDULED = "scheduled"
    REFUSED = "refused"
    WAITING = "waiting"
    """The pods do not enter the scheduling queue."""
    UNKNOWN = "not known"
    """The PodGroup may not be read."""
    DEPENDS = "depends on scores"
    """It depends on which of the nodes that fit the scheduler prefers."""
    REJECTED = "rejected"
    """The API server refuses a pod or a claim."""


@dataclass(frozen=True, slots=True)
class GangAnswer:
    """The answer about one group.

    `verdicts` are those of the scheduler for each way to choose among the nodes that fit. `joint` is set if not all of
    them are that the group is scheduled. `defect` is the known defect that was hit, and `changes` are those with which
    the scheduler places the group, None if none were tried. `rejects` are the texts of the API server.
    """

    group: PodsOfGroup
    gang: Gang
    verdicts: tuple[GroupVerdict, ...] = ()
    joint: JointAnswer | None = None
    defect: str = ""
    changes: tuple[GangChange, ...] | None = None
    rejects: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def verdict(self) -> GroupVerdict:
        """The verdict to show: the first that is not that the group is scheduled, if there is one."""
        return next((verdict for verdict in self.verdicts if not verdict.is_scheduled), self.verdicts[0])

    @property
    def outcome(self) -> GangOutcome:
        """Whether the scheduler schedules the group."""
        if self.rejects:
            return GangOutcome.REJECTED
        if self.verdict.status is GangStatus.WAITING:
            return GangOutcome.UNKNOWN if self.group.unknown else GangOutcome.WAITING
        scheduled = [verdict.is_scheduled for verdict in self.verdicts]
        if all(scheduled):
            return GangOutcome.SCHEDULED
        return GangOutcome.DEPENDS if any(scheduled) else GangOutcome.REFUSED


def answers(groups: Sequence[PodsOfGroup], source: Source, features: Features, seconds: float) -> Iterator[GangAnswer]:
    """The answer about each group. Raises InputError."""
    asker = _Asker(source, features, seconds)
    yield from map(asker.answer, groups)


class _Asker:
    """The cluster while groups are placed."""

    def __init__(self, source: Source, features: Features, seconds: float) -> None:
        self._features = features
        self._seconds = seconds
        self._world = source.world
        self._snapshot = snapshot_of(source, features)
        self._admission = Admission(source.world) if source.world is not None else None

    def answer(self, group: PodsOfGroup) -> GangAnswer:
        """The answer about the next group. Raises InputError."""
        members, rejects, notes, unknown = [], [], list(group.notes), [*group.unknown, *_schedulers(group)]
        for demand in group.demands:
            pod, why, said = self._admitted(demand)
            rejects += [f"{demand.name}: {text}" for text in (*demand.missing, *why)]
            notes += (*said, *demand.notes)
            unknown += [text for text in demand.unknown if _NOT_HERE not in text and "shares claims" not in text]
            members.append(
                GangMember(replace(pod, group=group.name), tuple(held_claims(demand, self._snapshot.cluster)))
            )
        unknown += _crowded(group, members)
        gang = Gang(group.name, _pod_group(group), tuple(members), self._running(group))
        notes += _gates(group, self._features)
        found = GangAnswer(
            *(group, gang),
            rejects=tuple(rejects),
            notes=tuple(dict.fromkeys(notes)),
            unknown=tuple(dict.fromkeys(unknown)),
        )
        return found if rejects else self._decided(found)

    def _decided(self, found: GangAnswer) -> GangAnswer:
        gang, snapshot, features = found.gang, self._snapshot, self._features
        verdicts = tuple(schedule(gang, snapshot, features, preference) for preference in Preference)
        found = replace(found, verdicts=verdicts)
        if found.outcome in (GangOutcome.WAITING, GangOutcome.UNKNOWN):
            return found
        if found.outcome is GangOutcome.SCHEDULED:
            found = self._with_collisions(found)
            self._place(verdicts[0])
            return found
        joint = assign(gang, snapshot, features, self._seconds)
        found = replace(found, joint=joint)
        if not joint.placements:
            return found
        ideal = replace(features, as_specified=True)
        if all(schedule(gang, snapshot, ideal, preference).is_scheduled for preference in Preference):
            return replace(found, defect=_OF_ALLOCATOR.format(features.release))
        changes = helpful(gang, joint.placements, found.verdict, snapshot, features)
        apart = without_sharing(gang, snapshot, features) if not changes else None
        return replace(found, defect=_ONE_BY_ONE, changes=(*changes, *((apart,) if apart is not None else ())))

    def _with_collisions(self, found: GangAnswer) -> GangAnswer:
        claims = found.verdicts[0].collisions
        if not claims or self._features.as_specified:
            return found
        change = without_sharing(found.gang, self._snapshot, self._features)
        first = GangChange(
            "claims", f"allocate {' and '.join(claims)} before the group: start one other pod that uses it"
        )
        return replace(
            found,
            defect=_COLLISION.format(" and ".join(claims)),
            changes=(*((change,) if change is not None else ()), first),
        )

    def _place(self, verdict: GroupVerdict) -> None:
        for result in verdict.results:
            if result.node is not None:
                cluster = self._snapshot.cluster.after(result.claims)
                self._snapshot = self._snapshot.placed(result.member.pod, result.node, cluster)

    def _admitted(self, demand: Demand) -> tuple[Pod, tuple[str, ...], tuple[str, ...]]:
        """The pod of a demand, why the API server refuses it, and notes. Raises InputError."""
        if self._admission is None:
            pod, rejects = valid_pod(demand)
            return pod, rejects, ()
        stored = self._admission.pod(demand, self._snapshot)
        return stored.pod, stored.rejects, stored.notes

    def _running(self, group: PodsOfGroup) -> tuple[Pod, ...]:
        """The pods of the group that have a node."""
        if not group.counts_running:
            return ()
        return tuple(
            pod
            for pod in self._snapshot.pods
            if pod.node_name and not pod.ended and (pod.namespace, pod.group) == (group.namespace, group.name)
        )


def _schedulers(group: PodsOfGroup) -> Iterator[str]:
    """A text about pods of several schedulers, which do not place a group together."""
    specs = ((demand.submitted or {}).get("spec") or {} for demand in group.demands)
    names = sorted({str(spec.get("schedulerName") or "default-scheduler") for spec in specs})
    if len(names) > 1:
        yield f"the pods of a group need one schedulerName, and these name {' and '.join(names)}"


def _crowded(group: PodsOfGroup, members: Sequence[GangMember]) -> Iterator[str]:
    """Texts about claims that more pods share than a claim can be reserved for. Claims of the group have no limit."""
    entries = group.policy.claims if group.policy is not None else ()
    own = {entry.claim or f"{group.name}-{entry.name}" for entry in entries}
    for (namespace, name), users in sharing(members).items():
        if len(users) > _MOST_USERS and name not in own:
            yield (
                f"{len(users)} pods use claim {namespace}/{name}, which can be reserved for {_MOST_USERS}: name it in"
                " spec.resourceClaims of the PodGroup"
            )


def _pod_group(group: PodsOfGroup) -> PodGroup | None:
    return None if group.policy is None else PodGroup(group.namespace, group.name, group.policy)


def snapshot_of(source: Source, features: Features) -> Snapshot:
    """The cluster with all that is known. Where only devices are known, nodes have enough of everything else."""
    cluster = Cluster.of(source.objects)
    if source.world is not None:
        return source.world.at(cluster, features)
    nodes = tuple(_roomy(node) for node in cluster.nodes)
    kept = replace(cluster, nodes=tuple(node.node for node in nodes))
    return Snapshot(kept, nodes, extended_resources=features.extended_resources)


def _roomy(node: Node) -> ClusterNode:
    labels = {_HOSTNAME: node.name, **node.metadata.labels}
    named = replace(node, metadata=replace(node.metadata, labels=labels))
    return ClusterNode(named, dict.fromkeys(("cpu", "memory", "ephemeral-storage", "pods"), ROOM))


def _gates(group: PodsOfGroup, features: Features) -> Iterator[str]:
    """Notes about feature gates that the group needs and that are off by default, and about the release."""
    if group.policy is None:
        return
    if not is_since(features.release, NEWEST_RELEASED):
        yield f"the rules for groups are those of Kubernetes {NEWEST_RELEASED}, not of {features.release}"
    gates = ["GenericWorkload"]
    gates += ["TopologyAwareWorkloadScheduling"] if group.policy.topology_key else []
    gates += ["DRAWorkloadResourceClaims"] if group.policy.claims else []
    known = default_gates(features.release)
    needed = [gate for gate in gates if not known.get(gate, False)]
    if needed:
        yield f"the cluster must enable {', '.join(needed)}, which {features.release} does not by default"
