# SPDX-License-Identifier: Apache-2.0
"""An API server for tests: kube-apiserver and etcd from KUBEBUILDER_ASSETS where that is set, else the embedded one.

KUBEBUILDER_ASSETS names a folder with both binaries, as `setup-envtest use -p path` prints it.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dra_driver.cluster import ApiClient, ApiError, ConfigError, Connection, Kind, load_credentials
from dra_driver.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions, RunningServer
from dra_driver.sandbox.apiserver.certificates import make_certificates
from dra_driver.sandbox.apiserver.kubeconfig import kubeconfig

ASSETS: Final = os.environ.get("KUBEBUILDER_ASSETS", "")
SLICES: Final = Kind(V1.api_version, "resourceslices")
CLAIMS: Final = Kind(V1.api_version, "resourceclaims", namespaced=True)

_TOKEN: Final = "token-of-the-tests"
_START_SECONDS: Final = 60.0


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """A server that runs inside of the context; gives its administrator's kubeconfig."""
    path = folder / "kubeconfig"
    if not ASSETS:
        with ApiServer(ApiServerOptions()) as server:
            yield server.write_kubeconfig(path)
        return
    with _real_server(Path(ASSETS), folder) as document:
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        yield path


@contextlib.contextmanager
def embedded(folder: Path, **options: Any) -> Iterator[tuple[RunningServer, Path, ApiClient]]:
    """The embedded server with these options, for a test that does something to it; its administrator's kubeconfig and
    client.
    """
    with ApiServer(ApiServerOptions(**options)) as server:
        kubeconfig_file = server.write_kubeconfig(folder / "config")
        with connect(kubeconfig_file) as client:
            yield server, kubeconfig_file, client


@contextlib.contextmanager
def connect(kubeconfig_file: Path) -> Iterator[ApiClient]:
    """A client of the server."""
    with Connection(load_credentials(str(kubeconfig_file)), "tests") as connection:
        yield ApiClient(connection)


@contextlib.contextmanager
def _real_server(assets: Path, folder: Path) -> Iterator[dict[str, object]]:
    certificates = make_certificates(("127.0.0.1", "localhost"))
    files = {
        "tls.crt": certificates.certificate,
        "tls.key": certificates.key,
        "sa.key": _service_account_key(),
        "tokens.csv": f"{_TOKEN},admin,admin,system:masters\n".encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    etcd, peer, port = _free_ports(3)
    etcd_url, peer_url = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
    etcd_command = [
        str(assets / "etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls={peer_url}",
        "--unsafe-no-fsync",
    ]
    server_command = [
        str(assets / "kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}",
        f"--tls-cert-file={folder / 'tls.crt'}",
        f"--tls-private-key-file={folder / 'tls.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--allow-privileged",  # the pods on nodes are
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://localhost/",
        f"--service-account-key-file={folder / 'sa.key'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        # Without a controller manager no namespace gets a service account.
        "--disable-admission-plugins=ServiceAccount",
    ]
    with _process(etcd_command, folder / "etcd.log"), _process(server_command, folder / "kube-apiserver.log"):
        document = kubeconfig(f"https://127.0.0.1:{port}", _TOKEN, certificates.authority, user="admin")
        _wait_ready(document, folder)
        yield document


def _service_account_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.kill()  # a termination waits for the last watch to end, and nothing of it is kept


def _wait_ready(document: dict[str, object], folder: Path) -> None:
    path = folder / "probe"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with connect(path) as client:
                client.get(Kind("v1", "namespaces"), "default")
                return
        except (ApiError, ConfigError) as error:
            if time.monotonic() > deadline:
                log = (folder / "kube-apiserver.log").read_text(encoding="utf-8")[-2000:]
                raise TimeoutError(f"kube-apiserver is not ready: {error}\n{log}") from None
            time.sleep(0.1)
