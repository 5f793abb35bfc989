# SPDX-License-Identifier: Apache-2.0
"""The dra-sandbox command: the driver on a laptop, with simulated GPUs."""

import errno
import importlib.util
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from ..cluster import ApiError
from ..command import InputError, UserError, logging_options, run, version_option
from ..gpu.simulation import DescriptionError

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group("dra-sandbox")
@version_option
def sandbox() -> None:
    """Run the driver on simulated GPUs, with an API server, a kubelet and a scheduler of its own."""


@sandbox.command(short_help="Show the driver's main job from end to end, in a minute.")
@click.option(
    "--keep",
    type=_FOLDER,
    metavar="FOLDER",
    envvar="KEEP",
    show_envvar=True,
    help="Keep logs, CDI specs and the node's state there.",
)
@logging_options
@version_option
@click.pass_context
def demo(context: click.Context, keep: Path | None) -> None:
    """Show the main job from end to end: publish, allocate, prepare, survive kill -9, unprepare, leave nothing."""
    from .demo import HARDWARE, Demo, DemoError, examples_folder
    from .environment import Sandbox, SandboxError

    if not context.meta["verbosity"]:
        logging.getLogger("dra_driver.sandbox").setLevel(logging.WARNING)  # the demo tells what happens itself
    console = Console(highlight=False)
    folder = keep or Path(tempfile.mkdtemp(prefix="dra-"))
    try:
        with Sandbox(folder, HARDWARE) as running:
            Demo(running, console, examples_folder()).run()
    except (DemoError, SandboxError, DescriptionError, ApiError, OSError) as error:
        logs = keep or "use --keep FOLDER to keep"
        raise UserError(f"the demo failed: {error} (logs: {logs})") from None
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@sandbox.command(short_help="Start everything and leave it running, for kubectl.")
@click.option(
    "--folder",
    type=_FOLDER,
    default=".sandbox",
    show_default=True,
    envvar="SANDBOX_FOLDER",
    show_envvar=True,
    help="Where everything is kept. GPUs in it survive; API objects do not.",
)
@click.option(
    "--node",
    default="h100x8-mixed",
    show_default=True,
    envvar="SIMULATED_NODE",
    show_envvar=True,
    metavar="NAME|FILE",
    help="The simulated hardware: a node that ships with the driver or a YAML file.",
)
@click.option(
    "--kubernetes-minor",
    type=click.IntRange(34, 37),
    default=36,
    show_default=True,
    envvar="KUBERNETES_MINOR",
    show_envvar=True,
    help="The Kubernetes release 1.N that the API server is like.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, envvar="PORT", show_envvar=True, help="0 takes a free one."
)
@logging_options
@version_option
def up(folder: Path, node: str, kubernetes_minor: int, port: int) -> None:
    """Start the sandbox and leave it running, with a kubeconfig for kubectl, until it is interrupted.

    When the controller or the plugin ends by itself, the sandbox does, too, and fails.
    """
    from .environment import Sandbox, SandboxError

    try:
        with Sandbox(folder, node, kubernetes_minor=kubernetes_minor, port=port) as it, suppress(KeyboardInterrupt):
            click.echo(f"export KUBECONFIG={it.kubeconfig}")
            click.echo(f"The sandbox is up, Kubernetes 1.{kubernetes_minor} at {it.server.url}; Ctrl-C ends it.")
            click.echo("Try: kubectl get resourceslices; kubectl apply -f examples/mig-slices.yaml")
            click.echo("It runs pods; Deployments, StatefulSets, DaemonSets and Jobs are stored, but get no pods.")
            click.echo(f"Logs: {it.logs}   CDI specs: {it.cdi_root}")
            raise UserError(f"the sandbox in {folder} has ended: {it.wait()}")
    except DescriptionError as error:
        raise InputError(str(error)) from None
    except (SandboxError, ApiError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is taken: choose another --port, or 0 for a free one") from None
        raise UserError(f"the sandbox in {folder} did not start: {error}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its INFO lines are about every plugin that goes
    if not all(importlib.util.find_spec(name) for name in ("aiohttp", "cryptography", "kubernetes_validate")):
        raise SystemExit("dra-sandbox: install its dependencies first: pip install 'dra-driver-gpu[sandbox]'")
    _end_in_order()
    run(sandbox, arguments)


def _end_in_order() -> None:
    """Let other requests to end do what Ctrl-C does. Under nohup, a terminal that closes is none."""
    requests = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        requests.append(signal.SIGHUP)
    for number in requests:
        signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    main()
