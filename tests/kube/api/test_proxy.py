# SPDX-License-Identifier: Apache-2.0
"""Proxies: which one is used for which server, and requests and watches through real ones."""

import base64
import contextlib
import logging
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import (
    ApiClient,
    Connection,
    ConnectionConfigError,
    Credentials,
    UnreachableError,
    Watcher,
    load_credentials,
)
from dra_driver.kube.api import kubeconfig as service_account
from dra_driver.kube.api.proxy import Proxy, environment_proxy, parse_proxy
from dra_driver.kube.kinds import NODES
from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.apiserver.server import make_certificates
from tests.support import preloaded
from tests.support.faultyserver import FaultyServer
from tests.support.scripted import Reply, scripted
from tests.support.waiting import wait_for

from .forwardproxy import forward_proxy

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
PROXY = "http://proxy:3128"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# Which proxy


@pytest.mark.parametrize(
    ("text", "proxy", "shown"),
    [
        ("http://proxy:3128", Proxy("http", "proxy", 3128), "http://proxy:3128"),
        ("http://proxy", Proxy("http", "proxy", 80), "http://proxy:80"),
        ("https://proxy/", Proxy("https", "proxy", 443), "https://proxy:443"),
        ("socks5://proxy", Proxy("socks5", "proxy", 1080), "socks5://proxy:1080"),
        ("http://[fd00::1]:3128", Proxy("http", "fd00::1", 3128), "http://[fd00::1]:3128"),
        ("http://me:p%40ss%3a@proxy:1", Proxy("http", "proxy", 1, "me", "p@ss:"), "http://proxy:1"),
        ("http://me@proxy:1", Proxy("http", "proxy", 1, "me"), "http://proxy:1"),
    ],
)
def test_urls_of_proxies(text: str, proxy: Proxy, shown: str) -> None:
    found = parse_proxy(text, "x")
    assert found == proxy
    assert str(found) == shown
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("proxy:3128", "x: 'proxy:3128' is not the URL of a proxy (http://host:port)"),
        ("http://", "x: 'http://' is not the URL of a proxy (http://host:port)"),
        ("http://proxy:port", "x: 'http://proxy:port' is not the URL of a proxy (http://host:port)"),
        ("http://proxy:99999", "x: 'http://proxy:99999' is not the URL of a proxy (http://host:port)"),
        ("http://pro xy", "x: 'http://pro xy' is not the URL of a proxy (http://host:port)"),
        ("http://proxy\n", "x: 'http://proxy\\n' is not the URL of a proxy (http://host:port)"),
        ("http://me:secret@proxy:port", "x: is not the URL of a proxy (http://host:port)"),
        ("ftp://me:secret@proxy", "x: a proxy of scheme 'ftp' is not supported, use http, https, socks5"),
    ],
)
def test_invalid_proxy_is_refused_in_one_line_without_its_password(text: str, said: str) -> None:
    with pytest.raises(ConnectionConfigError) as raised:
        parse_proxy(text, "x")
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("environment", "server", "proxy"),
    [
        ({}, "https", None),
        ({"HTTPS_PROXY": "http://a:1"}, "https", "http://a:1"),
        ({"HTTPS_PROXY": "http://a:1"}, "http", None),
        ({"HTTP_PROXY": "http://a:1"}, "https", None),
        ({"http_proxy": "http://a:1"}, "http", "http://a:1"),
        ({"https_proxy": "http://a:1"}, "https", "http://a:1"),
        ({"https_proxy": "http://a:1", "HTTPS_PROXY": "http://b:2"}, "https", "http://b:2"),
        ({"https_proxy": "http://a:1", "HTTPS_PROXY": ""}, "https", "http://a:1"),
        ({"HTTPS_PROXY": "a:1"}, "https", "http://a:1"),
        ({"HTTPS_PROXY": "a"}, "https", "http://a:80"),
        ({"HTTPS_PROXY": "https://a"}, "https", "https://a:443"),
        ({"HTTPS_PROXY": "socks5://a"}, "https", "socks5://a:1080"),
        ({"HTTPS_PROXY": "socks5h://a"}, "https", "socks5://a:1080"),
        ({"ALL_PROXY": "http://a:1"}, "https", None),
        ({"HTTPS_PROXY": "http://a:1", "NO_PROXY": "*"}, "https", None),
        ({"HTTPS_PROXY": "http://a:1", "no_proxy": "*"}, "https", None),
        ({"HTTPS_PROXY": "http://a:1", "NO_PROXY": "x", "no_proxy": "*"}, "https", "http://a:1"),
    ],
)
def test_the_environment(environment: Mapping[str, str], server: str, proxy: str | None) -> None:
    found = environment_proxy(server, "api.example.com", 6443, environment)
    assert (None if found is None else str(found)) == proxy


def test_a_variable_that_is_no_proxy_is_named() -> None:
    with pytest.raises(
        ConnectionConfigError, match=r"^environment variable https_proxy: a proxy of scheme 'ftp' is not supported"
    ):
        environment_proxy("https", "api", 443, {"https_proxy": "ftp://a"})


DIRECT: list[tuple[str, str]] = [  # server, NO_PROXY: what Go's httpproxy makes of them
    ("localhost:443", ""),
    ("127.0.0.1:443", ""),
    ("127.9.9.9:443", ""),
    ("[::1]:443", ""),
    ("[::ffff:127.0.0.1]:443", ""),
    ("api.example.com:443", "*"),
    ("10.0.0.1:443", "other, * "),
    ("api.example.com:443", "api.example.com"),
    ("API.example.com:443", "Api.Example.com"),
    ("api.example.com:443", "example.com"),
    ("api.example.com:443", " a , example.com ,b"),
    ("api.example.com:443", ".example.com"),
    ("api.example.com:443", "*.example.com"),
    ("api.example.com:6443", "example.com:6443"),
    ("api.example.com:6443", "*.example.com:6443"),
    ("api.example.com:6443", "example.com:"),
    ("api:443", "api"),
    ("10.0.0.1:443", "10.0.0.1"),
    ("10.0.0.1:6443", "10.0.0.1:6443"),
    ("10.1.2.3:443", "10.0.0.0/8"),
    ("10.1.2.3:443", "10.9.9.9/8"),
    ("[fd00::1]:443", "fd00::1"),
    ("[fd00::1]:443", "fd00:0::1"),
    ("[fd00::1]:6443", "[fd00::1]:6443"),
    ("[fd00::1]:443", "fd00::/8"),
    ("[::ffff:10.0.0.1]:443", "10.0.0.1"),
    ("xn--bcher-kva.example:443", "bücher.example"),
]
PROXIED: list[tuple[str, str]] = [
    ("api.example.com:443", ""),
    ("localhost.example.com:443", ""),
    ("api.example.com:443", ","),
    ("example.com:443", ".example.com"),
    ("example.com:443", "*.example.com"),
    ("myexample.com:443", "example.com"),
    ("api.example.com.org:443", "example.com"),
    ("api.example.com:443", "example.com:6443"),
    ("api.example.com:443", "*example.com"),
    ("api.example.com:443", "ap*"),
    ("10.0.0.1:443", "10.0.0.1:6443"),
    ("10.0.0.1:443", "10.0.0.2"),
    ("11.1.2.3:443", "10.0.0.0/8"),
    ("10.0.0.1:443", "10.0.0.0/255.0.0.0"),
    ("10.0.0.1:443", "10.0.0.0/33"),
    ("10.0.0.1:443", "10."),
    ("[fd00::1]:443", "[fd00::1]:6443"),
    ("[fd00::1]:443", "10.0.0.0/8"),
    ("api:443", ":443"),
]


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"), [(*c, True) for c in DIRECT] + [(*c, False) for c in PROXIED]
)
def test_no_proxy_lists_direct_servers(server: str, no_proxy: str, direct: bool) -> None:
    host, _, port = server.rpartition(":")
    found = environment_proxy("https", host.strip("[]"), int(port), {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy})
    assert (found is None) == direct


# Through a proxy


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyServer]:
    with FaultyServer(ApiServerOptions()) as running:
        yield running


def with_proxy(server: FaultyServer, folder: Path, url: str) -> Credentials:
    """The administrator's credentials, from a kubeconfig with this proxy-url."""
    path = server.write_kubeconfig(folder / "kubeconfig")
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"]["proxy-url"] = url
    path.write_text(yaml.safe_dump(document))
    return load_credentials(str(path))


def address(server: FaultyServer) -> str:
    return server.url.partition("://")[2]


KINDS: dict[str, dict[str, Any]] = {"http": {}, "https": {"tls": True}, "socks5": {"socks": True}}


@pytest.mark.cluster
@pytest.mark.parametrize("login", ["", "me:p@ß:/"])
@pytest.mark.parametrize("scheme", KINDS)
def test_requests_and_watches_go_through_the_proxy_of_the_kubeconfig(
    server: FaultyServer, tmp_path: Path, scheme: str, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")  # is about the environment's proxies
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    options = dict(KINDS[scheme])
    certificates = make_certificates(["127.0.0.1"])
    if options.pop("tls", False):
        options["tls"] = certificates.server_context()
        system = tmp_path / "system.pem"
        system.write_bytes(certificates.authority)
        monkeypatch.setenv("SSL_CERT_FILE", str(system))
    user = "me:p%40%C3%9F%3A%2F@" if login else ""
    with forward_proxy(login=login, **options) as proxy:
        credentials = with_proxy(server, tmp_path, f"{scheme}://{user}{proxy.address}")
        with Connection(credentials, "tests") as connection:
            client = ApiClient(connection)
            name = f"node-{scheme}-{len(login)}"
            seen: queue.Queue[str] = queue.Queue()
            watcher = Watcher(
                client,
                NODES,
                on_list=lambda values: seen.put("list"),
                on_event=lambda event, value: seen.put(f"{event} {value['metadata']['name']}"),
            )
            watcher.start()
            assert seen.get(timeout=60) == "list"
            client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            assert seen.get(timeout=60) == f"ADDED {name}"
            watcher.stop()
    verb = "SOCKS" if scheme == "socks5" else "CONNECT"
    assert set(proxy.asked) == {f"{verb} {address(server)}"}


@pytest.mark.cluster
@pytest.mark.parametrize("socks", [False, True])
def test_a_server_without_tls_gets_whole_requests_by_way_of_the_proxy(socks: bool) -> None:
    with scripted([Reply(), Reply()]) as there, forward_proxy(login="me:secret", socks=socks) as proxy:
        found = parse_proxy(f"{'socks5' if socks else 'http'}://me:secret@{proxy.address}", "x")
        credentials = Credentials(f"{there.url}/clusters/one", lambda: "token", proxy=found)
        with Connection(credentials, "tests") as connection:
            assert connection.request("GET", "/x?y=z").status == 200
    (asked,) = there.asked
    assert asked.path == "/clusters/one/x?y=z"
    assert asked.headers["Host"] == there.url.partition("://")[2]
    assert asked.headers["Authorization"] == "Bearer token"
    assert "Proxy-Authorization" not in asked.headers
    host = there.url.partition("://")[2]
    assert proxy.asked == [f"SOCKS {host}" if socks else f"GET {there.url}/clusters/one/x?y=z"]


def test_the_environment_counts_in_a_pod_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("token")
    (tmp_path / "ca.crt").write_bytes(make_certificates(["api"]).authority)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    for no_proxy, proxy in (("", PROXY), ("10.96.0.0/16", "None")):
        monkeypatch.setenv("NO_PROXY", no_proxy)
        with Connection(service_account.in_cluster(tmp_path), "tests") as connection:
            assert str(connection.proxy) == proxy


@pytest.mark.cluster
@pytest.mark.parametrize("socks", [False, True])
def test_a_proxy_that_refuses_is_named_without_the_password(
    server: FaultyServer, tmp_path: Path, socks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    scheme = "socks5" if socks else "http"
    with forward_proxy(login="me:other", socks=socks) as proxy:
        credentials = with_proxy(server, tmp_path, f"{scheme}://me:secret@{proxy.address}")
        with Connection(credentials, "tests") as connection, pytest.raises(UnreachableError) as raised:
            connection.request("GET", "/version")
    text = str(raised.value)
    assert f"{scheme}://{proxy.address}" in text
    assert ("authentication failed" if socks else "407 Proxy Authentication Required") in text
    assert "secret" not in text + caplog.text + repr(credentials)
    assert base64.b64encode(b"me:secret").decode() not in text + caplog.text
    assert "\n" not in text


@pytest.mark.cluster
@pytest.mark.parametrize("scheme", KINDS)
def test_a_proxy_that_is_not_there_is_named(server: FaultyServer, tmp_path: Path, scheme: str) -> None:
    with contextlib.closing(socket.socket()) as bound:  # taken and not listened on: refused
        bound.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{bound.getsockname()[1]}"
        with (
            Connection(with_proxy(server, tmp_path, url), "tests") as connection,
            pytest.raises(UnreachableError, match=f"{url}.*[Cc]onnection refused|[Cc]onnection refused.*{url}"),
        ):
            connection.request("GET", "/version")


def test_missing_package_for_socks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)  # the import system's sign for a missing module
    credentials = Credentials("https://api", lambda: "token", proxy=parse_proxy("socks5://me:secret@proxy", "x"))
    with pytest.raises(ConnectionConfigError) as raised:
        Connection(credentials, "tests")
    text = "proxy socks5://proxy:1080 needs the Python package PySocks: pip install 'dra-driver-gpu[socks]', "
    assert str(raised.value) == text + "or use an HTTP proxy"


@pytest.mark.cluster
def test_a_command_goes_through_the_proxy_too(server: FaultyServer, tmp_path: Path) -> None:
    with forward_proxy() as proxy:
        with_proxy(server, tmp_path, f"http://{proxy.address}")
        command = [sys.executable, "-m", "controller.main", "--kubeconfig", str(tmp_path / "kubeconfig")]
        more = ["--node-name", "nowhere", "--simulated-node", "a30x4", "--simulated-root", str(tmp_path / "node")]
        with preloaded.start([*command, *more], stderr=subprocess.DEVNULL) as process:
            try:
                wait_for(lambda: proxy.asked, "a request")
            finally:
                process.kill()
    assert set(proxy.asked) == {f"CONNECT {address(server)}"}
