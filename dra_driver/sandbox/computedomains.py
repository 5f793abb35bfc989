# SPDX-License-Identifier: Apache-2.0
"""What a cluster with ComputeDomains has beside its nodes: custom kinds, the daemons' account, addresses of pods, and
dra-cluster-controller.

The objects look like those of the Helm release, so `helm install` adopts them.
"""

import contextlib
import random
import socket
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

import yaml

from ..domains.daemon import PEER_PORT
from ..domains.objects import CLIQUES
from ..kube.api import ApiClient
from ..kube.kinds import DEFINITIONS, NAMESPACES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS
from .child import Children
from .controlplane import RELEASE, chart_file, of_release
from .loop import JSON
from .processes import Processes

NAMESPACE: Final = RELEASE
"""The driver's namespace, in which the daemons run."""
CONTROLLER: Final = "cluster-controller"
"""The name of the process dra-cluster-controller."""
IMAGE: Final = "dra-sandbox"
"""The image in the pods of daemons. Nothing pulls it."""
_ACCOUNT: Final = "compute-domain-daemon-service-account"
_ROLE: Final = "dra-sandbox-imex-daemon"

_LOOPBACK: Final = IPv4Network("127.0.0.0/8")
_NODE_PREFIX: Final = 24
_SANDBOX_PREFIX: Final = 18  # 64 nodes


@contextlib.contextmanager
def pod_networks() -> Iterator[tuple[IPv4Network, ...]]:
    """Reserve addresses for pods of one sandbox: a network for each node, which no other sandbox of this machine has.

    A socket that is bound to the first address marks them as taken. Raises OSError.
    """
    networks = list(_LOOPBACK.subnets(new_prefix=_SANDBOX_PREFIX))[1:-1]
    random.shuffle(networks)
    with socket.socket() as mark:
        free = next((network for network in networks if _is_bound(mark, network)), None)
        if free is None:
            raise OSError("no loopback addresses are free for pods")
        yield tuple(free.subnets(new_prefix=_NODE_PREFIX))


def _is_bound(mark: socket.socket, network: IPv4Network) -> bool:
    """Bind the socket to the first address, and return whether that was possible."""
    try:
        mark.bind((str(network.network_address), PEER_PORT))
    except OSError:
        return False
    return True


def custom_kinds() -> list[JSON]:
    """Return the chart's CustomResourceDefinitions."""
    paths = sorted(chart_file("crds").glob("*.yaml"))
    return [yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in paths]


def install(client: ApiClient) -> None:
    """Create the objects. Raises ApiError."""
    client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for value in custom_kinds():
        client.create(DEFINITIONS, of_release(value))
    install_account(client)
    rule = {"apiGroups": [CLIQUES.group], "resources": [CLIQUES.plural], "verbs": ["get", "list", "watch", "patch"]}
    role: JSON = {"kind": "Role", "rules": [rule]}
    binding: JSON = {
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": ROLES.group, "kind": "Role", "name": _ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": NAMESPACE}],
    }
    for kind, value in ((ROLES, role), (ROLE_BINDINGS, binding)):
        client.create(kind, {"apiVersion": kind.api_version, "metadata": {"name": _ROLE}, **value}, NAMESPACE)


def install_account(client: ApiClient) -> None:
    """Create the service account of daemons, to which all objects of domains in its namespace belong. Raises
    ApiError.
    """
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _ACCOUNT}}
    client.create(SERVICE_ACCOUNTS, of_release(account), NAMESPACE)


class ClusterProcesses(Processes):
    """The processes of the cluster: dra-cluster-controller, once or several times."""

    def __init__(self, folder: Path, kubeconfig: Path, children: Children) -> None:
        """The logs are in `folder`. Raises OSError."""
        super().__init__("the cluster", folder, children)
        self._kubeconfig = kubeconfig

    def start_controller(self, name: str = CONTROLLER, *arguments: str) -> None:
        """Start dra-cluster-controller. Several of them elect one that works."""
        self.launch(
            name,
            "controller.cluster.main",
            *("--kubeconfig", str(self._kubeconfig), "--compute-domains"),
            *("--namespace", NAMESPACE, "--pod-name", name, "--leader-election-enabled", "--daemon-image", IMAGE),
            *arguments,
        )
