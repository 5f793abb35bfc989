# SPDX-License-Identifier: Apache-2.0
"""Events as a user finds them, and as an API server that is away does not."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dra_driver.kube.api import ApiClient, Connection, Credentials, Kind
from dra_driver.kube.api.events import EventLimits, EventRecorder, ObjectReference
from dra_driver.kube.kinds import EVENTS
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.scripted import End, Reply, scripted
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]

QUICK = EventLimits(repeat=0.05)


@pytest.fixture
def claim() -> ObjectReference:
    """A claim that no other test tells of."""
    name = f"claim-{uuid.uuid4().hex[:8]}"
    return ObjectReference("resource.k8s.io/v1", "ResourceClaim", name, "default", str(uuid.uuid4()))


@contextmanager
def recording(client: ApiClient, limits: EventLimits = QUICK) -> Iterator[EventRecorder]:
    recorder = EventRecorder(client, "gpu.nvidia.com", "node-a", limits)
    try:
        yield recorder
    finally:
        recorder.close(60)


def events_about(client: ApiClient, about: ObjectReference) -> list[JSON]:
    return client.list(EVENTS, namespace="default", field_selector=f"involvedObject.name={about.name}").items


def counts(client: ApiClient, about: ObjectReference) -> dict[str, int]:
    return {one["message"]: one["count"] for one in events_about(client, about)}


def test_an_event_says_what_happened_to_which_object(client: ApiClient, claim: ObjectReference) -> None:
    with recording(client) as recorder:
        recorder.warning(claim, "InvalidConfig", "opaque config 0: unknown field 'x'")
    (event,) = events_about(client, claim)
    assert event["involvedObject"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": claim.name,
        "namespace": "default",
        "uid": claim.uid,
    }
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "InvalidConfig", 1)
    assert event["source"] == {"component": "gpu.nvidia.com", "host": "node-a"}
    assert event["firstTimestamp"] == event["lastTimestamp"]


def test_repeated_event_is_counted_in_the_same_object(client: ApiClient, claim: ObjectReference) -> None:
    with recording(client) as recorder:
        recorder.warning(claim, "Failed", "once more")
        wait_for(lambda: counts(client, claim) == {"once more": 1}, "the first")
        for _ in range(9):
            recorder.warning(claim, "Failed", "once more")
        wait_for(lambda: counts(client, claim) == {"once more": 10}, "the count")
    assert len(events_about(client, claim)) == 1


def test_repetitions_cost_few_requests(tmp_path: Path, claim: ObjectReference) -> None:
    with embedded(tmp_path) as (server, client):
        seen = server.faults.add(RequestFault(resource="events", delay=0.001))
        with recording(client, EventLimits(repeat=60.0)) as recorder:
            for _ in range(1000):
                recorder.warning(claim, "Failed", "again and again")
            wait_for(lambda: seen.hits, "the first write")
        assert counts(client, claim) == {"again and again": 1000}
        assert seen.hits <= 4, "the first, the rest when it was closed, and our own look"


def test_an_event_that_the_server_forgot_is_made_anew(client: ApiClient, claim: ObjectReference) -> None:
    with recording(client) as recorder:
        recorder.normal(claim, "Prepared", "all is well")
        (event,) = wait_for(lambda: events_about(client, claim), "the event")
        client.delete(EVENTS, event["metadata"]["name"], "default")
        recorder.normal(claim, "Prepared", "all is well")
        wait_for(lambda: counts(client, claim) == {"all is well": 2}, "it again")


def test_an_object_without_a_namespace_is_told_of_in_default(client: ApiClient, claim: ObjectReference) -> None:
    node = ObjectReference("v1", "Node", claim.name)
    with recording(client) as recorder:
        recorder.normal(node, "Seen", "there it is")
    assert counts(client, node) == {"there it is": 1}


def test_an_object_has_so_many_different_events_and_no_more(
    client: ApiClient, claim: ObjectReference, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    other = replace(claim, name=f"{claim.name}-other")
    with recording(client, EventLimits(burst=3)) as recorder:
        for number in range(5):
            recorder.warning(claim, "Failed", f"number {number}")
        recorder.warning(other, "Failed", "mine")
    assert set(counts(client, claim)) == {"number 0", "number 1", "number 2"}
    assert set(counts(client, other)) == {"mine"}
    assert caplog.text.count("too many about this object") == 2


def test_limit_of_events_refills_after_a_while(client: ApiClient, claim: ObjectReference) -> None:
    now = 1000.0
    recorder = EventRecorder(client, "tests", "", EventLimits(burst=1, refill=300), lambda: now)
    recorder.warning(claim, "Failed", "first")
    now += 299
    recorder.warning(claim, "Failed", "too early")
    now += 300
    recorder.warning(claim, "Failed", "second")
    recorder.close(60)
    assert set(counts(client, claim)) == {"first", "second"}


def test_a_long_message_is_cut(client: ApiClient, claim: ObjectReference) -> None:
    with recording(client) as recorder:
        recorder.warning(claim, "Failed", "ü" * 2000)
    (event,) = events_about(client, claim)
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("…")


def test_a_server_that_does_not_answer_costs_the_caller_nothing(
    claim: ObjectReference, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with (
        scripted([Reply(end=End.HANG)]) as server,
        Connection(Credentials(server.url, lambda: None), "tests") as connection,
    ):
        recorder = EventRecorder(ApiClient(connection), "tests", "", EventLimits(waiting=10))
        recorder.warning(claim, "Failed", "the first")
        wait_for(lambda: server.asked, "its request")
        for number in range(100):
            recorder.warning(replace(claim, name=f"claim-{number}"), "Failed", "nobody hears this")
        recorder.close(0)
        assert len(server.asked) == 1, "nothing waited for the answer"
    assert caplog.text.count("10 others wait already") == 91


def test_unwritten_events_are_logged(claim: ObjectReference, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    refused = Reply({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, 403)
    with (
        scripted([refused] * 2) as server,
        Connection(Credentials(server.url, lambda: None), "tests") as connection,
    ):
        recorder = EventRecorder(ApiClient(connection), "tests")
        for text in ("first", "second"):
            recorder.warning(claim, "Failed", text)
            wait_for(lambda text=text: dropped(caplog, text), text)  # type: ignore[misc]
        recorder.close(60)
        recorder.warning(claim, "Failed", "after the end")
        assert [call.split("?")[0] for call in server.calls] == ["POST /api/v1/namespaces/default/events"] * 2
    assert caplog.text.count("events cannot be written: POST /api/v1/namespaces/default/events: 403 Forbidden: no") == 1
    assert f"event about ResourceClaim default/{claim.name} dropped, it cannot be written" in caplog.text


def test_an_answer_that_was_lost_makes_no_second_event(tmp_path: Path, claim: ObjectReference) -> None:
    with embedded(tmp_path) as (server, client):
        server.faults.add(RequestFault(verb="create", resource="events", disconnect=True, after_commit=True, times=1))
        with recording(client) as recorder:
            recorder.warning(claim, "Failed", "once")
        assert counts(client, claim) == {"once": 1}


def dropped(caplog: pytest.LogCaptureFixture, message: str) -> bool:
    return any(getattr(record, "event", "") == message for record in caplog.records)


@contextmanager
def embedded(folder: Path) -> Iterator[tuple[Any, ApiClient]]:
    """A server of a test's own, with its administrator's client."""
    with (
        FaultyServer(ApiServerOptions()) as server,
        connect(server.write_kubeconfig(folder / "config")) as client,
    ):
        yield server, client


class OddEventClient:
    """A client that fails unexpectedly when it creates the Event with the message `odd`."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    def create(self, kind: Kind, manifest: dict[str, Any], namespace: str) -> None:
        if manifest["message"] == "odd":
            raise ZeroDivisionError("nobody thought of it")
        self.client.create(kind, manifest, namespace)


def test_event_that_fails_unexpectedly_stops_no_other(client: ApiClient, claim: ObjectReference) -> None:
    failed: list[str] = []
    odd = cast(ApiClient, OddEventClient(client))
    recorder = EventRecorder(odd, "gpu.nvidia.com", "node-a", QUICK, count=failed.append)
    for message in ("odd", "plain"):
        recorder.warning(claim, "Failed", message)
    wait_for(lambda: counts(client, claim) == {"plain": 1}, "the other event")
    recorder.close(60)
    assert failed == ["write event"]
