# SPDX-License-Identifier: Apache-2.0
"""Every request of the plugin fails: it is refused, answered too late, or carried out without an answer.

Requests are counted at the server from the start of a process on, so that those of the start and those that tell of
claims are among them. kubelet repeats its calls until they go well. Without FAULTS_EVERY=1 every fifth request fails,
for each fault from another one on, and each fault occurs either once or for some time.
"""

import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServerOptions
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.claims.reader import ClaimReader
from tests.kubeletplugin.inside import ApiServer as NoServer
from tests.kubeletplugin.inside import Plugin
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.plugin import stored_claim
from tests.support.waiting import wait_for

from .processes import NODE, KillablePlugin, killable_plugin
from .share import points, share

ADMINISTRATOR = "kubernetes-admin"
SLICE = "gpu-1-mig-1g10gb-19-0"
FAULTS = {
    "conflict": RequestFault(error=409),
    "too many requests": RequestFault(error=429, retry_after=0),
    "internal error": RequestFault(error=500),
    "unavailable": RequestFault(error=503, retry_after=0),
    "disconnected": RequestFault(disconnect=True),
    "forbidden": RequestFault(error=403),
    "answer lost": RequestFault(disconnect=True, after_commit=True),
    "wrong answer": RequestFault(error=500, after_commit=True),
}
OF_A_STATUS = ("conflict", "internal error", "unavailable", "disconnected", "answer lost")


@dataclass
class Cluster:
    """A server of the tests' own, with its client. Faults hit its administrator: the plugin."""

    server: FaultyServer
    kubeconfig: Path
    client: ApiClient

    def fail(self, fault: RequestFault, after: int, times: int | None) -> Callable[[], bool]:
        """Requests fail after so many that pass; what is returned tells whether one did."""
        self.server.faults.clear()
        if after:
            self.server.faults.add(RequestFault(user=ADMINISTRATOR, times=after))
        added = self.server.faults.add(replace(fault, user=ADMINISTRATOR, times=times))
        return lambda: added.hits > 0

    def entries(self, claim: Any) -> list[Any]:
        """What the claim's status says of its devices, as somebody else reads it."""
        path = f"/apis/{V1.api_version}/namespaces/default/resourceclaims/{claim.name}"
        who = {"Impersonate-User": "onlooker", "Impersonate-Group": "system:masters"}
        headers = {"Authorization": f"Bearer {self.server.admin_token}", **who}
        with urllib.request.urlopen(urllib.request.Request(self.server.url + path, headers=headers)) as answer:
            return json.load(answer)["status"].get("devices") or []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with FaultyServer(ApiServerOptions(tls=False)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path_factory.mktemp("api") / "config")
        with connect(kubeconfig) as client:
            yield Cluster(server, kubeconfig, client)


@pytest.fixture
def plugin(cluster: Cluster) -> Iterator[KillablePlugin]:
    with killable_plugin(cluster.kubeconfig) as made:
        yield made
    cluster.server.faults.clear()


def _faults() -> list[Any]:
    """The faults and how often each of them occurs; without FAULTS_EVERY=1 one of both for each fault, in turn."""
    times = {"once": 1, "for some time": 6}
    found: list[Any] = []
    for number, name in enumerate(FAULTS):
        both = [pytest.param(number, name, count, id=f"{name}-{often}") for often, count in times.items()]
        found += reversed(both) if number % 2 else both
    return list(share(found, 0, 2))


@pytest.mark.parametrize(("number", "name", "times"), _faults())
def test_any_request_up_to_the_answer(
    cluster: Cluster, plugin: KillablePlugin, number: int, name: str, times: int
) -> None:
    plugin.start()
    nothing = plugin.node_state()
    claim = stored_claim(cluster.client, SLICE)
    for point in points(number, 5):
        plugin.kill()
        struck = cluster.fail(FAULTS[name], point, times)
        plugin.start()
        wait_for(lambda: not plugin.prepare(claim)[claim.uid].error, f"the claim after request {point}")
        if not struck():
            break
        assert len(plugin.node_state()["records"]) == 1
        assert plugin.unprepare(claim) == {claim.uid: ""}
        assert plugin.node_state() == nothing
    print(f"{point} requests")
    assert point > 3


@pytest.mark.parametrize(("number", "name"), list(enumerate(OF_A_STATUS)), ids=OF_A_STATUS)
def test_claim_status_is_written_after_a_fault_of_any_request(
    cluster: Cluster, plugin: KillablePlugin, number: int, name: str
) -> None:
    plugin.start()
    for point in points(number, 5):
        claim = stored_claim(cluster.client, SLICE)
        struck = cluster.fail(FAULTS[name], point, 1)
        wait_for(lambda: not plugin.prepare(claim)[claim.uid].error, f"the claim after request {point}")  # noqa: B023
        # A request of the preparation itself may have been struck: then the status says so at first.
        wait_for(
            lambda: (
                [(one["device"], one["conditions"][0]["reason"]) for one in cluster.entries(claim)]  # noqa: B023
                == [(SLICE, "Prepared")]
            ),
            f"the status after request {point}",
        )
        assert plugin.unprepare(claim) == {claim.uid: ""}
        wait_for(lambda: not cluster.entries(claim), f"the end of the status after request {point}")  # noqa: B023
        if not struck():
            break
    print(f"{point} requests")
    assert point > 1


class RealClaims(NoServer):
    """Claims are read from a server after all."""

    read: ClaimReader

    def fetch(self, ref: ClaimRef) -> ResourceClaim:
        return self.read(ref)


def test_any_request_that_is_answered_too_late(cluster: Cluster, tmp_path: Path) -> None:
    claim = stored_claim(cluster.client, SLICE)
    ref = ClaimRef("default", claim.name, claim.uid)
    api = RealClaims()
    plugin = Plugin(tmp_path, api, hardware=str(NODE))
    nothing = plugin.left()
    credentials = load_credentials(str(cluster.kubeconfig))
    for point in itertools.count():
        with (
            Connection(credentials, "tests", read_seconds=0.2) as impatient,
            Connection(credentials, "tests") as patient,
        ):
            api.read = ClaimReader(impatient)
            struck = cluster.fail(RequestFault(delay=0.6), point, 2)  # the request is repeated once
            error = ""
            try:
                plugin.engine.prepare(ref)
            except EXPECTED_ERRORS as caught:
                error = str(caught)
            if not error:
                break
            assert "Read timed out" in error
            assert plugin.left() == nothing
            api.read = ClaimReader(patient)
            plugin.engine.prepare(ref)
            plugin.engine.unprepare(ref)
            assert plugin.left() == nothing
    print(f"{point} requests")
    assert point > 1
    assert not struck()
    cluster.server.faults.clear()
