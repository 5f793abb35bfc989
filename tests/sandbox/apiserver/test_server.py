# SPDX-License-Identifier: Apache-2.0
"""Starting, stopping, and the kubeconfig: in a thread, in a process of its own."""

import socket
import stat
from pathlib import Path

import pytest
import urllib3
import yaml

from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions

from .conversation import Partner


def test_a_kubeconfig_is_for_its_owner_only_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("left from before", encoding="utf-8")
    with ApiServer() as server:
        server.write_kubeconfig(path)
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert content["current-context"] == content["contexts"][0]["name"]
        assert content["clusters"][0]["cluster"]["server"] == server.url
        assert content["clusters"][0]["cluster"]["certificate-authority-data"]
        assert content["users"][0]["user"]["token"] == server.admin_token
    assert list(tmp_path.iterdir()) == [path]


def test_the_certificate_is_good_for_local_names_only(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    with ApiServer() as server:
        assert server.certificates
        authority.write_bytes(server.certificates.authority)
        for host in ("127.0.0.1", "localhost"):
            pool = urllib3.PoolManager(ca_certs=str(authority), retries=False)
            headers = {"Authorization": f"Bearer {server.admin_token}"}
            assert pool.request("GET", f"https://{host}:{server.port}/version", headers=headers).status == 200
        with pytest.raises(urllib3.exceptions.SSLError):
            urllib3.PoolManager(retries=False).request("GET", f"{server.url}/version")


def test_a_stopped_server_listens_no_longer_and_a_second_one_may_take_its_port() -> None:
    with ApiServer(ApiServerOptions(tls=False)) as server:
        port = server.port
        assert server.url == f"http://127.0.0.1:{port}"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    with ApiServer(ApiServerOptions(tls=False, port=port)) as again:
        assert Partner(again.url, again.admin_token, None).ask("GET", "/readyz")[0] == 200


def test_a_taken_port_is_reported_to_the_caller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        ApiServer(ApiServerOptions(tls=False, port=taken.getsockname()[1])).start()


def test_two_servers_share_nothing() -> None:
    options = ApiServerOptions(tls=False)
    with ApiServer(options) as one, ApiServer(options) as two:
        path = "/api/v1/namespaces/default/configmaps"
        Partner(one.url, one.admin_token, None).ask("POST", path, {"metadata": {"name": "a"}})
        assert Partner(two.url, two.admin_token, None).ask("GET", f"{path}/a")[0] == 404
        assert Partner(two.url, one.admin_token, None).ask("GET", path)[0] == 401
