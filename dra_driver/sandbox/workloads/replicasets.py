# SPDX-License-Identifier: Apache-2.0
"""ReplicaSets: as many pods of one template as asked for."""

from ..pods import JSON, PODS, REPLICA_SETS, is_alive
from .owned import Workloads, count_ready, is_ready


class ReplicaSets(Workloads):
    """Creates missing pods and deletes surplus ones: those without a node first, then unready, then new ones."""

    kind = REPLICA_SETS
    name = "ReplicaSet"

    def sync(self, one: JSON, pods: list[JSON]) -> None:
        """See `Workloads.sync`."""
        alive = [pod for pod in pods if is_alive(pod)]
        wanted: int = one["spec"]["replicas"]
        for _ in range(wanted - len(alive)):
            self.create_pod(one)
        if len(alive) > wanted:
            newest = sorted(alive, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
            newest.sort(key=lambda pod: (bool(pod["spec"].get("nodeName")), is_ready(pod)))
            self.delete(PODS, newest[: len(alive) - wanted])
        ready = count_ready(alive)
        status = {"replicas": len(alive), "fullyLabeledReplicas": len(alive)}
        self.write_status(one, {**status, "readyReplicas": ready, "availableReplicas": ready})
