# SPDX-License-Identifier: Apache-2.0
"""StatefulSets: numbered pods, created and updated one after the other."""

from collections.abc import Mapping

from ...kube.kinds import PODS, STATEFUL_SETS
from ..loop import JSON, is_finished
from .owned import HASH_LABEL, Workloads, count_ready, is_going, is_ready, revision_of


class StatefulSets(Workloads):
    """Keeps a pod NAME-N for every number N in the StatefulSet's range."""

    kind = STATEFUL_SETS
    name = "StatefulSet"

    def sync(self, workload: JSON, pods: list[JSON]) -> None:
        """See `Workloads.sync`."""
        spec, name = workload["spec"], workload["metadata"]["name"]
        first = (spec.get("ordinals") or {}).get("start", 0)
        numbers = range(first, first + spec["replicas"])
        revision = f"{name}-{revision_of(spec['template'])}"
        by_number = {_number(pod): pod for pod in pods}
        if self._fill(workload, numbers, by_number, revision):
            surplus = sorted((number for number in by_number if number not in numbers), reverse=True)
            if surplus:
                ordered = spec["podManagementPolicy"] == "OrderedReady"
                self.delete(PODS, [by_number[number] for number in (surplus[:1] if ordered else surplus)])
            else:
                self._update(spec, numbers, by_number, revision)
        updated = [pod for pod in pods if pod["metadata"]["labels"].get(HASH_LABEL) == revision]
        before = (workload.get("status") or {}).get("currentRevision") or revision
        ready = count_ready(pods)
        finished = len(updated) == len(pods) == spec["replicas"] == ready
        self.write_status(
            workload,
            {
                "observedGeneration": workload["metadata"]["generation"],
                "replicas": len(pods),
                "readyReplicas": ready,
                "availableReplicas": ready,
                "currentReplicas": len(updated) if finished else len(pods) - len(updated),
                "updatedReplicas": len(updated),
                "currentRevision": revision if finished else before,
                "updateRevision": revision,
            },
        )

    def _fill(self, workload: JSON, numbers: range, by_number: Mapping[int, JSON], revision: str) -> bool:
        """Create missing pods and replace ended ones. Return whether all pods exist and, if it matters, are ready."""
        ordered = workload["spec"]["podManagementPolicy"] == "OrderedReady"
        complete = True
        for number in numbers:
            pod = by_number.get(number)
            if pod is None:
                self._create(workload, number, revision)
            elif is_finished(pod):
                self.delete(PODS, [pod])
            elif not is_going(pod) and (is_ready(pod) or not ordered):
                continue
            complete = False
            if ordered:
                break
        return complete

    def _create(self, workload: JSON, number: int, revision: str) -> None:
        name = f"{workload['metadata']['name']}-{number}"
        labels = {
            HASH_LABEL: revision,
            "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": str(number),
        }
        spec = {"hostname": name, "subdomain": workload["spec"].get("serviceName", "")}
        self.create_pod(workload, name=name, spec=spec, labels=labels)

    def _update(self, spec: JSON, numbers: range, by_number: Mapping[int, JSON], revision: str) -> None:
        """Delete the last pod of an older template, so that it is created from the current one."""
        strategy = spec["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
        outdated = [
            by_number[number]
            for number in numbers
            if number >= partition and by_number[number]["metadata"]["labels"].get(HASH_LABEL) != revision
        ]
        self.delete(PODS, outdated[-1:])


def _number(pod: JSON) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])
