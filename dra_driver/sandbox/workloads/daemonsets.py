# SPDX-License-Identifier: Apache-2.0
"""DaemonSets: one pod on every node that the template selects."""

from collections.abc import Callable

from ...kube.kinds import DAEMON_SETS, NODES, PODS
from ...scheduler.pods import ClusterNode, Pod
from ...scheduler.pods.decode import decode_cluster_node
from ...scheduler.pods.node_filters import RequiredAffinity, untolerated
from ..loop import JSON, is_alive, is_finished
from ..scheduler import decode_pod
from .owned import HASH_LABEL, Workloads, is_owned, is_ready, revision_of, share

_CORDONED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
"""A toleration that every pod of a DaemonSet gets. Nodes of the sandbox have no other taints of their own."""


class DaemonSets(Workloads):
    """Creates a pod for each node. The pod's node affinity names the node, and the scheduler binds the pod to it."""

    kind = DAEMON_SETS
    name = "DaemonSet"

    def prepare(self) -> Callable[[JSON], None]:
        """See `Workloads.prepare`."""
        nodes = [decode_cluster_node(node) for node in self.client.list(NODES).items]
        pods = self.client.list(PODS).items
        return lambda workload: self._sync(workload, [pod for pod in pods if is_owned(pod, workload)], nodes)

    def _sync(self, workload: JSON, pods: list[JSON], nodes: list[ClusterNode]) -> None:
        template = workload["spec"]["template"]
        spec = {**template["spec"], "tolerations": [*(template["spec"].get("tolerations") or []), _CORDONED]}
        pod_of_template = decode_pod({"metadata": {}, "spec": spec})
        wanted = [node.name for node in nodes if _runs_on(pod_of_template, node)]
        revision = revision_of(template)
        by_node: dict[str, list[JSON]] = {name: [] for name in wanted}
        misplaced = []
        for pod in pods:
            if is_finished(pod):
                self.delete(PODS, [pod])
            elif node := by_node.get(_node(pod)):
                misplaced.append(pod)  # the node has a pod already
            elif node is None:
                misplaced.append(pod)
            else:
                node.append(pod)
        self.delete(PODS, misplaced)
        for name, there in by_node.items():
            if not there:
                placed = {"affinity": _affinity(spec, name), "tolerations": spec["tolerations"]}
                self.create_pod(workload, spec=placed, labels={HASH_LABEL: revision})
        running = [pod for there in by_node.values() for pod in there if is_alive(pod)]
        updated = [pod for pod in running if pod["metadata"]["labels"].get(HASH_LABEL) == revision]
        self._update(workload["spec"], len(wanted), running, updated)
        ready = sum(1 for pod in running if is_ready(pod))
        self.write_status(
            workload,
            {
                "observedGeneration": workload["metadata"]["generation"],
                "desiredNumberScheduled": len(wanted),
                "currentNumberScheduled": len(running),
                "numberMisscheduled": sum(1 for pod in misplaced if _node(pod) not in by_node),
                "numberReady": ready,
                "numberAvailable": ready,
                "numberUnavailable": len(wanted) - ready,
                "updatedNumberScheduled": len(updated),
            },
        )

    def _update(self, spec: JSON, wanted: int, running: list[JSON], updated: list[JSON]) -> None:
        """Delete pods of older templates: all pods that are not ready, and as many others as may be unavailable."""
        strategy = spec["updateStrategy"]
        if strategy["type"] != "RollingUpdate":
            return
        most = max(1, share((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), wanted, up=True))
        outdated = [pod for pod in running if pod not in updated]
        self.delete(PODS, [pod for pod in outdated if not is_ready(pod)])
        unavailable = wanted - sum(1 for pod in running if is_ready(pod))
        self.delete(PODS, [pod for pod in outdated if is_ready(pod)][: max(0, most - unavailable)])


def _runs_on(pod: Pod, node: ClusterNode) -> bool:
    """Return whether a pod selects the node and tolerates its taints."""
    return RequiredAffinity(pod).matches(node) and untolerated(node.taints, pod.tolerations) is None


def _affinity(spec: JSON, node: str) -> JSON:
    """Return the template's affinity, with this node as the only required one."""
    affinity = spec.get("affinity") or {}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {
        **affinity,
        "nodeAffinity": {
            **(affinity.get("nodeAffinity") or {}),
            "requiredDuringSchedulingIgnoredDuringExecution": required,
        },
    }


def _node(pod: JSON) -> str:
    """Return the node that a pod is on, or that its affinity names."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
