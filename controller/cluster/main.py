# SPDX-License-Identifier: Apache-2.0
"""The dra-cluster-controller command, and its flags for leader election. `domains.options` has its other flags.

The flags of leader election have the names that the official driver uses.
"""

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import click

from dra_driver import __version__
from dra_driver.kube.api import ApiClient, Connection, Credentials, load_credentials
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.api.leases import Election, LeaseTiming
from dra_driver.names import DRIVER_NAME
from dra_driver.process.command import (
    DurationParameter,
    InputError,
    end_when_a_thread_fails,
    flag,
    flags,
    kubeconfig_option,
    logging_options,
    on_termination,
    run,
    version_option,
)
from dra_driver.process.endpoints import Endpoint, endpoint_options, new_registry, serving, unexpected_errors

from .caretaker import Caretaker, CaretakerTiming, Metrics
from .domains.loop import DomainController, DomainMetrics
from .domains.options import compute_domain_options
from .domains.settings import DaemonSettings, DomainSettings
from .leader import ClusterPart, LeaderWork

LEASE_NAME: Final = "nvidia-dra-cluster-controller"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """Whether and how several processes elect a leader. `home` is the namespace of the processes, and `namespace` that
    of the Lease.
    """

    enabled: bool
    home: str
    namespace: str
    name: str
    pod_name: str
    timing: LeaseTiming


def _election(  # noqa: PLR0913, PLR0917  # one for each flag
    namespace: str,
    pod_name: str,
    leader_election_enabled: bool,
    leader_election_lease_lock_namespace: str,
    leader_election_lease_lock_name: str,
    leader_election_lease_duration: float,
    leader_election_renew_deadline: float,
    leader_election_retry_period: float,
) -> LeaderElection:
    try:
        timing = LeaseTiming(
            leader_election_lease_duration, leader_election_renew_deadline, leader_election_retry_period
        )
    except ValueError as error:
        raise InputError(f"--leader-election-…: {error}") from None
    lock_namespace = leader_election_lease_lock_namespace or namespace
    return LeaderElection(
        leader_election_enabled, namespace, lock_namespace, leader_election_lease_lock_name, pod_name, timing
    )


leader_election_options = flags(
    "election",
    _election,
    flag("--namespace", default="default", help="The namespace that this process runs in."),
    flag(
        "--pod-name",
        default=socket.gethostname,
        show_default="the host's name",
        help="The name of this process in the Lease and in Events.",
    ),
    flag(
        "--leader-election-enabled",
        is_flag=True,
        help="Work only while this process holds a Lease; needed for several replicas.",
    ),
    flag(
        "--leader-election-lease-lock-namespace", default="", help="The namespace of the Lease. If empty, --namespace."
    ),
    flag("--leader-election-lease-lock-name", default=LEASE_NAME, help="The name of the Lease."),
    flag(
        "--leader-election-lease-duration",
        type=DurationParameter("15s, 1m30s or 500ms"),
        default="15s",
        help="How long other replicas wait for a holder that does not renew the Lease.",
    ),
    flag(
        "--leader-election-renew-deadline",
        type=DurationParameter("15s, 1m30s or 500ms"),
        default="10s",
        help="How long a holder continues if it cannot renew the Lease.",
    ),
    flag(
        "--leader-election-retry-period",
        type=DurationParameter("15s, 1m30s or 500ms"),
        default="2s",
        help="The pause between attempts to get or renew the Lease.",
    ),
)
"""Adds --leader-election-…, --namespace and --pod-name, and passes a LeaderElection as `election`."""


@click.command("dra-cluster-controller")
@kubeconfig_option
@leader_election_options
@compute_domain_options
@flag(
    "--cleanup-grace-period",
    type=DurationParameter("15s, 1m30s or 500ms"),
    default="60s",
    help="How long to wait, after a node was deleted, for Kubernetes' own controllers to delete its slices.",
)
@endpoint_options
@logging_options
@version_option
def cluster_controller(
    kubeconfig: str | None,
    election: LeaderElection,
    domains: DaemonSettings | None,
    cleanup_grace_period: float,
    endpoint: Endpoint,
) -> None:
    """Delete the ResourceSlices of nodes that no longer exist, report claims on them, and manage ComputeDomains."""
    agent = f"dra-cluster-controller/{__version__}"
    # A renewal that takes longer than this counts as failed, and leaves time for another one.
    patience = election.timing.renew_deadline / 2
    credentials: Credentials = load_credentials(kubeconfig)
    connection = Connection(credentials, agent, connections=24)  # one for each watch, and for threads that write
    hasty = Connection(credentials, agent, connections=1, read_seconds=patience)
    end_when_a_thread_fails()
    registry = new_registry()
    metrics = Metrics(registry)
    client = ApiClient(connection)
    recorder = EventRecorder(client, DRIVER_NAME, election.pod_name)
    caretaker = Caretaker(client, recorder, metrics, CaretakerTiming(grace=cleanup_grace_period))
    parts: list[ClusterPart] = [caretaker]
    checks: dict[str, Callable[[], str | None]] = {"leftovers": lambda: caretaker.problem}
    if domains is not None:
        settings, counted = DomainSettings(election.home, domains), unexpected_errors(registry)
        controller = DomainController(client, settings, recorder, DomainMetrics(registry), counted)
        parts.append(controller)
        checks["compute-domains"] = lambda: controller.problem
    work = LeaderWork(client, parts, domains=domains is not None)
    checks["cluster"] = lambda: work.problem
    contest = Election(
        ApiClient(hasty),
        election.namespace,
        election.name,
        f"{election.pod_name}_{uuid.uuid4()}",  # a container that was restarted is another one
        election.timing,
        changed=metrics.leader.set,
    )
    checks["lease"] = lambda: contest.problem
    with serving(endpoint, registry, ready=checks):
        log.info("started", extra={"version": __version__, "server": connection.server})
        if election.enabled:
            on_termination(contest.stop)
            contest.run(work.run)
        else:
            stop = threading.Event()
            on_termination(stop.set)
            metrics.leader.set(1)
            work.run(stop)
    recorder.close()
    log.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(cluster_controller, arguments)


if __name__ == "__main__":
    main()
