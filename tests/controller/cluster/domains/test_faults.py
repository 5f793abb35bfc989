# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains with controllers that are killed, that meet each other, and with an API server that fails."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3

from dra_driver.domains.names import daemon_name
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS
from dra_driver.kube.api import ApiClient, Connection, Transport, UnreachableError, load_credentials
from dra_driver.kube.kinds import DAEMON_SETS, NETWORK_POLICIES, NODES
from tests.faults.share import points
from tests.support.apiserver import embedded
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.waiting import wait_for

from .cluster import NAMESPACE, TEMPLATES, Cluster, at_work
from .test_controller import OTHER, RACK, at_rest, leftovers

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[FaultyServer, Cluster, Connection]]:
    with embedded(tmp_path) as (server, kubeconfig, client):
        connection = Connection(load_credentials(str(kubeconfig)), "tests", connections=20)
        with connection:
            yield server, Cluster(client).install(), connection


class Mortal:
    """A connection that ends with its process, at one of its writes: before it is sent, or before it is answered."""

    def __init__(self, connection: Transport, last: int, *, is_sent: bool) -> None:
        self.server, self.identity = connection.server, connection.identity
        self._connection = connection
        self._left = last
        self._is_sent = is_sent
        self.is_dead = False

    def request(self, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
        if method != "GET" and "/events" not in path and not self.is_dead:
            self._left -= 1
            if self._left == 0:
                self.is_dead = True
                if self._is_sent:
                    self._connection.request(method, path, **options)
        if self.is_dead:
            raise UnreachableError("the process was killed")
        return self._connection.request(method, path, **options)


def picture(cluster: Cluster, uid: str) -> object:
    """What there is of a domain, without what differs in each run."""
    names = sorted(
        (kind.plural, one["metadata"]["name"].replace(uid, "UID"))
        for kind in (TEMPLATES, DAEMON_SETS, NETWORK_POLICIES, CLIQUES)
        for one in cluster.client.list(kind).items
    )
    status = cluster.status()
    conditions = [(one["type"], one["status"], one["reason"]) for one in status["conditions"]]
    nodes = [(one["name"], one["index"], one["status"]) for one in status["nodes"]]
    pods = sorted(one["spec"]["nodeName"] for one in cluster.pods())
    rows = [sorted(cluster.rows(uid, clique).items()) for clique in (RACK, OTHER)]
    return names, rows, pods, nodes, conditions, sorted(cluster.labels())


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_controller_that_is_killed_at_any_write_leaves_nothing_wrong(
    served: tuple[FaultyServer, Cluster, Connection], is_sent: bool
) -> None:
    _, cluster, connection = served
    nodes = [cluster.node("node-0", RACK), cluster.node("node-1", OTHER), cluster.node("node-2")]
    right: object = None
    write, survived = 0, False
    numbers = points(int(is_sent), 2)  # requests that are sent and that are not, in turn; all with FAULTS_EVERY=1
    while not survived:
        write = next(numbers) + 1
        uid = cluster.domain()
        claims = [cluster.claim(uid, node) for node in nodes]

        def is_over(first: Mortal) -> bool:
            return first.is_dead or cluster.status().get("status") == "Ready"

        first = Mortal(connection, write, is_sent=is_sent)
        with at_work(ApiClient(first)):
            cluster.until(lambda: is_over(first), "the first controller to be killed or done")  # noqa: B023
        survived = not first.is_dead
        with at_work(cluster.client):
            cluster.until_ready()
        right = right or picture(cluster, uid)
        assert picture(cluster, uid) == right, write

        second = Mortal(connection, write, is_sent=is_sent)
        with at_work(ApiClient(second)):
            for claim in claims:
                cluster.release(claim)
            cluster.client.delete(COMPUTE_DOMAINS, "train", "ml")
            wait_for(lambda: second.is_dead or not leftovers(cluster, uid), "the second one")  # noqa: B023
        survived &= not second.is_dead
        with at_work(cluster.client):
            cluster.until(lambda: not leftovers(cluster, uid) and not cluster.pods(), "everything to go")  # noqa: B023
    assert write > 8, "the writes of a whole domain"


def test_two_controllers_at_once_do_no_harm(served: tuple[FaultyServer, Cluster, Connection]) -> None:
    _, cluster, connection = served
    nodes = [cluster.node(f"node-{number}", RACK if number < 4 else OTHER) for number in range(8)]
    with at_work(cluster.client) as first, at_work(ApiClient(connection)) as second:
        uid = cluster.domain()
        claims = [cluster.claim(uid, node) for node in nodes]
        cluster.until_ready()
        indices = [cluster.rows(uid, clique) for clique in (RACK, OTHER)]
        assert [sorted(one.values()) for one in indices] == [[0, 1, 2, 3]] * 2
        for claim in claims[:2]:
            cluster.release(claim)
        cluster.until(lambda: len(cluster.rows(uid, RACK)) == 2, "two nodes to leave")
        for node in nodes[:2]:
            cluster.claim(uid, node)
        cluster.until(lambda: len(cluster.rows(uid, RACK)) == 4, "two nodes to return")
        assert [cluster.rows(uid, clique) for clique in (RACK, OTHER)] == indices
        at_rest(first, second)


def test_a_domain_that_fails_delays_no_other(served: tuple[FaultyServer, Cluster, Connection]) -> None:
    server, cluster, _ = served
    refused = RequestFault(verb="create", resource="resourceclaimtemplates", namespace="other", error=500)
    server.faults.add(refused)
    with at_work(cluster.client) as work:
        cluster.domain("bad", namespace="other")
        wait_for(lambda: refused.hits > 1, "the failure")
        for number in range(20):
            cluster.domain(f"good-{number}")
        wait_for(lambda: len(cluster.client.list(TEMPLATES, namespace="ml").items) == 20, "the other templates")
        wait_for(lambda: "conditions" in cluster.status("bad", "other"), "its conditions")
        conditions = cluster.status("bad", "other")["conditions"]
        assert (conditions[0]["status"], conditions[0]["reason"]) == ("False", "WriteFailed")
        assert "injected fault" in conditions[0]["message"]
        wait_for(lambda: work.count("compute_domains_failing") == 1, "the metric")
        assert work.problem is None
        server.faults.remove(refused)
        wait_for(lambda: cluster.get(TEMPLATES, "bad-channel", "other"), "the template of the first")
        wait_for(lambda: work.count("compute_domains_failing") == 0, "no failure")


def test_a_server_that_fails_now_and_then(served: tuple[FaultyServer, Cluster, Connection]) -> None:
    server, cluster, _ = served
    nodes = [cluster.node(f"node-{number}", RACK) for number in range(3)]
    uid = cluster.domain()
    faults = [
        server.faults.add(RequestFault(verb=verb, resource=resource, error=error, times=3, after_commit=late))
        for verb, resource in (
            ("create", "daemonsets"),
            ("create", "computedomaincliques"),
            ("patch", "nodes"),
            ("patch", "computedomains/status"),
            ("create", "resourceclaimtemplates"),
        )
        for error, late in ((500, True), (409, False))
    ]
    with at_work(cluster.client):
        for node in nodes:
            cluster.claim(uid, node)
        cluster.until_ready()
        assert sorted(cluster.rows(uid, RACK).values()) == [0, 1, 2]
        assert sum(fault.hits for fault in faults) > 8
        server.drop_watches()
        late = cluster.node("node-late", RACK)
        cluster.claim(uid, late)
        cluster.until(lambda: late in cluster.rows(uid, RACK), "a node that came while no watch ran")


def test_at_rest_nothing_is_asked(served: tuple[FaultyServer, Cluster, Connection]) -> None:
    server, cluster, _ = served
    node = cluster.node("node-0", RACK)
    uid = cluster.domain()
    with at_work(cluster.client) as work:
        cluster.claim(uid, node)
        cluster.until_ready()
        at_rest(work)
        asked = server.faults.add(RequestFault())
        for number in range(5):  # a node's heartbeats
            cluster.client.patch(NODES, node, {"metadata": {"annotations": {"beat": str(number)}}})
        status = {"status": {"numberReady": 1, "desiredNumberScheduled": 1}}
        cluster.client.patch(DAEMON_SETS, daemon_name(uid), status, namespace=NAMESPACE, subresource="status")
        other = cluster.node("node-1", RACK)  # of no domain
        cluster.client.delete(NODES, other)
        assert asked.hits == 9, "none but the test's own"


def test_many_domains_at_once(served: tuple[FaultyServer, Cluster, Connection]) -> None:
    _, cluster, connection = served
    with ExitStack() as stack:
        work = stack.enter_context(at_work(ApiClient(connection)))
        uids = {f"domain-{number}": cluster.domain(f"domain-{number}") for number in range(12)}
        for number, uid in enumerate(uids.values()):
            cluster.claim(uid, cluster.node(f"node-{number}", RACK))
        cluster.until(lambda: work.count("compute_domain_info", status="Ready") == len(uids), "all to be ready")
        assert len(cluster.labels()) == len(uids)
        for name in uids:
            cluster.client.delete(COMPUTE_DOMAINS, name, "ml")
        cluster.until(lambda: not cluster.client.list(DAEMON_SETS).items and not cluster.labels(), "all to go")
        wait_for(lambda: work.count("compute_domain_info", status="Ready") == 0, "no domain")
