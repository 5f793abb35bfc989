# SPDX-License-Identifier: Apache-2.0
"""The dra-imex-daemon command: runs nvidia-imex for a ComputeDomain on this node."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from ... import __version__
from ...kube.api import ApiClient, Connection, load_credentials
from ...process.command import (
    UserError,
    end_when_a_thread_fails,
    flag,
    kubeconfig_option,
    logging_options,
    on_termination,
    run,
    version_option,
)
from ...process.endpoints import Endpoint, endpoint_options, new_registry, serving, unexpected_errors
from ..names import IMEX_FOLDER, clique_name
from ..objects import DaemonReport
from .peers import CliqueWatch, DomainPlace, place_in
from .report import ReportFile
from .rows import RowReporter
from .supervisor import DaemonMetrics, ImexSupervisor, Setup

log = logging.getLogger(__name__)

_GOODBYE_SECONDS: Final = 2.0
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command("dra-imex-daemon")
@flag("--compute-domain-uuid", default="", help="The UID of the ComputeDomain. The claim of the pod sets it.")
@flag("--clique-id", default="", help="The clique of the node's GPUs. The claim of the pod sets it.")
@flag("--node-name", required=True, help="The node that this process runs on.")
@flag("--pod-ip", required=True, help="The address of this pod, which peers connect to.")
@flag("--namespace", envvar="POD_NAMESPACE", required=True, help="The namespace of this pod.")
@flag(
    "--folder",
    envvar="IMEX_FOLDER",
    type=_FOLDER,
    default=IMEX_FOLDER,
    help="The folder that this process shares with the plugin of its node.",
)
@flag(
    "--hosts-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default="/etc/hosts",
    help="The hosts file of this pod.",
)
@flag("--imex-program", default="nvidia-imex", help="The IMEX daemon of the NVIDIA driver.")
@flag("--imex-control-program", default="nvidia-imex-ctl", help="The control program of the IMEX daemon.")
@flag(
    "--imex-enable-auth-encryption",
    is_flag=True,
    help="Encrypt and authenticate the connections of the daemons of the domain with TLS.",
)
@flag(
    "--tls-directory",
    type=_FOLDER,
    default="/imexd-tls",
    help="The folder with tls.crt, tls.key and ca.crt of the domain.",
)
@kubeconfig_option
@endpoint_options
@logging_options
@version_option
def imex_daemon(  # noqa: PLR0913, PLR0917  # one for each flag
    compute_domain_uuid: str,
    clique_id: str,
    node_name: str,
    pod_ip: str,
    namespace: str,
    folder: Path,
    hosts_file: Path,
    imex_program: str,
    imex_control_program: str,
    imex_enable_auth_encryption: bool,
    tls_directory: Path,
    kubeconfig: str | None,
    endpoint: Endpoint,
) -> None:
    """Run nvidia-imex as a member of a ComputeDomain, and report its state.

    This process runs in the pods of a DaemonSet, which the cluster controller creates for each ComputeDomain.
    """
    if not compute_domain_uuid:
        raise UserError(
            "COMPUTE_DOMAIN_UUID is not set, so the device of the pod's claim was not added to this container: is CDI"
            " enabled in the container runtime of the node?"
        )
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist, so the device of the pod's claim was not added")
    end_when_a_thread_fails()
    if not clique_id:
        _idle(folder, endpoint)
        return
    tls = tls_directory if imex_enable_auth_encryption else None
    registry = new_registry()
    count = unexpected_errors(registry)
    setup = Setup(compute_domain_uuid, pod_ip, folder, hosts_file, imex_program, imex_control_program, tls)
    with Connection(load_credentials(kubeconfig), f"dra-imex-daemon/{__version__}", connections=2) as connection:
        client = ApiClient(connection)

        def changed() -> None:
            supervisor.wake()
            rows.wake()

        watch = CliqueWatch(client, namespace, clique_name(compute_domain_uuid, clique_id), changed, count)
        rows = RowReporter(client, namespace, watch, node_name, pod_ip, count)

        def place() -> DomainPlace:
            return place_in(watch.clique, node_name, pod_ip, watch.problem)

        supervisor = ImexSupervisor(setup, place, rows.report, DaemonMetrics(registry), count)
        live, ready = {"supervision": supervisor.unhealthy}, {"imex": supervisor.unready}
        with serving(endpoint, registry, live=live, ready=ready):
            log.info("started", extra={"version": __version__, "server": connection.server, "clique": clique_id})
            on_termination(supervisor.stop)
            watch.start()
            rows.start()
            supervisor.run()
            rows.close(_GOODBYE_SECONDS)
            watch.stop()
            supervisor.close()
    log.info("stopped")


def _idle(folder: Path, endpoint: Endpoint) -> None:
    """Wait for the end of the pod on a node whose GPUs are in no clique, so they need no IMEX."""
    stopped = threading.Event()
    on_termination(stopped.set)
    ReportFile(folder).write(DaemonReport(True))
    with serving(endpoint, new_registry()):
        log.info("the GPUs of this node are in no clique, so nvidia-imex is not started")
        stopped.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(imex_daemon, arguments)


if __name__ == "__main__":
    main()
