# SPDX-License-Identifier: Apache-2.0
"""Verdicts on demands, which are placed in a cluster one after the other.

Of a pod, first the API server answers (`admission`), then the scheduler (`trial`), and for the devices that it gets the
driver (`preparation`).
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import groupby

from ..kube.resource import ResourceClaim
from ..kube.resource.codec import Decoded
from ..process.command import InputError
from ..scheduler.allocator import Cluster, Features
from ..scheduler.allocator.selectors import compile_cel
from ..scheduler.cel import CompileError
from .admission import Admission, held_claims, key_of, valid_pod
from .changes import helpful_changes
from .defects import defect_of_binding, defect_of_fit, defect_of_refusals
from .explain import Explanation
from .extended import doubtful_classes, not_judged, remedy
from .preparation import refused_configs
from .refusals import refused_nodes, summary
from .selection import ALL_KNOWN, OpenLabels, assumption_texts
from .trial import ClaimTrial, PodTrial, claim_trial, pod_trial
from .verdict import PodRemoval, Refused, Verdict, placed_devices
from .workload import Demand
from .world import World


def evaluate(
    demands: Iterable[Demand],
    objects: Sequence[Decoded],
    features: Features,
    world: World | None = None,
    labels: OpenLabels = ALL_KNOWN,
) -> list[Verdict]:
    """The verdict on each demand, in order. With a `world`, it is about the whole pod, else about its devices only.
    `labels` tells of which nodes some labels are unknown.
    """
    return list(evaluate_each(demands, Cluster.of(objects), features, world, labels))


def evaluate_each(
    demands: Iterable[Demand],
    cluster: Cluster,
    features: Features,
    world: World | None = None,
    labels: OpenLabels = ALL_KNOWN,
) -> Iterator[Verdict]:
    """Like `evaluate`, but gives each verdict immediately."""
    one_by_one = _OneByOne(cluster, world, features, labels)
    for stage, group in groupby(demands, lambda demand: demand.stage):
        # The pods of a stage end before those of the next one begin.
        placing = one_by_one.apart() if stage else one_by_one
        yield from map(placing.verdict, group)


class _OneByOne:
    """Demands, each of which gets what the earlier ones have left."""

    def __init__(self, cluster: Cluster, world: World | None, features: Features, labels: OpenLabels) -> None:
        self._cluster, self._features, self._labels = cluster, features, labels
        self._snapshot = world.at(cluster, features) if world is not None else None
        self._admission = Admission(world) if world is not None else None
        self._known = {key_of(claim) for claim in cluster.claims}
        self._holders = cluster.allocated
        self._last: Verdict | None = None

    def apart(self) -> "_OneByOne":
        """The same state, which further demands do not change here."""
        found = copy(self)
        found._admission = copy(self._admission)
        found._known = set(self._known)
        found._last = None
        return found

    def verdict(self, demand: Demand) -> Verdict:
        """The verdict on the next demand. If it cannot be evaluated, the verdict says why."""
        last = self._last
        equal = last is not None and demand.workload and demand.workload == last.demand.workload
        if last is not None and equal and not demand.replaces and not _may_differ(last):
            # the next of several equal pods finds what the last one found
            self._last = replace(last, demand=demand)
            return self._last
        try:
            verdict, allocated = self._decide(demand)
        except InputError as error:
            text = error.message.removeprefix(f"{demand.name}: ")
            verdict, allocated = Verdict(demand, error=text), []
        if not (demand.claims or demand.extended or verdict.rejects or verdict.error):
            verdict = replace(verdict, notes=(*verdict.notes, "the pod asks for no devices"))
        self._last = replace(
            verdict,
            problems=refused_configs(allocated, self._cluster),
            notes=(*verdict.notes, *demand.notes, *doubtful_classes(demand, self._cluster.classes, self._features)),
            unknown=(*verdict.unknown, *demand.unknown),
        )
        if allocated:
            self._cluster = self._cluster.after(allocated)
        return self._last

    def _decide(self, demand: Demand) -> tuple[Verdict, list[ResourceClaim]]:
        """The verdict, and the claims that hold its devices from now on. Raises InputError."""
        if rejects := (*demand.missing, *_refused_selectors(demand, self._features)):
            return Verdict(demand, rejects=rejects), []
        if self._admission is None and demand.state:
            return _running(demand, self._cluster, demand.node_name, demand.state), []
        if self._admission is not None and demand.submitted is not None:
            return self._decide_pod(demand, self._admission)
        return self._decide_claims(demand)

    def _decide_claims(self, demand: Demand) -> tuple[Verdict, list[ResourceClaim]]:
        """The verdict on the devices of a demand."""
        pod, rejects = (None, ()) if demand.submitted is None else valid_pod(demand)
        if self._admission is not None:
            rejects = self._rejects_claims(demand, self._admission)
        if rejects:
            return Verdict(demand, rejects=rejects), []
        claims = held_claims(demand, self._cluster)
        trial = claim_trial(demand, pod, claims, self._cluster, self._features, self._labels)
        verdict, allocated = self._judge(demand, trial, claims)
        if self._snapshot is not None:
            self._snapshot = self._snapshot.with_cluster(self._snapshot.cluster.after(allocated))
        return verdict, allocated

    def _decide_pod(self, demand: Demand, admission: Admission) -> tuple[Verdict, list[ResourceClaim]]:
        """The verdict on a whole pod. Raises InputError."""
        snapshot = self._snapshot
        assert snapshot is not None
        namespace = demand.pod.namespace or "default"
        for name in demand.replaces:
            gone = admission.forget(namespace, name)
            snapshot = self._snapshot = snapshot if gone is None else snapshot.without(gone)
        there = admission.known(namespace, demand.pod.name)
        if there is not None and (there.node_name or there.ended):
            state = "ended" if there.ended else "running"
            return _running(demand, snapshot.cluster, there.node_name or "no node", state), []
        stored = admission.pod(demand, snapshot)
        rejects = tuple(dict.fromkeys((*stored.rejects, *self._rejects_claims(demand, admission))))
        if rejects:
            return Verdict(demand, rejects=rejects, notes=stored.notes), []
        claims = held_claims(demand, snapshot.cluster)
        own = admission.known(stored.pod.namespace, stored.pod.name)
        if own is not None:
            snapshot = snapshot.without(own, claims)
        trial = pod_trial(stored.pod, claims, snapshot, self._features, self._labels, demand.daemon_node)
        verdict, allocated = self._judge(demand, trial, claims)
        if verdict.node is not None:
            placed = trial.attempt.placed(verdict.node)
            self._snapshot = snapshot.placed(placed, verdict.node, snapshot.cluster.after(allocated))
        return replace(verdict, notes=(*stored.notes, *verdict.notes)), allocated

    def _judge(
        self, demand: Demand, trial: ClaimTrial | PodTrial, claims: Sequence[ResourceClaim]
    ) -> tuple[Verdict, list[ResourceClaim]]:
        """The verdict that follows from the answers of the nodes, and the claims that hold its devices."""
        if not trial.fitting:
            notes = tuple(remedy(resource, self._features) for resource in trial.unserved)
            return replace(self._refused(demand, trial), notes=notes), []
        node = trial.fitting[0]
        allocated = trial.allocated(node)
        needs = trial.needs.get(node, ())
        verdict = Verdict(
            demand,
            trial.fitting,
            tuple(placed_devices((*claims, *allocated), trial.cluster)),
            defect=defect_of_fit(trial, node),
            assumptions=assumption_texts(needs),
            unknown=not_judged(trial.not_judged) if node in self._labels.nodes else (),
        )
        self._labels = self._labels.after(node, needs)
        return verdict, allocated

    def _refused(self, demand: Demand, trial: ClaimTrial | PodTrial) -> Verdict:
        """The verdict on a demand that no node accepts."""
        if isinstance(trial, PodTrial):
            return self._refused_pod(demand, trial)
        verdict = Verdict(demand, refused=refused_nodes(trial))
        return verdict if trial.has_invalid_selector or not trial.claims else self._with_changes(verdict, trial)

    def _refused_pod(self, demand: Demand, trial: PodTrial) -> Verdict:
        """The verdict on a pod that no node accepts, or to which it cannot be bound."""
        if trial.waits:
            nodes = tuple(trial.attempt.snapshot.sites)
            waiting = [Refused(nodes, Explanation(trial.waits, True))] if nodes else []
            return Verdict(demand, refused=tuple(waiting), summary=trial.waits, event=trial.event)
        if trial.binding_errors:
            error = next(iter(trial.binding_errors.values()))
            unbound = Refused(tuple(trial.binding_errors), Explanation(error, False))
            return Verdict(demand, refused=(unbound,), defect=defect_of_binding(trial), event=error)
        refused = refused_nodes(trial)
        verdict = Verdict(demand, refused=refused, event=trial.event)
        if any(refusal.explanation.fatal for refusal in refused):
            return verdict
        return self._with_changes(replace(verdict, summary=summary(refused), removal=_removal(trial)), trial)

    def _with_changes(self, verdict: Verdict, trial: ClaimTrial | PodTrial) -> Verdict:
        """The verdict with the changes that would help, and with the defect of the scheduler that decides."""
        own = {key_of(claim) for claim in verdict.demand.claims}
        holders = [claim for claim in self._holders if key_of(claim) not in own]
        return replace(verdict, changes=tuple(helpful_changes(trial, holders)), defect=defect_of_refusals(trial))

    def _rejects_claims(self, demand: Demand, admission: Admission) -> tuple[str, ...]:
        """Why the API server would refuse the new claims of a demand. Claims that it accepts count for quotas."""
        new = [claim for claim in demand.claims if key_of(claim) not in self._known]
        self._known.update(map(key_of, new))
        assert self._snapshot is not None
        return admission.claims(new, self._snapshot)


def _refused_selectors(demand: Demand, features: Features) -> Iterator[str]:
    """The selectors of new claims that the API server refuses because they do not compile."""
    for claim in demand.claims:
        for request, required in claim.spec.requirements if claim.allocation is None else ():
            for index, expression in enumerate(required.selectors):
                try:
                    compile_cel(expression, features)
                except CompileError as error:
                    yield f"claim {claim.metadata}: selector {index} of request {request} does not compile: {error}"


def _may_differ(verdict: Verdict) -> bool:
    """Whether the verdict on an equal pod may differ. It cannot if no node takes this pod: nothing has changed."""
    return verdict.node is not None or bool(verdict.demand.daemon_node)


def _running(demand: Demand, cluster: Cluster, node: str, state: str) -> Verdict:
    """The verdict on a pod that is on a node of the cluster already: it keeps its devices."""
    placed = tuple(placed_devices(held_claims(demand, cluster), cluster))
    return Verdict(demand, (node,), placed, state=state)


def _removal(trial: PodTrial) -> PodRemoval | None:
    """The pods of lower priority that the scheduler would preempt."""
    preemption = trial.attempt.after.preemption if trial.attempt.after is not None else None
    if preemption is None or not preemption.nominated:
        return None
    node = preemption.nominated[0]
    return PodRemoval(node, tuple(str(pod) for pod in preemption.candidates[node].pods))
