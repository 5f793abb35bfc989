# SPDX-License-Identifier: Apache-2.0
"""The dra-cluster-controller command: one process for the cluster, beside those on its nodes."""

import logging
import threading
from collections.abc import Sequence

import click

from dra_driver import DRIVER_NAME, __version__
from dra_driver.cluster import ApiClient, ConfigError, Connection, Credentials, UnreachableError, load_credentials
from dra_driver.cluster.events import EventRecorder
from dra_driver.cluster.leases import Election
from dra_driver.command import (
    UserError,
    end_when_a_thread_fails,
    kubeconfig_option,
    logging_options,
    on_termination,
    run,
    version_option,
)
from dra_driver.endpoints import Endpoint, endpoint_options, serving
from dra_driver.metrics import new_registry

from .caretaker import Caretaker, Timing
from .flags import Duration, LeaderElection, leader_election_options
from .metrics import Metrics

log = logging.getLogger(__name__)


@click.command("dra-cluster-controller")
@kubeconfig_option
@leader_election_options
@click.option(
    "--cleanup-grace-period",
    type=Duration(),
    default="60s",
    show_default=True,
    envvar="CLEANUP_GRACE_PERIOD",
    show_envvar=True,
    help="How long the leftovers of a node that is gone are left to Kubernetes' own controllers.",
)
@endpoint_options
@logging_options
@version_option
def cluster_controller(
    kubeconfig: str | None,
    election: LeaderElection,
    pod_name: str,
    cleanup_grace_period: float,
    endpoint: Endpoint,
) -> None:
    """Remove what nodes that are gone left behind: ResourceSlices of driver gpu.nvidia.com without a living node."""
    agent = f"dra-cluster-controller/{__version__}"
    # A renewal that takes longer than this has failed, and must leave time for another.
    patience = election.timing.renew_deadline / 2
    try:
        credentials: Credentials = load_credentials(kubeconfig)
        connection = Connection(credentials, agent)
        hasty = Connection(credentials, agent, connections=1, read_seconds=patience)
    except (ConfigError, UnreachableError) as error:
        raise UserError(str(error)) from None
    end_when_a_thread_fails()
    registry = new_registry()
    metrics = Metrics(registry)
    client = ApiClient(connection)
    recorder = EventRecorder(client, DRIVER_NAME, pod_name)
    caretaker = Caretaker(client, recorder, metrics, Timing(grace=cleanup_grace_period))
    contest = Election(
        ApiClient(hasty),
        election.namespace,
        election.name,
        election.identity,
        election.timing,
        changed=metrics.leader.set,
    )
    checks = {"lease": lambda: contest.problem, "leftovers": lambda: caretaker.problem}
    with serving(endpoint, registry, ready=checks):
        log.info("started", extra={"version": __version__, "server": connection.server})
        if election.enabled:
            on_termination(contest.stop)
            contest.run(caretaker.run)
        else:
            stop = threading.Event()
            on_termination(stop.set)
            metrics.leader.set(1)
            caretaker.run(stop)
    recorder.close()
    log.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(cluster_controller, arguments)


if __name__ == "__main__":
    main()
