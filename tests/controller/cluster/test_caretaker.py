# SPDX-License-Identifier: Apache-2.0
"""Leftovers in a real API, and who may not be taken for one."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.caretaker import EVENT_REASON, Caretaker, CaretakerTiming, Metrics
from controller.cluster.leader import LeaderWork
from dra_driver.domains import names as domain_names
from dra_driver.kube.api import ApiClient, Connection, Kind, NotFoundError, load_credentials
from dra_driver.kube.api.client import Page
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.kinds import EVENTS, NODES
from dra_driver.kube.resource.codec import V1
from dra_driver.names import DRIVER_NAME
from dra_driver.process.endpoints import new_registry
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support import loops
from tests.support.apiserver import CLAIMS, SLICES, api_server, connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A cluster of each test's own: leftovers of other tests are counted, too."""
    with api_server(tmp_path) as path:
        yield path


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[ApiClient]:
    with connect(kubeconfig) as connected:
        yield connected


class Work:
    """A caretaker at work, and what it counts."""

    def __init__(self, client: ApiClient, grace: float) -> None:
        self.registry = new_registry()
        self.recorder = EventRecorder(client, "tests")
        timing = CaretakerTiming(grace=grace, settle=0.01, first_retry=0.02, longest_retry=0.1)
        self.caretaker = Caretaker(client, self.recorder, Metrics(self.registry), timing)
        self.leader = LeaderWork(client, [self.caretaker], domains=True, first_retry=0.02)

    @property
    def problem(self) -> str | None:
        return self.leader.problem or self.caretaker.problem

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"nvidia_dra_{name}", labels) or 0.0


@contextmanager
def at_work(client: ApiClient, grace: float = 0.0) -> Iterator[Work]:
    others, work = set(threading.enumerate()), Work(client, grace)
    try:
        with loops.at_work(work.leader.run, work.recorder):
            yield work
    finally:
        watches = {one for one in threading.enumerate() if one.name.startswith("watch ")} - others
        assert all(map(ended, watches))


def ended(thread: threading.Thread) -> bool:
    thread.join(60)
    return not thread.is_alive()


def make_node(client: ApiClient, name: str = "") -> tuple[str, str]:
    """(name, UID)"""
    name = name or f"node-{uuid.uuid4().hex[:8]}"
    value = client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return name, value["metadata"]["uid"]


def make_slice(client: ApiClient, node: str, owner_uid: str = "", driver: str = DRIVER_NAME, **spec: Any) -> str:
    """A slice's name."""
    name = f"slice-{uuid.uuid4().hex[:8]}"
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner_uid, "controller": True}
    metadata = {"name": name, **({"ownerReferences": [owner]} if owner_uid else {})}
    where = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": node or "shared", "generation": 1, "resourceSliceCount": 1}
    content = {"driver": driver, "pool": pool, "devices": [{"name": "gpu-0"}], **where, **spec}
    client.create(
        SLICES, {"apiVersion": V1.api_version, "kind": "ResourceSlice", "metadata": metadata, "spec": content}
    )
    return name


def is_there(client: ApiClient, name: str) -> bool:
    try:
        client.get(SLICES, name)
    except NotFoundError:
        return False
    return True


def test_slices_of_nodes_that_are_gone_go_too_and_all_others_stay(client: ApiClient) -> None:
    node, uid = make_node(client)
    stays = [
        make_slice(client, node, uid),
        make_slice(client, node),
        make_slice(client, ""),
        make_slice(client, "node-gone", driver="other.example.com"),
    ]
    goes = [
        make_slice(client, "node-gone"),
        make_slice(client, "node-gone-too", str(uuid.uuid4())),
        make_slice(client, "node-gone", driver=domain_names.DRIVER),
    ]
    with at_work(client) as work:
        wait_for(lambda: not any(is_there(client, one) for one in goes), "the leftovers to go")
        late = make_slice(client, "node-gone-later")
        wait_for(lambda: not is_there(client, late), "one that came later")
        assert all(is_there(client, one) for one in stays)
        assert work.count("leftover_slices_removed_total", reason="node_gone") >= 2
        wait_for(lambda: work.count("leftover_objects") == 0, "nothing left")
        assert work.problem is None


def test_slices_of_a_node_go_with_it(client: ApiClient) -> None:
    node, _ = make_node(client)
    name = make_slice(client, node)
    with at_work(client):
        client.delete(NODES, node)
        wait_for(lambda: not is_there(client, name), "the slice to go")


def test_a_node_that_was_made_anew_loses_the_slices_of_before(client: ApiClient) -> None:
    node, old = make_node(client)
    name = make_slice(client, node, old)
    client.delete(NODES, node)
    _, new = make_node(client, node)
    mine = make_slice(client, node, new)
    with at_work(client):
        wait_for(lambda: not is_there(client, name), "the slice of before to go")
    assert is_there(client, mine)


def test_nothing_goes_within_the_grace_period(client: ApiClient) -> None:
    name = make_slice(client, "node-away")
    with at_work(client, grace=3600) as work:
        wait_for(lambda: work.count("leftover_objects") == 1, "the leftover to be seen")
        make_node(client, "node-away")
        wait_for(lambda: work.count("leftover_objects") == 0, "its node to be seen")
    assert is_there(client, name)


class Scripted(ApiClient):
    """A client that tells the caretaker less than is true, or acts in the midst of what it does."""

    def __init__(self, kubeconfig: Path) -> None:
        self.connection = Connection(load_credentials(str(kubeconfig)), "tests")
        super().__init__(self.connection)
        self.got: list[tuple[str, str]] = []
        self.blind = False
        self.meddle = ""

    def list(self, kind: Kind, **options: Any) -> Page:
        page = super().list(kind, **options)
        return Page([], page.resource_version) if self.blind and kind == NODES else page

    def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        value = super().get(kind, name, namespace)
        self.got.append((kind.plural, name))
        if kind == SLICES and name == self.meddle and self.looks(name) == 2:
            self.patch(SLICES, name, {"metadata": {"labels": {"changed": "meanwhile"}}})
        return value

    def looks(self, name: str) -> int:
        """How often a slice was read."""
        return self.got.count((SLICES.plural, name))


@pytest.fixture
def scripted(kubeconfig: Path) -> Iterator[Scripted]:
    one = Scripted(kubeconfig)
    with one.connection:
        yield one


def test_a_living_node_that_the_watch_missed_keeps_its_slices(client: ApiClient, scripted: Scripted) -> None:
    node, uid = make_node(client)
    names = [make_slice(client, node, uid), make_slice(client, node)]
    scripted.blind = True
    with at_work(scripted) as work:
        wait_for(lambda: scripted.got.count(("nodes", node)) >= 2, "a second look at the node, for each")
        assert work.count("leftover_slices_removed_total", reason="node_gone") == 0
    assert all(is_there(client, one) for one in names)


def test_a_slice_that_changes_meanwhile_is_looked_at_again(client: ApiClient, scripted: Scripted) -> None:
    name = scripted.meddle = make_slice(client, "node-gone")
    with at_work(scripted):
        wait_for(lambda: not is_there(client, name), "the slice to go in the end")
    # For its node, for what was no longer true, and again; once more if the watch tells late of the change.
    assert scripted.looks(name) >= 3


def make_claim(client: ApiClient, pool: str, *pods: str) -> JSON:
    """An allocated claim."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    name = f"claim-{uuid.uuid4().hex[:8]}"
    value = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    made = client.create(CLAIMS, value, "default")
    result = {"request": "gpu", "driver": DRIVER_NAME, "pool": pool, "device": "gpu-0"}
    made["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": str(uuid.uuid4())} for pod in pods],
    }
    return client.update(CLAIMS, made, subresource="status")


def events_about(client: ApiClient, claim: JSON) -> list[str]:
    selector = f"involvedObject.uid={claim['metadata']['uid']}"
    found = client.list(EVENTS, namespace="default", field_selector=selector).items
    return [one["message"] for one in found if one["reason"] == EVENT_REASON]


def test_a_claim_on_a_node_that_is_gone_is_told_of_once_and_left_as_it_is(client: ApiClient) -> None:
    node, _ = make_node(client)
    fine, stray, used = make_claim(client, node), make_claim(client, "node-z"), make_claim(client, "node-z", "pod-0")
    with at_work(client) as work:
        wait_for(lambda: events_about(client, stray) and events_about(client, used), "the events")
        make_slice(client, node)  # something that makes it look again
        client.delete(NODES, node)
        wait_for(lambda: events_about(client, fine), "the event about a node that went")
        assert work.count("claims_on_missing_nodes") == 3
    assert [len(events_about(client, one)) for one in (stray, used)] == [1, 1]
    assert "delete pod pod-0" in events_about(client, used)[0]
    for one in (stray, used):
        assert client.get(CLAIMS, one["metadata"]["name"], "default")["status"] == one["status"]


def test_an_api_server_that_fails_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with (
        FaultyServer(ApiServerOptions(tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "config")) as client,
    ):
        discovery = server.faults.add(RequestFault(verb="list", error=500, times=3))
        deletes = server.faults.add(RequestFault(verb="delete", resource="resourceslices", error=500, times=3))
        names = [make_slice(client, "node-gone") for _ in range(2)]
        with at_work(client) as work:
            wait_for(lambda: not any(is_there(client, one) for one in names), "the leftovers to go")
            wait_for(lambda: work.problem is None, "all to be well")
        assert (discovery.hits, deletes.hits) == (3, 3)


def test_at_rest_nothing_is_asked(tmp_path: Path) -> None:
    with (
        FaultyServer(ApiServerOptions(tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "config")) as client,
    ):
        node, uid = make_node(client)
        make_slice(client, node, uid)
        make_slice(client, "node-away")
        with at_work(client, grace=3600) as work:
            wait_for(lambda: work.count("leftover_objects") == 1 and work.problem is None, "a first look")
            asked = server.faults.add(RequestFault())
            for number in range(5):  # a node's heartbeats
                client.patch(NODES, node, {"metadata": {"annotations": {"beat": str(number)}}})
            make_node(client, "node-away")
            wait_for(lambda: work.count("leftover_objects") == 0, "the new node to be seen")
            assert asked.hits == 6, "none but the test's own"
