# SPDX-License-Identifier: Apache-2.0
"""Watches: what a client is told, when a watch ends, and what it must then do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import urllib3

from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.faultyserver import FaultyServer

from .conftest import CONFIG_MAPS, SLICES, resource_slice
from .conversation import Partner


@pytest.fixture(scope="module")
def plain() -> Iterator[FaultyServer]:
    """A server without TLS."""
    with FaultyServer(ApiServerOptions(tls=False)) as running:
        yield running


@pytest.fixture(scope="module")
def client(plain: FaultyServer) -> Partner:
    return Partner(plain.url, plain.admin_token, None)


@contextmanager
def watching(server: FaultyServer, path: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The frames of a watch as they come."""
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=60, read=60))
    headers = {"Authorization": f"Bearer {server.admin_token}"}
    answer = pool.request("GET", f"{server.url}{path}", headers=headers, preload_content=False)
    assert answer.status == 200
    try:
        yield (json.loads(line) for line in answer)
    finally:
        answer.close()


def told(frame: dict[str, Any]) -> tuple[str, str]:
    return frame["type"], frame["object"]["metadata"].get("name", "")


def test_a_watch_without_a_revision_begins_with_what_is_there(plain: FaultyServer, client: Partner) -> None:
    client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "here"}})
    with watching(plain, f"{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Dhere") as frames:
        assert told(next(frames)) == ("ADDED", "here")
        client.ask("DELETE", f"{CONFIG_MAPS}/here")
        assert told(next(frames)) == ("DELETED", "here")


def test_a_streaming_list_ends_with_a_bookmark_that_says_so(plain: FaultyServer, client: Partner) -> None:
    client.ask("POST", SLICES, resource_slice("streamed"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with watching(plain, f"{SLICES}?{query}") as frames:
        listed, bookmark = [], next(frames)
        while bookmark["type"] != "BOOKMARK":
            listed.append(told(bookmark))
            bookmark = next(frames)
    assert ("ADDED", "streamed") in listed
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert bookmark["object"]["kind"] == "ResourceSlice"


def test_an_object_enters_and_leaves_a_selection(plain: FaultyServer, client: Partner) -> None:
    client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "moves"}})
    merge = "application/merge-patch+json"
    with watching(plain, f"{CONFIG_MAPS}?watch=1&labelSelector=team%3Dblue") as frames:
        for labels in ({"team": "blue"}, {"team": "blue", "more": "x"}, {"team": "red"}):
            client.ask("PATCH", f"{CONFIG_MAPS}/moves", {"metadata": {"labels": labels}}, Content_Type=merge)
        frames_of = [next(frames) for _ in range(3)]
    assert [told(frame) for frame in frames_of] == [("ADDED", "moves"), ("MODIFIED", "moves"), ("DELETED", "moves")]
    assert frames_of[2]["object"]["metadata"]["labels"]["team"] == "blue"


def test_a_watch_from_before_compaction_is_told_that_it_is_gone(plain: FaultyServer, client: Partner) -> None:
    revision = plain.resource_version()
    client.ask("POST", CONFIG_MAPS, {"metadata": {"name": "forgotten"}})
    plain.compact()
    with watching(plain, f"{CONFIG_MAPS}?watch=1&resourceVersion={revision}") as frames:
        (frame,) = list(frames)
    assert frame["type"] == "ERROR"
    assert (frame["object"]["code"], frame["object"]["reason"]) == (410, "Expired")


def test_a_list_cannot_go_on_after_compaction(plain: FaultyServer, client: Partner) -> None:
    for name in ("page-1", "page-2"):
        client.ask("POST", SLICES, resource_slice(name))
    _, _, first = client.ask("GET", f"{SLICES}?limit=1")
    client.ask("POST", SLICES, resource_slice("page-3"))
    plain.compact()
    code, _, gone = client.ask("GET", f"{SLICES}?limit=1&continue={first['metadata']['continue']}")
    assert (code, gone["reason"]) == (410, "Expired")


def test_dropped_watches_end_without_an_error(plain: FaultyServer, client: Partner) -> None:
    with watching(plain, f"{CONFIG_MAPS}?watch=1&labelSelector=none") as frames:
        plain.drop_watches("configmaps")
        assert list(frames) == []


def test_a_watch_ends_at_its_timeout(plain: FaultyServer) -> None:
    with watching(plain, f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1&labelSelector=none") as frames:
        assert list(frames) == []


def test_a_watcher_that_hangs_up_is_forgotten(plain: FaultyServer, client: Partner) -> None:
    path = "/api/v1/namespaces/default/secrets"
    with watching(plain, f"{path}?watch=1") as frames:
        client.ask("POST", path, {"metadata": {"name": "seen"}})
        assert told(next(frames)) == ("ADDED", "seen")
        assert plain.call(lambda cluster: len(cluster.store.collection("secrets").watchers)) == 1
    while plain.call(lambda cluster: len(cluster.store.collection("secrets").watchers)):
        client.ask("GET", path)
