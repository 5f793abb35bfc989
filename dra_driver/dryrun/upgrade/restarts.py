# SPDX-License-Identifier: Apache-2.0
"""Pods and claims of the cluster, each judged as if it was deleted and made again, with its devices free.

During an upgrade nodes are drained, so each pod has to find devices again. A pending pod is judged unchanged. Each
object is judged alone: the other objects keep their devices. A running pod is tried on its own node first. It is tried
on the other nodes only if its own node refuses it, or if an error about a device of another node ends the attempt.

Equal objects are judged once. They are equal if they ask for the same, and if their nodes are equivalent for the
allocator (`scheduler.allocator.equivalence`) on both sides, and if they hold the devices at the same positions.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ...kube.releases import has_rule
from ...kube.resource import DeviceTaint, ResourceClaim, TaintEffect
from ...kube.resource.claim import EXTENDED_CLAIM_ANNOTATION, tolerates
from ...kube.resource.codec import Decoded
from ...scheduler.allocator import Cluster, parts, separate
from ...scheduler.pods import Attempt, Pod, Snapshot
from ..admission import key_of
from ..defects import defect, differing
from ..evaluate import evaluate
from ..explain import taint_text
from ..refusals import refused_nodes, summary
from ..trial import ClaimTrial, PodTrial
from ..unread import UnreadFields
from ..verdict import Verdict, placed_devices
from ..workload import Demand
from ..world import World
from .judgement import Judged, Judgement, defect_text, device_texts, judgement_of
from .sides import Side

_GANG: Final = "the PodGroup of the pod is not evaluated"
_NO_CLAIM: Final = "a claim of the pod does not exist"
_OF_ONE_POD: Final = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-completion-index",
        "batch.kubernetes.io/job-name",
        "controller-revision-hash",
        "controller-uid",
        "job-name",
        "pod-template-hash",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels in which the pods of one workload, or of equal ones, differ."""


@dataclass(frozen=True, eq=False)
class RestartSubject:
    """A pod with its claims, or a claim that no pod has for itself alone. `node` is where it is, if it is anywhere.

    `own` are those of the claims that are given back when it is deleted. `special` is the claim that the scheduler made
    for the pod's extended resources. `lacks_claim`: a claim of the pod does not exist.
    """

    pod: Pod | None
    claims: tuple[ResourceClaim, ...]
    own: tuple[ResourceClaim, ...]
    node: str = ""
    special: ResourceClaim | None = None
    lacks_claim: bool = False

    @property
    def kind(self) -> str:
        """The kind of the object."""
        return "ResourceClaim" if self.pod is None else "Pod"

    @property
    def namespace(self) -> str:
        """The namespace of the object."""
        return key_of(self.claims[0])[0] if self.pod is None else self.pod.namespace

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.claims[0].metadata.name if self.pod is None else self.pod.name

    @property
    def wanted(self) -> tuple[ResourceClaim, ...]:
        """The claims, the own ones as they are made again."""
        own = set(map(id, self.own))
        return tuple(
            replace(claim, allocation=None, reserved_for=()) if id(claim) in own else claim for claim in self.claims
        )


def subjects_of(world: World | None, cluster: Cluster) -> tuple[list[RestartSubject], int]:
    """The pods about which releases may decide differently, and the claims that are not of one pod alone. Also the
    number of other pods: they ask for no devices and are not spread, and no release decides differently about them.
    """
    by_name = {key_of(claim): claim for claim in cluster.claims}
    pods = [pod for pod in world.around.pods if not (pod.ended or pod.deleted)] if world is not None else []
    users: dict[tuple[str, str], int] = defaultdict(int)
    for pod in pods:
        for reference in pod.claims:
            users[pod.namespace, reference.claim or ""] += 1
    special = {
        (key_of(claim)[0], owner.uid): claim
        for claim in cluster.claims
        if claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true"
        for owner in claim.metadata.owner_references
        if owner.controller
    }
    found, others, covered = [], 0, set[tuple[str, str]]()
    for pod in pods:
        if not (pod.claims or pod.extended or pod.spread or pod.group):
            others += 1
            continue
        keys = [(pod.namespace, reference.claim) for reference in pod.claims if reference.claim is not None]
        claims = tuple(by_name[key] for key in keys if key in by_name)
        own = tuple(claim for claim in claims if users[key_of(claim)] == 1)
        made = special.get((pod.namespace, pod.uid)) if pod.uid else None
        lacks_claim = len(claims) < len(keys) or any(not reference.recorded for reference in pod.claims)
        found.append(RestartSubject(pod, claims, own, pod.node_name, made, lacks_claim))
        covered.update(key_of(claim) for claim in (*own, *([made] if made is not None else ())))
    places = _node_of_pools(cluster)
    for claim in cluster.claims:
        if key_of(claim) not in covered:
            results = claim.allocation.results if claim.allocation is not None else ()
            nodes = {places.get((result.driver, result.pool), "") for result in results}
            found.append(RestartSubject(None, (claim,), (claim,), nodes.pop() if len(nodes) == 1 else ""))
    return found, others


def _node_of_pools(cluster: Cluster) -> Mapping[tuple[str, str], str]:
    return {(slice_.driver, slice_.pool.name): slice_.node_name or "" for slice_ in cluster.slices}


class SideOfCluster:
    """The cluster by the rules of one side, and its judgements."""

    def __init__(self, world: World | None, objects: Sequence[Decoded], side: Side, gates: Mapping[str, bool]) -> None:
        """`gates` are the feature gates whose value is known."""
        self.objects = objects
        self.features = side.features
        self.cluster = Cluster.of(objects)
        self._snapshot = world.at(self.cluster, side.features) if world is not None else None
        self.unread = UnreadFields(objects, side.features, gates)
        self._outcomes: dict[Hashable, tuple[Mapping[str, int], bool]] = {}

    @cached_property
    def _pieces(self) -> Mapping[str, Cluster]:
        """The part of the cluster that concerns each node. Empty if nodes share pools."""
        return parts(self.cluster, self.cluster.node_by_name) if separate(self.cluster) else {}

    @cached_property
    def _positions(self) -> Mapping[tuple[str, str, str], int]:
        """The position of each device in its pool, by driver, pool and name."""
        positions: dict[tuple[str, str, str], int] = {}
        sizes: dict[tuple[str, str], int] = defaultdict(int)
        for slice_ in sorted(self.cluster.slices, key=lambda slice_: slice_.metadata.name):
            pool = slice_.driver, slice_.pool.name
            for device in slice_.devices:
                positions.setdefault((*pool, device.name), sizes[pool])
                sizes[pool] += 1
        return positions

    def situation(self, kind: Hashable, subject: RestartSubject) -> Hashable:
        """What the judgement about a subject of this kind depends on besides the kind: equal for equivalent nodes."""
        if not subject.node:
            # All pending pods of a kind find the same cluster. A claim that spans nodes is judged by itself.
            return None if subject.pod is not None and not subject.lacks_claim else subject.name
        group = self._groups(kind, subject)[0].get(subject.node)
        site = self._snapshot.sites.get(subject.node) if self._snapshot is not None else None
        of_node = (site.node.taints, site.node.unschedulable) if site is not None else ()
        held = (*subject.own, *([subject.special] if subject.special is not None else []))
        devices = [
            (
                result.request,
                result.driver,
                self._positions.get((result.driver, result.pool, result.device)),
                repr(sorted(result.consumed_capacity.items())),
                result.admin_access,
            )
            for claim in held
            if claim.allocation is not None
            for result in claim.allocation.results
        ]
        return subject.node if group is None else group, of_node, tuple(devices)

    def _groups(self, kind: Hashable, subject: RestartSubject) -> tuple[Mapping[str, int], bool]:
        """The group of equivalent nodes that each node is in for claims of this kind, and whether an error about any
        device ends the attempt.
        """
        if kind not in self._outcomes:
            cluster = self.cluster
            outcomes = None
            if subject.pod is not None and self._snapshot is not None:
                attempt = Attempt(_again(subject.pod), self._snapshot, self.features, subject.wanted)
                site = self._snapshot.sites.get(subject.node)
                decided = attempt.devices.decided(site) if site is not None and attempt.refusal is None else None
                outcomes = decided[1] if decided is not None else None
            elif subject.pod is None:
                outcomes = ClaimTrial(cluster, subject.wanted, self.features).outcomes
            found = outcomes.groups if outcomes is not None else ()
            numbers = {name: index for index, group in enumerate(found) for name in group.nodes}
            self._outcomes[kind] = numbers, any(group.outcome.fatal for group in found)
        return self._outcomes[kind]

    @cached_property
    def _idle(self) -> Cluster:
        """The cluster with nothing in use."""
        return Cluster(self.cluster.slices, self.cluster.classes, self.cluster.nodes)

    def idle_judgement(self, claim: ResourceClaim) -> Judgement:
        """The judgement about a claim alone, with nothing in use. It has no reason (`idle_reason`)."""
        return self._of_trial(ClaimTrial(self._idle, (claim,), self.features), claim.metadata.name)

    def idle_reason(self, claim: ResourceClaim) -> str:
        """Why the claim does not fit although nothing is in use."""
        return self._refused(self._idle, (claim,), claim.metadata.name).reason

    def _of_trial(self, trial: ClaimTrial, name: str, node: str = "") -> Judgement:
        """The judgement about claims by themselves, on `node` if it fits. Without a reason if no node fits."""
        demand = Demand(name, tuple(trial.claims))
        fitting = trial.fitting
        if not fitting:
            return Judgement(False, unknown=self.unread.about(Verdict(demand)))
        chosen = node if node in fitting else fitting[0]
        placed = tuple(placed_devices(trial.allocated(chosen), trial.cluster))
        unknown = self.unread.about(Verdict(demand, (chosen,), placed))
        fault = defect_text(differing(trial, trial.outcomes, chosen))
        return Judgement(
            True, chosen, device_texts(placed), fitting=() if node else fitting, defect=fault, unknown=unknown
        )

    def _refused(self, cluster: Cluster, claims: tuple[ResourceClaim, ...], name: str) -> Judgement:
        """The judgement about claims that fit nowhere, with the reason."""
        objects: tuple[Decoded, ...] = (*cluster.slices, *cluster.classes, *cluster.nodes, *cluster.claims)
        (verdict,) = evaluate([Demand(name, claims)], objects, self.features)
        return judgement_of(verdict, self.unread.about(verdict))

    def judge(self, kind: Hashable, subject: RestartSubject) -> Judgement:
        """The judgement about a subject of this kind."""
        judgement = self._judge_claim(subject) if subject.pod is None else self._judge_pod(kind, subject, subject.pod)
        return replace(judgement, evicted=self._eviction(subject))

    def _judge_claim(self, subject: RestartSubject) -> Judgement:
        held = [claim for claim in subject.own if claim.allocation is not None]
        cluster = self.cluster.after(released=held)
        found = self._of_trial(ClaimTrial(cluster, subject.wanted, self.features), subject.name, subject.node)
        return found if found.fits else self._refused(cluster, subject.wanted, subject.name)

    def _judge_pod(self, kind: Hashable, subject: RestartSubject, pod: Pod) -> Judgement:
        snapshot = self._snapshot
        assert snapshot is not None
        unknown = (*((_GANG,) if pod.group else ()), *((_NO_CLAIM,) if subject.lacks_claim else ()))
        if subject.node in snapshot.sites and not self._groups(kind, subject)[1]:
            there = self._there(subject, pod, self._piece(pod, subject.node, snapshot))
            if there is not None:
                return replace(there, unknown=(*unknown, *there.unknown))
        found = self._anywhere(subject, pod, snapshot)
        return replace(found, unknown=(*unknown, *found.unknown))

    def _piece(self, pod: Pod, node: str, snapshot: Snapshot) -> Snapshot:
        """The snapshot with this node alone, if other nodes do not matter for the pod."""
        beyond = pod.spread or pod.affinity or pod.anti_affinity or pod.volumes or snapshot.with_anti_affinity
        if beyond or not self._pieces:
            return snapshot
        site = snapshot.sites[node]
        pods = (*site.pods, *snapshot.nominated.get(node, ()))
        return replace(snapshot, cluster=self._pieces[node], nodes=(site.node,), pods=pods)

    def _attempt(self, subject: RestartSubject, pod: Pod, snapshot: Snapshot) -> Attempt:
        """The attempt to place the pod again, after it was deleted."""
        without = snapshot.without(pod)
        own = set(map(id, subject.own))
        held = [claim for claim in without.cluster.claims if id(claim) in own]
        after = without.with_cluster(without.cluster.after(released=held))
        return Attempt(_again(pod), after, self.features, subject.wanted)

    def _there(self, subject: RestartSubject, pod: Pod, snapshot: Snapshot) -> Judgement | None:
        """The judgement if the pod's own node takes it again. None if it does not."""
        attempt = self._attempt(subject, pod, snapshot)
        site = attempt.snapshot.sites[subject.node]
        if attempt.gates or attempt.refusal is not None or attempt.refuses(site) is not None:
            return None
        return self._placed(subject, attempt, subject.node) if not attempt.binding_error(subject.node) else None

    def _anywhere(self, subject: RestartSubject, pod: Pod, snapshot: Snapshot) -> Judgement:
        attempt = self._attempt(subject, pod, snapshot)
        if attempt.gates:
            return Judgement(False, reason="; ".join(refusal.message for refusal in attempt.gates))
        if attempt.refusal is not None:
            return Judgement(False, reason=attempt.refusal.message)
        if attempt.errors:
            return Judgement(False, reason="; ".join(sorted(attempt.errors)))
        fitting = tuple(name for name, refusal in attempt.refusals.items() if refusal is None)
        usable = tuple(name for name in fitting if not attempt.binding_error(name))
        if usable:
            return self._placed(subject, attempt, subject.node if subject.node in usable else usable[0], usable)
        if fitting:
            return Judgement(False, reason=attempt.binding_error(fitting[0]))
        trial = self._trial(attempt, next(iter(attempt.snapshot.sites), ""))
        verdict = Verdict(self._demand(subject, attempt))
        fault = defect_text(defect(trial)) if trial is not None else ""
        return Judgement(
            False, reason=summary(refused_nodes(PodTrial(attempt))), defect=fault, unknown=self.unread.about(verdict)
        )

    def _placed(self, subject: RestartSubject, attempt: Attempt, node: str, fitting: tuple[str, ...] = ()) -> Judgement:
        placed = tuple(placed_devices(attempt.allocated(node), attempt.snapshot.cluster))
        unknown = self.unread.about(Verdict(self._demand(subject, attempt), (node,), placed))
        trial = self._trial(attempt, node)
        fault = defect_text(differing(trial, trial.outcomes, node)) if trial is not None else ""
        return Judgement(True, node, device_texts(placed), fitting=fitting, defect=fault, unknown=unknown)

    def _trial(self, attempt: Attempt, node: str) -> ClaimTrial | None:
        site = attempt.snapshot.sites.get(node)
        decided = attempt.devices.decided(site) if site is not None and attempt.refusal is None else None
        return None if decided is None else ClaimTrial(attempt.snapshot.cluster, decided[0], self.features)

    @staticmethod
    def _demand(subject: RestartSubject, attempt: Attempt) -> Demand:
        return Demand(subject.name, subject.wanted, extended=attempt.pod.extended)

    def _eviction(self, subject: RestartSubject) -> str:
        """The taint for which the pod is evicted now that it has its devices. Empty if it is not."""
        if subject.pod is None or not subject.node or not self.features.device_taints:
            return ""
        special = [] if has_rule(self.features.release, "extended_claims_are_not_evicted") else [subject.special]
        for claim in (*subject.claims, *(each for each in special if each is not None)):
            for result in claim.allocation.results if claim.allocation is not None else ():
                for taint in self._taints.get((result.driver, result.pool, result.device), ()):
                    if not any(tolerates(toleration, taint) for toleration in result.tolerations):
                        return f"{result.pool}/{result.device} has the taint {taint_text(taint)}"
        return ""

    @cached_property
    def _taints(self) -> Mapping[tuple[str, str, str], Sequence[DeviceTaint]]:
        """The taints that evict pods, by driver, pool and device."""
        return {
            (slice_.driver, slice_.pool.name, device.name): taints
            for slice_ in self.cluster.slices
            for device in slice_.devices
            if (taints := [taint for taint in device.taints if taint.effect == TaintEffect.NO_EXECUTE])
        }


def judged(
    subjects: Iterable[RestartSubject],
    now: SideOfCluster,
    then: SideOfCluster,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Iterator[Judged]:
    """Both judgements about the subjects, equal ones joined. `tell` is called with the number of judged kinds, and of
    all kinds.
    """
    alike: dict[Hashable, list[RestartSubject]] = defaultdict(list)
    for subject in subjects:
        kind = _kind(subject)
        alike[kind, now.situation(kind, subject), then.situation(kind, subject)].append(subject)
    for done, (key, members) in enumerate(alike.items(), start=1):
        assert isinstance(key, tuple)
        first, kind = members[0], key[0]
        names = tuple(subject.name for subject in members)
        yield Judged(first.kind, first.namespace, names, now.judge(kind, first), then.judge(kind, first))
        tell(done, len(alike))


def _kind(subject: RestartSubject) -> Hashable:
    """What a subject asks for, without names: equal for equal ones."""
    own = set(map(id, subject.own))
    claims = tuple(repr(claim.spec) if id(claim) in own else str(claim.metadata) for claim in subject.claims)
    if subject.pod is None:
        return subject.namespace, claims
    pod = _again(subject.pod)
    labels = {key: value for key, value in pod.labels.items() if key not in _OF_ONE_POD}
    references = tuple(replace(reference, claim=None, recorded=True) for reference in pod.claims)
    same = replace(
        pod, name="", uid="", labels=labels, claims=references, extended_claim="", owner=("", ""), images=(), started=""
    )
    return repr(same), claims, bool(subject.node)


def _again(pod: Pod) -> Pod:
    """The pod that its controller makes again."""
    return replace(pod, node_name="", nominated_node="", phase="")
