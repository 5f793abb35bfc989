# SPDX-License-Identifier: Apache-2.0
"""The dra-sandbox command: a cluster with simulated GPUs on a laptop."""

import errno
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import click
import yaml
from rich.console import Console

from ..dryrun.releaseparameter import ReleaseParameter
from ..gpu.simulated import DescriptionError
from ..kube.api import ApiError
from ..kube.releases import API_VERSIONS, RELEASED, minor_of
from ..process.command import Extra, InputError, UserError, flag, logging_options, run, version_option
from ..scheduler.allocator import RELEASES
from ..scheduler.allocator.features import DEFAULT_RELEASE
from .child import Children

EXTRA: Final = Extra(
    "sandbox",
    ("aiohttp", "celpy", "kubernetes", "kubernetes_validate", "lark", "multidict", "re2", "trustme"),
)

_FOLDER = click.Path(file_okay=False, path_type=Path)
_RELEASES: Final = tuple(
    release for release in RELEASES if release in RELEASED and minor_of(release) >= API_VERSIONS["v1"].first
)
"""The releases whose API server serves resource.k8s.io/v1, which the controllers of the sandbox use."""
_PREFIX: Final = "DRA_SANDBOX_"
"""The prefix of all environment variables."""
_flag = partial(flag, prefix=_PREFIX)
_logging_options = partial(logging_options, prefix=_PREFIX)

KIND_DRIVER_ROOT: Final = "/host"
"""Where a node of kind has the root folder of the host, which contains the NVIDIA driver."""


@click.group("dra-sandbox")
@version_option
@click.pass_context
def sandbox(context: click.Context) -> None:
    """Run the driver on simulated GPUs, with a built-in API server, kubelet and scheduler."""
    if context.obj is None:
        context.obj = Children


@sandbox.command(short_help="Show the life of claims from request to deletion, in a minute.")
@_flag(
    "--keep",
    type=_FOLDER,
    metavar="FOLDER",
    help="Keep logs, CDI specs and the state of the node in this folder.",
)
@_logging_options
@version_option
@click.pass_context
def demo(context: click.Context, keep: Path | None) -> None:
    """Show the life of claims: publish devices, allocate, prepare, survive kill -9, unprepare, leave nothing behind."""
    from ..errors import DemoError
    from .demo import HARDWARE, Demo, examples_folder
    from .environment import Sandbox, SandboxError

    if not context.meta["verbosity"]:
        logging.getLogger("dra_driver.sandbox").setLevel(logging.WARNING)  # the demo itself shows what happens
    console = Console(highlight=False)
    folder = keep or Path(tempfile.mkdtemp(prefix="dra-"))
    try:
        with Sandbox(folder, HARDWARE, children=context.obj) as running:
            Demo(running, console, examples_folder()).run()
    except (DemoError, SandboxError, DescriptionError, ApiError, OSError) as error:
        logs = f"the logs are in {keep}" if keep else "use --keep FOLDER to keep the logs"
        raise UserError(f"the demo failed: {error}; {logs}") from None
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@sandbox.command(short_help="Start a cluster for kubectl, and leave it running.")
@_flag(
    "--folder",
    type=_FOLDER,
    default=".sandbox",
    help="The folder of the sandbox. The state of the GPUs survives a restart; API objects do not.",
)
@_flag(
    "--node",
    default="h100x8-mixed",
    metavar="NAME|FILE",
    help="The simulated hardware of every node: a built-in example node or a YAML file.",
)
@_flag(
    "--nodes",
    type=click.IntRange(1, 50),
    default=1,
    help="The number of nodes: node-1, node-2, ...",
)
@_flag(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The driver's policy: which GPUs are published, and how (YAML); read again when it changes.",
)
@_flag(
    "--kubernetes-version",
    type=ReleaseParameter(_RELEASES),
    metavar="RELEASE",
    default=DEFAULT_RELEASE,
    help=f"The release that the API server and the scheduler behave like: {_RELEASES[0]} to {_RELEASES[-1]}, or a patch"
    " release such as 1.36.4. With --real, it is that of the programs.",
)
@_flag(
    "--feature-gates",
    metavar="GATE=true,...",
    default="",
    help="Feature gates of Kubernetes for DRA that differ from the defaults of the release.",
)
@_flag(
    "--real",
    is_flag=True,
    help="Run etcd, kube-apiserver, kube-scheduler and kube-controller-manager from the folder that KUBEBUILDER_ASSETS"
    " names, instead of the stand-ins.",
)
@_flag(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port of the API server; 0 selects a free port.",
)
@_logging_options
@version_option
@click.pass_obj
def up(  # noqa: PLR0913, PLR0917  # one for each flag
    children: Callable[[int], Children],
    folder: Path,
    node: str,
    nodes: int,
    policy: Path | None,
    kubernetes_version: str,
    feature_gates: str,
    real: bool,
    port: int,
) -> None:
    """Start the sandbox and leave it running, with a kubeconfig for kubectl, until it is interrupted.

    If a process of the driver ends by itself, the sandbox ends with an error.
    """
    from ..dryrun.options import parse_gates
    from ..gpu.policy import PolicyError, load_policy
    from .apiserver import ReleaseError
    from .environment import Kubernetes, Sandbox, SandboxError

    try:
        if policy is not None:
            load_policy(policy)
        assets = _assets() if real else None
        kubernetes = Kubernetes(kubernetes_version, parse_gates(feature_gates), port, assets)
        running = Sandbox(folder, node, nodes=nodes, policy=policy, kubernetes=kubernetes, children=children)
        with running as it, suppress(KeyboardInterrupt):
            click.echo(f"export KUBECONFIG={it.kubeconfig}")
            shown = f"the programs of {assets}" if real else f"Kubernetes {kubernetes_version}"
            click.echo(f"The sandbox is up with {nodes} {'node' if nodes == 1 else 'nodes'}, {shown} at {it.url};")
            click.echo("Ctrl-C ends it.")
            click.echo("Try: kubectl get resourceslices; kubectl apply -f examples/mig-slices.yaml")
            source = (
                f"from {policy}, and is read again when the file changes" if policy else "the default (see --policy)"
            )
            click.echo(
                f"The driver's policy is {source}; values of `helm install` and `helm upgrade` do not change it."
            )
            click.echo(f"Logs and CDI specs: {it.folder}/node-*/logs, {it.folder}/node-*/cdi")
            raise UserError(f"the sandbox in {folder} has ended: {it.wait()}")
    except (DescriptionError, PolicyError, ReleaseError) as error:
        raise InputError(str(error)) from None
    except (SandboxError, ApiError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is taken: choose another --port, or 0 for a free one") from None
        raise UserError(f"the sandbox in {folder} did not start: {error}") from None


@sandbox.command("kind-config", short_help="Print the configuration of a kind cluster for the driver.")
@_flag(
    "--gpus",
    type=click.Choice(["all", "none"]),
    default="all",
    help="Whether the worker gets the GPUs of this machine. Otherwise install the chart with simulatedNode.",
)
@_flag("--name", default="dra", help="The name of the cluster.")
@version_option
def kind_config(gpus: str, name: str) -> None:
    """Print the configuration of a kind cluster, for Docker, Podman and nerdctl.

    The nodes are privileged containers, which have the device nodes of all GPUs with each of these providers. The
    worker also gets the host's root folder, which contains the files of the NVIDIA driver. NVIDIA's container runtime
    is not needed.
    """
    worker: dict[str, object] = {"role": "worker", "labels": {"nvidia.com/gpu.present": "true"}}
    if gpus == "all":
        worker["extraMounts"] = [{"hostPath": "/", "containerPath": KIND_DRIVER_ROOT, "readOnly": True}]
        click.echo(f"# Install the chart with nvidiaDriverRoot={KIND_DRIVER_ROOT}. One worker only has the GPUs.")
    cluster = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": name,
        # On by default from Kubernetes 1.36; for 1.34 and 1.35 they give MIG placements and taints.
        "featureGates": {"DRAPartitionableDevices": True, "DRADeviceTaints": True},
        # With DRADeviceTaints, the scheduler of Kubernetes 1.34 binds no pod until DeviceTaintRules are served.
        "runtimeConfig": {"resource.k8s.io/v1alpha3": "true"},
        "nodes": [{"role": "control-plane"}, worker],
    }
    click.echo(yaml.safe_dump(cluster, sort_keys=False), nl=False)


def _assets() -> Path:
    """Return the folder of Kubernetes' own programs. Raises InputError if the environment does not name one."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    if not named:
        raise InputError("--real: set KUBEBUILDER_ASSETS to the folder of kube-apiserver and the other programs")
    return Path(named).absolute()


def main(arguments: Sequence[str] | None = None, children: Callable[[int], Children] = Children) -> None:
    """Entry point. `children` starts the processes of nodes, see `Sandbox`."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC would log an INFO line for every plugin that ends
    _end_in_order()
    run(sandbox, arguments, EXTRA, children)


def _end_in_order() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C. Under nohup, SIGHUP stays ignored."""
    requests = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        requests.append(signal.SIGHUP)
    for number in requests:
        signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    main()
