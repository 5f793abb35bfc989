# SPDX-License-Identifier: Apache-2.0
"""The control plane of a sandbox: the embedded API server and stand-in controllers, or Kubernetes' own programs.

The programs are etcd, kube-apiserver, kube-controller-manager and kube-scheduler in the folder KUBEBUILDER_ASSETS, as
for envtest. They get new certificates and keys each time, and they end with this process.

The DeviceClasses of a sandbox come from the file of the Helm chart.
"""

import contextlib
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

import trustme
import yaml

from ..errors import SandboxError
from ..kube.api import ApiClient, ApiError, ConnectionConfigError, Kind, newest_taint_rules
from ..kube.kinds import NAMESPACES, SERVICE_ACCOUNTS
from ..kube.releases import minor_of
from ..kube.resource.codec import V1
from ..scheduler.allocator import Features
from ..scheduler.allocator.features import DEFAULT_RELEASE, GATES
from ..scheduler.cel import COST_LIMIT, CompileError, Environment, compile_selector
from .apiserver import ApiServer, ApiServerOptions, Release
from .apiserver.server import kubeconfig as kubeconfig_document
from .apiserver.server import make_certificates, write_kubeconfig
from .claimcontroller import ClaimController
from .loop import JSON, Controller, ControlLoop, connected, connection
from .podgroups import served_groups
from .quotas import QuotaCheck, QuotaCounter
from .scheduler import Scheduler
from .taintevictions import TaintEvictions
from .watchedlists import WatchedLists
from .workloads import DaemonSets, Deployments, Jobs, ReplicaSets, StatefulSets

RELEASE = "dra-driver-gpu"
"""The name and the namespace of the Helm release that may adopt the classes. The README's `helm install` uses them."""

_CHART = Path(__file__).parents[2] / "charts/dra-driver-gpu/files"

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_START_SECONDS: Final = 90.0
_READY_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.1
_INDEPENDENT: Final = ("--leader-elect=false", "--secure-port=0")
"""Flags of a component without replicas and without an endpoint."""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The release of Kubernetes that the sandbox behaves like, or with `assets` the folder of the programs to run."""

    version: str = DEFAULT_RELEASE
    """The release, such as `1.36`. Programs in `assets` have their own."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates that differ from the defaults of the release."""
    port: int = 0
    """The port of the API server. 0 selects a free port."""
    assets: Path | None = None

    def release(self) -> Release:
        """Return the release with its feature gates. Raises ReleaseError if the release does not have one of them."""
        return ApiServerOptions(minor=minor_of(self.version), gates=self.gates).release()


def control_plane(
    kubernetes: Kubernetes, folder: Path, kubeconfig: Path, lock: int
) -> AbstractContextManager[Callable[[], None]]:
    """Run the control plane inside the context, with the administrator's kubeconfig in `kubeconfig`.

    The context is a function that starts the controllers and the scheduler. `folder` is that of the sandbox; programs
    keep their files in `control-plane` there, and inherit the descriptor `lock`. Raises SandboxError, SchemaError and
    OSError.
    """
    if kubernetes.assets is None:
        return _embedded(kubernetes, folder, kubeconfig)
    logs = folder / "control-plane"
    return real_control_plane(kubernetes.assets, logs, kubeconfig, kubernetes.gates, kubernetes.port, lock)


@contextlib.contextmanager
def _embedded(kubernetes: Kubernetes, folder: Path, kubeconfig: Path) -> Iterator[Callable[[], None]]:
    release = kubernetes.release()
    options = ApiServerOptions(
        minor=release.minor,
        gates=kubernetes.gates,
        port=kubernetes.port,
        rbac=True,
        check_cel=lambda text: _selector_problem(text, kubernetes.version),
        no_programs=f"the sandbox runs no programs in containers; the logs of the driver are in {folder}/node-*/logs",
    )
    with contextlib.ExitStack() as stack:
        server = ApiServer(options)
        server.cluster.check_new = QuotaCheck(server.cluster.store)
        stack.enter_context(server)
        server.write_kubeconfig(kubeconfig)
        loop = stack.enter_context(control_loop(kubeconfig, kubernetes.version, release))

        def start() -> None:
            loop.start()
            stack.callback(loop.stop)

        yield start


@contextlib.contextmanager
def control_loop(kubeconfig: Path, version: str, release: Release) -> Iterator[ControlLoop]:
    """Give the loop of the stand-in controllers, which is not started. It needs the context until it has stopped."""
    with connection(kubeconfig) as opened:
        client, lists = ApiClient(opened), WatchedLists(opened)
        taint_rules = newest_taint_rules(client)
        more = (*(() if taint_rules is None else (taint_rules,)), *served_groups(client))
        yield ControlLoop(client, controllers(lists, version, release, taint_rules), more, lists)


def controllers(client: ApiClient, version: str, release: Release, taint_rules: Kind | None = None) -> list[Controller]:
    """Return the stand-ins for the controllers and for kube-scheduler, in the order of their steps. `taint_rules` are
    the DeviceTaintRules, None if the server does not have the kind.
    """
    known = {gate: on for gate, on in release.gates.items() if gate in GATES}
    features = Features.from_gates(known, release=version)
    extended = release.enabled("DRAExtendedResource")
    workloads = (Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs)
    return [
        *(each(client) for each in workloads),
        ClaimController(client),
        *((TaintEvictions(client, version, taint_rules),) if release.enabled("DRADeviceTaints") else ()),
        QuotaCounter(client),
        Scheduler(client, features, extended_resources=extended, taint_rules=taint_rules),
    ]


def _selector_problem(expression: str, release: str) -> str | None:
    """Return why kube-apiserver would refuse a new selector, or None."""
    try:
        cost = compile_selector(expression, Environment(release, stored=False)).max_cost
    except CompileError as error:
        return str(error)
    return "too complex, exceeds cost limit" if cost > COST_LIMIT else None


def chart_file(name: str) -> Path:
    """Return a file or folder of the chart: that of the checkout, or its copy in this package."""
    packaged = Path(str(resources.files("dra_driver.sandbox") / name))
    return packaged if packaged.exists() else _CHART / name


def device_classes(*, compute_domains: bool = False) -> list[JSON]:
    """Return the DeviceClasses as API objects, and with `compute_domains` also those of ComputeDomains.

    They look like those of the Helm release `RELEASE`, so `helm install` adopts them.
    """
    names = ("deviceclasses.yaml", *(("computedomain-deviceclasses.yaml",) if compute_domains else ()))
    return [
        of_release(
            {
                "apiVersion": V1.api_version,
                "kind": "DeviceClass",
                "metadata": {"name": device_class["name"]},
                "spec": {"selectors": [{"cel": {"expression": device_class["expression"]}}]},
            }
        )
        for name in names
        for device_class in yaml.load(chart_file(name).read_text(encoding="utf-8"), yaml.CSafeLoader)
    ]


def of_release(value: JSON) -> JSON:
    """Return the object with the labels and annotations by which Helm knows objects of the release `RELEASE`."""
    meta = value["metadata"]
    labels = {**(meta.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    release = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": RELEASE}
    annotations = {**(meta.get("annotations") or {}), **release}
    return {**value, "metadata": {**meta, "labels": labels, "annotations": annotations}}


@contextlib.contextmanager
def real_control_plane(
    assets: Path, folder: Path, kubeconfig: Path, gates: Mapping[str, bool], port: int = 0, lock: int | None = None
) -> Iterator[Callable[[], None]]:
    """Run the programs in `assets` inside the context, with the administrator's kubeconfig in `kubeconfig`.

    The context is a function that starts kube-scheduler and kube-controller-manager, and waits until namespace
    `default` has a service account. The programs inherit the descriptor `lock`. Raises SandboxError.
    """
    if missing := [name for name in PROGRAMS if not (assets / name).is_file()]:
        raise SandboxError(f"{assets} has no {', '.join(missing)}; --real needs {', '.join(PROGRAMS)} there")
    flags = [f"--feature-gates={','.join(f'{name}={str(on).lower()}' for name, on in gates.items())}"] if gates else []
    with contextlib.ExitStack() as stack:
        # The plugin that taints new nodes is disabled, because the sandbox runs no node lifecycle controller that would
        # remove the taint: the stand-in kubelets renew no leases.
        admission = "--disable-admission-plugins=TaintNodesByCondition"
        start = real_api_server(assets, folder, kubeconfig, [admission, *flags], port=port, lock=lock)
        stack.enter_context(start)

        def start_controllers() -> None:
            common = [f"--kubeconfig={kubeconfig}", *_INDEPENDENT, *flags]
            manager = [
                "--controllers=*,-node-lifecycle-controller",
                f"--service-account-private-key-file={folder / 'sa.key'}",
                f"--root-ca-file={folder / 'ca.crt'}",
            ]
            stack.enter_context(_program(assets / "kube-scheduler", common, folder, lock))
            running = _program(assets / "kube-controller-manager", [*common, *manager], folder, lock)
            program = stack.enter_context(running)
            with connected(kubeconfig) as client:
                program.wait(lambda: client.get(SERVICE_ACCOUNTS, "default", "default"))

        yield start_controllers


@contextlib.contextmanager
def real_api_server(
    assets: Path, folder: Path, kubeconfig: Path, flags: Sequence[str] = (), *, port: int = 0, lock: int | None = None
) -> Iterator[None]:
    """Run etcd and kube-apiserver inside the context, with the administrator's kubeconfig in `kubeconfig`.

    `flags` are additional flags of kube-apiserver. Raises SandboxError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "etcd", ignore_errors=True)  # left by a sandbox that was killed
    token = secrets.token_urlsafe(32)
    authority = _write_credentials(folder, token)
    etcd, peer, free = _free_ports(3)
    port = port or free
    etcd_url = f"http://127.0.0.1:{etcd}"
    etcd_flags = [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        "--unsafe-no-fsync",
    ]
    server_flags = [
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}",
        f"--tls-cert-file={folder / 'tls.crt'}",
        f"--tls-private-key-file={folder / 'tls.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--allow-privileged",  # the pods of the driver are privileged
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://localhost/",
        f"--service-account-key-file={folder / 'sa.key'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        *flags,
    ]
    write_kubeconfig(kubeconfig, kubeconfig_document(f"https://127.0.0.1:{port}", token, authority))
    with (
        _program(assets / "etcd", etcd_flags, folder, lock),
        _program(assets / "kube-apiserver", server_flags, folder, lock) as program,
    ):
        with connected(kubeconfig) as client:
            # Before, discovery may lack groups.
            program.wait(lambda: list(client.lines("/readyz", seconds=_READY_SECONDS)))
            program.wait(lambda: client.get(NAMESPACES, "default"))
        yield


def _write_credentials(folder: Path, token: str) -> bytes:
    """Write new certificates and keys, and the token of the administrator. Returns the certificate of the authority."""
    certificates = make_certificates(("127.0.0.1", "localhost"))
    files = {
        "ca.crt": certificates.authority,
        "tls.crt": certificates.certificate,
        "tls.key": certificates.key,
        "sa.key": trustme.CA(key_type=trustme.KeyType.RSA).private_key_pem.bytes(),
        "tokens.csv": f"{token},admin,admin,system:masters\n".encode(),
    }
    for name, content in files.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)
    return certificates.authority


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for endpoint in sockets:
            endpoint.bind(("127.0.0.1", 0))
        return [endpoint.getsockname()[1] for endpoint in sockets]


@contextlib.contextmanager
def _program(path: Path, flags: Sequence[str], folder: Path, lock: int | None) -> Iterator["_Program"]:
    """Run a program inside the context, or until this process ends. Its log is in `folder`."""
    setpriv = shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    inherited = () if lock is None else (lock,)
    log = folder / f"{path.name}.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603
            [*guard, str(path), *flags],
            stdout=output,
            stderr=output,
            pass_fds=inherited,
            start_new_session=True,  # Ctrl-C would end the API server before the nodes, which then wait for it
        ) as process,
    ):
        try:
            yield _Program(path.name, process, log)
        finally:
            process.kill()  # SIGTERM would wait for the last watch to end, and no data has to be kept


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self, request: Callable[[], object]) -> None:
        """Repeat a request until it succeeds. Raises SandboxError if the program ends, or after 90 seconds."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                request()
            except (ApiError, ConnectionConfigError) as error:
                if self.process.poll() is not None:
                    raise self._error(f"ended with code {self.process.returncode}") from None
                if time.monotonic() > deadline:
                    raise self._error(f"is not ready after {_START_SECONDS:g} s: {error}") from None
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _error(self, what: str) -> SandboxError:
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        return SandboxError(f"{self.name} {what}; the last line of its log {self.log} is: {said}")
