# SPDX-License-Identifier: Apache-2.0
"""Claims whose opaque parameters are stored in a form that no encoder writes, on each version of the API.

With KUBEBUILDER_ASSETS, the server is kube-apiserver, whose behaviour the embedded one has to have.
"""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from dra_driver.gpu.devices import AVAILABLE, UNAVAILABLE
from dra_driver.kube.api import ApiClient, ConflictError, Connection, Kind, NotFoundError, load_credentials
from dra_driver.kube.kinds import claims_of
from dra_driver.kube.resource.codec import DIALECTS, Dialect
from dra_driver.names import DRIVER_NAME
from kubeletplugin.claims.boundary import SILENT
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.reports.binding import BindingWatch
from kubeletplugin.reports.devicestatus import READY, ClaimStatusApi, DeviceKey, Part, condition
from kubeletplugin.reports.reporter import ClaimReports, DeviceData
from kubeletplugin.reports.storedclaim import PROTOBUF
from tests.support.apiserver import api_server, connect
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

NOW: Final = "2026-01-02T00:00:00Z"
NODE: Final = "node-a"
TEXTS: Final = {
    "order of keys": '{"b":1,"a":2}',
    "float of an integer": '{"a":1.0}',
    "exponent": '{"a":1e3}',
    "escape of a letter": '{"a":"\\u00e9"}',
    "characters of HTML": '{"a":"<b>&"}',
    "white space": '{"a": 1}',
    "canonical": '{"a":1,"b":"é"}',
}
PATCHES: Final = {
    "application/apply-patch+yaml": (
        "order of keys",
        "float of an integer",
        "exponent",
        "escape of a letter",
        "characters of HTML",
        "white space",
    ),
    "application/merge-patch+json": ("characters of HTML", "white space"),
    "application/json-patch+json": ("characters of HTML", "white space"),
    "application/strategic-merge-patch+json": (
        "order of keys",
        "float of an integer",
        "exponent",
        "escape of a letter",
        "characters of HTML",
        "white space",
    ),
}
"""The texts that each kind of patch changes."""

OURS: Final = Part("ours", frozenset({READY}), data=True)


@dataclass(frozen=True)
class Server:
    """A server that serves one version of the API, and a connection to it."""

    connection: Connection
    client: ApiClient
    dialect: Dialect

    @property
    def kind(self) -> Kind:
        return claims_of(self.dialect)

    def send(self, method: str, path: str, body: str, form: str = "application/json") -> tuple[int, str]:
        response = self.connection.request(method, path, body=body.encode(), content_type=form)
        return response.status, response.data.decode()

    def claim(self, text: str, **result: Any) -> ClaimRef:
        """An allocated claim whose parameters are stored as `text`. `result` are more fields of its devices."""
        name = f"claim-{uuid.uuid4().hex[:8]}"
        request: Any = {"name": "r", "exactly": {"deviceClassName": "c"}}
        if self.dialect.version == "v1beta1":
            request = {"name": "r", "deviceClassName": "c"}
        config = {"opaque": {"driver": DRIVER_NAME, "parameters": {"TEXT": 0}}}
        value: Any = {
            "apiVersion": self.kind.api_version,
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request], "config": [config]}},
        }
        value["metadata"] = json.loads(self._sent("POST", self.kind.path("default"), value, text))["metadata"]
        drivers = (DRIVER_NAME, "other.example.com")
        results = [{"request": "r", "driver": driver, "pool": NODE, "device": "gpu-0", **result} for driver in drivers]
        allocation = {"devices": {"results": results, "config": [{"source": "FromClaim", **config}]}}
        value["status"] = {"allocation": allocation}
        self._sent("PUT", self.kind.path("default", name, "status"), value, text)
        return ClaimRef("default", name, value["metadata"]["uid"])

    def _sent(self, method: str, path: str, value: Any, text: str) -> str:
        code, answer = self.send(method, path, json.dumps(value).replace('{"TEXT": 0}', text))
        assert code in (200, 201), answer
        return answer

    def patch(self, ref: ClaimRef, form: str, entries: list[Any]) -> tuple[int, str]:
        """Write device statuses with a patch."""
        value: Any = {"status": {"devices": entries}}
        if "apply" in form:
            value |= {"apiVersion": self.kind.api_version, "kind": "ResourceClaim", "metadata": {"name": ref.name}}
        if "json-patch" in form:
            value = [{"op": "add", "path": "/status/devices", "value": entries}]
        path = self.kind.path(ref.namespace, ref.name, "status")
        return self.send("PATCH", f"{path}?fieldManager=patcher", json.dumps(value), form)

    def put_devices(self, ref: ClaimRef, entries: list[Any], data: str) -> None:
        """Replace the device statuses, all with `data` as it is."""
        value = self.client.get(self.kind, ref.name, ref.namespace)
        value["status"]["devices"] = [{**entry, "data": {"TEXT": 0}} for entry in entries]
        self._sent("PUT", self.kind.path(ref.namespace, ref.name, "status"), value, data)

    def devices(self, ref: ClaimRef) -> list[Any]:
        found = self.client.get(self.kind, ref.name, ref.namespace)
        return list(found["status"].get("devices", ()))

    def stored(self, ref: ClaimRef) -> bytes:
        """The claim in the form in which the server stores it."""
        path = self.kind.path(ref.namespace, ref.name)
        response = self.connection.request("GET", path, accept=PROTOBUF)
        assert response.headers["Content-Type"] == PROTOBUF
        return response.data


def statuses(*drivers: str, message: str = "m") -> list[Any]:
    ready = condition(READY, True, "Prepared", message, NOW)
    return [
        {"driver": driver, "pool": NODE, "device": "gpu-0", "conditions": [ready], "data": {"b": 1, "a": "é<"}}
        for driver in drivers
    ]


@pytest.fixture(scope="module", params=DIALECTS, ids=lambda dialect: dialect.version)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    dialect: Dialect = request.param
    with (
        api_server(tmp_path_factory.mktemp("server"), resource_version=dialect.version) as path,
        connect(path) as client,
        Connection(load_credentials(str(path)), "tests") as connection,
    ):
        yield Server(connection, client, dialect)


@contextmanager
def reporting(server: Server, data: DeviceData = lambda _: {}) -> Iterator[tuple[ClaimReports, list[str]]]:
    """Reports of a plugin on the node, and their results. `data` is called between a read and a write of a claim."""
    results: list[str] = []
    reports = ClaimReports(server.connection, NODE, data, wrote=results.append, delay=0.0)
    reports.start()
    try:
        yield reports, results
    finally:
        reports.stop(10)


@pytest.fixture
def api(server: Server) -> ClaimStatusApi:
    return ClaimStatusApi(server.connection)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_status_is_written_and_the_parameters_keep_their_text(server: Server, api: ClaimStatusApi, text: str) -> None:
    ref = server.claim(text)
    api.write(api.read(ref), ref, NODE, statuses(DRIVER_NAME), OURS)
    assert server.devices(ref) == statuses(DRIVER_NAME)
    assert server.stored(ref).count(text.encode()) == 2  # in the spec and in the allocation
    api.write(api.read(ref), ref, NODE, [], OURS)
    assert server.devices(ref) == []


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("form", PATCHES)
def test_a_patch_is_refused_if_its_encoder_writes_another_text(server: Server, form: str, text: str) -> None:
    ref = server.claim(text)
    code, answer = server.patch(ref, form, statuses(DRIVER_NAME))
    refused = text in map(TEXTS.get, PATCHES[form])
    assert ("status.allocation" in answer, code) == (refused, 422 if refused else 200), answer


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_prepared_claim_is_reported(server: Server, text: str) -> None:
    ref = server.claim(text)
    with reporting(server) as (reports, results):
        reports.prepared(ref)
        wait_for(lambda: results, "the result of the report")
    assert results == ["written"]
    assert [entry["driver"] for entry in server.devices(ref)] == [DRIVER_NAME]


def test_a_report_keeps_what_another_driver_writes_between_its_read_and_its_write(server: Server) -> None:
    ref = server.claim("{}")
    others = iter([statuses("other.example.com")])

    def write_meanwhile(_: str) -> dict[DeviceKey, Any]:
        for entries in others:
            server.put_devices(ref, entries, "{}")
        return {}

    with reporting(server, write_meanwhile) as (reports, results):
        reports.prepared(ref)
        wait_for(lambda: results, "the result of the report")
    assert results == ["written"]
    assert [entry["driver"] for entry in server.devices(ref)] == ["other.example.com", DRIVER_NAME]


def test_a_report_brings_back_no_entry_that_is_removed_between_its_read_and_its_write(server: Server) -> None:
    ref = server.claim("{}")
    server.put_devices(ref, statuses("other.example.com"), "{}")
    removals: Iterator[list[Any]] = iter([[]])

    def write_meanwhile(_: str) -> dict[DeviceKey, Any]:
        for entries in removals:
            server.put_devices(ref, entries, "{}")
        return {}

    with reporting(server, write_meanwhile) as (reports, results):
        reports.prepared(ref)
        wait_for(lambda: results, "the result of the report")
    assert [entry["driver"] for entry in server.devices(ref)] == [DRIVER_NAME]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_binding_conditions_are_set(server: Server, text: str) -> None:
    waited = {"bindingConditions": [AVAILABLE], "bindingFailureConditions": [UNAVAILABLE]}
    watch = BindingWatch(server.connection, NODE, lambda: True, lambda *_: None, SILENT)
    watch.start()
    try:
        ref = server.claim(text, **waited)
        (entry,) = wait_for(lambda: server.devices(ref), "the condition")
        assert [each["type"] for each in entry["conditions"]] == [AVAILABLE]
    finally:
        watch.stop()


def test_entries_of_other_drivers_keep_their_data(server: Server, api: ClaimStatusApi) -> None:
    ref = server.claim("{}")
    data = '{"z": 1.0, "a": "\\u00e9<"}'
    others = statuses("other.example.com")
    server.put_devices(ref, others, data)
    api.write(api.read(ref), ref, NODE, statuses(DRIVER_NAME), OURS)
    assert data.encode() in server.stored(ref)
    assert [entry["driver"] for entry in server.devices(ref)] == ["other.example.com", DRIVER_NAME]


def test_conditions_of_another_writer_stay_in_the_entry(server: Server, api: ClaimStatusApi) -> None:
    ref = server.claim("{}")
    cabled = [{**entry, "conditions": [condition("Cabled", True, "Seen", "", NOW)]} for entry in statuses(DRIVER_NAME)]
    theirs = Part("theirs", frozenset({"Cabled"}), data=False)
    api.write(api.read(ref), ref, NODE, statuses(DRIVER_NAME), OURS)
    api.write(api.read(ref), ref, NODE, cabled, theirs)
    assert {each["type"] for each in server.devices(ref)[0]["conditions"]} == {READY, "Cabled"}
    api.write(api.read(ref), ref, NODE, [], OURS)
    assert server.devices(ref) == [{name: cabled[0][name] for name in ("driver", "pool", "device", "conditions")}]
    api.write(api.read(ref), ref, NODE, [], theirs)
    assert server.devices(ref) == []


def test_a_stale_write_is_refused_and_brings_no_entry_back(server: Server, api: ClaimStatusApi) -> None:
    ref = server.claim("{}")
    server.put_devices(ref, statuses("other.example.com"), "{}")
    stale = api.read(ref)
    server.put_devices(ref, [], "{}")
    with pytest.raises(ConflictError):
        api.write(stale, ref, NODE, statuses(DRIVER_NAME), OURS)
    assert server.devices(ref) == []


def test_a_write_names_its_field_manager(server: Server, api: ClaimStatusApi) -> None:
    ref = server.claim("{}")
    api.write(api.read(ref), ref, NODE, statuses(DRIVER_NAME), OURS)
    managed = server.client.get(server.kind, ref.name, ref.namespace)["metadata"]["managedFields"]
    assert ("ours", "Update", "status") in {
        (each["manager"], each["operation"], each.get("subresource", "")) for each in managed
    }


def test_a_claim_that_does_not_exist_is_not_found(server: Server, api: ClaimStatusApi) -> None:
    with pytest.raises(NotFoundError, match='"gone" not found'):
        api.read(ClaimRef("default", "gone", "1"))


def test_several_drivers_that_write_at_once_lose_nothing(server: Server) -> None:
    """Each has its own entry, and reads again when its write is refused."""
    ref = server.claim("{}")

    def write(index: int) -> None:
        own = ClaimStatusApi(server.connection)
        part = Part(f"writer-{index}", frozenset({f"Type{index}"}), data=False)
        entries = [
            {
                **statuses(DRIVER_NAME)[0],
                "device": "gpu-0",
                "conditions": [condition(f"Type{index}", True, "R", "", NOW)],
            }
        ]
        while True:
            try:
                return own.write(own.read(ref), ref, NODE, entries, part)
            except ConflictError:
                continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    (found,) = server.devices(ref)
    assert {each["type"] for each in found["conditions"]} == {f"Type{index}" for index in range(6)}
