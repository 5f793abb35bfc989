# SPDX-License-Identifier: Apache-2.0
"""Clusters that cannot be reached or do not know the user: each cause has its own text, in kubectl's words."""

import base64
import datetime
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.apiserver import embedded
from tests.support.scripted import End, Reply, scripted

from .conftest import DryRun, Write
from .test_cluster import silent_server

pytestmark = pytest.mark.cluster

UNABLE = "Unable to connect to the server: "
EXPIRED = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
AUTHORITY = trustme.CA()


def kubeconfig(write: Write, server: str, **cluster: Any) -> Path:
    """A kubeconfig with the contexts `first` and `second` for a server."""
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("first", "second")]
    config = {
        "current-context": "first",
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": {"token": "wrong"}}],
    }
    return write("kubeconfig", config)


def refusal(dryrun: DryRun, config: Path, *flags: str) -> str:
    """The only line of the command, which must fail, without the name of the program."""
    code, out, err = dryrun("capacity", "--kubeconfig", config, *flags)
    assert code == 2, out + err
    assert out == ""
    (line,) = err.splitlines()
    return line.partition(": ")[2]


@contextmanager
def tls_server(certificate: trustme.LeafCert) -> Iterator[str]:
    """The URL of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with scripted([Reply()] * 4, context) as server:
        yield server.url


def authority(ca: trustme.CA) -> dict[str, str]:
    return {"certificate-authority-data": base64.b64encode(ca.cert_pem.bytes()).decode()}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_refused_connection_has_kubectls_message(scheme: str, dryrun: DryRun, write: Write) -> None:
    said = refusal(dryrun, kubeconfig(write, f"{scheme}://127.0.0.1:1"))
    assert said == "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?"


def test_unknown_host_is_named(dryrun: DryRun, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    said = refusal(dryrun, kubeconfig(write, "https://no-such-host.invalid:6443"))
    assert said.startswith(f"{UNABLE}dial tcp: lookup no-such-host.invalid: no such host")


def test_a_server_that_does_not_answer_is_a_time_out(dryrun: DryRun, write: Write) -> None:
    with silent_server() as port:
        config = kubeconfig(write, f"http://127.0.0.1:{port}")
        said = refusal(dryrun, config, "--request-timeout", "200ms")
    assert said.startswith(f"{UNABLE}timeout exceeded while awaiting headers: ")
    assert said.endswith("does not answer within 0.2 s (see --request-timeout)")


def test_a_closed_connection_is_no_time_out(dryrun: DryRun, write: Write) -> None:
    with scripted([Reply(end=End.DROP)] * 4) as server:
        said = refusal(dryrun, kubeconfig(write, server.url))
    assert said.startswith(UNABLE)
    assert "Remote end closed connection without response" in said


@pytest.mark.parametrize(
    ("certificate", "trusted", "said"),
    [
        (AUTHORITY.issue_cert("127.0.0.1"), trustme.CA(), "certificate signed by unknown authority"),
        (AUTHORITY.issue_cert("example.com"), AUTHORITY, "certificate is valid for other names"),
        (
            AUTHORITY.issue_cert("127.0.0.1", not_after=EXPIRED),
            AUTHORITY,
            "certificate has expired or is not yet valid",
        ),
    ],
    ids=["authority", "name", "expired"],
)
def test_a_certificate_is_refused_with_the_reason(
    certificate: trustme.LeafCert, trusted: trustme.CA, said: str, dryrun: DryRun, write: Write
) -> None:
    with tls_server(certificate) as url:
        found = refusal(dryrun, kubeconfig(write, url, **authority(trusted)))
    assert found.startswith(f"{UNABLE}tls: failed to verify certificate: x509: {said}")


def test_server_without_tls_is_named(dryrun: DryRun, write: Write) -> None:
    with scripted([Reply()] * 4) as server:
        found = refusal(dryrun, kubeconfig(write, server.url.replace("http:", "https:")))
    assert found.startswith(f"{UNABLE}http: server gave HTTP response to HTTPS client")


def test_unreachable_proxy_is_named(dryrun: DryRun, write: Write) -> None:
    config = kubeconfig(write, "http://example.com", **{"proxy-url": "http://127.0.0.1:1"})
    found = refusal(dryrun, config)
    assert found.startswith(f"{UNABLE}proxyconnect tcp: ")
    assert "Connection refused" in found


def test_an_unknown_token_is_unauthorized(dryrun: DryRun, tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, _, _client):
        config = server.write_kubeconfig(tmp_path / "wrong", token="wrong")
        found = refusal(dryrun, config)
    assert found.startswith("You must be logged in to the server (Unauthorized): ")
    assert "the token or certificate is wrong or has expired" in found


def test_a_context_without_a_kubeconfig_does_not_exist(dryrun: DryRun) -> None:
    code, out, err = dryrun("capacity", "--context", "nope")
    assert (code, out) == (2, "")
    assert err.endswith("home/.kube/config\n")
    assert ': context "nope" does not exist: KUBECONFIG is not set, and there is no file /' in err


def test_a_context_that_does_not_exist_is_answered_with_those_that_do(dryrun: DryRun, write: Write) -> None:
    found = refusal(dryrun, kubeconfig(write, "http://127.0.0.1:1"), "--context", "nope")
    assert found.endswith('context "nope" does not exist (there is first, second)')
