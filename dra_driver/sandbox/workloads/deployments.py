# SPDX-License-Identifier: Apache-2.0
"""Deployments and ReplicaSets.

A Deployment has a ReplicaSet for each template. As in pkg/controller/deployment of k8s.io/kubernetes, a rolling update
creates at most `maxSurge` additional pods, and at most `maxUnavailable` of the desired pods are unavailable.
"""

from collections.abc import Callable

from ...kube.kinds import DEPLOYMENTS, PODS, REPLICA_SETS
from ..loop import JSON, is_alive, with_condition
from .owned import Workloads, count_ready, is_owned, is_ready, revision_of, share

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


class Deployments(Workloads):
    """Creates and scales ReplicaSets."""

    kind = DEPLOYMENTS
    name = "Deployment"

    def prepare(self) -> Callable[[JSON], None]:
        """See `Workloads.prepare`. A Deployment owns ReplicaSets instead of pods."""
        sets = self.client.list(REPLICA_SETS).items
        return lambda workload: self.sync(workload, [each for each in sets if is_owned(each, workload)])

    def sync(self, workload: JSON, sets: list[JSON]) -> None:
        """See `Workloads.sync`."""
        spec = workload["spec"]
        revision = revision_of(spec["template"])
        sets = sorted(sets, key=_revision)
        current = next((each for each in sets if each["metadata"]["labels"].get(HASH) == revision), None)
        old = [each for each in sets if each is not current]
        if current is None:
            if not spec.get("paused"):
                self._create(workload, revision, _next(sets))
            self._write_status(workload, None, old)
            return
        if old and _revision(current) < _revision(old[-1]):  # a rollback to an older template
            annotations = {**current["metadata"].get("annotations", {}), REVISION: str(_next(sets))}
            current = {**current, "metadata": {**current["metadata"], "annotations": annotations}}
            current = self.client.update(REPLICA_SETS, current)
        targets = _targets(spec, current, old)
        for each in (current, *old):
            wanted = targets.get(each["metadata"]["name"], each["spec"]["replicas"])
            if wanted != each["spec"]["replicas"]:
                self.client.update(REPLICA_SETS, {**each, "spec": {**each["spec"], "replicas": wanted}})
        if self._write_status(workload, current, old):
            empty = [each for each in old if not each["spec"]["replicas"] and not _count(each, "replicas")]
            self.delete(REPLICA_SETS, empty[: max(0, len(empty) - spec["revisionHistoryLimit"])])

    def _create(self, workload: JSON, revision: str, number: int) -> None:
        spec, name = workload["spec"], workload["metadata"]["name"]
        meta = self.metadata(workload, spec["template"], labels={HASH: revision})
        template = {**spec["template"], "metadata": {**spec["template"]["metadata"], "labels": meta["labels"]}}
        selector = {**spec["selector"], "matchLabels": {**spec["selector"].get("matchLabels", {}), HASH: revision}}
        annotations = {**workload["metadata"].get("annotations", {}), REVISION: str(number)}
        made = {
            "apiVersion": REPLICA_SETS.api_version,
            "kind": "ReplicaSet",
            "metadata": {**meta, "name": f"{name}-{revision}", "annotations": annotations},
            "spec": {"replicas": 0, "selector": selector, "template": template},
        }
        self.client.create(REPLICA_SETS, made, workload["metadata"]["namespace"])

    def _write_status(self, workload: JSON, current: JSON | None, old: list[JSON]) -> bool:
        """Write counts and conditions. Return whether all pods are available and of the current template."""
        every = [current, *old] if current else old
        wanted = workload["spec"]["replicas"]
        total, ready, available = (
            sum(_count(each, field) for each in every) for field in ("replicas", "readyReplicas", "availableReplicas")
        )
        updated = _count(current, "replicas") if current else 0
        complete = bool(updated == total == available == wanted)
        enough = available >= wanted - _bounds(workload["spec"])[1]
        before = (workload.get("status") or {}).get("conditions")
        name = current["metadata"]["name"] if current else ""
        reason = "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"
        message = f'ReplicaSet "{name}" {"has successfully progressed" if complete else "is progressing"}.'
        conditions = with_condition(before, "Progressing", True, reason, message)
        reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
        message = f"Deployment {'has' if enough else 'does not have'} minimum availability."
        status = {
            "observedGeneration": workload["metadata"]["generation"],
            "replicas": total,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": available,
            "unavailableReplicas": max(0, max(total, wanted) - available),
            "conditions": with_condition(conditions, "Available", enough, reason, message),
        }
        annotations = workload["metadata"].get("annotations") or {}
        number = str(_revision(current)) if current else ""
        if number and annotations.get(REVISION) != number:
            change = {"metadata": {"annotations": {REVISION: number}}}
            workload = self.client.patch(
                DEPLOYMENTS, workload["metadata"]["name"], change, namespace=workload["metadata"]["namespace"]
            )
        self.write_status(workload, status)
        return complete


def _revision(replica_set: JSON) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(REVISION, "0"))


def _next(sets: list[JSON]) -> int:
    return _revision(sets[-1]) + 1 if sets else 1


def _count(replica_set: JSON, field: str) -> int:
    count: int = (replica_set.get("status") or {}).get(field, 0)
    return count


def _bounds(spec: JSON) -> tuple[int, int]:
    """Return how many additional pods there may be, and how many pods may be unavailable."""
    rolling = spec["strategy"].get("rollingUpdate")
    if rolling is None:
        return 0, spec["replicas"]
    surge = share(rolling.get("maxSurge"), spec["replicas"], up=True)
    unavailable = share(rolling.get("maxUnavailable"), spec["replicas"], up=False)
    return surge, unavailable if surge or unavailable else 1


def _targets(spec: JSON, current: JSON, old: list[JSON]) -> dict[str, int]:
    """Return the number of pods that each ReplicaSet should have now, by its name."""
    wanted: int = spec["replicas"]
    name = current["metadata"]["name"]
    active = [each for each in old if each["spec"]["replicas"] or _count(each, "replicas")]
    if not active:
        return {name: wanted}
    if spec.get("paused"):
        return {}
    if spec["strategy"]["type"] == "Recreate":
        return {each["metadata"]["name"]: 0 for each in active}
    surge, unavailable = _bounds(spec)
    available = {
        each["metadata"]["name"]: min(_count(each, "availableReplicas"), each["spec"]["replicas"])
        for each in (current, *active)
    }
    surplus = max(0, sum(available.values()) - (wanted - unavailable))
    targets = {}
    for each in active:  # pods that are not available go at once
        key = each["metadata"]["name"]
        going = min(available[key], surplus)
        surplus -= going
        targets[key] = available[key] - going
    room = wanted + surge - sum(each["spec"]["replicas"] for each in active)
    targets[name] = min(wanted, max(current["spec"]["replicas"], room))
    return targets


class ReplicaSets(Workloads):
    """Creates missing pods, and deletes surplus pods: first those without a node, then unready ones, then new ones."""

    kind = REPLICA_SETS
    name = "ReplicaSet"

    def sync(self, workload: JSON, pods: list[JSON]) -> None:
        """See `Workloads.sync`."""
        alive = [pod for pod in pods if is_alive(pod)]
        wanted: int = workload["spec"]["replicas"]
        for _ in range(wanted - len(alive)):
            self.create_pod(workload)
        if len(alive) > wanted:
            newest = sorted(alive, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
            newest.sort(key=lambda pod: (bool(pod["spec"].get("nodeName")), is_ready(pod)))
            self.delete(PODS, newest[: len(alive) - wanted])
        ready = count_ready(alive)
        self.write_status(
            workload,
            {
                "observedGeneration": workload["metadata"]["generation"],
                "replicas": len(alive),
                "fullyLabeledReplicas": len(alive),
                "readyReplicas": ready,
                "availableReplicas": ready,
            },
        )
