# SPDX-License-Identifier: Apache-2.0
"""Running servers for the tests of this folder, and a client that speaks plain HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.faultyserver import FaultyServer

from .conversation import Partner

ALL_VERSIONS = ("v1", "v1beta2", "v1beta1")


@pytest.fixture(scope="session")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Partner]:
    """Makes a client of a server: of the admin, or of the owner of a token."""

    def make(server: FaultyServer, token: str = "") -> Partner:
        authority = tmp_path_factory.mktemp("ca") / "ca.pem"
        authority.write_bytes(server.certificates.authority if server.certificates else b"")
        return Partner(server.url, token or server.admin_token, str(authority) if server.certificates else None)

    return make


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyServer]:
    """Kubernetes 1.36 with every version of resource.k8s.io."""
    with FaultyServer(ApiServerOptions(minor=36, resource_versions=ALL_VERSIONS)) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: FaultyServer, talk: Callable[..., Partner]) -> Partner:
    """The admin's client of `server`."""
    return talk(server)


@pytest.fixture
def kubeconfig(server: FaultyServer, tmp_path: Path) -> Path:
    """The admin's kubeconfig of `server`."""
    return server.write_kubeconfig(tmp_path / "kubeconfig")


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def claim(name: str, **exactly: Any) -> dict[str, Any]:
    """A ResourceClaim with one request."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def resource_slice(name: str, **spec: Any) -> dict[str, Any]:
    """A ResourceSlice of one node, without devices."""
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool, **spec},
    }
