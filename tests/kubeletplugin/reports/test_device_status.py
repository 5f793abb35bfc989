# SPDX-License-Identifier: Apache-2.0
"""What users see in `status.devices` of their claims, and Events about what they can mend, against an API server."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.kinds import EVENTS, PODS
from dra_driver.names import DRIVER_NAME
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.reports.devicestatus import JSON, ClaimStatusApi, DeviceKey, Outcome, Part, condition, wanted_entries
from kubeletplugin.reports.reporter import ClaimReports
from tests.support.apiserver import CLAIMS, embedded
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.plugin import POOL, plugin_on, stored_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

SHARE = "0aa5f1c6-7a3c-4f83-9f0e-5b7a2f3c4d5e"
EARLIER, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
DATA: Mapping[DeviceKey, JSON] = {("gpu-0", ""): {"uuid": "GPU-0"}, ("gpu-1", SHARE): {"uuid": "GPU-1"}}


def claim_with(*devices: JSON, results: tuple[JSON, ...] = ()) -> JSON:
    ours = {"driver": DRIVER_NAME, "pool": POOL}
    given = results or ({"device": "gpu-0"}, {"device": "gpu-1", "shareID": SHARE})
    allocation = {"devices": {"results": [{"request": "r", **ours, **one} for one in given]}}
    return {"status": {"allocation": allocation, "devices": [{**ours, **one} for one in devices]}}


def ready(status: str = "True", since: str = NOW, reason: str = "Prepared", message: str = "m") -> JSON:
    return {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


class TestEntries:
    """The pure part."""

    def test_each_device_and_share_has_an_entry(self) -> None:
        common = {"driver": DRIVER_NAME, "pool": POOL, "conditions": [ready()]}
        assert wanted_entries(claim_with(), POOL, Outcome(True, "m", DATA), NOW) == [
            {**common, "device": "gpu-0", "data": {"uuid": "GPU-0"}},
            {**common, "device": "gpu-1", "shareID": SHARE, "data": {"uuid": "GPU-1"}},
        ]

    def test_failure_is_a_condition_of_each_device(self) -> None:
        found = wanted_entries(claim_with(), POOL, Outcome(False, "no such GPU"), NOW)
        assert found is not None
        failed = ready("False", reason="PrepareFailed", message="no such GPU")
        assert [one["conditions"] for one in found] == [[failed], [failed]]
        assert not any("data" in one for one in found)

    def test_devices_of_other_drivers_and_nodes_are_not_ours(self) -> None:
        mixed = ({"device": "a", "driver": "other.example.com"}, {"device": "b", "pool": "node-b"}, {"device": "gpu-0"})
        found = wanted_entries(claim_with(results=mixed), POOL, Outcome(True, "m"), NOW)
        assert found is not None
        assert [one["device"] for one in found] == ["gpu-0"]

    def test_a_device_twice_in_a_claim_is_one_entry(self) -> None:
        found = wanted_entries(claim_with(results=({"device": "x"}, {"device": "x"})), POOL, Outcome(True, "m"), NOW)
        assert found is not None
        assert len(found) == 1

    @pytest.mark.parametrize(
        ("stored", "outcome", "since"),
        [
            (ready("True", EARLIER, message="old"), Outcome(True, "new"), EARLIER),
            (ready("False", EARLIER), Outcome(True, "new"), NOW),
            (ready("True", EARLIER), Outcome(False, "new"), NOW),
        ],
    )
    def test_a_condition_keeps_its_time_while_it_holds(self, stored: JSON, outcome: Outcome, since: str) -> None:
        claim = claim_with({"device": "gpu-0", "conditions": [stored]}, results=({"device": "gpu-0"},))
        found = wanted_entries(claim, POOL, outcome, NOW)
        assert found is not None
        assert found[0]["conditions"][0]["lastTransitionTime"] == since

    def test_unchanged_entry_is_not_written_again(self) -> None:
        other = {"type": "Other", "status": "True", "reason": "X", "message": "", "lastTransitionTime": EARLIER}
        one = {"device": "gpu-0", "conditions": [other, ready(since=EARLIER)], "data": {"uuid": "GPU-0"}}
        claim = claim_with(one, results=({"device": "gpu-0"},))
        assert wanted_entries(claim, POOL, Outcome(True, "m", DATA), NOW) is None
        assert wanted_entries(claim, POOL, Outcome(True, "changed", DATA), NOW) is not None

    @pytest.mark.parametrize(
        ("stored", "wanted"),
        [
            ((), None),
            (({"device": "gpu-0", "conditions": [ready()]},), []),
            (({"device": "gpu-0", "conditions": []},), None),  # somebody else's
            (({"device": "a", "driver": "other.example.com", "conditions": [ready()]},), None),
        ],
    )
    def test_own_entries_of_an_unprepared_claim_are_removed(
        self, stored: tuple[JSON, ...], wanted: list[JSON] | None
    ) -> None:
        assert wanted_entries(claim_with(*stored), POOL, None, NOW) == wanted

    def test_a_claim_that_is_not_allocated_gets_none(self) -> None:
        assert wanted_entries({"status": {}}, POOL, Outcome(False, "m"), NOW) is None

    def test_a_long_message_is_cut(self) -> None:
        found = wanted_entries(claim_with(), POOL, Outcome(False, "x" * 5000), NOW)
        assert found is not None
        assert len(found[0]["conditions"][0]["message"]) == 1024


class Told:
    """Reports about claims of a server, and what it then holds."""

    def __init__(self, kubeconfig: Path, client: ApiClient, **options: Any) -> None:
        self.client = client
        self.connection = Connection(load_credentials(str(kubeconfig)), "tests")
        self.events = EventRecorder(ApiClient(self.connection), "dra-kubeletplugin", POOL)
        self.results: list[str] = []
        self.data: Callable[[str], Mapping[DeviceKey, JSON]] = lambda _: DATA
        self.reports = ClaimReports(
            self.connection,
            POOL,
            lambda uid: self.data(uid),
            events=self.events,
            wrote=self.results.append,
            **{"delay": 0.0, **options},
        )

    def conditions(self, ref: ClaimRef) -> dict[str, tuple[str, str]]:
        """(status, message) of our condition by device."""
        claim = self.client.get(CLAIMS, ref.name, ref.namespace)
        found = claim.get("status", {}).get("devices", ())
        return {one["device"]: (one["conditions"][0]["status"], one["conditions"][0]["message"]) for one in found}

    def wait_results(self, *results: str) -> None:
        wait_for(lambda: len(self.results) >= len(results), f"results {results}, not {self.results}")
        assert self.results == list(results)

    def event_texts(self, reason: str) -> list[tuple[str, str]]:
        """(kind, message) of Warning events."""
        items = self.client.list(EVENTS, namespace="default").items
        return sorted((one["involvedObject"]["kind"], one["message"]) for one in items if one["reason"] == reason)


@contextmanager
def telling(kubeconfig: Path, client: ApiClient, **options: Any) -> Iterator[Told]:
    told = Told(kubeconfig, client, **options)
    told.reports.start()
    try:
        yield told
    finally:
        told.reports.stop(60)
        told.events.close(60)
        told.connection.close()


@pytest.fixture
def told(kubeconfig: Path, client: ApiClient) -> Iterator[Told]:
    with telling(kubeconfig, client) as made:
        yield made


def stored(client: ApiClient, *devices: str, **options: Any) -> ClaimRef:
    claim = stored_claim(client, *devices, **options)
    return ClaimRef(claim.namespace, claim.name, claim.uid)


READY = f"ready on node {POOL}"


class TestReports:
    """On an API server."""

    def test_a_prepared_claim_says_so_and_what_its_devices_are(self, told: Told, client: ApiClient) -> None:
        ref = stored(client, "gpu-0", "gpu-1")
        told.reports.prepared(ref)
        told.wait_results("written")
        assert told.conditions(ref) == {"gpu-0": ("True", READY), "gpu-1": ("True", READY)}
        assert client.get(CLAIMS, ref.name, "default")["status"]["devices"][0]["data"] == {"uuid": "GPU-0"}

    def test_unchanged_status_is_not_written_again(self, told: Told, client: ApiClient) -> None:
        ref = stored(client, "gpu-0")
        told.reports.prepared(ref)
        told.wait_results("written")
        version = client.get(CLAIMS, ref.name, "default")["metadata"]["resourceVersion"]
        told.reports.prepared(ref, known=True)
        told.wait_results("written", "unchanged")
        assert client.get(CLAIMS, ref.name, "default")["metadata"]["resourceVersion"] == version

    def test_failure_stays_in_the_status_until_the_claim_is_prepared(self, told: Told, client: ApiClient) -> None:
        ref = stored(client, "gpu-0")
        told.reports.failed(ref, "the GPU is lost", tell_users=False)
        told.wait_results("written")
        assert told.conditions(ref) == {"gpu-0": ("False", "the GPU is lost")}
        told.reports.prepared(ref)
        told.wait_results("written", "written")
        assert told.conditions(ref) == {"gpu-0": ("True", READY)}
        told.reports.unprepared(ref)
        told.wait_results("written", "written", "written")
        assert told.conditions(ref) == {}

    def test_conditions_of_others_stay(self, told: Told, client: ApiClient) -> None:
        ref = stored(client, "gpu-0")
        told.reports.prepared(ref)
        told.wait_results("written")
        cabled = condition("Cabled", True, "Seen", "", EARLIER)
        key = {"driver": DRIVER_NAME, "pool": POOL, "device": "gpu-0"}
        api = ClaimStatusApi(told.connection)
        theirs = Part("somebody-else", frozenset({"Cabled"}), data=False)
        api.write(api.read(ref), ref, POOL, [{**key, "conditions": [cabled]}], theirs)
        told.reports.unprepared(ref)
        told.wait_results("written", "written")
        assert client.get(CLAIMS, ref.name, "default")["status"]["devices"] == [{**key, "conditions": [cabled]}]

    def test_prepared_and_unprepared_at_once_costs_no_request(self, kubeconfig: Path, client: ApiClient) -> None:
        ref = stored(client, "gpu-0")
        with telling(kubeconfig, client, delay=1000.0) as told:
            told.reports.prepared(ref)
            assert told.reports.waiting() == 1
            told.reports.unprepared(ref)
            assert told.reports.waiting() == 0
            told.reports.prepared(ref, known=True)  # of an earlier process: it must be taken back
            told.reports.unprepared(ref)
            assert told.reports.waiting() == 1

    def test_written_entries_are_removed_however_soon(self, kubeconfig: Path, client: ApiClient) -> None:
        ref = stored(client, "gpu-0")
        with telling(kubeconfig, client, delay=0.3) as told:
            told.reports.failed(ref, "the GPU is lost", tell_users=False)
            told.wait_results("written")
            told.reports.prepared(ref)
            told.reports.unprepared(ref)
            told.wait_results("written", "written")
            assert told.conditions(ref) == {}

    def test_the_end_of_the_process_does_not_lose_what_waits(self, kubeconfig: Path, client: ApiClient) -> None:
        ref = stored(client, "gpu-0")
        with telling(kubeconfig, client, delay=1000.0) as told:
            told.reports.prepared(ref)
        assert told.conditions(ref) == {"gpu-0": ("True", READY)}

    @pytest.mark.parametrize("what", ["deleted", "made anew", "not allocated"])
    def test_a_claim_that_is_not_the_one_is_left_alone(self, told: Told, client: ApiClient, what: str) -> None:
        ref = stored(client, "gpu-0", allocated=what != "not allocated")
        if what == "deleted":
            client.delete(CLAIMS, ref.name, "default")
        if what == "made anew":
            ref = ClaimRef(ref.namespace, ref.name, str(uuid.uuid4()))
        told.reports.prepared(ref)
        marker = stored(client, "gpu-0")
        told.reports.prepared(marker)
        wait_for(lambda: told.conditions(marker), "the status of a later claim")
        if what != "deleted":
            assert told.conditions(ref) == {}

    def test_more_claims_than_can_wait_drop_the_oldest(self, kubeconfig: Path, client: ApiClient) -> None:
        refs = [stored(client, "gpu-0") for _ in range(3)]
        with telling(kubeconfig, client, delay=1000.0, limit=2) as told:
            for ref in refs:
                told.reports.prepared(ref)
            assert (told.reports.waiting(), told.results) == (2, ["dropped"])
        assert [bool(told.conditions(ref)) for ref in refs] == [False, True, True]


class TestServers:
    """That refuse, fail, or know no such thing."""

    def refused(self, server: FaultyServer) -> RequestFault:
        return server.faults.add(RequestFault(verb="update", resource="resourceclaims/status", error=403))

    def test_missing_permission_is_logged_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with embedded(tmp_path) as (server, kubeconfig, client):
            first, *later = (stored(client, "gpu-0") for _ in range(4))
            fault = self.refused(server)
            with telling(kubeconfig, client) as told:
                told.reports.prepared(first)
                told.wait_results("failed")
                for ref in later:
                    told.reports.prepared(ref)
                wait_for(lambda: told.reports.waiting() == 0, "the queue to be empty")
            assert fault.hits == 1
        assert caplog.text.count("device statuses of claims are not written for now") == 1
        assert "403" in caplog.text

    def test_disabled_feature_gate_of_the_status_is_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        gates = {"DRAResourceClaimDeviceStatus": False}
        with (
            embedded(tmp_path, minor=34, gates=gates) as (_, kubeconfig, client),
            telling(kubeconfig, client) as told,
        ):
            told.reports.prepared(stored(client, "gpu-0"))
            told.wait_results("failed")
        assert "feature gate DRAResourceClaimDeviceStatus is disabled" in caplog.text

    @pytest.mark.parametrize(
        "fault",
        [
            RequestFault(verb="update", resource="resourceclaims/status", error=500, times=1),
            RequestFault(verb="update", resource="resourceclaims/status", error=409, times=1),
            RequestFault(verb="get", resource="resourceclaims", error=500, times=1),
        ],
        ids=lambda fault: f"{fault.verb} {fault.error}",
    )
    def test_temporary_failure_is_tried_again(self, tmp_path: Path, fault: RequestFault) -> None:
        with embedded(tmp_path) as (server, kubeconfig, client), telling(kubeconfig, client) as told:
            ref = stored(client, "gpu-0")
            server.faults.add(fault)
            told.reports.prepared(ref)
            told.wait_results("written")
            assert fault.hits == 1
            assert told.conditions(ref) == {"gpu-0": ("True", READY)}

    def test_every_version_of_the_api_will_do(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"minor": 33, "resource_versions": ("v1beta1",)}
        with embedded(tmp_path, **options) as (_, kubeconfig, client), telling(kubeconfig, client) as told:
            kind = Kind("resource.k8s.io/v1beta1", "resourceclaims", namespaced=True)
            request = {"name": "r0", "deviceClassName": DRIVER_NAME}
            value = {"metadata": {"name": "old"}, "spec": {"devices": {"requests": [request]}}}
            made = client.create(kind, {"apiVersion": kind.api_version, "kind": "ResourceClaim", **value}, "default")
            result = {"request": "r0", "driver": DRIVER_NAME, "pool": POOL, "device": "gpu-0"}
            made["status"] = {"allocation": {"devices": {"results": [result]}}}
            client.update(kind, made, subresource="status")
            told.reports.prepared(ClaimRef("default", "old", made["metadata"]["uid"]))
            told.wait_results("written")
            assert client.get(kind, "old", "default")["status"]["devices"][0]["device"] == "gpu-0"


class TestEvents:
    """About what users can mend."""

    def waiting_pod(self, client: ApiClient, ref: ClaimRef) -> None:
        """A pod that has the claim reserved."""
        container = {"name": "c", "image": "busybox"}
        meta = {"name": f"pod-{ref.name}"}
        pod = client.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}, "default"
        )
        claim = client.get(CLAIMS, ref.name, "default")
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        claim["status"]["reservedFor"] = [user]
        client.update(CLAIMS, claim, subresource="status")

    @pytest.mark.parametrize("status", [True, False])
    def test_events_are_on_the_claim_and_on_the_pods_that_wait_for_it(self, tmp_path: Path, status: bool) -> None:
        with embedded(tmp_path) as (_, kubeconfig, client), telling(kubeconfig, client, status=status) as told:
            ref = stored(client, "gpu-0")
            self.waiting_pod(client, ref)
            told.reports.failed(ref, "there is no such device", tell_users=True)
            text = f"ResourceClaim {ref.name} cannot be prepared on node {POOL}: there is no such device"
            wait_for(lambda: len(told.event_texts("PrepareFailed")) == 2, "two events")
            assert told.event_texts("PrepareFailed") == [("Pod", text), ("ResourceClaim", text)]
            told.reports.stop(60)
            assert bool(told.conditions(ref)) is status

    def test_event_is_on_the_pod_group_for_which_a_claim_is_reserved(self, tmp_path: Path) -> None:
        with embedded(tmp_path) as (_, kubeconfig, client), telling(kubeconfig, client) as told:
            ref = stored(client, "gpu-0")
            claim = client.get(CLAIMS, ref.name, "default")
            user = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "uid-gang"}
            claim["status"]["reservedFor"] = [user]
            client.update(CLAIMS, claim, subresource="status")
            told.reports.failed(ref, "there is no such device", tell_users=True)
            text = f"ResourceClaim {ref.name} cannot be prepared on node {POOL}: there is no such device"
            wait_for(lambda: len(told.event_texts("PrepareFailed")) == 2, "two events")
            assert told.event_texts("PrepareFailed") == [("PodGroup", text), ("ResourceClaim", text)]

    def test_a_server_that_fails_at_first_does_not_lose_them(self, tmp_path: Path) -> None:
        with embedded(tmp_path) as (server, kubeconfig, client), telling(kubeconfig, client) as told:
            ref = stored(client, "gpu-0")
            server.faults.add(RequestFault(verb="get", resource="resourceclaims", error=500, times=1))
            told.reports.failed(ref, "there is no such device", tell_users=True)
            wait_for(lambda: told.event_texts("PrepareFailed"), "the event")

    def test_problem_that_users_cannot_solve_makes_no_event(self, tmp_path: Path) -> None:
        with embedded(tmp_path) as (_, kubeconfig, client):
            with telling(kubeconfig, client) as told:
                told.reports.failed(stored(client, "gpu-0"), "NVML says no", tell_users=False)
                told.wait_results("written")
            assert told.event_texts("PrepareFailed") == []


RULES = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["update"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/driver"],
        "resourceNames": [DRIVER_NAME],
        "verbs": ["associated-node:update"],
    },
]
"""What a service account on the node has to be granted."""


class TestPermissions:
    """On a server that enforces them, with a token that is bound to the node."""

    @pytest.mark.parametrize("minor", [35, 36])
    @pytest.mark.parametrize("rules", [RULES, RULES[:2]], ids=["all", "without the finer one"])
    def test_these_rules_are_enough(self, tmp_path: Path, minor: int, rules: list[JSON]) -> None:
        with embedded(tmp_path, minor=minor, rbac=True) as (server, _, client):
            role, binding = (Kind("rbac.authorization.k8s.io/v1", f"clusterrole{one}s") for one in ("", "binding"))
            meta, group = {"metadata": {"name": "plugin"}}, "rbac.authorization.k8s.io"
            client.create(role, {"apiVersion": role.api_version, "kind": "ClusterRole", **meta, "rules": rules})
            subject = {"kind": "ServiceAccount", "namespace": "default", "name": "plugin"}
            bound = {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "plugin"}, "subjects": [subject]}
            client.create(binding, {"apiVersion": role.api_version, "kind": "ClusterRoleBinding", **meta, **bound})
            token = server.add_service_account("default", "plugin", node=POOL)
            kubeconfig = server.write_kubeconfig(tmp_path / "plugin", token=token)
            ref = stored(client, "gpu-0", node=POOL)
            with telling(kubeconfig, client) as told:
                told.reports.prepared(ref)
                enough = rules is RULES or minor < 36
                told.wait_results("written" if enough else "failed")
            assert bool(told.conditions(ref)) is enough


class TestPlugin:
    """The process, from kubelet's call to what a user sees."""

    MIG = "gpu-4-mig-1g10gb-19-0"

    def devices(self, client: ApiClient, claim: Any) -> list[JSON]:
        found: list[JSON] = client.get(CLAIMS, claim.name, "default")["status"].get("devices", [])
        return found

    def test_a_claims_life_shows_in_its_status(self, kubeconfig: Path, client: ApiClient) -> None:
        claim = stored_claim(client, "gpu-0", self.MIG)
        with plugin_on(kubeconfig) as plugin:
            plugin.start()
            answer = plugin.prepare(claim)[claim.uid]
            wait_for(lambda: self.devices(client, claim), "the status")
            whole, mig = self.devices(client, claim)
            assert [one["conditions"][0]["status"] for one in (whole, mig)] == ["True", "True"]
            assert whole["data"]["uuid"] == plugin.hardware.describe()[0].key
            assert mig["data"]["uuid"].startswith("MIG-")
            assert mig["data"]["parentUUID"] == plugin.hardware.describe()[4].key
            assert mig["data"]["profile"] == "1g.10gb"
            for device, told in zip(answer.devices, (whole, mig), strict=True):
                assert list(device.cdi_device_ids) == told["data"]["cdiDeviceIDs"]
            plugin.terminate()
            plugin.start()
            assert self.devices(client, claim) == [whole, mig]
            plugin.unprepare(claim)
            wait_for(lambda: not self.devices(client, claim), "the status to go")

    def test_a_failure_shows_and_is_an_event(self, kubeconfig: Path, client: ApiClient) -> None:
        claim = stored_claim(client, "gpu-99")
        with plugin_on(kubeconfig) as plugin:
            plugin.start()
            error = plugin.prepare(claim)[claim.uid].error
            wait_for(lambda: self.devices(client, claim), "the status")
            (entry,) = self.devices(client, claim)
            assert entry["conditions"][0]["status"] == "False"
            assert entry["conditions"][0]["message"] == error

            def told() -> list[str]:
                items = client.list(EVENTS, namespace="default").items
                return [one["message"] for one in items if one["involvedObject"].get("uid") == claim.uid]

            wait_for(told, "the event")
            assert told() == [f"ResourceClaim {claim.name} cannot be prepared on node {POOL}: {error}"]

    def test_switched_off_nothing_is_written(self, kubeconfig: Path, client: ApiClient) -> None:
        claim = stored_claim(client, "gpu-0")
        with plugin_on(kubeconfig, "--no-claim-status") as plugin:
            plugin.start()
            plugin.prepare(claim)
            plugin.terminate()  # which would write what waits
        assert self.devices(client, claim) == []
