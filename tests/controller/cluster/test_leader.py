# SPDX-License-Identifier: Apache-2.0
"""The parts of the leader's work on one view of the cluster."""

from pathlib import Path

import pytest

from controller.cluster.caretaker import Caretaker, CaretakerTiming, Metrics
from controller.cluster.domains.loop import DomainController, DomainMetrics
from controller.cluster.domains.settings import DomainSettings
from controller.cluster.leader import LeaderWork
from dra_driver.domains.names import daemon_name
from dra_driver.kube.api import NotFoundError
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.kinds import DAEMON_SETS, NODES
from dra_driver.process.endpoints import new_registry
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.controller.cluster.domains.cluster import NAMESPACE, SETTINGS, Cluster
from tests.support import loops
from tests.support.apiserver import SLICES, connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster


def test_all_parts_share_one_watch_of_each_kind(tmp_path: Path) -> None:
    with (
        FaultyServer(ApiServerOptions()) as server,
        connect(server.write_kubeconfig(tmp_path / "config")) as client,
    ):
        cluster = Cluster(client).install()
        leftover = f"{cluster.node('node-gone')}-slice"
        client.delete(NODES, "node-gone")
        uid, registry, recorder = cluster.domain(), new_registry(), EventRecorder(client, "tests")
        requests = {
            (verb, resource): server.faults.add(RequestFault(verb=verb, resource=resource))
            for verb in ("list", "watch")
            for resource in ("nodes", "resourceclaims", "resourceslices")
        }
        caretaker = Caretaker(client, recorder, Metrics(registry), CaretakerTiming(grace=0.0, settle=0.01))
        domains = DomainController(client, DomainSettings(NAMESPACE, SETTINGS), recorder, DomainMetrics(registry))
        work = LeaderWork(client, [caretaker, domains], domains=True)
        with loops.at_work(work.run, recorder):
            wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(uid)), "the DaemonSet of the domain")
            wait_for(lambda: is_gone(cluster, leftover), "the leftover to go")
            wait_for(lambda: work.problem is None, "all watches")
        hits = {key: request.hits for key, request in requests.items()}
        slices_of_two_drivers = 2
        for verb in ("list", "watch"):
            assert hits[verb, "nodes"] == 1
            assert hits[verb, "resourceclaims"] == 1
            assert hits[verb, "resourceslices"] == slices_of_two_drivers


def is_gone(cluster: Cluster, name: str) -> bool:
    try:
        cluster.client.get(SLICES, name)
    except NotFoundError:
        return True
    return False
