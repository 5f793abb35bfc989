# SPDX-License-Identifier: Apache-2.0
"""A collection kept in sight, whatever happens to server and connections."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Connection, Credentials, Watcher
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import CONFIG_MAPS, NAMESPACES
from dra_driver.process.containment import Count, nobody
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.scripted import End, Reply, scripted
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster


class Seen:
    """What a watcher told: the collection as it follows from lists and events, and how often it was listed."""

    def __init__(
        self, client: ApiClient, field_selector: str = "metadata.namespace=default", count: Count = nobody
    ) -> None:
        self.objects: dict[str, JSON] = {}
        self.lists = 0
        self.events: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self.watcher = Watcher(
            client,
            CONFIG_MAPS,
            field_selector=field_selector,
            on_list=self._listed,
            on_event=self._event,
            first_pause=0.01,
            longest_pause=0.1,
            count=count,
        )

    def _listed(self, items: list[JSON]) -> None:
        with self._lock:
            self.objects = {one["metadata"]["name"]: one for one in items}
            self.lists += 1

    def _event(self, event: str, value: JSON) -> None:
        name = value["metadata"]["name"]
        with self._lock:
            self.events.append((event, name))
            if event == "DELETED":
                del self.objects[name]
            else:
                self.objects[name] = value

    def names(self) -> set[str]:
        """Those there are."""
        with self._lock:
            return {name for name in self.objects if not name.startswith("kube-")}


@contextmanager
def watching(client: ApiClient, field_selector: str = "metadata.namespace=default") -> Iterator[Seen]:
    """A watcher that has listed once."""
    seen = Seen(client, field_selector)
    seen.watcher.start()
    try:
        wait_for(lambda: seen.lists, "the first list")
        yield seen
    finally:
        seen.watcher.stop()


@contextmanager
def embedded(folder: Path, **options: Any) -> Iterator[tuple[Any, ApiClient]]:
    """A server of a test's own, with its administrator's client."""
    with (
        FaultyServer(ApiServerOptions(**options)) as server,
        connect(server.write_kubeconfig(folder / "config")) as client,
    ):
        yield server, client


def make(client: ApiClient, name: str) -> None:
    client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}, "default")


def test_changes_are_told_as_they_happen(client: ApiClient) -> None:
    selector = "metadata.name=watched,metadata.namespace=default"
    with watching(client, selector) as seen:
        make(client, "watched")
        make(client, "not-selected")
        client.patch(CONFIG_MAPS, "watched", {"data": {"a": "1"}}, namespace="default")
        client.delete(CONFIG_MAPS, "watched", "default")
        wait_for(lambda: len(seen.events) == 3, "three events")
        assert seen.events == [("ADDED", "watched"), ("MODIFIED", "watched"), ("DELETED", "watched")]
        assert (seen.lists, seen.names()) == (1, set())
    client.delete(CONFIG_MAPS, "not-selected", "default")


def test_a_watch_that_the_server_ends_goes_on_without_a_list(tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, client), watching(client) as seen:
        for name in ("one", "two", "three"):
            server.drop_watches()
            make(client, name)
            wait_for(lambda name=name: name in seen.names(), name)  # type: ignore[misc]
        assert seen.lists == 1
        assert seen.events == [("ADDED", "one"), ("ADDED", "two"), ("ADDED", "three")]


def test_a_history_that_was_forgotten_is_made_up_for_by_a_list(tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, client):
        make(client, "deleted")
        with watching(client) as seen:
            refused = server.faults.add(RequestFault(verb="watch", error=503, retry_after=0))
            server.drop_watches()
            wait_for(lambda: refused.hits, "a watch that is refused")
            client.delete(CONFIG_MAPS, "deleted", "default")
            make(client, "made")
            server.compact()
            server.faults.clear()
            wait_for(lambda: seen.names() == {"made"}, "the second list")
            assert seen.lists == 2
            make(client, "after")
            wait_for(lambda: seen.names() == {"made", "after"}, "an event of the new watch")


def test_a_server_that_is_away_for_a_while_loses_nothing(tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, client), watching(client) as seen:
        refused = server.faults.add(RequestFault(verb="watch", disconnect=True))
        server.drop_watches()
        wait_for(lambda: refused.hits > 1, "attempts to watch again")
        make(client, "meanwhile")
        server.faults.clear()
        wait_for(lambda: seen.names() == {"meanwhile"}, "what happened meanwhile")
        assert seen.lists == 1


def test_a_server_that_was_restarted_without_its_history_is_listed_anew(tmp_path: Path) -> None:
    with embedded(tmp_path, tls=False, admin_token="t") as (first, client):
        make(client, "old")
        port, token = first.port, "t"
        connection = Connection(Credentials(first.url, lambda: token), "tests")
        seen = Seen(ApiClient(connection))
        seen.watcher.start()
        wait_for(lambda: seen.names() == {"old"}, "the first list")
        last = first.resource_version()
    try:
        with embedded(tmp_path, tls=False, admin_token="new", port=port) as (
            server,
            client,
        ):  # which refuses the watcher
            while server.resource_version() <= last:  # a version that is yet to come is waited for
                client.patch(NAMESPACES, "default", {"metadata": {"labels": {"n": str(server.resource_version())}}})
            make(client, "new")
            server.compact()
            token = "new"
            wait_for(lambda: seen.names() == {"new"}, "what the new server has")
    finally:
        seen.watcher.stop()
        connection.close()


def test_a_first_list_that_fails_is_tried_again(tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, client):
        fault = server.faults.add(RequestFault(verb="list", error=500, times=2))
        with watching(client) as seen:
            assert (fault.hits, seen.lists) == (2, 1)


@pytest.mark.parametrize("tls", [True, False])
def test_watcher_ends_during_a_quiet_watch(tmp_path: Path, tls: bool) -> None:
    with embedded(tmp_path, tls=tls) as (_, client):
        seen, others = Seen(client), set(threading.enumerate())
        seen.watcher.start()
        wait_for(lambda: seen.watcher.problem is None, "the watch")
        started = set(threading.enumerate()) - others
        (thread,) = (one for one in started if one.name == f"watch {CONFIG_MAPS.plural}")
        seen.watcher.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_watcher_reports_why_a_collection_is_unknown(tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, client):
        refused = server.faults.add(RequestFault(verb="list", error=500))
        seen = Seen(client)
        assert seen.watcher.problem == "configmaps: not listed yet"
        seen.watcher.start()
        wait_for(lambda: "injected fault" in str(seen.watcher.problem), "the refusal")
        server.faults.remove(refused)
        wait_for(lambda: seen.watcher.problem is None, "the watch")
        seen.watcher.stop()


def listed(version: str, *names: str) -> Reply:
    return Reply({"items": [config_map(name, version) for name in names], "metadata": {"resourceVersion": version}})


def config_map(name: str, version: str) -> Mapping[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def event(kind: str, name: str, version: str) -> Mapping[str, Any]:
    return {"type": kind, "object": config_map(name, version)}


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def test_where_each_watch_begins() -> None:
    replies = [
        listed("10", "a"),
        Reply([event("ADDED", "b", "11"), event("BOOKMARK", "", "15")], end=End.CUT),
        Reply([event("MODIFIED", "b", "16"), b"rubbish\n"]),
        Reply([event("DELETED", "a", "17"), b'{"type":"ADDED","obj'], end=End.CLOSE),
        Reply([GONE]),
        listed("30", "c"),
        Reply(end=End.HANG),
    ]
    with (
        scripted(replies) as server,
        Connection(Credentials(server.url, lambda: None), "tests") as connection,
        watching(ApiClient(connection), "a=b") as seen,
    ):
        wait_for(lambda: len(server.asked) == len(replies), "all requests")
        watches = [call.partition("resourceVersion=")[2].partition("&")[0] for call in server.calls]
        assert watches == ["", "10", "15", "16", "17", "", "30"]
        assert all("fieldSelector=a%3Db" in call for call in server.calls)
        assert all("allowWatchBookmarks=true" in call for call in server.calls if "watch=1" in call)
        assert seen.events == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]
        assert (seen.lists, seen.names()) == (2, {"c"})


def test_an_object_that_nobody_knows_what_to_make_of_does_not_end_it(
    client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []

    class Odd(Seen):
        def _event(self, event: str, value: JSON) -> None:
            if value["metadata"]["name"] == "odd" and not failed:
                raise ZeroDivisionError("nobody thought of it")
            super()._event(event, value)

    seen = Odd(client, count=failed.append)
    seen.watcher.start()
    try:
        wait_for(lambda: seen.lists, "the first list")
        make(client, "odd")
        wait_for(lambda: "odd" in seen.names(), "the object")
        make(client, "plain")
        wait_for(lambda: "plain" in seen.names(), "the next object")
    finally:
        seen.watcher.stop()
        for name in ("odd", "plain"):
            client.delete(CONFIG_MAPS, name, "default")
    assert failed == ["watch objects"]
    assert "watch objects configmaps failed unexpectedly; other work continues" in caplog.text
