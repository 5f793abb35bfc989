# SPDX-License-Identifier: Apache-2.0
"""DaemonSets: one pod on each node that its selector, affinity and tolerations allow, as the controller makes them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from ..kube.resource import Node, ResourceClaim
from ..kube.resource.codec import Decoded, DecodeError
from ..scheduler.pods import PodDecoder
from ..scheduler.pods.node_filters import untolerated
from ..scheduler.pods.objects import ClusterNode
from .selection import ALL_KNOWN, OpenLabels
from .status import Note
from .workload import Demand
from .world import World

_TOLERATED: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""The tolerations that the controller adds to its pods; pods with the host network get one more."""
_NO_NETWORK: Final = ("node.kubernetes.io/network-unavailable", "NoSchedule")


def spread_over_nodes(
    demands: Sequence[Demand], objects: Sequence[Decoded], world: World | None, labels: OpenLabels = ALL_KNOWN
) -> tuple[list[Demand], tuple[Note, ...]]:
    """The demands, with each DaemonSet replaced by its pods: one for each node that matches, or that would match
    with labels that are not known. Also errors about DaemonSets that match no node, or cannot be read.
    """
    found: list[Demand] = []
    errors: list[Note] = []
    nodes = [ClusterNode(object_, {}) for object_ in objects if isinstance(object_, Node)]
    if world is not None:
        known = {node.name: node for node in world.around.nodes}
        nodes = [known.get(node.name, node) for node in nodes]
    for demand in demands:
        if demand.daemon_template is None:
            found.append(demand)
            continue
        try:
            pods = list(_pods(demand, demand.daemon_template, nodes, labels))
        except DecodeError as error:
            errors.append(Note(demand.name, str(error)))
            continue
        found += pods
        if not pods:
            errors.append(Note(demand.name, "no node matches its node selector, affinity and tolerations"))
    return found, tuple(errors)


def _pods(
    demand: Demand, template: dict[str, Any], nodes: Sequence[ClusterNode], labels: OpenLabels
) -> Iterator[Demand]:
    """The pods of a DaemonSet. Raises DecodeError."""
    spec = tolerating(template)
    pod = PodDecoder().decode({"metadata": {"name": "daemon", "namespace": "default"}, "spec": spec})
    for node in nodes:
        named = pod.node_name in ("", node.name)
        if named and labels.needs(pod, node.node) is not None and untolerated(node.taints, pod.tolerations) is None:
            yield _on(demand, spec, node.name)


def tolerating(spec: dict[str, Any]) -> dict[str, Any]:
    """The pods' spec with the tolerations that the controller adds."""
    added = (*_TOLERATED, _NO_NETWORK) if spec.get("hostNetwork") else _TOLERATED
    tolerations = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in added]
    return {**spec, "tolerations": [*(spec.get("tolerations") or []), *tolerations]}


def _on(demand: Demand, spec: dict[str, Any], node: str) -> Demand:
    """The pod for one node. An affinity for the node's name binds it to the node."""
    assert demand.submitted is not None
    pod = demand.pod.name
    name = f"{pod}-{node}"
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = dict(spec.get("affinity") or {})
    inner = dict(affinity.get("nodeAffinity") or {})
    terms = (inner.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [{}]
    bound = [{**term, "matchFields": [field]} for term in terms]
    inner["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": bound}
    affinity["nodeAffinity"] = inner
    own = demand.own_claims
    claims = tuple(_renamed(claim, pod, name) if claim.metadata.name in own else claim for claim in demand.claims)
    return replace(
        demand,
        name=f"{demand.name}, pod on {node}",
        claims=claims,
        node_name=node,
        pod=replace(demand.pod, name=name),
        submitted={"metadata": {**demand.submitted["metadata"], "name": name}, "spec": {**spec, "affinity": affinity}},
        daemon_template=None,
        daemon_node=node,
    )


def _renamed(claim: ResourceClaim, pod: str, name: str) -> ResourceClaim:
    """The claim of `pod`, with the names that the claim of the pod `name` has."""
    own = name + claim.metadata.name.removeprefix(pod)
    return replace(claim, metadata=replace(claim.metadata, name=own))
