# SPDX-License-Identifier: Apache-2.0
"""Connections: whom they trust, how long they wait, and what they send again."""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from urllib3 import HTTPResponse

from dra_driver.kube.api import Connection, ConnectionConfigError, Credentials, UnreachableError
from dra_driver.kube.api.connection import ONCE, REPEATABLE
from dra_driver.sandbox.apiserver.server import Certificates, make_certificates
from tests.support.logs import records_of
from tests.support.scripted import End, Reply, ScriptedServer, scripted

pytestmark = pytest.mark.node

OK = Reply({"kind": "Status"})


@pytest.fixture(scope="module")
def pem() -> Certificates:
    return make_certificates(["127.0.0.1"])


def credentials(
    server: str,
    *,
    ca: bytes | None = None,
    client: tuple[bytes, bytes] | None = None,
    insecure: bool = False,
    server_name: str | None = None,
) -> Credentials:
    pair = None if client is None else (client[0].decode(), client[1].decode())
    authority = None if ca is None else ca.decode()
    return Credentials(server, lambda: "secret", authority, pair, insecure, server_name)


def get(found: Credentials, method: str = "GET", *, repeatable: bool = True) -> int:
    with Connection(found, "tests", read_seconds=1.0) as connection:
        return connection.request(method, "/x", repeatable=repeatable).status


@pytest.mark.parametrize(
    ("server", "path"), [("{}", "/x"), ("{}/", "/x"), ("{}/clusters/one", "/clusters/one/x"), ("{}/c/", "/c/x")]
)
def test_requests_say_who_and_what_we_are(server: str, path: str) -> None:
    with scripted([OK]) as there:
        get(credentials(server.format(there.url)))
    (asked,) = there.asked
    assert (asked.method, asked.path) == ("GET", path)
    assert {"Authorization": "Bearer secret", "User-Agent": "tests"}.items() <= asked.headers.items()


@pytest.mark.parametrize("server", ["", "10.0.0.1:6443", "ftp://host", "https://", "https://host:port"])
def test_a_server_that_is_no_url_is_refused(server: str) -> None:
    with pytest.raises(ConnectionConfigError, match=r"is not the URL of a server \(https://host:port\)"):
        Connection(credentials(server), "tests")


class TestTls:
    """Against a server that wants a client certificate, if any is given, to be of its own authority."""

    @contextlib.contextmanager
    def serve(self, pem: Certificates, clients: bytes | None = None) -> Iterator[ScriptedServer]:
        context = pem.server_context()
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=clients.decode())
        with scripted([OK], tls=context) as server:
            yield server

    def test_the_authority_of_the_kubeconfig_is_trusted(self, pem: Certificates) -> None:
        with self.serve(pem) as server:
            assert get(credentials(server.url, ca=pem.authority)) == 200

    @pytest.mark.parametrize("ca", [None, make_certificates(["127.0.0.1"]).authority])
    def test_unknown_certificate_is_refused(self, pem: Certificates, ca: bytes | None) -> None:
        with self.serve(pem) as server:
            with pytest.raises(UnreachableError, match="certificate verify failed"):
                get(credentials(server.url, ca=ca))
            assert server.asked == []

    def test_a_certificate_for_another_name_is_refused(self, pem: Certificates) -> None:
        with self.serve(make_certificates(["kubernetes"])) as server:
            with pytest.raises(UnreachableError, match="certificate verify failed"):
                get(credentials(server.url, ca=pem.authority))
            assert server.asked == []

    def test_unless_that_name_is_asked_for(self) -> None:
        other = make_certificates(["kubernetes"])
        with self.serve(other) as server:
            assert get(credentials(server.url, ca=other.authority, server_name="kubernetes")) == 200

    def test_without_verification_everybody_is_which_is_said_once(
        self, pem: Certificates, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
    ) -> None:
        with self.serve(pem) as server:
            assert get(credentials(server.url, insecure=True)) == 200
        (record,) = records_of(caplog, "dra_driver.kube.api")
        assert record.getMessage() == f"insecure-skip-tls-verify: the identity of {server.url} is not verified"
        assert not recwarn.list

    def test_a_client_certificate_is_shown(self, pem: Certificates) -> None:
        client = client_certificate()
        with self.serve(pem, clients=client[0]) as server:
            assert get(credentials(server.url, ca=pem.authority, client=client)) == 200

    def test_without_one_that_server_refuses(self, pem: Certificates) -> None:
        with self.serve(pem, clients=client_certificate()[0]) as server, pytest.raises(UnreachableError):
            get(credentials(server.url, ca=pem.authority))


def client_certificate() -> tuple[bytes, bytes]:
    """A self-signed certificate that is its own authority, and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")])
    now = datetime.now(UTC)
    begin, end = now - timedelta(hours=1), now + timedelta(hours=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin, end)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    clear = serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, clear)


def test_certificates_that_cannot_be_used_are_refused_at_once(pem: Certificates) -> None:
    server = "https://127.0.0.1:1"
    other = make_certificates(["127.0.0.1"])
    with pytest.raises(
        ConnectionConfigError, match=r"certificate authority of https://127\.0\.0\.1:1 is not a PEM certificate"
    ):
        Connection(credentials(server, ca=b"rubbish"), "tests")
    for pair in ((pem.certificate, other.key), (b"rubbish", pem.key)):
        with pytest.raises(
            ConnectionConfigError, match=r"client certificate for https://127\.0\.0\.1:1 cannot be used"
        ):
            Connection(credentials(server, client=pair), "tests")


def test_refused_connection_is_reported_with_the_address(tmp_path: Path) -> None:
    with socket.socket() as bound:  # taken and not listened on: refused
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            UnreachableError, match=rf"GET {url}/x: Failed to establish a new connection: .*Connection refused"
        ):
            get(credentials(url))


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with scripted([Reply(end=End.HANG)] * 2) as server:
        with pytest.raises(UnreachableError, match=r"GET http://[^ ]*/x: Read timed out"):
            get(credentials(server.url))
        assert server.calls == ["GET /x"] * 2


def busy(status: int) -> Reply:
    return Reply(status=status, headers={"Retry-After": "0"})


DROP, CUT, HANG = (Reply(end=end) for end in (End.DROP, End.CUT, End.HANG))


@pytest.mark.parametrize(
    ("replies", "repeatable", "answer", "sent"),
    [
        ([busy(429), busy(503), OK], True, 200, 3),
        ([busy(502), busy(504), OK], True, 200, 3),
        ([busy(429)] * 9, True, 429, 5),
        ([Reply(status=500), OK], True, 500, 1),
        ([DROP, OK], True, 200, 2),
        ([HANG, OK], True, 200, 2),
        ([CUT, OK], True, 200, 2),
        ([DROP, DROP, OK], True, None, 2),
        ([busy(429), OK], False, 200, 2),
        ([busy(503), OK], False, 200, 2),
        ([Reply(status=503), OK], False, 503, 1),
        ([DROP, OK], False, None, 1),
        ([HANG, OK], False, None, 1),
        ([CUT, OK], False, None, 1),
    ],
)
def test_repeatable_request_is_sent_again(
    replies: Sequence[Reply], repeatable: bool, answer: int | None, sent: int
) -> None:
    with scripted(replies) as server:
        if answer is None:
            with pytest.raises(UnreachableError):
                get(credentials(server.url), "POST", repeatable=repeatable)
        else:
            assert get(credentials(server.url), "POST", repeatable=repeatable) == answer
        assert server.calls == ["POST /x"] * sent


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_every_verb_is_repeated_alike(method: str) -> None:
    with scripted([busy(429), DROP, OK]) as server:
        assert get(credentials(server.url), method) == 200
        assert server.calls == [f"{method} /x"] * 3


@pytest.mark.parametrize(("asked", "waits"), [("0", 0), ("1", 1), ("3600", 5)])
def test_a_server_cannot_put_us_off_for_long(asked: str, waits: int) -> None:
    for policy in (REPEATABLE, ONCE):
        assert policy.get_retry_after(HTTPResponse(headers={"Retry-After": asked})) == waits
