# SPDX-License-Identifier: Apache-2.0
"""Verdicts on whole pods, one after the other: first the answer of the API server, then that of the scheduler.

The API server's answer is about defaults, limits, priorities, quotas and namespaces. A pod that is in the cluster
already, under the same name, is not counted twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from ..kube.resource import ResourceClaim
from ..kube.resource.codec import DecodeError
from ..process.command import InputError
from ..scheduler.allocator import Cluster, Features
from ..scheduler.pods import Admitted, Attempt, Pod, PodDecoder, Policies, Quotas, Snapshot, admit_pod
from .changes import Suggestion, Trial, defect, differing
from .explain import Explanation
from .extended import is_of_driver, not_judged, remedy
from .podchanges import helpful_pod_changes, without_devices
from .refusals import groups, summary
from .selection import ALL_KNOWN, OpenLabels, Requirements, assumption_texts, opened, possible_domains, sorted_by_needs
from .verdict import PodRemoval, Refused, Verdict, placed_devices
from .workload import Demand
from .world import World

_ADMIN: Final = "resource.kubernetes.io/admin-access"
_UNKNOWN: Final = (
    ("PriorityClass", "priorityClassName", "its priority is taken to be 0: no PriorityClass is known"),
    ("RuntimeClass", "runtimeClassName", "its RuntimeClass is not considered: none is known"),
)
"""Kinds that give a field of a pod its meaning, and the note for a snapshot without them."""

_OF_CLASSES: Final = frozenset({"priority", "preemptionPolicy", "priorityClassName", "overhead"})
"""Fields of pods that follow from classes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A pod as the API server would store it, the reasons for a refusal, and notes about fields that are ignored."""

    pod: Pod
    rejects: tuple[str, ...]
    notes: tuple[str, ...]


class Admission:
    """Admits objects one after the other. Each admitted object counts for the quotas."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._policies = world.policies
        self._decoder = PodDecoder()
        self._pods = {(pod.namespace, pod.name): pod for pod in world.around.pods}

    def known(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name that the cluster has."""
        return self._pods.get((namespace, name))

    def forget(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, which the cluster does not have any more."""
        gone = self.known(namespace, name)
        self._pods = {key: pod for key, pod in self._pods.items() if key != (namespace, name)}
        return gone

    def pod(self, demand: Demand, snapshot: Snapshot) -> Stored:
        """Admits the pod of a demand. Raises InputError."""
        assert demand.submitted is not None
        submitted, notes = _without_unknown(demand.submitted, self._world.unknown)
        pod, admitted = _admitted(demand, submitted, self._policies, self._decoder)
        if "PersistentVolumeClaim" in self._world.unknown and pod.volumes:
            pod = replace(pod, volumes=())
            notes.append("its volumes are not considered: no PersistentVolumeClaim is known")
        elif any(volume.ephemeral for volume in pod.volumes):
            pod = replace(pod, volumes=tuple(volume for volume in pod.volumes if not volume.ephemeral))
            notes.append("volumes that are made for it are not considered")
        rejects = [*self._missing_namespace(pod.namespace, snapshot)]
        rejects += [admitted.forbidden] if admitted.forbidden and not rejects else []
        rejects += _invalid(pod, admitted) if not rejects else ()
        if not rejects and not demand.replaces and self.known(pod.namespace, pod.name) is None:
            rejects += self.count(pod, snapshot)
        return Stored(pod, tuple(rejects), tuple(notes))

    def claims(self, claims: Sequence[ResourceClaim], snapshot: Snapshot) -> tuple[str, ...]:
        """Admits new claims. Returns the reasons for a refusal."""
        refused: list[str] = []
        for claim in claims:
            refused += (
                [*self._missing_namespace(claim.metadata.namespace or "default", snapshot)]
                or [*self._refuse_access(claim, snapshot)]
                or self.count(claim, snapshot)
            )
        return tuple(refused)

    def count(self, item: Pod | ResourceClaim, snapshot: Snapshot) -> list[str]:
        """Why a quota refuses a new object. An object that is not refused counts from now on."""
        if not self._policies.quotas:
            return []
        decision = Quotas(snapshot, self._world.templates).decide(item, self._policies.quotas)
        if decision.used_after is None:
            return list(decision.messages[:1])
        after = decision.used_after
        quotas = tuple(replace(quota, used=after.get(str(quota), quota.used)) for quota in self._policies.quotas)
        self._policies = replace(self._policies, quotas=quotas)
        return []

    def _missing_namespace(self, name: str, snapshot: Snapshot) -> Iterator[str]:
        if "Namespace" not in self._world.unknown and snapshot.namespaces and name not in snapshot.namespaces:
            yield f'namespaces "{name}" not found'

    def _refuse_access(self, claim: ResourceClaim, snapshot: Snapshot) -> Iterator[str]:
        """The refusal of admin access in a namespace without the label for it."""
        if "Namespace" in self._world.unknown:
            return
        labels = snapshot.labels_of(claim.metadata.namespace or "default")
        for index, request in enumerate(claim.spec.requests):
            if request.exactly is not None and request.exactly.admin_access and labels.get(_ADMIN) != "true":
                yield (
                    f'ResourceClaim.resource.k8s.io "{claim.metadata.name}" is invalid: spec.devices.requests[{index}]'
                    f".exactly.adminAccess: Forbidden: admin access to devices requires the `{_ADMIN}: true` label on"
                    " the containing namespace"
                )


def _named(pod: Mapping[str, Any]) -> Pod:
    """A pod that the API server refuses: whatever else it says cannot be relied on."""
    return Pod(pod["metadata"]["namespace"], pod["metadata"].get("name", ""), "")


def valid_pod(demand: Demand) -> tuple[Pod, tuple[str, ...]]:
    """The pod of a demand with the API server's defaults, and why its validation refuses the pod. Only the pod is
    looked at: no classes, limits or quotas. Raises InputError.
    """
    assert demand.submitted is not None
    submitted, _ = _without_unknown(demand.submitted, frozenset(kind for kind, _, _ in _UNKNOWN))
    spec = {name: value for name, value in submitted["spec"].items() if name not in _OF_CLASSES}
    pod, admitted = _admitted(demand, {**submitted, "spec": spec}, Policies(), PodDecoder())
    return pod, _invalid(pod, admitted)


def _admitted(
    demand: Demand, submitted: Mapping[str, Any], policies: Policies, decoder: PodDecoder
) -> tuple[Pod, Admitted]:
    try:
        admitted = admit_pod(submitted, policies)
        return _named(admitted.pod) if admitted.refusals else decoder.decode(admitted.pod), admitted
    except DecodeError as error:
        raise InputError(f"{demand.name}: {error}") from None


def _invalid(pod: Pod, admitted: Admitted) -> tuple[str, ...]:
    """The text with which the API server's validation refuses a pod. Empty if it does not."""
    if not admitted.errors:
        return ()
    errors = admitted.errors[0] if len(admitted.errors) == 1 else f"[{', '.join(admitted.errors)}]"
    return (f'Pod "{pod.name}" is invalid: {errors}',)


def _without_unknown(submitted: Mapping[str, Any], unknown: frozenset[str]) -> tuple[Mapping[str, Any], list[str]]:
    """The pod without its references to unknown kinds, and a note for each of them."""
    spec, notes = dict(submitted["spec"]), []
    for kind, field, said in _UNKNOWN:
        if kind in unknown and spec.get(field) and not str(spec[field]).startswith("system-"):
            del spec[field]
            notes.append(said)
    return {**submitted, "spec": spec}, notes


class WholePods:
    """Places pods in a world, one after the other."""

    def __init__(self, world: World, cluster: Cluster, features: Features, labels: OpenLabels = ALL_KNOWN) -> None:
        """`labels` tells of which nodes some labels are unknown."""
        self._features = features
        self._labels = labels
        self._snapshot = world.at(cluster, features)
        self._admission = Admission(world)
        self._known = {key_of(claim) for claim in cluster.claims}
        self._holders = cluster.allocated

    def apart(self) -> "WholePods":
        """The same state, which pods that are placed in one of the two do not change in the other."""
        found = copy(self)
        found._admission = copy(self._admission)
        found._known = set(self._known)
        return found

    def hold(self, allocated: Sequence[ResourceClaim]) -> None:
        """Adds claims that hold devices from now on."""
        self._snapshot = self._snapshot.with_cluster(self._snapshot.cluster.after(allocated))

    def rejects(self, demand: Demand) -> tuple[str, ...]:
        """Why the API server would refuse the new claims of a demand. Claims that it accepts count for quotas."""
        new = [claim for claim in demand.claims if key_of(claim) not in self._known]
        self._known.update(map(key_of, new))
        return self._admission.claims(new, self._snapshot)

    def evaluate(self, demand: Demand) -> tuple[Verdict, list[ResourceClaim]]:
        """The verdict on a pod, and the claims that would hold its devices. Raises InputError."""
        for name in demand.replaces:
            gone = self._admission.forget(demand.pod.namespace or "default", name)
            self._snapshot = self._snapshot if gone is None else self._snapshot.without(gone)
        there = self._admission.known(demand.pod.namespace or "default", demand.pod.name)
        if there is not None and (there.node_name or there.ended):
            state = "ended" if there.ended else "running"
            return running(demand, self._snapshot.cluster, there.node_name or "no node", state), []
        stored = self._admission.pod(demand, self._snapshot)
        rejects = tuple(dict.fromkeys((*stored.rejects, *self.rejects(demand))))
        if rejects:
            return Verdict(demand, rejects=rejects, notes=stored.notes), []
        claims = held_claims(demand, self._snapshot.cluster)
        own = self._admission.known(stored.pod.namespace, stored.pod.name)
        snapshot = self._snapshot if own is None else self._snapshot.without(own, claims)
        verdict, attempt, needs = self._attempted(demand, stored.pod, snapshot, claims)
        verdict = replace(verdict, notes=(*stored.notes, *verdict.notes))
        if verdict.node is None:
            return verdict, []
        self._labels = self._labels.after(verdict.node, needs)
        allocated = attempt.allocated(verdict.node)
        self._snapshot = snapshot.placed(attempt.placed(verdict.node), verdict.node, snapshot.cluster.after(allocated))
        return verdict, allocated

    def _attempted(
        self, demand: Demand, pod: Pod, snapshot: Snapshot, claims: Sequence[ResourceClaim]
    ) -> tuple[Verdict, Attempt, Requirements]:
        """The verdict on a pod, the attempt that leads to it, and what is assumed of the node's labels.

        If no node takes the pod, values of unknown topology keys are tried.
        """
        first: tuple[Verdict, Attempt, Requirements] | None = None
        for domains in chain(((),), possible_domains(pod, snapshot, self._labels)):
            there = opened(pod, snapshot, self._labels, domains)
            attempt = Attempt(pod, there.snapshot, self._features, claims)
            verdict = self._decide(demand, attempt, claims, there.needs)
            needs = there.needs.get(verdict.node or "", ())
            verdict = replace(verdict, assumptions=assumption_texts(needs))
            if verdict.node in self._labels.nodes:
                verdict = replace(verdict, unknown=not_judged(there.not_judged))
            first = first or (verdict, attempt, needs)
            if verdict.node is not None:
                return verdict, attempt, needs
        assert first is not None
        return replace(first[0], notes=tuple(_remedies(first[1]))), first[1], ()

    def _decide(
        self, demand: Demand, attempt: Attempt, claims: Sequence[ResourceClaim], needs: Mapping[str, Requirements]
    ) -> Verdict:
        nodes = tuple(attempt.snapshot.sites)
        waiting = attempt.gates or ((attempt.refusal,) if attempt.refusal is not None else ())
        if waiting or not nodes:
            said = "; ".join(refusal.message for refusal in waiting) or attempt.fit_error
            refused = (Refused(nodes, Explanation(said, True)),) if nodes else ()
            return Verdict(demand, refused=refused, summary=said, event="" if attempt.gates else attempt.event)
        fitting = sorted_by_needs((name for name, refusal in attempt.refusals.items() if refusal is None), needs)
        if not fitting or attempt.errors:
            return self._nowhere(demand, attempt)
        failing = {name: problem for name in fitting if (problem := attempt.binding_error(name))}
        fault = self._cannot_bind(failing)
        fitting = tuple(name for name in fitting if name not in failing)
        if not fitting:
            problem = next(iter(failing.values()))
            refused = (Refused(tuple(failing), Explanation(problem, False)),)
            return Verdict(demand, refused=refused, defect=fault, event=problem)
        node = fitting[0]
        placed = tuple(placed_devices((*claims, *attempt.allocated(node)), attempt.snapshot.cluster))
        decided = attempt.devices.decided(attempt.snapshot.sites[node])
        if fault is None and decided is not None and len(fitting) == len(nodes):
            pending, outcomes = decided
            fault = differing(Trial(attempt.snapshot.cluster, pending, self._features), outcomes, node)
        return Verdict(demand, fitting, placed, defect=fault)

    def _cannot_bind(self, failing: Mapping[str, str]) -> Suggestion | None:
        """The defect that keeps pods from nodes whose device plugins have everything that the pods ask for."""
        if not failing:
            return None
        first = next(iter(failing))
        others = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        text = f"kube-scheduler {self._features.release} errs: a claim for extended resources that device plugins serve"
        return Suggestion(f"{text} keeps it from binding the pod to {first}{others}", first)

    def _nowhere(self, demand: Demand, attempt: Attempt) -> Verdict:
        refused = tuple(groups(attempt))
        if node := demand.daemon_node:
            refused = tuple(replace(refusal, nodes=(node,)) for refusal in refused if node in refusal.nodes)
        fatal = tuple(refusal for refusal in refused if refusal.explanation.fatal)
        if fatal:
            return Verdict(demand, refused=fatal[:1], event=attempt.event)
        changes = tuple(helpful_pod_changes(attempt, of_others(demand, self._holders)))
        trial = without_devices(attempt)
        only_devices = trial.claims and len(trial.cluster.nodes) == len(attempt.snapshot.nodes)
        return Verdict(
            demand,
            refused=refused,
            changes=changes,
            defect=defect(trial) if only_devices else None,
            summary=summary(refused),
            event=attempt.event,
            removal=_removal(attempt),
        )


def _remedies(attempt: Attempt) -> Iterator[str]:
    """The advice about extended resources of the driver that neither a DeviceClass nor a device plugin serves."""
    snapshot = attempt.snapshot
    offered = {name for node in snapshot.nodes for name, amount in node.allocatable.items() if amount}
    for name in attempt.pod.amounts:
        if is_of_driver(name) and name not in snapshot.served and name not in offered:
            yield remedy(name, attempt.features)


def running(demand: Demand, cluster: Cluster, node: str, state: str) -> Verdict:
    """The verdict on a pod that is on a node of the cluster already: it keeps its devices."""
    placed = tuple(placed_devices(held_claims(demand, cluster), cluster))
    return Verdict(demand, (node,), placed, state=state)


def held_claims(demand: Demand, cluster: Cluster) -> list[ResourceClaim]:
    """The claims of a demand. A claim that holds devices in the cluster is given without changes."""
    held = {key_of(claim): claim for claim in cluster.claims if claim.allocation is not None}
    return [held.get(key_of(claim), claim) for claim in demand.claims]


def of_others(demand: Demand, claims: Iterable[ResourceClaim]) -> list[ResourceClaim]:
    """The claims that are not the demand's own."""
    own = {key_of(claim) for claim in demand.claims}
    return [claim for claim in claims if key_of(claim) not in own]


def key_of(claim: ResourceClaim) -> tuple[str, str]:
    """Namespace and name."""
    return claim.metadata.namespace or "default", claim.metadata.name


def _removal(attempt: Attempt) -> PodRemoval | None:
    preemption = attempt.after.preemption if attempt.after is not None else None
    if preemption is None or not preemption.nominated:
        return None
    node = preemption.nominated[0]
    return PodRemoval(node, tuple(str(pod) for pod in preemption.candidates[node].pods))
