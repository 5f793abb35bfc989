# SPDX-License-Identifier: Apache-2.0
"""The identity of a pod."""

from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient, Connection, ConnectionConfigError, load_credentials
from dra_driver.kube.api.kubeconfig import in_cluster
from dra_driver.kube.kinds import NAMESPACES
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.faultyserver import FaultyServer

VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG")


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a mounted service account, in an environment of a pod."""
    for name, value in zip(VARIABLES, ("10.96.0.1", "443", ""), strict=True):
        monkeypatch.setenv(name, value)
    (tmp_path / "ca.crt").write_text("AUTHORITY")
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_knows_its_server(pod: Path, monkeypatch: pytest.MonkeyPatch, host: str, url: str) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    found = in_cluster(pod)
    assert (found.server, found.ca, found.token()) == (url, "AUTHORITY", "first")


@pytest.mark.parametrize("missing", VARIABLES[:2])
def test_outside_of_a_pod_it_says_what_is_missing(pod: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(
        ConnectionConfigError, match="not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not"
    ):
        in_cluster(pod)


@pytest.mark.parametrize("missing", ["ca.crt", "token"])
def test_a_pod_without_a_service_account_says_so(pod: Path, missing: str) -> None:
    (pod / missing).unlink()
    with pytest.raises(ConnectionConfigError, match=rf"{missing}.*: No such file or directory"):
        in_cluster(pod)


def test_the_environment_of_a_pod_leads_to_its_service_account(pod: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="no service account in /var/run/secrets"):
        load_credentials()


@pytest.mark.cluster
def test_a_renewed_token_is_used_from_the_next_request_on(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer(ApiServerOptions()) as server:
        _mount(pod, server, "of-monday")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        with Connection(in_cluster(pod), "tests") as connection:
            client = ApiClient(connection)
            client.get(NAMESPACES, "default")
            server.cluster.users.pop("of-monday")
            _mount(pod, server, "of-tuesday")
            client.get(NAMESPACES, "default")


def _mount(folder: Path, server: FaultyServer, token: str) -> None:
    """What kubelet does: a folder with a new name, and a link that is exchanged."""
    server.add_service_account("kube-system", "driver", token=token)
    data = folder / f"..{token}"
    data.mkdir()
    (data / "token").write_text(token)
    assert server.certificates
    (data / "ca.crt").write_bytes(server.certificates.authority)
    link = folder / "..new"
    link.symlink_to(data.name)
    link.replace(folder / "..data")
    for name in ("token", "ca.crt"):
        (folder / name).unlink()
        (folder / name).symlink_to(f"..data/{name}")
