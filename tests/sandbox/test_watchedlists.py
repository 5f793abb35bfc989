# SPDX-License-Identifier: Apache-2.0
"""Lists that are remembered until a change."""

import json
from collections.abc import Callable

import pytest
import urllib3

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DAEMON_SETS, NAMESPACES, NODES, PODS
from dra_driver.sandbox.watchedlists import WatchedLists

pytestmark = pytest.mark.unit


class Server:
    """Answers each request, and counts those for lists by their path. `during` is called before the next answer."""

    server = identity = ""

    def __init__(self) -> None:
        self.lists: list[str] = []
        self.status = 200
        self.during: Callable[[], None] = _nothing

    def request(self, method: str, path: str, **_options: object) -> urllib3.BaseHTTPResponse:
        """An answer without objects."""
        during, self.during = self.during, _nothing
        during()
        if method == "GET":
            self.lists.append(path.partition("?")[0])
        body = json.dumps({"metadata": {"resourceVersion": str(len(self.lists))}, "items": []}).encode()
        return urllib3.HTTPResponse(body, status=self.status)


def _nothing() -> None:
    return


class Watch:
    """The problem of the watches."""

    problem: str | None = None


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def lists(server: Server, watch: Watch) -> WatchedLists:
    made = WatchedLists(server)
    for kind in (PODS, NODES):
        made.add(kind, lambda: watch.problem)
    return made


@pytest.fixture
def reader(lists: WatchedLists) -> ApiClient:
    return ApiClient(lists)


def test_a_list_is_read_once_until_its_kind_changes(reader: ApiClient, lists: WatchedLists, server: Server) -> None:
    for _ in range(3):
        reader.list(PODS)
        reader.list(NODES)
    assert server.lists == [PODS.path(), NODES.path()]
    lists.forget(PODS)
    assert reader.list(PODS).resource_version == "3"
    assert reader.list(NODES).resource_version == "2"


def test_a_change_of_the_list_by_its_reader_is_not_seen_by_the_next_one(reader: ApiClient) -> None:
    reader.list(PODS).items.append({})
    assert reader.list(PODS).items == []


WRITES: dict[str, Callable[[ApiClient], object]] = {
    "delete": lambda reader: reader.delete(PODS, "a", "default"),
    "create": lambda reader: reader.create(PODS, {"metadata": {"name": "a"}}, "default"),
    "subresource": lambda reader: reader.create(PODS, {}, "default", name="a", subresource="binding"),
    "status": lambda reader: reader.update(PODS, {"metadata": {"name": "a"}}, subresource="status"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_forgets_its_kind(reader: ApiClient, server: Server, write: Callable[[ApiClient], object]) -> None:
    reader.list(PODS)
    reader.list(NODES)
    write(reader)
    reader.list(PODS)
    reader.list(NODES)
    assert server.lists == [PODS.path(), NODES.path(), PODS.path()]


def test_a_write_to_an_api_group_forgets_its_kind(reader: ApiClient, lists: WatchedLists, server: Server) -> None:
    lists.add(DAEMON_SETS, lambda: None)
    reader.list(DAEMON_SETS)
    reader.delete(DAEMON_SETS, "a", "default")
    reader.list(DAEMON_SETS)
    assert len(server.lists) == 2


def test_a_refused_write_forgets_its_kind(reader: ApiClient, server: Server) -> None:
    reader.list(PODS)
    server.status = 409
    with pytest.raises(Exception, match="409"):
        reader.delete(PODS, "a", "default")
    server.status = 200
    reader.list(PODS)
    assert len(server.lists) == 2


def test_kinds_without_a_working_watch_are_always_read(reader: ApiClient, server: Server, watch: Watch) -> None:
    reader.list(NAMESPACES)
    reader.list(NAMESPACES)
    watch.problem = "unreachable"
    reader.list(PODS)
    reader.list(PODS)
    assert server.lists == [NAMESPACES.path()] * 2 + [PODS.path()] * 2


@pytest.mark.parametrize("selection", [{"namespace": "default"}, {"label_selector": "a=b"}, {"metadata_only": True}])
def test_a_selection_is_not_answered_with_all_objects(
    reader: ApiClient, server: Server, selection: dict[str, object]
) -> None:
    reader.list(PODS)
    reader.list(PODS, **selection)  # type: ignore[arg-type]
    assert len(server.lists) == 2


def test_a_list_during_a_change_is_read_again(reader: ApiClient, lists: WatchedLists, server: Server) -> None:
    server.during = lambda: lists.forget(PODS)
    reader.list(PODS)
    reader.list(PODS)
    assert len(server.lists) == 2


def test_a_failed_list_is_read_again(reader: ApiClient, server: Server) -> None:
    server.status = 500
    with pytest.raises(Exception, match="500"):
        reader.list(PODS)
    server.status = 200
    reader.list(PODS)
    assert len(server.lists) == 2
