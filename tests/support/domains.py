# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains in a sandbox of several nodes: what a user creates, and what there is of a domain anywhere."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from dra_driver.domains.names import DOMAIN_LABEL, DRIVER
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, Clique, decode_clique
from dra_driver.kube.api import ApiClient, Connection, NotFoundError, load_credentials
from dra_driver.kube.kinds import DAEMON_SETS, NETWORK_POLICIES, NODES, PODS
from dra_driver.sandbox.computedomains import NAMESPACE
from dra_driver.sandbox.controlplane import PROGRAMS
from dra_driver.sandbox.environment import Kubernetes, Sandbox
from dra_driver.sandbox.loop import CLAIMS, TEMPLATES
from dra_driver.sandbox.marked import marked_processes
from dra_driver.sandbox.nodes import SandboxNode
from kubeletplugin.features.domain.folder import DomainFolder

from .apiserver import ASSETS
from .listing import paths_in
from .preloaded import children
from .waiting import wait_for

JSON = dict[str, Any]
CLUSTER_UUID = "9f410827-489f-46fd-8203-51266ca08eb7"
OBJECTS = (TEMPLATES, DAEMON_SETS, NETWORK_POLICIES, CLIQUES, PODS, CLAIMS)
"""The kinds of objects that belong to domains."""


@contextmanager
def domains_running(nodes: int, per_clique: int) -> Iterator["Domains"]:
    """A sandbox of nodes with one GPU each, and so many of them in each clique.

    The control plane is Kubernetes' own where KUBEBUILDER_ASSETS names its programs.
    """
    hardware = {
        "driverVersion": "580.95.05",
        "cudaVersion": "13.0",
        "gpus": [{"model": "GB200-186GB", "count": 1}],
        "fabric": {"clusterUUID": CLUSTER_UUID, "clique": 1, "nodesPerClique": per_clique},
    }
    is_complete = bool(ASSETS) and all((Path(ASSETS) / name).is_file() for name in PROGRAMS)
    kubernetes = Kubernetes(assets=Path(ASSETS)) if is_complete else None
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        described = Path(folder) / "node.yaml"
        described.write_text(yaml.safe_dump(hardware), encoding="utf-8")
        with (
            Sandbox(
                Path(folder) / "s", str(described), nodes=nodes, kubernetes=kubernetes, children=children
            ) as sandbox,
            Connection(load_credentials(str(sandbox.kubeconfig)), "tests") as connection,
            ExitStack() as returned,
        ):
            yield Domains(sandbox, connection, returned)


class Domains:
    """What a user does with domains in a sandbox, and a look at all that belongs to them."""

    def __init__(self, sandbox: Sandbox, connection: Connection, returned: ExitStack) -> None:
        """`returned` ends the kubelets of nodes that were lost."""
        self.sandbox = sandbox
        self.client = ApiClient(connection)
        self._connection = connection
        self._returned = returned

    def node(self, number: int) -> SandboxNode:
        """Node `node-NUMBER`."""
        return self.sandbox.nodes[number - 1]

    # What happens to nodes

    def lose(self, number: int) -> None:
        """Let a node lose its power: nothing on it can clean up."""
        node = self.node(number)
        node.kubelet.stop()
        for name in list(node.processes):
            node.kill(name)

    def restore(self, number: int) -> None:
        """Let the node return."""
        node = self.node(number)
        self._returned.enter_context(node.kubelet_running("v1.37.0"))
        node.start_controller()
        node.start_mps()
        node.start_plugin()
        node.wait_registered()

    # What a user does

    def create(self, name: str) -> str:
        """Create a domain, whose template has its name. Its UID."""
        value = {
            "apiVersion": COMPUTE_DOMAINS.api_version,
            "kind": "ComputeDomain",
            "metadata": {"name": name},
            "spec": {"channel": {"resourceClaimTemplate": {"name": name}}},
        }
        return str(self.client.create(COMPUTE_DOMAINS, value, "default")["metadata"]["uid"])

    def start(self, domain: str, *nodes: int, suffix: str = "") -> list[str]:
        """Create a worker of the domain on each of these nodes. Their names end with the number and the `suffix`."""
        for number in nodes:
            value = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{domain}-{number}{suffix}"},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": f"node-{number}"},
                    "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "channel"}]}}],
                    "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": domain}],
                },
            }
            self.client.create(PODS, value, "default")
        return [f"{domain}-{number}{suffix}" for number in nodes]

    def wait_running(self, *pods: str) -> None:
        """Wait until these workers run."""
        wait_for(lambda: set(pods) <= self.running(), f"{pods} to run", 90)

    def run(self, domain: str, *nodes: int) -> str:
        """Create a domain, and workers that run. Its UID."""
        uid = self.create(domain)
        self.wait_running(*self.start(domain, *nodes))
        return uid

    def force_delete(self, pod: JSON) -> None:
        """Delete a pod as `kubectl delete --force` does."""
        meta = pod["metadata"]
        path = PODS.path(meta["namespace"], meta["name"])
        assert self._connection.request("DELETE", f"{path}?gracePeriodSeconds=0").status == HTTPStatus.OK

    def end(self) -> None:
        """Delete all workers and domains, and wait until nothing is left of them."""
        for kind in (PODS, COMPUTE_DOMAINS):
            for one in self.client.list(kind, namespace="default").items:
                try:
                    self.client.delete(kind, one["metadata"]["name"], "default")
                except NotFoundError:
                    continue
        wait_for(lambda: not self.leftovers(), "nothing to be left", 60)

    # What there is

    def running(self) -> set[str]:
        """The workers that run."""
        pods = self.client.list(PODS, namespace="default").items
        return {one["metadata"]["name"] for one in pods if one["status"]["phase"] == "Running"}

    def status(self, name: str) -> JSON:
        """The status of a domain."""
        return dict(self.client.get(COMPUTE_DOMAINS, name, "default").get("status") or {})

    def wait_status(self, name: str, status: str, nodes: int) -> JSON:
        """Wait until a domain has a status, with so many nodes. The whole status."""

        def reached() -> JSON:
            found = self.status(name)
            return found if (found.get("status"), len(found.get("nodes") or ())) == (status, nodes) else {}

        return wait_for(reached, f"{name} to be {status} with {nodes} nodes", 90)

    def daemons(self, uid: str) -> list[JSON]:
        """The pods of the domain's daemons."""
        return self.client.list(PODS, namespace=NAMESPACE, label_selector=f"{DOMAIN_LABEL}={uid}").items

    def cliques(self, uid: str) -> list[Clique]:
        """The members of the domain in each clique."""
        selector = f"{DOMAIN_LABEL}={uid}"
        return [decode_clique(one) for one in self.client.list(CLIQUES, label_selector=selector).items]

    def indices(self, uid: str) -> Mapping[str, int]:
        """The index of each node that is a member now."""
        return {row.node: row.index for clique in self.cliques(uid) for row in clique.members}

    def folders(self) -> list[Path]:
        """The folders of domains on all nodes."""
        plugins = map(self._driver_folder, range(1, len(self.sandbox.nodes) + 1))
        return [one for folder in plugins for kind in ("domains", "claims") for one in paths_in(folder / kind)]

    def processes(self) -> list[int]:
        """The processes that daemons' containers have started."""
        return marked_processes(self.sandbox.folder)

    def processes_of(self, number: int) -> list[int]:
        """The processes that the daemon's container of a node has started."""
        return marked_processes(self.node(number).kubelet_root)

    def folders_of(self, number: int) -> list[str]:
        """The UIDs of the domains that have a folder on a node."""
        return [path.name for path in paths_in(self._driver_folder(number) / "domains")]

    def mark(self, number: int) -> str:
        """The UID of the domain that a node is in. Empty if it is in none."""
        return DomainFolder(self._driver_folder(number)).domain()

    def _driver_folder(self, number: int) -> Path:
        return self.node(number).kubelet_root / "plugins" / DRIVER

    def labels(self) -> dict[str, str]:
        """The domain in the label of each node that has one."""
        nodes = self.client.list(NODES).items
        found = {one["metadata"]["name"]: one["metadata"]["labels"].get(DOMAIN_LABEL) for one in nodes}
        return {name: value for name, value in found.items() if value}

    def leftovers(self) -> list[object]:
        """All that belongs to any domain: objects, labels, files and processes."""
        objects = (one for kind in OBJECTS for one in self.client.list(kind).items)
        slices = self.sandbox.slices(driver=DRIVER)
        devices = [one for value in slices for one in value["spec"]["devices"]]
        told = [one for one in devices if "domain" in (one.get("attributes") or {})]
        names = [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects]
        nodes = self.sandbox.nodes
        specs = [path for node in nodes for path in (*node.claim_specs(), *paths_in(node.kubelet_root / "pods"))]
        return [*names, *self.labels().items(), *told, *self.folders(), *specs, *self.processes()]
