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
import ipaddress
import logging
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import yaml
from aiohttp import web

from .catalog import Catalog, CelCheck, Cluster
from .controllers import Controllers, internal_call
from .faults import Faults
from .groups import builtin_kinds
from .groups.core import RBAC_GROUP
from .http import Handler
from .objects import Clock, Object, now
from .release import NEWEST, Release, release
from .schema.published import schemas_of
from .users import ADMIN, Tokens, User, service_account
from .verbs.write import create

_LIFETIME: Final = timedelta(days=30)
_CLOCK_SKEW: Final = timedelta(hours=1)


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
    # The import is here because a server without TLS does not need the package.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    begin = datetime.now(UTC) - _CLOCK_SKEW
    end = begin + _CLOCK_SKEW + _LIFETIME
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = name("dra-sandbox-ca")
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    authority = (
        x509.CertificateBuilder(ca_name, ca_name, ca_key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder(
            ca_name, name("dra-sandbox-apiserver"), key.public_key(), x509.random_serial_number(), begin, end
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificates(
        authority.public_bytes(pem),
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_EVERYTHING: Final = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]


def bootstrap(cluster: Cluster) -> None:
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


_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}


def _create(cluster: Cluster, group: str, plural: str, obj: Object) -> None:
    catalog: Catalog = cluster.catalog
    served = catalog.find(group, "v1", plural)
    assert served is not None, f"{plural} are built in"
    call = internal_call(served, "", "")
    served.kind.strategy.default(obj, cluster.context())
    create(cluster, call, obj)


_NAME: Final = "dra-sandbox"


def kubeconfig(
    url: str, token: str, authority: bytes | None, *, user: str, namespace: str = "default"
) -> dict[str, Any]:
    """Return a kubeconfig. `authority` is the CA certificate in PEM, or None without TLS."""
    cluster: dict[str, Any] = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": user, "namespace": namespace}}],
        "current-context": _NAME,
    }


def write_kubeconfig(path: Path, document: dict[str, Any]) -> Path:
    """Write a kubeconfig that only this user can read. It replaces an existing file."""
    text = yaml.safe_dump(document, sort_keys=False)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)
    return path


_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_STOP_SECONDS: Final = 5.0
_HOST: Final = "127.0.0.1"
_NAMES: Final = (_HOST, "::1", "localhost", "kubernetes", "kubernetes.default.svc")
"""The hosts in the server's certificate."""


@dataclass(frozen=True, slots=True)
class ApiServerOptions:
    """The options of a server."""

    minor: int = NEWEST - 1
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
    bookmark_interval: float = 60.0
    """Seconds between the bookmarks of a watch without events."""
    clock: Clock = now

    def release(self) -> Release:
        """Return the release with its gates. Raises ReleaseError."""
        return release(self.minor, self.gates, self.resource_versions)


class RunningServer:
    """A server that accepts requests. Its methods may be called from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        options: ApiServerOptions,
        port: int,
        certificates: Certificates | None,
        admin_token: str,
    ) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._certificates = certificates
        self.admin_token = admin_token
        self.port = port

    @property
    def url(self) -> str:
        """The URL: `https://127.0.0.1:PORT`."""
        return f"{'https' if self._certificates else 'http'}://{_HOST}:{self.port}"

    @property
    def certificate_authority(self) -> bytes | None:
        """The CA certificate in PEM that clients must trust. None without TLS."""
        return self._certificates.authority if self._certificates else None

    @property
    def faults(self) -> Faults:
        """The faults that tests inject."""
        return self._cluster.faults

    @property
    def tokens(self) -> Tokens:
        """The bearer tokens that the server accepts."""
        return self._cluster.tokens

    def add_user(self, user: User, token: str = "") -> str:
        """Accept a token for `user` and return it. The default is a random token."""
        if token:
            self.tokens.add(token, user)
            return token
        return self.tokens.issue(user)

    def add_service_account(self, namespace: str, name: str, *, node: str = "", token: str = "") -> str:
        """Return a token of a service account, bound to a pod on `node`. The ServiceAccount need not exist."""
        return self.add_user(service_account(namespace, name, node=node), token)

    def write_kubeconfig(self, path: Path, *, token: str = "", user: str = "admin", namespace: str = "default") -> Path:
        """Write a kubeconfig (mode 0600) for the admin, or for the owner of `token`."""
        document = kubeconfig(
            self.url, token or self.admin_token, self.certificate_authority, user=user, namespace=namespace
        )
        return write_kubeconfig(path, document)

    def drop_watches(self, collection: str = "") -> None:
        """End the watches of a collection (`pods`, `resourceslices.resource.k8s.io`) or of all. Clients reconnect."""

        def drop(cluster: Cluster) -> None:
            for name in [collection] if collection else cluster.store.names():
                for watcher in cluster.store.collection(name).watchers:
                    watcher.end()

        self.call(drop)

    def compact(self) -> None:
        """Discard the history. Watches and lists that need it get 410 Gone."""
        self.call(lambda cluster: cluster.store.compact())

    def resource_version(self) -> int:
        """Return the current revision of the store."""
        return self.call(lambda cluster: cluster.store.revision)

    def call(self, function: Callable[[Cluster], _T]) -> _T:
        """Run `function` on the server's event loop and return its result. Must not be called on this loop."""

        async def run() -> _T:
            return function(self._cluster)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


@asynccontextmanager
async def _serving(options: ApiServerOptions) -> AsyncIterator[RunningServer]:
    """Run a server on the current event loop until the context is left.

    Raises ReleaseError, SchemaError, or OSError if the port is taken.
    """
    chosen = options.release()
    catalog = Catalog(chosen, schemas_of(chosen.minor), builtin_kinds(chosen))
    cluster = Cluster(
        chosen,
        catalog,
        options.clock,
        rbac=options.rbac,
        check_cel=options.check_cel,
        bookmark_interval=options.bookmark_interval,
    )
    listener = socket.create_server((_HOST, options.port), backlog=512)
    try:
        port = listener.getsockname()[1]
        certificates = make_certificates(_NAMES) if options.tls else None
        controllers = Controllers(cluster)
        bootstrap(cluster)
        handler = Handler(cluster, f"{_HOST}:{port}")
        handler.settle = controllers.settle
        token = options.admin_token or cluster.tokens.issue(ADMIN)
        cluster.tokens.add(token, ADMIN)
        runner = web.ServerRunner(web.Server(handler, access_log=None, handler_cancellation=True), shutdown_timeout=0.5)
        await runner.setup()
        context: ssl.SSLContext | None = certificates.server_context() if certificates else None
        await web.SockSite(runner, listener, ssl_context=context).start()
    except BaseException:
        listener.close()
        raise
    try:
        running = RunningServer(cluster, options, port, certificates, token)
        _log.info("Kubernetes 1.%d API at %s", chosen.minor, running.url)
        yield running
    finally:
        for name in cluster.store.names():
            for watcher in cluster.store.collection(name).watchers:
                watcher.end()
        await runner.cleanup()


class ApiServer:
    """A server in a background thread, from `start` to `stop`. As a context manager, it returns the `RunningServer`."""

    def __init__(self, options: ApiServerOptions | None = None) -> None:
        self._options = options or ApiServerOptions()
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: RunningServer | None = None
        self._error: BaseException | None = None

    def start(self) -> RunningServer:
        """Start the server. Raises ReleaseError, SchemaError, or OSError if the port is taken."""
        self._thread = threading.Thread(target=self._run, name="dra-sandbox-apiserver", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._running is None:
            self._thread.join()
            assert self._error is not None, "a server that did not start says why"
            raise self._error
        return self._running

    def stop(self) -> None:
        """Stop the server and close all connections. Does nothing if the server is not running."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_SECONDS)
        self._thread = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with _serving(self._options) as running:
            self._running = running
            self._started.set()
            await self._stopping.wait()

    def __enter__(self) -> RunningServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
