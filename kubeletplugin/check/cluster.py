# SPDX-License-Identifier: Apache-2.0
"""Checks of the API server: versions, feature gates, permissions of this identity, and the releases of kubelet and the
container runtime.

Nothing is stored in the API server: dry runs find out the feature gates, and access reviews the permissions. The
requests are independent, so a refused one does not prevent the others.

The container runtime must accept CDI devices in the CRI's own field, which containerd does from 1.7 on. Releases of
CRI-O have the same numbers as Kubernetes releases.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dra_driver import __version__
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.domains.objects import COMPUTE_DOMAINS
from dra_driver.kube.api import (
    ApiClient,
    ApiError,
    Connection,
    ConnectionConfigError,
    NotFoundError,
    load_credentials,
)
from dra_driver.kube.api.features import GATES as GATES_BY_FLAG
from dra_driver.kube.api.features import OPTIONAL, probe_features
from dra_driver.kube.kinds import ACCESS_REVIEWS, NODES
from dra_driver.kube.releases import API_VERSIONS, NEWEST_MINOR, OLDEST_MINOR, on_since
from dra_driver.kube.resource.codec import DIALECTS, GROUP, Dialect
from dra_driver.names import DRIVER_NAME
from kubeletplugin.containers.runtime import FIRST_WITH_GROUP_IDS, reads_group_ids, version_of

from ..finding import CheckResult, NodeCheck

T = TypeVar("T")

KUBELET, RUNTIME = NodeCheck("kubelet version"), NodeCheck("container runtime version")

ON_BY_DEFAULT = API_VERSIONS["v1"].first
"""The minor release from which DRA is enabled by default."""

_OLDEST_RUNTIMES = {"containerd": ((1, 7), RUNTIME.failed), "cri-o": ((1, OLDEST_MINOR), RUNTIME.warned)}
_UNTOLD = "with --kubeconfig and --node-name, check reads it from the Node"

SERVER, API, GATES = NodeCheck("api server"), NodeCheck("resource.k8s.io"), NodeCheck("feature gates")
PERMISSIONS, NODE = NodeCheck("permissions"), NodeCheck("node")

GATE_LOSSES: Mapping[str, str] = {
    "DRAPartitionableDevices": "MIG devices cannot be created on demand",
    "DRADeviceTaints": "GPUs that fail cannot be tainted",
    "DRAConsumableCapacity": "GPUs cannot be shared by their memory",
}
"""The gates that this driver can use, and the loss without each."""

_SECONDS = 10.0


def reported_minor(version: str) -> int | None:
    """36 for `v1.36.2-gke.100`. None for a text without a version."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def release_finding(check: NodeCheck, name: str, version: str, where: str = "") -> CheckResult:
    """Whether the release of a part of Kubernetes (`name`) is supported. `where` is added to the text of a passed
    check.
    """
    minor = reported_minor(version)
    if minor is None:
        return check.warned(f"{name} does not report its version ({version!r})", "see docs/how-to/install.md")
    if minor < OLDEST_MINOR:
        return check.failed(
            f"{name} {version} is older than 1.{OLDEST_MINOR}", f"upgrade to 1.{ON_BY_DEFAULT} or newer"
        )
    if minor > NEWEST_MINOR:
        return check.warned(
            f"{name} {version} is newer than 1.{NEWEST_MINOR}, the newest release that was tested with this driver",
            "upgrade this driver if there is a newer version",
        )
    return check.passed(f"{name} {version}{where}")


def version_findings(kubelet: str, runtime: str) -> Iterator[CheckResult]:
    """`v1.36.2` and `containerd://2.1.4`, as a Node reports them. Empty if unknown."""
    if kubelet:
        yield release_finding(KUBELET, "kubelet", kubelet)
    else:
        yield KUBELET.warned("not known", f"{_UNTOLD}; or `kubelet --version` on the host: 1.{OLDEST_MINOR} or newer")
    yield _runtime(runtime)


def _runtime(reported: str) -> CheckResult:
    name, version = reported.partition("://")[0], version_of(reported)
    if not reported:
        return RUNTIME.warned("not known", f"{_UNTOLD}; or `containerd --version` on the host: 1.7 or newer")
    if name not in _OLDEST_RUNTIMES or not version:
        return RUNTIME.warned(
            f"{reported} was not tested with this driver",
            "use containerd or CRI-O, or read in its documentation whether it accepts CDI devices from kubelet",
        )
    oldest, finding = _OLDEST_RUNTIMES[name]
    wanted = ".".join(map(str, oldest))
    if version < oldest:
        return finding(f"{reported} is older than {wanted}", f"upgrade it to {wanted} or newer")
    if not reads_group_ids(reported):
        enough = ".".join(map(str, FIRST_WITH_GROUP_IDS))
        return RUNTIME.warned(
            f"{reported} cannot read group IDs in CDI specs (cdiVersion 0.7.0), so the plugin leaves them out:"
            " containers of users other than root cannot open device nodes that belong to a group, such as those in"
            " /dev/dri",
            f"upgrade it to {enough} or newer, or run these containers as root or with supplementalGroups",
        )
    return RUNTIME.passed(reported)


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs for a resource (`resourceclaims/status` is a subresource), or only for the object `name`."""

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
    Permission(GROUP, "resourceclaims/status", ("update",)),
    Permission(GROUP, "resourceclaims/driver", ("associated-node:update",), DRIVER_NAME),
    Permission(GROUP, "resourceclaims/driver", ("associated-node:update",), DOMAIN_DRIVER),
    Permission(COMPUTE_DOMAINS.group, COMPUTE_DOMAINS.plural, ("list",)),
)
"""Permissions without which only status, Events or claims of ComputeDomains are missing. The chart grants them if they
are configured.
"""


@dataclass(frozen=True, slots=True)
class NodeVersions:
    """The content of the Node object. `kubelet` and `runtime` are like `v1.36.2` and `containerd://2.1.4`. `arguments`
    are those of k3s or rke2, by the name of the distribution, if the Node has them.
    """

    kubelet: str = ""
    runtime: str = ""
    kernel: str = ""
    image: str = ""
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts about the cluster. `untold` has, by the name of the check, why a fact is unknown.

    `problem` is the only finding if no request was possible. `served` are versions of resource.k8s.io, and `gates`
    tells whether each gate is enabled. `denied` are missing permissions (`create resourceslices`), and `reduced` those
    of WANTED.
    """

    server: str = ""
    problem: CheckResult | None = None
    version: str = ""
    served: tuple[str, ...] = ()
    gates: Mapping[str, bool] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    node: NodeVersions | None = None
    untold: Mapping[str, str] = field(default_factory=dict)


def cluster_findings(facts: ClusterFacts, node_name: str) -> Iterator[CheckResult]:
    """The findings about the server, the API, its feature gates, permissions and the Node."""
    if facts.problem is not None:
        yield facts.problem
        return
    yield release_finding(SERVER, "Kubernetes", facts.version, f" at {facts.server}")
    yield _api(facts)
    yield from _gates(facts)
    yield from _permissions(facts)
    yield from _node(facts, node_name)


def _api(facts: ClusterFacts) -> CheckResult:
    if API.name in facts.untold:
        return API.warned(facts.untold[API.name], "allow this identity to read /apis")
    usable = [dialect.version for dialect in DIALECTS if dialect.version in facts.served]
    if usable:
        return API.passed(f"{', '.join(facts.served)} served, {usable[0]} used")
    served = f"only {', '.join(facts.served)} served" if facts.served else "not served"
    return API.failed(
        served,
        f"v1 is enabled by default from Kubernetes 1.{ON_BY_DEFAULT}; for older versions, start kube-apiserver with"
        f" --feature-gates=DynamicResourceAllocation=true --runtime-config={GROUP}/v1beta1=true, and enable the gate"
        " also for kube-scheduler, kube-controller-manager and kubelet",
    )


def _gates(facts: ClusterFacts) -> Iterator[CheckResult]:
    if GATES.name in facts.untold:
        yield GATES.warned(facts.untold[GATES.name], "run this as the driver's service account, or as an administrator")
        return
    for gate, is_on in facts.gates.items():
        if not is_on:
            yield GATES.warned(
                f"{gate} is disabled: {GATE_LOSSES[gate]}",
                f"enabled by default from Kubernetes 1.{on_since(gate)}; for older versions,"
                f" --feature-gates={gate}=true for kube-apiserver, kube-scheduler and kube-controller-manager",
            )
    on = [gate for gate, is_on in facts.gates.items() if is_on]
    if on:
        yield GATES.passed(f"{', '.join(on)} enabled")


def _permissions(facts: ClusterFacts) -> Iterator[CheckResult]:
    if PERMISSIONS.name in facts.untold:
        yield PERMISSIONS.warned(facts.untold[PERMISSIONS.name], "check that the API server answers access reviews")
    elif facts.denied:
        yield PERMISSIONS.failed(
            f"this identity may not {', '.join(facts.denied)}",
            "bind the chart's ClusterRole to it (`helm upgrade` restores it if it was changed)",
        )
    else:
        yield PERMISSIONS.passed("this identity has all permissions of the node's pod")
    if facts.reduced:
        yield PERMISSIONS.warned(
            f"this identity may not {', '.join(facts.reduced)}: events or the status of claims will be missing",
            "nothing, if you configured this (chart: kubeletPlugin.claimStatus); else bind the chart's ClusterRole",
        )


def _node(facts: ClusterFacts, node_name: str) -> Iterator[CheckResult]:
    if NODE.name in facts.untold:
        yield NODE.warned(facts.untold[NODE.name], "set --node-name to the name of this Node")
    if facts.node is None:
        return
    yield NODE.passed(f"{node_name}: " + (", ".join(filter(None, (facts.node.kernel, facts.node.image))) or "exists"))


def ask_cluster(kubeconfig: str | None, node_name: str, in_pod: bool) -> ClusterFacts:
    """Collect all facts for `cluster_findings`."""
    try:
        connection = Connection(load_credentials(kubeconfig), f"dra-check/{__version__}", read_seconds=_SECONDS)
    except (ApiError, ConnectionConfigError) as error:
        problem = SERVER.warned(f"not checked: {error}", "set --kubeconfig to check the cluster too")
        if kubeconfig or in_pod:
            remedy = "set --kubeconfig; in a pod, automountServiceAccountToken must be true"
            problem = SERVER.failed(str(error), remedy)
        return ClusterFacts(problem=problem)
    with connection:
        client = ApiClient(connection)
        try:
            version = str(client.get_path("/version").get("gitVersion", ""))
        except ApiError as error:
            remedy = "check that this node can reach it, and that the token is valid"
            return ClusterFacts(problem=SERVER.failed(str(error), remedy))
        return _ask(client, connection.server, version, node_name)


def _ask(client: ApiClient, server: str, version: str, node_name: str) -> ClusterFacts:
    untold: dict[str, str] = {}

    def answer(check: NodeCheck, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except ApiError as error:
            untold[check.name] = str(error)
            return None

    served = answer(API, lambda: _served(client)) or ()
    dialect = next((known for known in DIALECTS if known.version in served), None)
    gates = None if dialect is None else answer(GATES, lambda: _enabled(client, dialect, node_name))
    denied = answer(PERMISSIONS, lambda: (_denied(client, PERMITTED), _denied(client, WANTED)))
    node = answer(NODE, lambda: _node_of(client.get(NODES, node_name))) if node_name else None
    if not node_name:
        untold[NODE.name] = "the name of the Node is unknown"
    return ClusterFacts(
        server,
        version=version,
        served=served,
        gates=gates or {},
        denied=denied[0] if denied else (),
        reduced=denied[1] if denied else (),
        node=node,
        untold=untold,
    )


def _enabled(client: ApiClient, dialect: Dialect, node_name: str) -> Mapping[str, bool]:
    features = probe_features(client, dialect, DRIVER_NAME, node_name or "probe")
    return {gate: getattr(features, flag) for flag, gate in GATES_BY_FLAG.items() if flag not in OPTIONAL}


def _served(client: ApiClient) -> tuple[str, ...]:
    try:
        group = client.get_path(f"/apis/{GROUP}")
    except NotFoundError:
        return ()
    return tuple(str(version["version"]) for version in group.get("versions") or [])


def _denied(client: ApiClient, permissions: Iterable[Permission]) -> tuple[str, ...]:
    """`verb resource` of each permission that an access review denies to this identity."""
    denied = []
    for permission in permissions:
        resource, _, subresource = permission.resource.partition("/")
        place = {"group": permission.group, "resource": resource, "subresource": subresource, "name": permission.name}
        for verb in permission.verbs:
            answer = client.create(
                ACCESS_REVIEWS,
                {
                    "apiVersion": ACCESS_REVIEWS.api_version,
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": {**place, "verb": verb}},
                },
            )
            if not (answer.get("status") or {}).get("allowed"):
                denied.append(f"{verb} {permission.resource}")
    return tuple(denied)


def _node_of(value: Mapping[str, Any]) -> NodeVersions:
    info = (value.get("status") or {}).get("nodeInfo") or {}
    return NodeVersions(
        kubelet=str(info.get("kubeletVersion") or ""),
        runtime=str(info.get("containerRuntimeVersion") or ""),
        kernel=str(info.get("kernelVersion") or ""),
        image=str(info.get("osImage") or ""),
        arguments=dict(_arguments((value.get("metadata") or {}).get("annotations") or {})),
    )


def _arguments(annotations: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The arguments of k3s and rke2, which they write to an annotation of the Node as a JSON list."""
    for distribution in ("k3s", "rke2"):
        with contextlib.suppress(ValueError):  # an annotation of somebody else
            found = json.loads(annotations.get(f"{distribution}.io/node-args", ""))
            if isinstance(found, list):
                yield distribution, tuple(map(str, found))
