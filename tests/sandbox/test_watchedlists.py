# SPDX-License-Identifier: Apache-2.0
"""Lists that follow the watches of their kinds."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import urllib3

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DAEMON_SETS, NAMESPACES, NODES, PODS
from dra_driver.sandbox.watchedlists import WatchedLists

pytestmark = pytest.mark.unit

JSON = dict[str, Any]


class Server:
    """Answers each request, and counts those for lists by their path. `during` is called before the next answer. A
    write is answered with `written`. `more` are the tokens of further pages.
    """

    server = identity = ""

    def __init__(self) -> None:
        self.lists: list[str] = []
        self.items: list[JSON] = []
        self.more: list[str] = []
        self.written: JSON = {"kind": "Status"}
        self.status = 200
        self.during: Callable[[], None] = _nothing

    def request(self, method: str, path: str, **_options: object) -> urllib3.BaseHTTPResponse:
        """An answer, of which a list has the number of lists so far as its version."""
        during, self.during = self.during, _nothing
        during()
        answer = self.written
        if method == "GET":
            self.lists.append(path.partition("?")[0])
            token = self.more.pop() if self.more else ""
            meta = {"resourceVersion": str(len(self.lists)), "continue": token}
            answer = {"metadata": meta, "items": self.items}
        return urllib3.HTTPResponse(json.dumps(answer).encode(), status=self.status)


def pod(name: str, version: int, **more: str) -> JSON:
    """A pod in a version."""
    return {"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version), **more}}


def listed(lists: WatchedLists) -> list[tuple[str, str]]:
    """The names and versions of all pods, in the order of the list."""
    return [(one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in lists.list(PODS).items]


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


def test_a_list_is_read_once_until_its_kind_changes(lists: WatchedLists, server: Server) -> None:
    for _ in range(3):
        lists.list(PODS)
        lists.list(NODES)
    assert server.lists == [PODS.path(), NODES.path()]
    lists.forget(PODS)
    assert lists.list(PODS).resource_version == "3"
    assert lists.list(NODES).resource_version == "2"


def test_a_change_of_the_list_by_its_reader_is_not_seen_by_the_next_one(lists: WatchedLists) -> None:
    lists.list(PODS).items.append({})
    assert lists.list(PODS).items == []


WRITES: dict[str, Callable[[ApiClient], object]] = {
    "delete": lambda client: client.delete(PODS, "a", "default"),
    "create": lambda client: client.create(PODS, {"metadata": {"name": "a"}}, "default"),
    "subresource": lambda client: client.create(PODS, {}, "default", name="a", subresource="binding"),
    "status": lambda client: client.update(PODS, {"metadata": {"name": "a"}}, subresource="status"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_forgets_its_kind(lists: WatchedLists, server: Server, write: Callable[[ApiClient], object]) -> None:
    lists.list(PODS)
    lists.list(NODES)
    write(lists)
    lists.list(PODS)
    lists.list(NODES)
    assert server.lists == [PODS.path(), NODES.path(), PODS.path()]


def test_a_write_to_an_api_group_forgets_its_kind(lists: WatchedLists, server: Server) -> None:
    lists.add(DAEMON_SETS, lambda: None)
    lists.list(DAEMON_SETS)
    lists.delete(DAEMON_SETS, "a", "default")
    lists.list(DAEMON_SETS)
    assert len(server.lists) == 2


def test_a_refused_write_forgets_its_kind(lists: WatchedLists, server: Server) -> None:
    lists.list(PODS)
    server.status = 409
    with pytest.raises(Exception, match="409"):
        lists.delete(PODS, "a", "default")
    server.status = 200
    lists.list(PODS)
    assert len(server.lists) == 2


def test_kinds_without_a_working_watch_are_always_read(lists: WatchedLists, server: Server, watch: Watch) -> None:
    lists.list(NAMESPACES)
    lists.list(NAMESPACES)
    watch.problem = "unreachable"
    lists.list(PODS)
    lists.list(PODS)
    assert server.lists == [NAMESPACES.path()] * 2 + [PODS.path()] * 2


@pytest.mark.parametrize("selection", [{"namespace": "default"}, {"label_selector": "a=b"}, {"metadata_only": True}])
def test_a_selection_is_not_answered_with_all_objects(
    lists: WatchedLists, server: Server, selection: dict[str, object]
) -> None:
    lists.list(PODS)
    lists.list(PODS, **selection)
    assert len(server.lists) == 2


def test_a_list_during_a_change_is_read_again(lists: WatchedLists, server: Server) -> None:
    server.during = lambda: lists.forget(PODS)
    lists.list(PODS)
    lists.list(PODS)
    assert len(server.lists) == 2


def test_a_failed_list_is_read_again(lists: WatchedLists, server: Server) -> None:
    server.status = 500
    with pytest.raises(Exception, match="500"):
        lists.list(PODS)
    server.status = 200
    lists.list(PODS)
    assert len(server.lists) == 2


@pytest.mark.parametrize(
    ("event", "value", "after"),
    [
        ("ADDED", pod("b", 7), [("a", "1"), ("b", "7"), ("c", "1")]),
        ("MODIFIED", pod("a", 7), [("a", "7"), ("c", "1")]),
        ("DELETED", pod("a", 7), [("c", "1")]),
        ("MODIFIED", pod("gone", 1), [("a", "1"), ("c", "1")]),
        ("DELETED", pod("a", 1), [("a", "1"), ("c", "1")]),
    ],
    ids=["added", "modified", "deleted", "modified before the list", "deleted before the list"],
)
def test_an_event_changes_the_list(
    lists: WatchedLists, server: Server, event: str, value: JSON, after: list[tuple[str, str]]
) -> None:
    server.items = [pod("a", 1), pod("c", 1)]
    lists.list(PODS)
    lists.change(PODS, event, value)
    assert listed(lists) == after
    assert len(server.lists) == 1


def test_an_event_during_a_list_is_not_lost(lists: WatchedLists, server: Server) -> None:
    server.during = lambda: lists.change(PODS, "ADDED", pod("a", 1))
    lists.list(PODS)
    server.items = [pod("a", 1)]
    assert listed(lists) == [("a", "1")]


def test_object_that_a_write_returns_is_in_the_list(lists: WatchedLists, server: Server) -> None:
    server.items = [pod("a", 1)]
    lists.list(PODS)
    server.written = pod("a", 5)
    lists.update(PODS, pod("a", 1), subresource="status")
    server.written = pod("b", 6)
    lists.create(PODS, pod("b", 1), "default")
    server.items = []  # which would be read
    assert listed(lists) == [("a", "5"), ("b", "6")]
    assert len(server.lists) == 1


def test_an_event_of_an_older_write_does_not_undo_a_newer_one(lists: WatchedLists, server: Server) -> None:
    server.items = [pod("a", 1)]
    lists.list(PODS)
    server.written = pod("a", 5)
    lists.update(PODS, pod("a", 4))
    lists.change(PODS, "MODIFIED", pod("a", 4))
    assert listed(lists) == [("a", "5")]


def test_an_event_that_is_older_than_a_write_changes_another_object(lists: WatchedLists, server: Server) -> None:
    server.items = [pod("a", 1)]
    lists.list(PODS)
    server.written = pod("a", 5)
    lists.update(PODS, pod("a", 1))
    lists.change(PODS, "ADDED", pod("b", 4))
    assert listed(lists) == [("a", "5"), ("b", "4")]


def test_an_object_that_a_write_may_have_removed_is_read_again(lists: WatchedLists, server: Server) -> None:
    server.items = [pod("a", 1)]
    lists.list(PODS)
    server.written, server.items = pod("a", 5, deletionTimestamp="2026-01-01T00:00:00Z"), []
    lists.update(PODS, pod("a", 1))
    assert listed(lists) == []


@pytest.mark.parametrize("write", ["scale", "dry run"])
def test_an_answer_that_is_no_stored_object_is_not_in_the_list(lists: WatchedLists, server: Server, write: str) -> None:
    server.items = [pod("a", 1)]
    lists.list(PODS)
    server.written = pod("a", 5)
    if write == "scale":
        lists.update(PODS, pod("a", 1), subresource="scale")
    else:
        lists.create(PODS, pod("b", 1), "default", dry_run=True)
    assert listed(lists) == [("a", "1")]


def test_a_list_of_several_pages_is_remembered_as_a_whole(lists: WatchedLists, server: Server) -> None:
    server.items, server.more = [pod("a", 1)], ["next"]
    assert listed(lists) == [("a", "1"), ("a", "1")]
    assert len(listed(lists)) == 2
    assert len(server.lists) == 2
