# SPDX-License-Identifier: Apache-2.0
"""What the API server and this node's kubelet offer, and what this identity may do there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver import DRIVER_NAME
from dra_driver.resource.codec import DIALECTS, GROUP

from .finding import Finding, failed, passed, warned
from .versions import ON_BY_DEFAULT, release_finding

SERVER, API, GATES, PERMISSIONS, NODE = "api server", "resource.k8s.io", "feature gates", "permissions", "node"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource (`resourceclaims/status` is a subresource), or on the object `name` only."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    name: str = ""


PERMITTED = (
    Permission(GROUP, "resourceslices", ("list", "watch", "create", "update", "delete")),
    Permission(GROUP, "resourceclaims", ("get",)),
    Permission("", "nodes", ("get",)),
)
"""Cluster-wide permissions without which the pod of the DaemonSet does not work."""

WANTED = (
    Permission("", "events", ("create", "patch")),
    Permission(GROUP, "resourceclaims/status", ("patch",)),
    Permission(GROUP, "resourceclaims/driver", ("associated-node:patch",), DRIVER_NAME),
)
"""Those without which only less is told, and which the chart gives where they are configured."""

GATE_LOSSES: Mapping[str, str] = {
    "DRAPartitionableDevices": "MIG devices cannot be made on demand",
    "DRADeviceTaints": "GPUs that fail cannot be taken out of scheduling",
    "DRAConsumableCapacity": "GPUs cannot be shared by their memory",
}
"""The gates that this driver can use, and what is lost without each."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the Node object says. `kubelet` and `runtime` as `v1.36.2` and `containerd://2.1.4`; `arguments` are those
    of the distributions that tell them, by its name: k3s or rke2.
    """

    kubelet: str = ""
    runtime: str = ""
    kernel: str = ""
    image: str = ""
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Each fact, or in `untold` (by the name of the check) why it could not be had.

    `error` says why nothing could be asked, `configured` whether there is a cluster to ask, `has_credentials` whether
    the way to it was understood. `served` are versions of
    resource.k8s.io, `gates` whether a gate is on, `denied` what this identity may not do (`create resourceslices`),
    `reduced` the same for what is wanted only.
    """

    server: str = ""
    error: str = ""
    configured: bool = True
    has_credentials: bool = True
    version: str = ""
    served: tuple[str, ...] = ()
    gates: Mapping[str, bool] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    node: NodeFacts | None = None
    untold: Mapping[str, str] = field(default_factory=dict)


def cluster_findings(facts: ClusterFacts, node_name: str) -> Iterator[Finding]:
    """The server, the API, its feature gates, permissions and the Node."""
    if facts.error:
        if facts.configured and not facts.has_credentials:
            yield failed(
                SERVER,
                facts.error,
                "name a kubeconfig with --kubeconfig; in a pod, automountServiceAccountToken must be on",
            )
        elif facts.configured:
            yield failed(SERVER, facts.error, "see that this node reaches the API server, and that the token is valid")
        else:
            yield warned(SERVER, f"not asked: {facts.error}", "give --kubeconfig to have the cluster checked too")
        return
    yield release_finding(SERVER, "Kubernetes", facts.version, f" at {facts.server}")
    yield _api(facts)
    yield from _gates(facts)
    yield from _permissions(facts)
    yield from _node(facts, node_name)


def _api(facts: ClusterFacts) -> Finding:
    if API in facts.untold:
        return warned(API, facts.untold[API], "see that this identity may read /apis")
    usable = [dialect.version for dialect in DIALECTS if dialect.version in facts.served]
    if usable:
        return passed(API, f"{', '.join(facts.served)} served, {usable[0]} used")
    served = f"only {', '.join(facts.served)} served" if facts.served else "not served"
    return failed(
        API,
        served,
        f"v1 is on by default from Kubernetes 1.{ON_BY_DEFAULT}; before, start kube-apiserver with"
        f" --feature-gates=DynamicResourceAllocation=true --runtime-config={GROUP}/v1beta1=true, and give the gate to"
        " kube-scheduler, kube-controller-manager and kubelet too",
    )


def _gates(facts: ClusterFacts) -> Iterator[Finding]:
    if GATES in facts.untold:
        yield warned(GATES, facts.untold[GATES], "run this as the driver's service account, or as an administrator")
        return
    for gate, is_on in facts.gates.items():
        if not is_on:
            yield warned(
                GATES,
                f"{gate} is off: {GATE_LOSSES[gate]}",
                f"on by default from Kubernetes 1.36; before, --feature-gates={gate}=true for kube-apiserver,"
                " kube-scheduler and kube-controller-manager",
            )
    on = [gate for gate, is_on in facts.gates.items() if is_on]
    if on:
        yield passed(GATES, f"{', '.join(on)} on")


def _permissions(facts: ClusterFacts) -> Iterator[Finding]:
    if PERMISSIONS in facts.untold:
        yield warned(PERMISSIONS, facts.untold[PERMISSIONS], "see that the API server answers access reviews")
    elif facts.denied:
        yield failed(
            PERMISSIONS,
            f"this identity may not {', '.join(facts.denied)}",
            "bind the chart's ClusterRole to it (`helm upgrade` puts a changed one right)",
        )
    else:
        yield passed(PERMISSIONS, "this identity may do what the node's pod does")
    if facts.reduced:
        yield warned(
            PERMISSIONS,
            f"this identity may not {', '.join(facts.reduced)}: events or the status of claims will be missing",
            "nothing, where this was configured (chart: kubeletPlugin.claimStatus); else bind the chart's ClusterRole",
        )


def _node(facts: ClusterFacts, node_name: str) -> Iterator[Finding]:
    if NODE in facts.untold:
        yield warned(NODE, facts.untold[NODE], "give the name of this Node with --node-name")
    if facts.node is None:
        return
    yield passed(NODE, f"{node_name}: " + (", ".join(filter(None, (facts.node.kernel, facts.node.image))) or "there"))
