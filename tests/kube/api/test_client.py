# SPDX-License-Identifier: Apache-2.0
"""The verbs: against a server, real where there is one, and against answers that a real one seldom gives."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import (
    ApiClient,
    ApiError,
    ConflictError,
    Connection,
    Credentials,
    Kind,
    NotFoundError,
    StatusError,
    UnreachableError,
)
from dra_driver.kube.api.client import EventStream
from dra_driver.kube.api.errors import GoneError
from dra_driver.kube.kinds import CONFIG_MAPS, NAMESPACES, slices_of
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.scripted import End, Reply, ScriptedServer, scripted

pytestmark = pytest.mark.cluster

SLICES = slices_of(V1)


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", **more}}


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"test-{uuid.uuid4().hex[:10]}"


@contextmanager
def answering(*replies: Reply) -> Iterator[tuple[ScriptedServer, ApiClient]]:
    """A client of a server that gives these answers."""
    with (
        scripted(replies) as server,
        Connection(Credentials(server.url, lambda: None), "tests", read_seconds=60) as connection,
    ):
        yield server, ApiClient(connection)


@pytest.mark.parametrize(
    ("kind", "place", "path"),
    [
        (NAMESPACES, {}, "/api/v1/namespaces"),
        (NAMESPACES, {"name": "a"}, "/api/v1/namespaces/a"),
        (CONFIG_MAPS, {}, "/api/v1/configmaps"),
        (CONFIG_MAPS, {"namespace": "a", "name": "b"}, "/api/v1/namespaces/a/configmaps/b"),
        (SLICES, {"name": "a/../b c"}, "/apis/resource.k8s.io/v1/resourceslices/a%2F..%2Fb%20c"),
        (SLICES, {"name": "a", "subresource": "status"}, "/apis/resource.k8s.io/v1/resourceslices/a/status"),
    ],
)
def test_path_of_an_object(kind: Kind, place: dict[str, str], path: str) -> None:
    assert kind.path(**place) == path


def test_an_object_is_made_read_changed_and_deleted(client: ApiClient, name: str) -> None:
    made = client.create(CONFIG_MAPS, config_map(name), "default")
    assert client.get(CONFIG_MAPS, name, "default")["metadata"]["uid"] == made["metadata"]["uid"]
    changed = client.update(CONFIG_MAPS, {**made, "data": {"a": "1", "b": "2"}})
    assert changed["data"] == {"a": "1", "b": "2"}
    patched = client.patch(CONFIG_MAPS, name, {"data": {"b": None, "c": "3"}}, namespace="default")
    assert patched["data"] == {"a": "1", "c": "3"}
    client.delete(CONFIG_MAPS, name, "default")
    with pytest.raises(NotFoundError):
        client.get(CONFIG_MAPS, name, "default")


def test_two_of_one_name_are_a_conflict(client: ApiClient, name: str) -> None:
    client.create(CONFIG_MAPS, config_map(name), "default")
    with pytest.raises(ConflictError, match="already exists") as raised:
        client.create(CONFIG_MAPS, config_map(name), "default")
    assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")


def test_an_object_that_somebody_changed_meanwhile_is_a_conflict(client: ApiClient, name: str) -> None:
    made = client.create(CONFIG_MAPS, config_map(name), "default")
    client.update(CONFIG_MAPS, {**made, "data": {"a": "1"}})
    with pytest.raises(ConflictError, match="has been modified"):
        client.update(CONFIG_MAPS, {**made, "data": {"a": "2"}})


def test_only_the_object_that_was_meant_is_deleted(client: ApiClient, name: str) -> None:
    made = client.create(CONFIG_MAPS, config_map(name), "default")["metadata"]
    for precondition in ({"uid": str(uuid.uuid4())}, {"resource_version": "1"}):
        with pytest.raises(ConflictError):
            client.delete(CONFIG_MAPS, name, "default", **precondition)
    client.delete(CONFIG_MAPS, name, "default", uid=made["uid"], resource_version=made["resourceVersion"])


def test_missing_objects_and_refused_requests_are_errors(client: ApiClient) -> None:
    with pytest.raises(NotFoundError, match=r'GET /api/v1/.*/nothing: 404 NotFound: configmaps "nothing" not found'):
        client.get(CONFIG_MAPS, "nothing", "default")
    with pytest.raises(NotFoundError):
        client.list(Kind("resource.k8s.io/v9", "resourceslices"))
    with pytest.raises(StatusError, match="422 Invalid") as raised:
        client.create(CONFIG_MAPS, config_map("No_Such_Name"), "default")
    assert raised.value.status == 422


def test_selectors_choose_from_a_list(client: ApiClient, name: str) -> None:
    for index in range(3):
        client.create(CONFIG_MAPS, config_map(f"{name}-{index}", labels={"test": name, "n": str(index)}), "default")
    found = client.list(CONFIG_MAPS, namespace="default", label_selector=f"test={name},n!=1")
    assert [one["metadata"]["name"] for one in found.items] == [f"{name}-0", f"{name}-2"]
    found = client.list(CONFIG_MAPS, field_selector=f"metadata.name={name}-1")
    assert [one["metadata"]["name"] for one in found.items] == [f"{name}-1"]


def test_a_long_list_is_read_to_its_end(client: ApiClient, name: str) -> None:
    names = [f"{name}-{index:03}" for index in range(120)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: client.create(CONFIG_MAPS, config_map(one, labels={"l": name}), "default"), names))
    page = client.list(CONFIG_MAPS, namespace="default", label_selector=f"l={name}", page=50)
    assert [one["metadata"]["name"] for one in page.items] == names
    assert int(page.resource_version) > 0


def page(*names: str, rest: str = "") -> Reply:
    return Reply(
        {
            "items": [{"metadata": {"name": one}} for one in names],
            "metadata": {"resourceVersion": "7", "continue": rest},
        }
    )


def status(code: int, reason: str, message: str = "no") -> Reply:
    return Reply({"kind": "Status", "code": code, "reason": reason, "message": message}, code)


def test_a_list_whose_rest_was_forgotten_is_read_anew_in_one_piece() -> None:
    with answering(page("a", rest="t=1&x"), status(410, "Expired"), page("a", "b", "c")) as (server, client):
        assert [one["metadata"]["name"] for one in client.list(SLICES, field_selector="a=b").items] == ["a", "b", "c"]
        path = "GET /apis/resource.k8s.io/v1/resourceslices?fieldSelector=a%3Db"
        assert server.calls == [f"{path}&limit=500", f"{path}&limit=500&continue=t%3D1%26x", path]


def test_an_empty_list_may_have_null_items() -> None:
    with answering(Reply({"items": None, "metadata": {"resourceVersion": "3"}})) as (_, client):
        found = client.list(SLICES)
        assert (found.items, found.resource_version) == ([], "3")


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        (status(409, "Conflict", "changed"), ConflictError, "GET /x: 409 Conflict: changed"),
        (status(404, "NotFound", "gone"), NotFoundError, "GET /x: 404 NotFound: gone"),
        (status(410, "Expired", "old"), GoneError, "GET /x: 410 Expired: old"),
        (status(403, "Forbidden", "you may not"), StatusError, "GET /x: 403 Forbidden: you may not"),
        (Reply(b"<h1>no</h1>", 404), NotFoundError, "GET /x: 404: <h1>no</h1>"),
        (Reply(b"", 500), StatusError, "GET /x: 500: no message"),
        (Reply(b"\xff" * 9999, 500), StatusError, "GET /x: 500: "),
        (Reply(b"<html>log in</html>"), StatusError, "GET /x: 200: the answer is not a JSON object"),
        (Reply(b"[]"), StatusError, "GET /x: 200: the answer is not a JSON object"),
        (Reply(status=302, headers={"Location": "/login"}), StatusError, "GET /x: 302: {}"),
    ],
)
def test_wrong_answer_is_an_error_with_a_short_text(reply: Reply, error: type[ApiError], text: str) -> None:
    with answering(reply) as (_, client), pytest.raises(error) as raised:
        client.get_path("/x")
    assert str(raised.value).startswith(text)
    assert len(str(raised.value)) < 600


class TestLostAnswers:
    """The server does what it was asked, and the connection breaks before it says so."""

    @contextmanager
    def losing(self, folder: Path, verb: str) -> Iterator[ApiClient]:
        with FaultyServer(ApiServerOptions()) as server, connect(server.write_kubeconfig(folder / "config")) as client:
            client.create(CONFIG_MAPS, config_map("there"), "default")
            server.faults.add(
                RequestFault(verb=verb, resource="configmaps", disconnect=True, after_commit=True, times=1)
            )
            yield client

    def test_a_named_create_is_made_once_and_told_as_a_conflict(self, tmp_path: Path) -> None:
        with self.losing(tmp_path, "create") as client:
            with pytest.raises(ConflictError, match="already exists"):
                client.create(CONFIG_MAPS, config_map("new"), "default")
            assert client.get(CONFIG_MAPS, "new", "default")

    def test_a_create_with_a_generated_name_is_made_once_and_told_as_lost(self, tmp_path: Path) -> None:
        with self.losing(tmp_path, "create") as client:
            value = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "new-"}}
            with pytest.raises(UnreachableError):
                client.create(CONFIG_MAPS, value, "default")
            names = [one["metadata"]["name"] for one in client.list(CONFIG_MAPS, namespace="default").items]
            assert len([name for name in names if name.startswith("new-")]) == 1

    def test_an_update_is_done_once_and_told_as_a_conflict(self, tmp_path: Path) -> None:
        with self.losing(tmp_path, "update") as client:
            value = client.get(CONFIG_MAPS, "there", "default")
            with pytest.raises(ConflictError, match="has been modified"):
                client.update(CONFIG_MAPS, {**value, "data": {"a": "1"}})
            assert client.get(CONFIG_MAPS, "there", "default")["data"] == {"a": "1"}

    def test_a_delete_is_told_as_done_before(self, tmp_path: Path) -> None:
        with self.losing(tmp_path, "delete") as client, pytest.raises(NotFoundError):
            client.delete(CONFIG_MAPS, "there", "default")

    def test_a_merge_patch_can_be_repeated(self, tmp_path: Path) -> None:
        with self.losing(tmp_path, "patch") as client:
            changed = client.patch(CONFIG_MAPS, "there", {"data": {"a": "1"}}, namespace="default")
            assert changed["data"] == {"a": "1"}


def test_metadata_alone_when_that_is_enough(client: ApiClient, name: str) -> None:
    made = client.create(CONFIG_MAPS, {**config_map(name), "data": {"a": "1"}}, "default")
    page = client.list(CONFIG_MAPS, field_selector=f"metadata.name={name}", metadata_only=True)
    (listed,) = page.items
    assert "data" not in listed
    assert listed["metadata"]["uid"] == made["metadata"]["uid"]
    events = client.watch(
        CONFIG_MAPS, page.resource_version, field_selector=f"metadata.name={name}", metadata_only=True
    )
    client.patch(CONFIG_MAPS, name, {"data": {"b": "2"}}, namespace="default")
    event, changed = next(events)
    assert event == "MODIFIED", changed
    assert changed["kind"] == "PartialObjectMetadata"
    assert "data" not in changed
    events.end()


def test_a_stream_whose_file_another_thread_has_just_closed_cannot_be_read() -> None:
    class Closed:
        def stream(self, _: int) -> Iterator[bytes]:
            yield b"{"
            raise ValueError("I/O operation on closed file.")

        def close(self) -> None:
            return

    response: Any = Closed()
    with pytest.raises(UnreachableError, match="closed file"):
        next(EventStream(response, "/x"))


def test_unneeded_fields_are_dropped_before_the_next_page() -> None:
    pages = [
        Reply({"items": [{"a": 1, "b": 2}], "metadata": {"continue": "more"}}),
        Reply({"items": [{"a": 3}], "metadata": {"resourceVersion": "7"}}),
    ]
    with answering(*pages) as (server, client):
        page = client.list(SLICES, keep=lambda value: {"a": value["a"]}, page=1)
    assert (page.items, page.resource_version) == ([{"a": 1}, {"a": 3}], "7")
    assert all("limit=1" in call for call in server.calls)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("-1", 0.0)])
def test_an_error_says_when_to_come_back(header: str, seconds: float) -> None:
    with answering(*[Reply(b"busy", 500, {"Retry-After": header})] * 2) as (_, client):
        with pytest.raises(StatusError) as caught:
            client.get(SLICES, "a")
        assert caught.value.retry_after == seconds
        with pytest.raises(StatusError) as caught:
            client.watch(SLICES, "1")
        assert caught.value.retry_after == seconds


def test_watches_last_for_times_that_differ() -> None:
    with answering(*[Reply([]) for _ in range(8)]) as (server, client):
        for _ in range(8):
            assert list(client.watch(SLICES, "1")) == []
    seconds = [int(call.partition("timeoutSeconds=")[2]) for call in server.calls]
    assert all(300 <= one <= 600 for one in seconds)
    assert len(set(seconds)) > 1


def test_a_watch_that_is_not_one_is_an_error() -> None:
    for reply in (status(403, "Forbidden"), Reply(b"login", 404)):
        with answering(reply) as (_, client), pytest.raises(StatusError, match=r"GET /apis/.*watch=1"):
            next(client.watch(SLICES, "1"))


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish\n",
        b"[]\n",
        b"{}\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":[]}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
    ],
)
def test_an_event_that_is_none_ends_a_watch_with_an_error(line: bytes) -> None:
    good: dict[str, Any] = {"type": "ADDED", "object": {"metadata": {"resourceVersion": "5"}}}
    with answering(Reply([good, line])) as (_, client):
        events = client.watch(SLICES, "1")
        assert next(events) == ("ADDED", good["object"])
        with pytest.raises(UnreachableError, match="which is not an event"):
            next(events)


def test_an_error_event_is_that_error() -> None:
    event = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    with answering(Reply([event])) as (_, client), pytest.raises(GoneError, match="410 Expired: too old"):
        next(client.watch(SLICES, "1"))


@pytest.mark.parametrize("end", [End.CUT, End.CLOSE])
def test_events_come_in_pieces_of_any_size_and_a_line_that_is_cut_is_none(end: End) -> None:
    line = b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"5"}}}\n'
    pieces = [line + line[:9], line[9:-1], b"\n\n", line[:-1]]
    seen = []
    with answering(Reply(pieces, end=end)) as (_, client):
        ended: AbstractContextManager[object] = pytest.raises(UnreachableError) if end is End.CUT else nullcontext()
        with ended:
            for event, _ in client.watch(SLICES, "1"):
                seen.append(event)
    assert seen == ["ADDED"] * 2


def test_unknown_identity_is_named_with_the_server_and_the_reason() -> None:
    refused = Reply({"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}, status=401)
    with scripted([refused]) as server:
        found = Credentials(server.url, lambda: "old", identity="kubeconfig /home/me/config: user 'me'")
        with Connection(found, "tests") as connection, pytest.raises(StatusError) as raised:
            ApiClient(connection).get_path("/apis")
    assert str(raised.value) == (
        f"GET /apis: 401 Unauthorized: {server.url} does not know kubeconfig /home/me/config: user 'me':"
        " the token or certificate is wrong or has expired"
    )


def test_a_deep_value_of_a_user_does_not_hide_the_other_objects() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    items = f'{{"metadata": {{"name": "a"}}, "deep": {deep}}}, {{"metadata": {{"name": "b"}}}}'
    event = f'{{"type": "ADDED", "object": {{"metadata": {{"resourceVersion": "7"}}, "deep": {deep}}}}}\n'
    with answering(Reply(f'{{"items": [{items}]}}'.encode()), Reply([event.encode()])) as (_, client):
        assert [one["metadata"]["name"] for one in client.list(CONFIG_MAPS).items] == ["a", "b"]
        assert [value["metadata"]["resourceVersion"] for _, value in client.watch(CONFIG_MAPS, "1")] == ["7"]
