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
    logging_options,
    on_termination,
    run,
    version_option,
)
from ...process.endpoints import Endpoint, new_registry, serving, unexpected_errors
from ..names import clique_name
from ..objects import DaemonReport
from .options import DaemonOptions, daemon_options
from .peers import CliqueWatch, DomainPlace, place_in
from .report import ReportFile
from .rows import RowReporter
from .supervisor import DaemonMetrics, ImexSupervisor, Setup
from .times import DaemonTimes

log = logging.getLogger(__name__)

_GOODBYE_SECONDS: Final = 2.0


@click.command("dra-imex-daemon")
@daemon_options
@logging_options
@version_option
def imex_daemon(options: DaemonOptions) -> None:
    """Run nvidia-imex as a member of a ComputeDomain, and report its state.

    This process runs in the pods of a DaemonSet, which the cluster controller creates for each ComputeDomain.
    """
    serve(options, DaemonTimes())


def serve(options: DaemonOptions, times: DaemonTimes) -> None:
    """Run until a termination signal. Raises UserError if the device of the pod's claim was not added."""
    if not options.compute_domain_uuid:
        raise UserError(
            "COMPUTE_DOMAIN_UUID is not set, so the device of the pod's claim was not added to this container: is CDI"
            " enabled in the container runtime of the node?"
        )
    if not options.folder.is_dir():
        raise UserError(f"the folder {options.folder} does not exist, so the device of the pod's claim was not added")
    end_when_a_thread_fails()
    if options.clique_id:
        _supervise(options, times)
    else:
        _idle(options.folder, options.endpoint)


def _supervise(options: DaemonOptions, times: DaemonTimes) -> None:
    uid, node, address = options.compute_domain_uuid, options.node_name, options.pod_ip
    programs = options.imex_program, options.imex_control_program
    setup = Setup(uid, address, options.folder, options.hosts_file, *programs, options.tls, times)
    registry = new_registry()
    count = unexpected_errors(registry)
    credentials = load_credentials(options.kubeconfig)
    with Connection(credentials, f"dra-imex-daemon/{__version__}", connections=2) as connection:
        client = ApiClient(connection)

        def changed() -> None:
            supervisor.wake()
            rows.wake()

        watch = CliqueWatch(client, options.namespace, clique_name(uid, options.clique_id), changed, count)
        rows = RowReporter(client, watch, node, address, times, count)

        def place() -> DomainPlace:
            return place_in(watch.clique, node, address, watch.problem)

        supervisor = ImexSupervisor(setup, place, rows.report, DaemonMetrics(registry), count)
        live, ready = {"supervision": supervisor.unhealthy}, {"imex": supervisor.unready}
        with serving(options.endpoint, registry, live=live, ready=ready):
            started = {"version": __version__, "server": connection.server, "clique": options.clique_id}
            log.info("started", extra=started)
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
