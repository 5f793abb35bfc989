# SPDX-License-Identifier: Apache-2.0
"""Kubeconfigs: what is taken from them, and what is said of those that cannot be used."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import ConnectionConfigError, Credentials, load_credentials
from dra_driver.sandbox.apiserver.server import Certificates, make_certificates
from tests.support.hostile import HOSTILE

SERVER = "https://10.0.0.1:6443"
USER = {"token": "secret"}


@pytest.fixture(scope="module")
def pem() -> Certificates:
    return make_certificates(["127.0.0.1"])


def data(text: bytes) -> str:
    return base64.b64encode(text).decode()


def config(user: Any = None, cluster: Any = None, **more: Any) -> dict[str, Any]:
    """A kubeconfig with one context `here`."""
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": {"server": SERVER} if cluster is None else cluster}],
        "users": [{"name": "me", "user": USER if user is None else user}],
        **more,
    }


def write(folder: Path, document: Any, name: str = "kubeconfig") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def load(folder: Path, document: Any, context: str | None = None) -> Credentials:
    document = document if context is None else {**document, "current-context": context}
    return load_credentials(str(write(folder, document)))


def refusal(folder: Path, document: Any, context: str | None = None) -> str:
    with pytest.raises(ConnectionConfigError) as raised:
        load(folder, document, context)
    text = str(raised.value)
    assert "\n" not in text
    return text.replace(str(folder), "DIR")


def test_a_token_in_the_file(tmp_path: Path) -> None:
    found = load(tmp_path, config())
    assert (found.server, found.token(), found.ca, found.client_certificate) == (SERVER, "secret", None, None)
    assert not found.insecure


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "secrets" / "token"
    file.parent.mkdir()
    file.write_text("first\n")
    token = load(tmp_path, config({"tokenFile": "secrets/token", "token": "old"})).token
    assert token() == "first"
    file.write_text("second\n")
    assert token() == "second"
    file.write_text("")  # somebody is writing it
    assert token() == "second"
    file.unlink()
    assert token() == "second"


def test_certificates_as_data_and_as_files_are_the_same(tmp_path: Path, pem: Certificates) -> None:
    for name, content in (("ca.crt", pem.authority), ("me.crt", pem.certificate), ("me.key", pem.key)):
        (tmp_path / name).write_bytes(content)
    as_files = load(
        tmp_path,
        config(
            {"client-certificate": "me.crt", "client-key": str(tmp_path / "me.key")},
            {"server": SERVER, "certificate-authority": "ca.crt"},
        ),
    )
    as_data = load(
        tmp_path,
        config(
            {"client-certificate-data": data(pem.certificate), "client-key-data": data(pem.key)},
            {"server": SERVER, "certificate-authority-data": data(pem.authority)},
        ),
    )
    for found in (as_files, as_data):
        assert found.ca == pem.authority.decode()
        assert found.client_certificate == (pem.certificate.decode(), pem.key.decode())
        assert found.token() is None


def test_data_counts_more_than_a_file(tmp_path: Path, pem: Certificates) -> None:
    cluster = {
        "server": SERVER,
        "certificate-authority": "missing",
        "certificate-authority-data": data(pem.authority),
    }
    assert load(tmp_path, config(cluster=cluster)).ca == pem.authority.decode()


def test_tls_options_of_a_cluster_are_read(tmp_path: Path) -> None:
    cluster = {"server": SERVER, "insecure-skip-tls-verify": True, "tls-server-name": "kubernetes"}
    found = load(tmp_path, config(cluster=cluster))
    assert (found.insecure, found.server_name) == (True, "kubernetes")


def test_the_context_can_be_chosen(tmp_path: Path) -> None:
    contexts = [
        {"name": "here", "context": {"cluster": "one", "user": "me"}},
        {"name": "there", "context": {"cluster": "two", "user": "other"}},
        {"name": "nobody", "context": {"cluster": "two"}},
    ]
    clusters = [{"name": name, "cluster": {"server": f"https://{name}"}} for name in ("one", "two")]
    users = [{"name": name, "user": {"token": name}} for name in ("me", "other")]
    document = config(contexts=contexts, clusters=clusters, users=users)
    chosen = {name: load(tmp_path, document, name) for name in (None, "there", "nobody")}
    assert {name: (one.server, one.token()) for name, one in chosen.items()} == {
        None: ("https://one", "me"),
        "there": ("https://two", "other"),
        "nobody": ("https://two", None),
    }


def test_several_files_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "token").write_text("of-sub")
    first = write(tmp_path, {"current-context": "here", "clusters": config()["clusters"], "users": None}, "first")
    second = write(tmp_path / "sub", config({"tokenFile": "token"}, {"server": "https://not-this"}), "second")
    third = write(tmp_path, {"current-context": "nowhere"}, "third")
    found = load_credentials(f"{first}:{tmp_path / 'missing'}:{second}:{third}")
    assert (found.server, found.token()) == (SERVER, "of-sub")


def test_the_environment_names_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path, config())))
    assert load_credentials().server == SERVER


def test_the_home_folder_is_the_last_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        ConnectionConfigError, match="no cluster given: set --kubeconfig or KUBECONFIG, or run in a pod"
    ):
        load_credentials()
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube", config(), "config")
    assert load_credentials().server == SERVER


@pytest.mark.parametrize(
    ("document", "context", "said"),
    [
        ("", None, "kubeconfig DIR/kubeconfig is empty or not a mapping"),
        ("- a\n- b\n", None, "kubeconfig DIR/kubeconfig is empty or not a mapping"),
        ("a: [\n", None, "kubeconfig DIR/kubeconfig:2:1: is not YAML: while parsing"),
        ("\0", None, "kubeconfig DIR/kubeconfig:1:1: is not YAML: control characters are not"),
        (config(**{"current-context": ""}), None, "has no current-context: choose one with kubectl config use-context"),
        (config(), "there", "no context 'there' (there is here)"),
        (config(clusters=[]), None, "no cluster 'one' (there is none)"),
        (config(users=[{"name": "you"}]), None, "no user 'me' (there is you)"),
        (config(contexts={"here": {}}), None, "contexts must be a list of mappings"),
        (config(clusters=["one"]), None, "clusters must be a list of mappings"),
        (config(user=["token"]), None, "user 'me' must be a mapping"),
        (config(user={"token": "two\nlines"}), None, "user 'me': the token has blanks, line breaks or characters"),
        (config(user={"token": "schlüssel"}), None, "user 'me': the token has blanks, line breaks or characters"),
        (config(user={"token": 42}), None, "user 'me': token must be a text, not 42"),
        (config(user={"tokenFile": "gone"}), None, "no token in DIR/gone: No such file or directory"),
        (config(cluster={"x": 1}), None, "cluster 'one' has no server"),
        (
            config(cluster={"server": SERVER, "proxy-url": "ftp://p"}),
            None,
            "cluster 'one': proxy-url: a proxy of scheme 'ftp' is not supported, use http, https, socks5",
        ),
        (
            config(cluster={"server": SERVER, "certificate-authority": "gone.crt"}),
            None,
            "cluster 'one': certificate-authority gone.crt cannot be read: No such file or directory",
        ),
        (
            config(cluster={"server": SERVER, "certificate-authority-data": "%%%"}),
            None,
            "cluster 'one': certificate-authority-data cannot be read:",
        ),
        (config(user={"client-key-data": data(b"k")}), None, "client-certificate and client-key belong together"),
        (config(user={"username": "me", "password": "x"}), None, "user 'me' has 'username': Kubernetes does"),
        (config(user={**USER, "as": "root"}), None, "user 'me' has 'as': impersonation is not supported"),
        (config(user={"auth-provider": {"name": "oidc"}}), None, "use an exec plugin"),
        (config(user={"exec": {"args": []}}), None, "user 'me': exec has no command"),
        (config(user={"exec": {"command": "x"}}), None, "exec has apiVersion None, known are client.authentication"),
    ],
)
def test_unusable_kubeconfig_is_refused_in_one_line(
    tmp_path: Path, document: Any, context: str | None, said: str
) -> None:
    assert said in refusal(tmp_path, document, context)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_text_that_is_no_kubeconfig_is_said_with_its_place(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)
    with pytest.raises(ConnectionConfigError) as raised:
        load_credentials(str(file))
    assert str(raised.value).startswith(f"kubeconfig {file}:")
    assert "\n" not in str(raised.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with pytest.raises(ConnectionConfigError, match=rf"kubeconfig {one}: No such file or directory"):
        load_credentials(str(one))
    with pytest.raises(ConnectionConfigError, match=rf"kubeconfig {one}:{two}: none of these files exists"):
        load_credentials(f"{one}:{two}")
