# SPDX-License-Identifier: Apache-2.0
"""dra-webhook as a process, spoken to over TLS as the API server does."""

import http.client
import json
import re
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.webhook.server import REVIEW_PATH
from dra_driver.sandbox.apiserver.server import Certificates, make_certificates
from tests.support.preloaded import run, start
from tests.support.waiting import wait_for

from .test_review import GOOD, MISTYPED, claim, config, review

pytestmark = pytest.mark.node


class Webhook:
    """A running process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.authority = self.issue()
        self._log = folder / "log"
        command = [sys.executable, "-m", "controller.webhook.main", "--port=0", "-v4"]
        files = [f"--tls-cert-file={self.certificate}", f"--tls-private-key-file={self.key}"]
        with self._log.open("wb") as log:
            self.process = start([*command, *files], stdout=log, stderr=log)
        found = wait_for(lambda: re.search(r"started.*port=(\d+)", self.log), "the port")
        assert found is not None
        self.port = int(found[1])

    @property
    def log(self) -> str:
        """What it logged."""
        return self._log.read_text(encoding="utf-8")

    def issue(self) -> bytes:
        """A new certificate into its files; the one to trust."""
        made: Certificates = make_certificates(["127.0.0.1"])
        for path, content in ((self.certificate, made.certificate), (self.key, made.key)):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.replace(path)
        return made.authority

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        authority: bytes = b"",
    ) -> tuple[int, str]:
        """(status, body) of one request."""
        context = ssl.create_default_context(cadata=(authority or self.authority).decode())
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=30)
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def judge(self, value: Any) -> Any:
        """The response to a review."""
        status, text = self.ask("POST", REVIEW_PATH, json.dumps(value).encode())
        assert status == 200, text
        return json.loads(text)["response"]


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    running = Webhook(tmp_path)
    yield running
    running.process.kill()
    running.process.wait()


def test_webhook_allows_valid_claims_and_refuses_invalid_claims(webhook: Webhook) -> None:
    assert webhook.judge(review(claim(config(GOOD))))["allowed"]
    assert not webhook.judge(review(claim(config(MISTYPED))))["allowed"]
    assert "refused: 1 configuration for gpu.nvidia.com" in webhook.log


def test_probes_answer_and_are_logged_once(webhook: Webhook) -> None:
    for _ in range(3):
        assert webhook.ask("GET", "/healthz") == (200, "ok\n")
        assert webhook.ask("GET", "/readyz") == (200, "ok\n")
    assert webhook.log.count("GET /healthz") == webhook.log.count("GET /readyz") == 1


def test_webhook_logs_the_stacks_of_threads_after_sigusr2(webhook: Webhook) -> None:
    webhook.process.send_signal(signal.SIGUSR2)
    wait_for(lambda: "serve_forever" in webhook.log and "most recent call first" in webhook.log, "the stacks")
    assert webhook.judge(review(claim()))["allowed"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/metrics", b"", {}, 404),
        ("POST", "/other", b"{}", {}, 404),
        ("POST", REVIEW_PATH, b"{", {}, 400),
        ("POST", REVIEW_PATH, b"[" * 100_000, {}, 400),
        ("POST", REVIEW_PATH, b"{}", {}, 400),
        ("POST", REVIEW_PATH, json.dumps(review({"metadata": 5})).encode(), {}, 400),
        ("POST", REVIEW_PATH, b"", {"Content-Length": str(1 << 30)}, 413),  # and nothing of it is sent
        ("POST", REVIEW_PATH, b"", {"Transfer-Encoding": "chunked"}, 411),
    ],
)
def test_invalid_request_gets_an_error(
    webhook: Webhook, method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert webhook.ask(method, path, body, headers)[0] == status
    assert f"WARNING controller.webhook.server: {method} {path}: " in webhook.log
    assert webhook.judge(review(claim()))["allowed"]


def test_a_client_that_does_not_greet_holds_up_nobody(webhook: Webhook) -> None:
    with socket.create_connection(("127.0.0.1", webhook.port)):
        assert webhook.judge(review(claim()))["allowed"]


def test_a_new_certificate_is_used_without_a_restart(webhook: Webhook) -> None:
    old, new = webhook.authority, webhook.issue()
    assert webhook.ask("GET", "/healthz", authority=new)[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        webhook.ask("GET", "/healthz", authority=old)


def test_the_last_good_certificate_stays_while_the_new_one_is_wrong(webhook: Webhook) -> None:
    key = webhook.key.read_bytes()
    webhook.key.write_bytes(make_certificates(["127.0.0.1"]).key)
    status, text = webhook.ask("GET", "/readyz")
    assert status == 503
    assert "cannot be used" in text
    assert webhook.judge(review(claim()))["allowed"]
    webhook.key.write_bytes(key)
    assert webhook.ask("GET", "/readyz")[0] == 200


def test_webhook_answers_open_requests_before_the_end(webhook: Webhook) -> None:
    body = json.dumps(review(claim(config(GOOD)))).encode()
    context = ssl.create_default_context(cadata=webhook.authority.decode())
    head = f"POST {REVIEW_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with (
        socket.create_connection(("127.0.0.1", webhook.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(head + body[:10])
        webhook.process.send_signal(signal.SIGTERM)
        connection.sendall(body[10:])
        assert connection.recv(64).startswith(b"HTTP/1.0 200")
    assert webhook.process.wait(60) == 0
    assert "stopped" in webhook.log


def test_missing_certificate_is_named_with_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "controller.webhook.main", "--port=0"]
    files = [f"--tls-cert-file={tmp_path / 'tls.crt'}", f"--tls-private-key-file={tmp_path / 'tls.key'}"]
    ended = run([*command, *files])
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert str(tmp_path / "tls.crt") in line
    assert "No such file" in line
