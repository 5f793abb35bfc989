# SPDX-License-Identifier: Apache-2.0
"""The control plane of a sandbox: the embedded API server and the stand-in controllers, or Kubernetes' own programs.

Its DeviceClasses are those of the Helm chart, read from the chart's own file.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import yaml

from .. import __version__
from ..allocation import Features
from ..allocation.features import DEFAULT_RELEASE, GATES
from ..cel import COST_LIMIT, CompileError, Environment, compile_selector
from ..kubeapi import ApiClient, Connection, load_credentials
from ..resource.codec import V1
from .apiserver import ApiServer, ApiServerOptions, Release
from .claimcontroller import ClaimController
from .loop import JSON, Controller, ControlLoop
from .real import real_control_plane
from .scheduler import Scheduler
from .workloads import DaemonSets, Deployments, Jobs, ReplicaSets, StatefulSets


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """Which Kubernetes to be like, or with `assets` (a folder with its programs) to run."""

    version: str = DEFAULT_RELEASE
    """`1.36`; the programs in `assets` have their own."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates that differ from the release's defaults."""
    port: int = 0
    """Of the API server; 0 takes a free one."""
    assets: Path | None = None

    def release(self) -> Release:
        """The release with its gates. Raises ReleaseError for a gate that it has not."""
        return ApiServerOptions(minor=int(self.version.partition(".")[2]), gates=self.gates).release()


def control_plane(
    kubernetes: Kubernetes, folder: Path, kubeconfig: Path, lock: int
) -> AbstractContextManager[Callable[[], None]]:
    """The control plane of these options, with the administrator's `kubeconfig` written when it is entered.

    The context is a function that starts what acts on objects; programs keep their files in `folder`, and inherit the
    descriptor `lock`. Raises RealControlPlaneError, SchemaError and OSError.
    """
    if kubernetes.assets is None:
        return _embedded(kubernetes, kubeconfig)
    return real_control_plane(kubernetes.assets, folder, kubeconfig, kubernetes.gates, kubernetes.port, lock)


@contextlib.contextmanager
def _embedded(kubernetes: Kubernetes, kubeconfig: Path) -> Iterator[Callable[[], None]]:
    release = kubernetes.release()
    options = ApiServerOptions(
        minor=release.minor,
        gates=kubernetes.gates,
        port=kubernetes.port,
        rbac=True,
        check_cel=lambda text: _selector_problem(text, kubernetes.version),
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ApiServer(options))
        server.write_kubeconfig(kubeconfig)
        credentials = load_credentials(str(kubeconfig))
        client = ApiClient(stack.enter_context(Connection(credentials, f"dra-sandbox/{__version__}")))
        loop = ControlLoop(client, controllers(client, kubernetes.version, release))

        def start() -> None:
            loop.start()
            stack.callback(loop.stop)

        yield start


def controllers(client: ApiClient, version: str, release: Release) -> list[Controller]:
    """Stand-ins for the controllers of kube-controller-manager and for kube-scheduler, in the order of their steps."""
    known = {gate: on for gate, on in release.gates.items() if gate in GATES}
    features = Features.from_gates(known, release=version)
    extended = release.enabled("DRAExtendedResource")
    workloads = (Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs)
    return [
        *(each(client) for each in workloads),
        ClaimController(client),
        Scheduler(client, features, extended_resources=extended),
    ]


def _selector_problem(expression: str, release: str) -> str | None:
    """Why kube-apiserver refuses a new selector."""
    try:
        cost = compile_selector(expression, Environment(release, stored=False)).max_cost
    except CompileError as error:
        return str(error)
    return "too complex, exceeds cost limit" if cost > COST_LIMIT else None


RELEASE = "dra-driver-gpu"
"""Name and namespace of the Helm release that may take the classes over: those of `helm install` in the README."""

_CHECKOUT = Path(__file__).parents[2] / "charts/dra-driver-gpu/files/deviceclasses.yaml"


def device_classes() -> list[JSON]:
    """The classes as API objects. They look like those of `RELEASE`, so that installing the chart adopts them."""
    packaged = Path(str(resources.files("dra_driver.sandbox") / "deviceclasses.yaml"))
    text = (_CHECKOUT if _CHECKOUT.is_file() else packaged).read_text(encoding="utf-8")
    return [
        {
            "apiVersion": V1.api_version,
            "kind": "DeviceClass",
            "metadata": {
                "name": one["name"],
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": RELEASE},
            },
            "spec": {"selectors": [{"cel": {"expression": one["expression"]}}]},
        }
        for one in yaml.safe_load(text)
    ]
