# SPDX-License-Identifier: Apache-2.0
"""Who leads: attempt by attempt with a clock that is turned by hand, and whole elections with work in them."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, ConflictError
from dra_driver.kube.api.leases import Election, LeaseCandidate, LeaseTiming
from dra_driver.kube.kinds import LEASES
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import connect
from tests.support.clock import Clock
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

NAMESPACE = "default"
QUICK = LeaseTiming(duration=4.0, renew_deadline=3.0, retry_period=0.05)  # a loaded machine renews late


@pytest.fixture
def name() -> str:
    """A Lease of this test's own."""
    return f"lease-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def spec_of(client: ApiClient, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = client.get(LEASES, name, NAMESPACE)["spec"]
    return spec


class Pair:
    """Two candidates for one Lease of 15 seconds."""

    def __init__(self, client: ApiClient, name: str, clock: Clock) -> None:
        self.a, self.b = (LeaseCandidate(client, NAMESPACE, name, identity, 15, clock) for identity in "ab")


@pytest.fixture
def pair(client: ApiClient, name: str, clock: Clock) -> Pair:
    return Pair(client, name, clock)


def test_the_first_one_takes_it(client: ApiClient, name: str, pair: Pair) -> None:
    assert pair.a.attempt()
    assert not pair.b.attempt()
    spec = spec_of(client, name)
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
    assert spec["acquireTime"] == spec["renewTime"]


def test_a_renewal_changes_its_time_only(client: ApiClient, name: str, pair: Pair, clock: Clock) -> None:
    pair.a.attempt()
    before = spec_of(client, name)
    clock.now += 2
    assert pair.a.attempt()
    assert pair.a.renewed_at == clock.now
    after = spec_of(client, name)
    assert after.pop("renewTime") > before.pop("renewTime")
    assert after == before


def test_a_holder_that_renews_is_left_alone_for_ever(pair: Pair, clock: Clock) -> None:
    pair.a.attempt()
    for _ in range(10):
        clock.now += 14
        assert pair.a.attempt()
        assert not pair.b.attempt()


def test_a_silent_holder_is_waited_for_from_when_it_was_seen(
    client: ApiClient, name: str, pair: Pair, clock: Clock
) -> None:
    pair.a.attempt()
    clock.now += 100  # the first look of b: for all it knows, a renewed just now
    assert not pair.b.attempt()
    clock.now += 14.9
    assert not pair.b.attempt()
    clock.now += 0.1
    assert pair.b.attempt()
    assert spec_of(client, name)["leaseTransitions"] == 1
    assert not pair.a.attempt(), "the old holder sees the new one"
    assert pair.a.holder == "b"


def test_a_change_of_something_else_is_no_renewal(client: ApiClient, name: str, pair: Pair, clock: Clock) -> None:
    pair.a.attempt()
    pair.b.attempt()
    clock.now += 15
    client.patch(LEASES, name, {"metadata": {"labels": {"a": "b"}}}, namespace=NAMESPACE)
    assert pair.b.attempt()


def test_a_holder_goes_on_after_a_change_of_something_else(client: ApiClient, name: str, pair: Pair) -> None:
    pair.a.attempt()
    client.patch(LEASES, name, {"metadata": {"labels": {"a": "b"}}}, namespace=NAMESPACE)
    assert pair.a.attempt()
    assert client.get(LEASES, name, NAMESPACE)["metadata"]["labels"] == {"a": "b"}


def test_a_released_lease_is_free_at_once(client: ApiClient, name: str, pair: Pair) -> None:
    pair.a.attempt()
    pair.b.attempt()
    pair.a.release()
    assert spec_of(client, name)["holderIdentity"] == ""
    assert pair.b.attempt()
    assert spec_of(client, name)["leaseTransitions"] == 1
    pair.a.release()
    assert spec_of(client, name)["holderIdentity"] == "b", "who does not hold it releases nothing"


def test_a_deleted_lease_is_made_again_by_its_holder_and_by_others_only_in_time(
    client: ApiClient, name: str, pair: Pair, clock: Clock
) -> None:
    pair.a.attempt()
    pair.b.attempt()
    client.delete(LEASES, name, NAMESPACE)
    assert not pair.b.attempt(), "its holder may still be at work"
    assert pair.a.attempt()
    client.delete(LEASES, name, NAMESPACE)
    clock.now += 15
    assert pair.b.attempt()


def test_only_one_of_simultaneous_candidates_takes_the_lease(client: ApiClient, name: str, clock: Clock) -> None:
    candidates = [LeaseCandidate(client, NAMESPACE, name, str(one), 15, clock) for one in range(8)]
    barrier = threading.Barrier(len(candidates))
    won = []

    def contest(candidate: LeaseCandidate) -> None:
        barrier.wait()
        if candidate.attempt():
            won.append(candidate)

    threads = [threading.Thread(target=contest, args=(one,)) for one in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


@pytest.mark.parametrize(
    ("timing", "says"),
    [
        ((10.0, 10.0, 2.0), "longer than the renew deadline"),
        ((15.0, 2.0, 2.0), "1.2 times the retry period"),
        ((15.0, 10.0, 0.0), "1.2 times the retry period"),
        ((0.5, 0.2, 0.1), "whole seconds"),
        ((15.5, 10.0, 2.0), "whole seconds"),
    ],
)
def test_times_that_do_not_fit_are_refused(timing: tuple[float, float, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LeaseTiming(*timing)


class Work:
    """What is done under a Lease by whom, and whether two ever did it at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_work: list[str] = []
        self.terms: list[str] = []
        self.overlaps = 0

    @contextlib.contextmanager
    def term(self, identity: str) -> Iterator[None]:
        with self.lock:
            self.overlaps += bool(self.at_work)
            self.at_work.append(identity)
            self.terms.append(identity)
        try:
            yield
        finally:
            with self.lock:
                self.at_work.remove(identity)


@contextlib.contextmanager
def running(election: Election, work: Work, identity: str, winding_down: float = 0.0) -> Iterator[threading.Thread]:
    """An election in a thread, whose work takes `winding_down` seconds to end."""

    def lead(stop: threading.Event) -> None:
        with work.term(identity):
            stop.wait()
            time.sleep(winding_down)

    thread = threading.Thread(target=election.run, args=(lead,))
    thread.start()
    try:
        yield thread
    finally:
        election.stop()
        thread.join(60)
        assert not thread.is_alive(), "the election does not stop"


def test_second_candidate_leads_after_the_first_stops(client: ApiClient, name: str) -> None:
    work = Work()
    a = Election(client, NAMESPACE, name, "a", QUICK)
    b = Election(client, NAMESPACE, name, "b", QUICK)
    with running(a, work, "a", winding_down=4.5):
        wait_for(lambda: work.at_work == ["a"], "a to lead")
        with running(b, work, "b"):
            wait_for(lambda: b.holder == "a", "b to see a")
            a.stop()
            wait_for(lambda: work.at_work == ["b"], "b to lead")
    assert work.overlaps == 0, "b waited for the work of a to end, which took longer than the lease lasts"
    assert work.terms == ["a", "b"]
    assert spec_of(client, name)["holderIdentity"] == ""


def test_leader_that_cannot_renew_stops_before_another_begins(tmp_path: Path, name: str) -> None:
    with (
        FaultyServer(ApiServerOptions()) as server,
        connect(server.write_kubeconfig(tmp_path / "config")) as client,
    ):
        work = Work()
        told: list[bool] = []
        a = Election(client, NAMESPACE, name, "a", QUICK, changed=told.append)
        b = Election(client, NAMESPACE, name, "b", QUICK)
        with running(a, work, "a", winding_down=0.1):
            wait_for(lambda: work.at_work == ["a"], "a to lead")
            fault = server.faults.add(RequestFault(resource="leases", verb="update", error=500))
            wait_for(lambda: told[-2:] == [True, False], "a to stop its work")
            assert work.at_work == []
            with running(b, work, "b"):
                server.faults.remove(fault)
                wait_for(lambda: len(work.terms) == 2, "somebody to lead again")
        assert work.overlaps == 0


def test_leader_that_sees_another_holder_stops_at_once(client: ApiClient, name: str) -> None:
    work = Work()
    patient = LeaseTiming(duration=60.0, renew_deadline=50.0, retry_period=0.05)
    with running(Election(client, NAMESPACE, name, "a", patient), work, "a"):
        wait_for(lambda: work.at_work == ["a"], "a to lead")
        usurp(client, name)
        wait_for(lambda: not work.at_work, "a to stop")


def usurp(client: ApiClient, name: str) -> None:
    """What somebody with an editor can do."""
    while True:
        lease = client.get(LEASES, name, NAMESPACE)
        lease["spec"]["holderIdentity"] = "somebody-else"
        with contextlib.suppress(ConflictError):
            client.update(LEASES, lease)
            return


def test_work_that_does_not_end_costs_the_process(client: ApiClient, name: str) -> None:
    overdue = threading.Event()
    allowed = threading.Event()
    election = Election(client, NAMESPACE, name, "a", QUICK, overdue=lambda _why: overdue.set())

    def stubborn(_stop: threading.Event) -> None:
        usurp(client, name)
        assert overdue.wait(60), "nobody ended the process"
        allowed.set()

    thread = threading.Thread(target=election.run, args=(stubborn,))
    thread.start()
    wait_for(allowed.is_set, "the end of the work")
    election.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_work_that_is_done_releases_the_lease(client: ApiClient, name: str) -> None:
    Election(client, NAMESPACE, name, "a", QUICK).run(lambda _stop: None)
    assert spec_of(client, name)["holderIdentity"] == ""


def test_work_that_fails_releases_the_lease(client: ApiClient, name: str) -> None:
    def fail(_stop: threading.Event) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        Election(client, NAMESPACE, name, "a", QUICK).run(fail)
    assert spec_of(client, name)["holderIdentity"] == ""


def test_candidate_that_never_led_stops_when_told(client: ApiClient, name: str) -> None:
    work = Work()
    a = Election(client, NAMESPACE, name, "a", QUICK)
    b = Election(client, NAMESPACE, name, "b", QUICK)
    with running(a, work, "a"):
        wait_for(lambda: work.at_work == ["a"], "a to lead")
        with running(b, work, "b"):
            wait_for(lambda: b.holder == "a", "b to see a")
        assert work.terms == ["a"]
