# SPDX-License-Identifier: Apache-2.0
"""An API server for tests: kube-apiserver and etcd from KUBEBUILDER_ASSETS where that is set, else the embedded one.

KUBEBUILDER_ASSETS names a folder with both binaries, as `setup-envtest use -p path` prints it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.kinds import DEFINITIONS, claims_of, slices_of
from dra_driver.kube.resource.codec import DIALECTS, V1
from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.apiserver.users import User
from dra_driver.sandbox.controlplane import real_api_server
from tests.support.faultyserver import FaultyServer

ASSETS: Final = os.environ.get("KUBEBUILDER_ASSETS", "")
SLICES: Final = slices_of(V1)
CLAIMS: Final = claims_of(V1)
CLUSTER_ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "clusterroles")


@contextlib.contextmanager
def api_server(folder: Path, *, rbac: bool = False, tls: bool = False, resource_version: str = "") -> Iterator[Path]:
    """A server that runs inside of the context; gives its administrator's kubeconfig. A real server has RBAC and TLS.

    TLS takes a quarter of the time of most tests. Helm and kubectl need it, because they send no token without it. With
    `resource_version`, the server serves only this version of resource.k8s.io.
    """
    path = folder / "kubeconfig"
    served = (resource_version,) if resource_version else None
    if not ASSETS:
        with FaultyServer(ApiServerOptions(rbac=rbac, resource_versions=served, tls=tls)) as server:
            yield server.write_kubeconfig(path)
        return
    # Without a controller manager, no namespace gets a service account, and no node loses its first taint.
    flags = ["--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"]
    if served:
        versions = (f"{dialect.api_version}={str(dialect.version in served).lower()}" for dialect in DIALECTS)
        flags.append(f"--runtime-config={','.join(versions)}")
    with real_api_server(Path(ASSETS), folder / "control-plane", path, flags):
        yield path


@contextlib.contextmanager
def embedded(folder: Path, **options: Any) -> Iterator[tuple[FaultyServer, Path, ApiClient]]:
    """The embedded server with these options, for a test that does something to it; its administrator's kubeconfig and
    client. It speaks no TLS unless the options say so.
    """
    with FaultyServer(ApiServerOptions(**{"tls": False, **options})) as server:
        kubeconfig_file = server.write_kubeconfig(folder / "config")
        with connect(kubeconfig_file) as client:
            yield server, kubeconfig_file, client


@contextlib.contextmanager
def connect(kubeconfig_file: Path) -> Iterator[ApiClient]:
    """A client of the server."""
    with Connection(load_credentials(str(kubeconfig_file)), "tests") as connection:
        yield ApiClient(connection)


def kubeconfig_of_user(
    server: FaultyServer, admin: ApiClient, folder: Path, rules: list[dict[str, Any]], groups: tuple[str, ...] = ()
) -> Path:
    """The kubeconfig of a user whose only rights are these rules of the ClusterRole `some`, and those of the groups."""
    rbac = "rbac.authorization.k8s.io"
    admin.create(CLUSTER_ROLES, {"metadata": {"name": "some"}, "rules": rules})
    binding = {
        "metadata": {"name": "some"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "some"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "someone"}],
    }
    admin.create(Kind(f"{rbac}/v1", "clusterrolebindings"), binding)
    return server.write_kubeconfig(folder / "someone", token=server.add_user(User("someone", groups)))


def serve_node_features(admin: ApiClient) -> None:
    """Install the kind NodeFeature of node feature discovery, as its CustomResourceDefinition describes it."""
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    features = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {"type": "object", "properties": {"labels": texts, "features": features}}
    schema = {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {"spec": spec}}}
    group, plural = "nfd.k8s-sigs.io", "nodefeatures"
    value = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": "NodeFeature",
                "plural": plural,
                "singular": "nodefeature",
                "listKind": "NodeFeatureList",
            },
            "scope": "Namespaced",
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": schema}],
        },
    }
    admin.create(DEFINITIONS, value)
