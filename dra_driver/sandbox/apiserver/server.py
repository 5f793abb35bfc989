# SPDX-License-Identifier: Apache-2.0
"""The API server: its options, its first objects, its kubeconfig, and its thread.

    with ApiServer(ApiServerOptions(minor=36)) as server:
        server.write_kubeconfig(Path("kubeconfig"))

The context starts a server in a background thread and stops it at the end.

Each server creates a temporary certificate authority and a certificate. The keys are elliptic-curve keys, because these
take only a millisecond to generate. Private keys stay in memory, except while Python's `ssl` reads the server's key
from a file that only this user can read.
"""

import asyncio
import base64
import logging
import os
import secrets
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import trustme
import yaml
from aiohttp import web

from ...kube.releases import NEWEST_MINOR
from .catalog import CelCheck, ServedCluster, ServedKinds
from .controllers import Controllers, internal_call
from .groups import builtin_kinds
from .groups.core import RBAC_GROUP
from .http import Handler
from .objects import Object
from .release import Release, release
from .schema.published import schemas_of
from .users import ADMIN
from .verbs.write import create

NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_EVERYTHING: Final = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]

_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}

_NAME: Final = "dra-sandbox"
_USER: Final = "admin"

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 5.0
_HOST: Final = "127.0.0.1"
_NAMES: Final = (_HOST, "::1", "localhost", "kubernetes", "kubernetes.default.svc")
"""The hosts in the server's certificate."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """A server certificate, its key and its certificate authority, in PEM."""

    authority: bytes
    """The CA's certificate, which clients must trust."""
    certificate: bytes
    key: bytes

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS context with the certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.TemporaryDirectory(prefix="dra-sandbox-") as folder:
            path = Path(folder) / "server.pem"
            path.touch(mode=0o600)
            path.write_bytes(self.key + self.certificate)
            context.load_cert_chain(path)
        return context


def make_certificates(hosts: Iterable[str]) -> Certificates:
    """Create a CA, and a certificate that it signs for `hosts` (names or addresses)."""
    authority = trustme.CA()
    issued = authority.issue_cert(*hosts)
    (certificate,) = issued.cert_chain_pems
    return Certificates(authority.cert_pem.bytes(), certificate.bytes(), issued.private_key_pem.bytes())


def bootstrap(cluster: ServedCluster) -> None:
    """Create the objects that an API server creates itself: namespaces and the role cluster-admin."""
    for name in NAMESPACES:
        _create(cluster, "", "namespaces", {"metadata": {"name": name}})
    _create(
        cluster,
        RBAC_GROUP,
        "clusterroles",
        {"metadata": {"name": "cluster-admin", "labels": _LABELS}, "rules": _EVERYTHING},
    )
    role = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "cluster-admin"}
    subjects = [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": "system:masters"}]
    _create(
        cluster,
        RBAC_GROUP,
        "clusterrolebindings",
        {"metadata": {"name": "cluster-admin", "labels": _LABELS}, "roleRef": role, "subjects": subjects},
    )


def _create(cluster: ServedCluster, group: str, plural: str, obj: Object) -> None:
    served = cluster.catalog.find(group, "v1", plural)
    assert served is not None, f"{plural} are built in"
    call = internal_call(served, "", "")
    served.kind.strategy.default(obj, cluster.context())
    create(cluster, call, obj)


def kubeconfig(url: str, token: str, authority: bytes | None) -> dict[str, Any]:
    """Return a kubeconfig. `authority` is the CA certificate in PEM, or None without TLS."""
    cluster: dict[str, Any] = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _USER, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _USER, "namespace": "default"}}],
        "current-context": _NAME,
    }


def write_kubeconfig(path: Path, document: dict[str, Any]) -> Path:
    """Write a kubeconfig that only this user can read. It replaces an existing file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.touch(mode=0o600)
    beside.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
    return beside.replace(path)


@dataclass(frozen=True, slots=True)
class ApiServerOptions:
    """The options of a server."""

    minor: int = NEWEST_MINOR - 1
    """The Kubernetes release that the server behaves like: 1.`minor`."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates that differ from the defaults of the release."""
    resource_versions: tuple[str, ...] | None = None
    """The versions of resource.k8s.io to serve. None: those that the release serves by default."""
    port: int = 0
    """0 selects a free port."""
    tls: bool = True
    rbac: bool = False
    """Whether to enforce RBAC. Members of system:masters, such as the admin, have all permissions."""
    admin_token: str = ""
    """Empty: a random token."""
    check_cel: CelCheck | None = None
    """Return the problem of a device selector's CEL expression, or None. None: expressions are not checked."""
    no_programs: str = "containers run no programs here"
    """The answer to `kubectl logs`, `exec`, `attach` and `port-forward`."""

    def release(self) -> Release:
        """Return the release with its gates. Raises ReleaseError."""
        return release(self.minor, self.gates, self.resource_versions)


class ApiServer:
    """A server, which a background thread runs from `start` to `stop`. The context manager calls both."""

    loop: asyncio.AbstractEventLoop
    """The event loop of the thread. Only this loop may use `cluster` after the start."""

    def __init__(self, options: ApiServerOptions | None = None) -> None:
        """Raises ReleaseError and SchemaError."""
        self._options = options = options or ApiServerOptions()
        chosen = options.release()
        catalog = ServedKinds(chosen, schemas_of(chosen.minor), builtin_kinds(chosen))
        self.cluster = ServedCluster(
            chosen, catalog, rbac=options.rbac, check_cel=options.check_cel, no_programs=options.no_programs
        )
        self.certificates = make_certificates(_NAMES) if options.tls else None
        self.admin_token = options.admin_token or secrets.token_urlsafe(32)
        self.cluster.users[self.admin_token] = ADMIN
        self.port = options.port
        self._handler = Handler(self.cluster, Controllers(self.cluster).settle)
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        bootstrap(self.cluster)

    @property
    def url(self) -> str:
        """The URL: `https://127.0.0.1:PORT`."""
        return f"{'https' if self.certificates else 'http'}://{_HOST}:{self.port}"

    def write_kubeconfig(self, path: Path, *, token: str = "") -> Path:
        """Write a kubeconfig (mode 0600) for the admin, or for the owner of `token`."""
        authority = self.certificates.authority if self.certificates else None
        return write_kubeconfig(path, kubeconfig(self.url, token or self.admin_token, authority))

    def start(self) -> Self:
        """Start the server, which then accepts requests. Raises OSError if the port is taken."""
        context = self.certificates.server_context() if self.certificates else None
        listener = socket.create_server((_HOST, self.port), backlog=512)
        self.port = listener.getsockname()[1]
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(listener, context), name="dra-sandbox-apiserver", daemon=True
        )
        self._thread.start()
        _log.info("Kubernetes 1.%d API at %s", self.cluster.release.minor, self.url)
        return self

    def stop(self) -> None:
        """Stop the server and close all connections. Does nothing if the server is not running."""
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_SECONDS)
            self._thread = None

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a request. A subclass can make requests fail."""
        return await self._handler(request)

    def _run(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve(listener, context))

    async def _serve(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        server = web.Server(self.answer, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=context).start()
        await self._stopping.wait()
        self.cluster.store.end_watches()
        await runner.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()
