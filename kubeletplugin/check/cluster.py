# SPDX-License-Identifier: Apache-2.0
"""What the API server and this node's kubelet offer, and what this identity may do there."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dra_driver.resource.codec import DIALECTS, GROUP

from .finding import Finding, failed, passed, warned

SERVER, API, GATES, PERMISSIONS, NODE = "api server", "resource.k8s.io", "feature gates", "permissions", "node"

OLDEST_MINOR = 32
_ON_BY_DEFAULT = 34

PERMITTED = (
    # group, resource, verbs: what the pod of the DaemonSet does
    (GROUP, "resourceslices", ("list", "watch", "create", "update", "delete")),
    (GROUP, "resourceclaims", ("get",)),
    ("", "nodes", ("get",)),
)
"""Cluster-wide permissions without which a node's pod does not work."""

WANTED = (
    ("", "events", ("create", "patch")),
    (GROUP, "resourceclaims/status", ("patch",)),
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
    """What the Node object says. `kubelet` and `runtime` as `v1.36.2` and `containerd://2.1.4`."""

    kubelet: str = ""
    runtime: str = ""
    kernel: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Each fact, or in `untold` (by the name of the check) why it could not be had.


    `error` says why nothing could be asked, `configured` whether there is a cluster to ask. `served` are versions of
    resource.k8s.io, `gates` whether a gate is on, `denied` what this identity may not do (`create resourceslices`),
    `reduced` the same for what is wanted only.
    """

    server: str = ""
    error: str = ""
    configured: bool = True
    version: str = ""
    served: tuple[str, ...] = ()
    gates: Mapping[str, bool] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    node: NodeFacts | None = None
    untold: Mapping[str, str] = field(default_factory=dict)


def minor_of(version: str) -> int | None:
    """36 of `v1.36.2-gke.100`; None when it is not told."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def cluster_findings(facts: ClusterFacts, node_name: str) -> Iterator[Finding]:
    """The server, the API, its feature gates, permissions and the Node."""
    if facts.error:
        if facts.configured:
            yield failed(SERVER, facts.error, "see that this node reaches the API server, and that the token is valid")
        else:
            yield warned(SERVER, f"not asked: {facts.error}", "give --kubeconfig to have the cluster checked too")
        return
    yield _server(facts)
    yield _api(facts)
    yield from _gates(facts)
    yield from _permissions(facts)
    yield from _node(facts, node_name)


def _server(facts: ClusterFacts) -> Finding:
    minor = minor_of(facts.version)
    if minor is None:
        return warned(SERVER, f"{facts.server} does not tell its version ({facts.version!r})", "see docs/install.md")
    if minor < OLDEST_MINOR:
        return failed(
            SERVER, f"Kubernetes {facts.version} is older than 1.{OLDEST_MINOR}", f"upgrade to 1.{_ON_BY_DEFAULT}"
        )
    return passed(SERVER, f"Kubernetes {facts.version} at {facts.server}")


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
        f"v1 is on by default from Kubernetes 1.{_ON_BY_DEFAULT}; before, start kube-apiserver with"
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
    minor = minor_of(facts.node.kubelet)
    if minor is not None and minor < OLDEST_MINOR:
        yield failed(NODE, f"{node_name} has kubelet {facts.node.kubelet}", f"upgrade kubelet to 1.{_ON_BY_DEFAULT}")
        return
    told = (facts.node.kubelet and f"kubelet {facts.node.kubelet}", facts.node.runtime, facts.node.kernel)
    yield passed(NODE, f"{node_name}: " + ", ".join(filter(None, (*told, facts.node.image))))
