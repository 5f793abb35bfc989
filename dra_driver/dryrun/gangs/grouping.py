# SPDX-License-Identifier: Apache-2.0
"""The groups of pods among documents: which pods belong together, and how many of them must run at once.

| the pods belong together because of | minimum |
|---|---|
| `spec.schedulingGroup` (scheduling.k8s.io) | `minCount` of the PodGroup |
| a Job with `spec.scheduling` (gate WorkloadWithJob), or `controllerRef` of a Workload | `minCount`, else all pods |
| a JobSet or a TrainJob | all pods |
| a replica of a LeaderWorkerSet | the leader and its workers |
| a Job of Volcano | `minAvailable`, else all pods |
| the annotation for a PodGroup of Volcano or of KAI Scheduler | `minMember` of the PodGroup |

The first two are groups of kube-scheduler. Other projects have schedulers or controllers of their own: their groups are
evaluated as if kube-scheduler had them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...kube.resource import ObjectMeta, ResourceClaim
from ...kube.resource.codec import DecodeError, Fields
from ...scheduler.gangs import Policy, Workload, decode_pod_group, decode_policy, decode_workload
from ..documents import Document, within
from ..groups import NOT_SAVED, Key, ReferencedObjects, key_of
from ..podgroups import POD_GROUP, WORKLOAD
from ..status import Note
from ..workload import Demand

JSON = Mapping[str, Any]

_JOB: Final[Key] = ("batch", "Job")
_LEADER_WORKER_SET: Final[Key] = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
_VOLCANO_JOB: Final[Key] = ("batch.volcano.sh", "Job")
_WHOLE: Final[frozenset[Key]] = frozenset(
    {("jobset.x-k8s.io", "JobSet"), ("trainer.kubeflow.org", "TrainJob"), ("trainer.kubeflow.org", "TrainingRuntime")}
)
"""Kinds all of whose pods are one group."""
_ANNOTATIONS: Final[Mapping[str, Key]] = {
    "scheduling.k8s.io/group-name": ("scheduling.volcano.sh", "PodGroup"),
    "scheduling.volcano.sh/group-name": ("scheduling.volcano.sh", "PodGroup"),
    "pod-group-name": ("scheduling.run.ai", "PodGroup"),
}
"""The kind of the group that each annotation of a pod names."""
_UNKNOWN: Final = ("is not allowed", NOT_SAVED)
"""How the reason ends if the object may exist: it may not be read, or is not in a snapshot."""
_AS_IF: Final = "kube-scheduler has no such groups: the verdict is what it would be for a PodGroup with this minimum"


@dataclass(frozen=True, slots=True)
class PodsOfGroup:
    """Pods that belong together. `policy` is None if the PodGroup that the pods name does not exist.

    `title` names the group for people, and `name` is that of the PodGroup. `unknown` are facts that are not known and
    that the verdict depends on. Pods of the cluster that name the group and have a node count, too (`counts_running`).
    """

    title: str
    namespace: str
    name: str
    policy: Policy | None
    demands: tuple[Demand, ...]
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    counts_running: bool = False


@dataclass(frozen=True, slots=True)
class Grouped:
    """The groups, the demands that belong to none, and errors about groups that cannot be used."""

    groups: tuple[PodsOfGroup, ...]
    others: tuple[Demand, ...]
    errors: tuple[Note, ...]


def grouped(
    documents: Sequence[Document], demands: Sequence[Demand], library: ReferencedObjects, least: int | None = None
) -> Grouped:
    """The groups of the documents. `demands` are the pods of the same documents.

    With `least`, the pods of each object that makes no group are a group with this minimum.
    """
    by_name = {f"{document.kind} {document.name}": document for document in documents}
    found: dict[tuple[str, ...], list[Demand]] = {}
    for demand in demands:
        if demand.submitted is not None:
            found.setdefault(_key(demand, by_name), []).append(demand)
    groups: list[PodsOfGroup] = []
    others: list[Demand] = [demand for demand in demands if demand.submitted is None]
    errors: list[Note] = []
    workloads = list(_workloads(documents, errors))
    for (what, *names), pods in found.items():
        try:
            if what == "pod group":
                groups.append(_of_pod_group(names[0], names[1], pods, library))
            elif what == "annotation":
                groups.append(_of_annotation((names[0], names[1]), names[2], names[3], pods, library))
            else:
                made = list(_of_object(by_name.get(what), pods, workloads, least))
                groups += made
                others += pods if not made else ()
        except DecodeError as error:
            errors.append(Note(pods[0].name, str(error)))
    return Grouped(tuple(groups), tuple(others), tuple(errors))


def _key(demand: Demand, by_name: Mapping[str, Document]) -> tuple[str, ...]:
    """What the pods of one group have in common."""
    assert demand.submitted is not None
    namespace = demand.pod.namespace or "default"
    name = within(within(demand.submitted, "spec"), "schedulingGroup").get("podGroupName")
    if isinstance(name, str) and name:
        return "pod group", namespace, name
    annotations = within(within(demand.submitted, "metadata"), "annotations")
    for annotation, key in _ANNOTATIONS.items():
        if isinstance(annotations.get(annotation), str):
            return "annotation", *key, namespace, annotations[annotation]
    title = demand.name.partition(",")[0]
    return (title if title in by_name else demand.name, namespace)


def _of_pod_group(namespace: str, name: str, pods: Sequence[Demand], library: ReferencedObjects) -> PodsOfGroup:
    value = library.find(POD_GROUP, namespace, name)
    title = f"PodGroup {namespace}/{name}"
    if value is None:
        return _without_object(
            PodsOfGroup(title, namespace, name, None, tuple(pods)), library.reason(POD_GROUP, namespace, name)
        )
    group = decode_pod_group(value)
    notes = ("its CompositePodGroup (an alpha feature) is not evaluated",) if group.parent else ()
    return PodsOfGroup(title, namespace, name, group.policy, tuple(pods), notes, counts_running=True)


def _of_annotation(
    key: Key, namespace: str, name: str, pods: Sequence[Demand], library: ReferencedObjects
) -> PodsOfGroup:
    value = library.find(key, namespace, name)
    title = f"PodGroup {namespace}/{name} of {key[0]}"
    if value is None:
        return _without_object(
            PodsOfGroup(title, namespace, name, None, tuple(pods)), library.reason(key, namespace, name)
        )
    least = Fields(within(value, "spec"), "spec", strict=False).integer("minMember")
    return PodsOfGroup(title, namespace, name, Policy(max(1, least or 1)), tuple(pods), (_AS_IF,))


def _without_object(group: PodsOfGroup, reason: str) -> PodsOfGroup:
    """The group, of which the PodGroup does not exist, or is not known."""
    text = f"the PodGroup {reason}"
    return replace(group, unknown=(text,)) if reason.endswith(_UNKNOWN) else replace(group, notes=(text,))


def _workloads(documents: Iterable[Document], errors: list[Note]) -> Iterator[tuple[str, str, str, Policy]]:
    """The namespace, kind and name of the controllers of Workloads, with the policy of their only template. Of several
    Workloads of one name, the first counts: those of files come before those of the cluster.
    """
    found: dict[tuple[str, str], Workload] = {}
    for document in documents:
        if key_of(document.value) == WORKLOAD:
            try:
                workload = decode_workload(document.value)
            except DecodeError as error:
                errors.append(document.note(str(error), error.path))
                continue
            found.setdefault((workload.namespace, workload.name), workload)
    for workload in found.values():
        if len(workload.templates) == 1 and all(workload.controller):
            kind, name = workload.controller
            yield workload.namespace, kind, name, next(iter(workload.templates.values()))


def _of_object(
    document: Document | None,
    pods: Sequence[Demand],
    workloads: Iterable[tuple[str, str, str, Policy]],
    least: int | None,
) -> Iterator[PodsOfGroup]:
    """The groups of the pods of one object."""
    if document is None:
        return
    value, key = document.value, key_of(document.value)
    spec, title = within(value, "spec"), f"{document.kind} {document.name}"
    name = str(within(value, "metadata").get("name") or "")
    group = PodsOfGroup(title, document.namespace, name, None, tuple(pods))
    for namespace, kind, controlled, policy in workloads:
        if (namespace, kind, controlled) == (document.namespace, document.kind, name):
            yield _shared(replace(group, policy=_with_minimum(policy, len(pods))))
            return
    if key == _JOB and isinstance(spec.get("scheduling"), dict):
        policy = decode_policy(Fields(spec["scheduling"], "spec.scheduling", strict=False))
        notes = (
            "the Job controller makes the PodGroup with the feature gate WorkloadWithJob, an alpha feature of 1.37",
        )
        yield _shared(replace(group, policy=_with_minimum(policy, len(pods)), notes=notes))
    elif key in _WHOLE:
        yield replace(group, policy=Policy(len(pods)), notes=(_AS_IF,))
    elif key == _LEADER_WORKER_SET:
        yield from _replicas(group)
    elif key == _VOLCANO_JOB:
        available = Fields(spec, "spec", strict=False).integer("minAvailable")
        yield replace(group, policy=Policy(available or len(pods)), notes=(_AS_IF,))
    elif least is not None and pods:
        yield replace(group, policy=Policy(min(least, len(pods))), notes=("a gang because of --min-count",))


def _with_minimum(policy: Policy, pods: int) -> Policy:
    """The policy with the number of pods as the minimum of a gang that names none, as the Job controller sets it."""
    return replace(policy, min_count=pods) if policy.min_count == 0 else policy


def _replicas(group: PodsOfGroup) -> Iterator[PodsOfGroup]:
    """Each replica of a LeaderWorkerSet: a leader and its workers."""
    leaders = [demand for demand in group.demands if ", leader" in demand.name]
    workers = [demand for demand in group.demands if ", leader" not in demand.name]
    size = len(workers) // max(1, len(leaders))
    for index, leader in enumerate(leaders):
        pods = (leader, *workers[index * size : (index + 1) * size])
        title = f"{group.title}, replica {index}"
        yield replace(
            group, title=title, name=f"{group.name}-{index}", policy=Policy(len(pods)), demands=pods, notes=(_AS_IF,)
        )


def _shared(group: PodsOfGroup) -> PodsOfGroup:
    """The group, whose pods share the claims that the policy names (gate DRAWorkloadResourceClaims)."""
    assert group.policy is not None
    entries = {(entry.name, entry.template) for entry in group.policy.claims if entry.template}
    made: dict[str, ResourceClaim] = {}

    def with_shared(demand: Demand) -> Demand:
        assert demand.submitted is not None
        declared = within(demand.submitted, "spec").get("resourceClaims") or []
        if len(declared) != len(demand.claims):
            return demand
        claims = []
        for entry, claim in zip(declared, demand.claims, strict=True):
            if (entry.get("name"), entry.get("resourceClaimTemplateName")) in entries:
                metadata = ObjectMeta(name=f"{group.name}-{entry['name']}", namespace=group.namespace)
                claim = made.setdefault(entry["name"], replace(claim, metadata=metadata))
            claims.append(claim)
        return replace(demand, claims=tuple(claims))

    return replace(group, demands=tuple(map(with_shared, group.demands)))
