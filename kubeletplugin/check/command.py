# SPDX-License-Identifier: Apache-2.0
"""The `check` command of dra-kubeletplugin, for people and as an init container."""

import functools
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import click

from dra_driver.command import UserError, kubeconfig_option, logging_options, output_option, version_option

from ..kubelet.instance import socket_paths
from ..options import Node, hook_option, node_options
from .dropin import FixError, write
from .finding import any_failed, document, line, text, warned
from .host import Host
from .look import Look, Place, look, look_at_hardware, wait_for_hardware

_FOLDER = click.Path(file_okay=False, path_type=Path)
_HOST_ROOT = "/host-root"
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


@click.command()
@click.option("--node-name", envvar="NODE_NAME", show_envvar=True, default="", help="The name of the Node to check.")
@kubeconfig_option
@node_options
@hook_option
@click.option(
    "--host-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="HOST_ROOT",
    show_envvar=True,
    help=f"The folder at which the host's / is mounted. By default, {_HOST_ROOT} if it exists, else /.",
)
@click.option(
    "--instance-uid",
    default="",
    metavar="UID",
    envvar="POD_UID",
    show_envvar=True,
    help="The --instance-uid of the plugin, which is part of the names of its sockets.",
)
@click.option(
    "--runtime-config",
    metavar="FILE",
    envvar="RUNTIME_CONFIG",
    show_envvar=True,
    help="The main configuration file of containerd or CRI-O on the host, if it is not in the usual place.",
)
@click.option(
    "--fix",
    is_flag=True,
    envvar="CHECK_FIX",
    show_envvar=True,
    help="Enable CDI in the container runtime with a new file. Existing files are not changed.",
)
@click.option(
    "--wait",
    is_flag=True,
    envvar="CHECK_WAIT",
    show_envvar=True,
    help="First wait until the checks of driver and GPUs pass, and report changes on standard error.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    envvar="CHECK_INTERVAL",
    show_envvar=True,
    help="Seconds between two checks of --wait.",
)
@output_option(("text", "json"), "CHECK_OUTPUT", "The format of the findings.")
@logging_options
@version_option
@click.pass_context
def check(
    context: click.Context,
    node_name: str,
    kubeconfig: str | None,
    node: Node,
    nvidia_cdi_hook_path: str | None,
    host_root: Path | None,
    instance_uid: str,
    runtime_config: str | None,
    fix: bool,
    wait: bool,
    interval: float,
    output: str,
) -> None:
    """Check whether this node is ready for the driver, and print what to do if not. Exits with 1 if a check failed.

    Checks the NVIDIA driver, the GPUs, kubelet's folders, CDI in containerd or CRI-O, and the cluster. Changes nothing
    without --fix.
    """
    host = Host(host_root or (Path(_HOST_ROOT) if Path(_HOST_ROOT).is_dir() else Path("/")))
    place = Place(
        node_name=node_name,
        node=node,
        sockets=socket_paths(node.folder, node.registry, instance_uid),
        host=host,
        hook=nvidia_cdi_hook_path,
        kubeconfig=kubeconfig,
        runtime_config=runtime_config,
        host_is_visible=host_root is not None or not host.is_own or not in_container(os.environ),
        in_pod="KUBERNETES_SERVICE_HOST" in os.environ,
    )
    if wait:
        # Process 1 of a container has no default action for it, and a pod that is deleted would wait for its kill.
        signal.signal(signal.SIGTERM, lambda *_: context.exit(128 + signal.SIGTERM))
        wait_for_hardware(
            functools.partial(look_at_hardware, place),
            lambda result: click.echo(line(result), err=True),
            functools.partial(time.sleep, interval),
        )
    found = look(place)
    findings = mend(place, found).findings if fix else found.findings
    click.echo(document(findings, node_name) if output == "json" else text(findings))
    context.exit(any_failed(findings))


def mend(place: Place, found: Look) -> Look:
    """Write what would mend the runtime's configuration, and look again. Raises UserError."""
    if found.drop_in is None:
        return found
    try:
        if not write(place.host, found.drop_in):
            return found  # a file that is read after it says otherwise, and the finding names that one
    except FixError as error:
        raise UserError(f"--fix: {error}") from None
    again = look(place)
    written = warned("fix", f"{found.drop_in.path} is written, but is not in use yet", found.drop_in.next_step)
    return Look((*again.findings, written), again.drop_in)


def in_container(environment: Mapping[str, str]) -> bool:
    """Whether / is a container's own rather than the host's."""
    return "KUBERNETES_SERVICE_HOST" in environment or any(Path(mark).exists() for mark in _CONTAINER_MARKS)
