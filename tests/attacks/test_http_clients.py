# SPDX-License-Identifier: Apache-2.0
"""A pod opens connections to the metrics of the driver, and to the webhook, without end."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from controller.webhook.server import TlsFiles
from controller.webhook.server import serving as serving_webhook
from dra_driver.process.endpoints import MOST_CONNECTIONS, Endpoint, new_registry, serving
from dra_driver.sandbox.apiserver.server import make_certificates
from tests.support.isolated import require_namespaces
from tests.support.waiting import wait_for

from .containers import container, said, tell

FLOOD = """
import socket, sys
count, kept = int(sys.argv[3]), []
for number in range(count):  # kubelet has another address
    one = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=("127.0.0.2", 0))
    one.send(bytes.fromhex(sys.argv[4]))
    kept.append(one)
print("flooded")
while True:  # none of them is idle
    for one in kept:
        try:
            one.send(b"G")
        except OSError:
            pass
    if sys.stdin.readline() != "again\\n":
        break
    print("sent")
"""
FLOODED = 3 * MOST_CONNECTIONS
BEGINNINGS = {"http": b"GET /", "https": b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"}
"""The first bytes of a request, and of a TLS handshake of 16 KiB."""


def own_threads(before: set[threading.Thread]) -> int:
    """The number of threads that were started since then."""
    return len(set(threading.enumerate()) - before)


@pytest.fixture(params=["http", "https"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a server that a pod can reach: metrics and probes of the driver, or the webhook."""
    require_namespaces()
    if request.param == "http":
        with serving(Endpoint("127.0.0.1", 0), new_registry()) as address:
            assert address is not None
            yield f"http://127.0.0.1:{address[1]}"
        return
    made = make_certificates(["127.0.0.1"])
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(made.certificate)
    key.write_bytes(made.key)
    with serving_webhook(0, TlsFiles(certificate, key)) as port:
        yield f"https://127.0.0.1:{port}"


def test_a_flood_of_connections_does_not_lock_probes_out(url: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    host, port = url.partition("//")[2].split(":")
    folder = tmp_path / "container"
    folder.mkdir()
    manager = urllib3.PoolManager(cert_reqs="CERT_NONE")
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    with container(folder, FLOOD, host, port, str(FLOODED), BEGINNINGS[url.partition(":")[0]].hex()) as attacker:
        assert said(attacker) == "flooded"
        for _ in range(5):
            assert manager.request("GET", f"{url}/healthz", retries=False, timeout=60).status == 200

        def few() -> bool:
            tell(attacker, "again")
            assert said(attacker) == "sent"
            return own_threads(before) <= MOST_CONNECTIONS + 1

        wait_for(few, "the end of the threads of surplus connections")
