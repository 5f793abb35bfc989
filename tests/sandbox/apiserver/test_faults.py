# SPDX-License-Identifier: Apache-2.0
"""Failures on purpose: each reaches exactly the requests that it is meant for."""

from collections.abc import Iterator

import pytest
import urllib3.exceptions

from tests.support.faultyserver import FaultyServer, RequestFault

from .conftest import CLAIMS, CONFIG_MAPS, SLICES, claim, resource_slice
from .conversation import Partner


@pytest.fixture(autouse=True)
def no_faults_left(server: FaultyServer) -> Iterator[None]:
    yield
    server.faults.clear()


@pytest.mark.parametrize(
    ("error", "reason", "retry"),
    [
        (409, "Conflict", None),
        (429, "TooManyRequests", "7"),
        (500, "InternalError", None),
        (503, "ServiceUnavailable", "7"),
    ],
)
def test_a_chosen_error_is_answered_a_chosen_number_of_times(
    server: FaultyServer, api: Partner, error: int, reason: str, retry: str | None
) -> None:
    fault = server.faults.add(
        RequestFault(verb="get", resource="resourceclaims", name="c", error=error, retry_after=7, times=2)
    )
    api.ask("POST", CLAIMS, claim("c"))
    answers = [api.ask("GET", f"{CLAIMS}/c") for _ in range(3)]
    assert [code for code, _, _ in answers] == [error, error, 200]
    assert answers[0][2]["reason"] == reason
    assert answers[0][1].get("retry-after") == retry
    assert fault.hits == 2


@pytest.mark.parametrize(
    ("fault", "hit"),
    [
        (RequestFault(verb="list", error=500), False),
        (RequestFault(resource="resourceclaims/status", error=500), False),
        (RequestFault(resource="resourceclaims", error=500), True),
        (RequestFault(namespace="default", error=500), True),
        (RequestFault(namespace="other", error=500), False),
        (RequestFault(user="kubernetes-admin", error=500), True),
        (RequestFault(user="somebody", error=500), False),
    ],
    ids=str,
)
def test_a_fault_hits_the_requests_that_it_describes(
    server: FaultyServer, api: Partner, fault: RequestFault, hit: bool
) -> None:
    api.ask("POST", CLAIMS, claim("described"))
    server.faults.add(fault)
    assert (api.ask("GET", f"{CLAIMS}/described")[0] == 500) is hit


def test_a_lost_answer_leaves_the_write_done(server: FaultyServer, api: Partner) -> None:
    server.faults.add(
        RequestFault(verb="create", resource="resourceslices", disconnect=True, after_commit=True, times=1)
    )
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.ask("POST", SLICES, resource_slice("unheard"))
    assert api.ask("GET", f"{SLICES}/unheard")[0] == 200


def test_a_broken_connection_before_the_write_leaves_nothing(server: FaultyServer, api: Partner) -> None:
    server.faults.add(RequestFault(verb="create", disconnect=True, times=1))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.ask("POST", SLICES, resource_slice("unmade"))
    assert api.ask("GET", f"{SLICES}/unmade")[0] == 404


def test_a_delayed_answer_outlasts_an_impatient_client(server: FaultyServer, api: Partner) -> None:
    server.faults.add(RequestFault(resource="configmaps", delay=3600, times=1))
    impatient = Partner(server.url, server.admin_token, api.authority, patience=0.2)
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        impatient.ask("GET", CONFIG_MAPS)
    assert api.ask("GET", SLICES)[0] == 200


def test_a_server_that_refuses_connections_comes_back(server: FaultyServer, api: Partner) -> None:
    server.faults.refuse_connections()
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.ask("GET", CONFIG_MAPS)
    server.faults.refuse_connections(False)
    assert api.ask("GET", CONFIG_MAPS)[0] == 200


def test_a_removed_fault_is_gone(server: FaultyServer, api: Partner) -> None:
    fault = server.faults.add(RequestFault(error=500))
    server.faults.remove(fault)
    server.faults.remove(fault)
    assert api.ask("GET", CONFIG_MAPS)[0] == 200
