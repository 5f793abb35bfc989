# SPDX-License-Identifier: Apache-2.0
"""Releases differ: which versions they serve, and which fields they quietly leave out."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from dra_driver.sandbox.apiserver import ApiServerOptions, ReleaseError
from tests.support.faultyserver import FaultyServer

from .conftest import CLAIMS, SLICES, claim, resource_slice
from .conversation import Partner


def serving(minor: int, **options: Any) -> FaultyServer:
    return FaultyServer(ApiServerOptions(minor=minor, tls=False, **options))


def client(server: FaultyServer) -> Partner:
    return Partner(server.url, server.admin_token, None)


@pytest.mark.parametrize(
    ("minor", "asked", "served"),
    [
        (32, None, []),
        (32, ("v1beta1",), ["v1beta1"]),
        (33, ("v1beta1", "v1beta2"), ["v1beta2", "v1beta1"]),
        (34, None, ["v1"]),
        (35, ("v1", "v1beta1"), ["v1", "v1beta1"]),
        (36, None, ["v1"]),
        (37, None, ["v1"]),
        (37, ("v1", "v1beta1", "v1beta2"), ["v1", "v1beta2", "v1beta1"]),
    ],
)
def test_a_release_serves_its_versions_of_resource_k8s_io(
    minor: int, asked: tuple[str, ...] | None, served: list[str]
) -> None:
    with serving(minor, resource_versions=asked) as server:
        api = client(server)
        code, _, group = api.ask("GET", "/apis/resource.k8s.io")
        assert ([version["version"] for version in group["versions"]] if code == 200 else []) == served
        assert api.ask("GET", "/version")[2]["minor"] == str(minor)


def test_a_claim_is_stored_once_and_read_in_every_version() -> None:
    with serving(33, resource_versions=("v1beta1", "v1beta2")) as server:
        api = client(server)
        old = CLAIMS.replace("/v1/", "/v1beta1/")
        flat = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "g"}]}}}
        assert api.ask("POST", old, flat)[0] == 201
        _, _, new = api.ask("GET", CLAIMS.replace("/v1/", "/v1beta2/") + "/c")
        assert new["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minor": 31}, "Kubernetes 1.31 is not one of 1.32 to 1.37"),
        ({"minor": 36, "gates": {"DRAFoo": True}}, "has no feature gate DRAFoo"),
        ({"minor": 32, "resource_versions": ("v1",)}, "has no resource.k8s.io/v1"),
    ],
)
def test_server_with_unknown_version_or_gate_does_not_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        FaultyServer(ApiServerOptions(**options)).start()


Spec = dict[str, Any]

DEVICE_FIELDS: Mapping[str, Spec] = {
    "DRADeviceTaints": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    "DRAPartitionableDevices": {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]},
    "DRADeviceBindingConditions": {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]},
    "DRAConsumableCapacity": {"allowMultipleAllocations": True},
}


@pytest.fixture(scope="module")
def gates_off(talk: Callable[..., Partner]) -> Any:
    with FaultyServer(ApiServerOptions(minor=36, gates=dict.fromkeys(DEVICE_FIELDS, False), tls=False)) as server:
        yield talk(server)


@pytest.mark.parametrize("gate", DEVICE_FIELDS)
def test_fields_behind_a_disabled_gate_are_left_out_without_a_word(gates_off: Partner, gate: str) -> None:
    device = {"name": "gpu-0", "attributes": {"a": {"int": 1}}, **DEVICE_FIELDS[gate]}
    code, headers, body = gates_off.ask("POST", SLICES, resource_slice(gate.lower(), devices=[device]))
    assert code == 201
    assert headers["warning"] == []
    assert body["spec"]["devices"] == [{"name": "gpu-0", "attributes": {"a": {"int": 1}}}]


@pytest.mark.parametrize("gate", DEVICE_FIELDS)
def test_the_same_fields_are_kept_while_their_gate_is_on(api: Partner, gate: str) -> None:
    device = {"name": "gpu-0", **DEVICE_FIELDS[gate]}
    code, _, body = api.ask("POST", SLICES, resource_slice(gate.lower(), devices=[device]))
    assert code == 201
    assert set(body["spec"]["devices"][0]) == set(device)


def test_a_slice_that_relies_on_a_disabled_gate_is_refused_after_the_field_is_dropped(gates_off: Partner) -> None:
    spec = {"nodeName": None, "perDeviceNodeSelection": True, "devices": [{"name": "a", "nodeName": "n"}]}
    code, _, body = gates_off.ask("POST", SLICES, resource_slice("per-device", **spec))
    assert code == 422
    assert body["details"]["causes"][0]["field"] == "spec"
    assert "exactly one of nodeName" in body["message"]


def test_claims_lose_gated_fields_too(talk: Callable[..., Partner]) -> None:
    gates = {"DRAPrioritizedList": False, "DRADeviceTaints": False, "DRAConsumableCapacity": False}
    with serving(34, gates=gates) as server:
        api = client(server)
        request = claim("plain", tolerations=[{"operator": "Exists"}], capacity={"requests": {"memory": "1Gi"}})
        _, _, body = api.ask("POST", CLAIMS, request)
        assert set(body["spec"]["devices"]["requests"][0]["exactly"]) == {"deviceClassName", "allocationMode", "count"}
        first = {"name": "x", "deviceClassName": "gpu"}
        listed = {
            "metadata": {"name": "listed"},
            "spec": {"devices": {"requests": [{"name": "a", "firstAvailable": [first]}]}},
        }
        code, _, body = api.ask("POST", CLAIMS, listed)
        assert (code, body["details"]["causes"][0]["field"]) == (422, "spec.devices.requests[0]")


CONSUMING: Spec = {"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["a"]}
NEWER_FIELDS: Mapping[str, Spec] = {
    "DRADeviceCompatibilityGroups": {"devices": [{"name": "gpu-0", "consumesCounters": [CONSUMING]}]},
    "DRANodeAllocatableResources": {
        "devices": [{"name": "gpu-0", "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}}]
    },
    "DRAOptionalNodeOperations": {"skipNodeOperations": ["*"]},
}


@pytest.fixture(scope="module")
def newest_off(talk: Callable[..., Partner]) -> Iterator[Partner]:
    with FaultyServer(ApiServerOptions(minor=37, tls=False)) as server:
        yield talk(server)


@pytest.fixture(scope="module")
def newest_on(talk: Callable[..., Partner]) -> Iterator[Partner]:
    gates = dict.fromkeys((*NEWER_FIELDS, "DRADerivedAttributes", "DRAPartitionableDevicesType"), True)
    with FaultyServer(ApiServerOptions(minor=37, gates=gates, tls=False)) as server:
        yield talk(server)


def text_of(fields: Spec) -> str:
    """The name of the field that is gated."""
    return next(name for name in ("compatibilityGroups", "nodeAllocatable", "skipNode") if name in str(fields))


@pytest.mark.parametrize("gate", NEWER_FIELDS)
def test_alpha_field_of_slice_is_kept_only_if_its_gate_is_on(
    newest_off: Partner, newest_on: Partner, gate: str
) -> None:
    sent = resource_slice(gate.lower(), **NEWER_FIELDS[gate])
    for server, is_kept in ((newest_off, False), (newest_on, True)):
        code, _, body = server.ask("POST", SLICES, sent)
        assert code == 201, body
        assert (text_of(NEWER_FIELDS[gate]) in str(body["spec"])) is is_kept


def test_partition_type_is_forbidden_while_its_gate_is_off(newest_off: Partner, newest_on: Partner) -> None:
    sent = resource_slice("typed", partitionTypeAttribute="gpu.nvidia.com/profile")
    code, _, body = newest_off.ask("POST", SLICES, sent)
    assert code == 422
    assert body["details"]["causes"][0]["field"] == "spec.partitionTypeAttribute"
    code, _, body = newest_on.ask("POST", SLICES, sent)
    assert code == 201
    assert body["spec"]["partitionTypeAttribute"] == "gpu.nvidia.com/profile"


def derived(name: str = "example.com/half", constraint: str = "example.com/half", expression: str = "'a'") -> Spec:
    value = claim("derived", derivedAttributes=[{"name": name, "expression": expression}])
    value["spec"]["devices"]["constraints"] = [{"matchAttribute": constraint}]
    return value


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (derived(name="half"), "name"),
        (derived(constraint="example.com/other"), "name"),
        (derived(expression="'" + "a" * 10_240 + "'"), "expression"),
    ],
    ids=["no domain", "unused", "long"],
)
def test_derived_attribute_is_validated(newest_on: Partner, sent: Spec, field: str) -> None:
    sent["metadata"] = {"name": "invalid"}
    code, _, body = newest_on.ask("POST", CLAIMS, sent)
    assert code == 422
    here = f"spec.devices.requests[0].exactly.derivedAttributes[0].{field}"
    assert [cause["field"] for cause in body["details"]["causes"]] == [here]


def test_derived_attribute_is_kept_only_if_its_gate_is_on(newest_off: Partner, newest_on: Partner) -> None:
    for server, is_kept in ((newest_off, False), (newest_on, True)):
        code, _, body = server.ask("POST", CLAIMS, derived())
        assert code == 201, body
        assert ("derivedAttributes" in body["spec"]["devices"]["requests"][0]["exactly"]) is is_kept


def test_admin_access_needs_the_namespaces_label() -> None:
    label = "resource.kubernetes.io/admin-access"
    with serving(36) as server:
        api = client(server)
        wanted = claim("admin", adminAccess=True)
        code, _, body = api.ask("POST", CLAIMS, wanted)
        assert code == 422
        assert f"`{label}: true` label" in body["message"]
        merge = "application/merge-patch+json"
        api.ask("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": {label: "true"}}}, Content_Type=merge)
        assert api.ask("POST", CLAIMS, wanted)[0] == 201


def test_selectors_are_compiled_when_the_server_is_given_a_compiler() -> None:
    def check(expression: str) -> str | None:
        return None if expression.startswith("device.") else "compilation failed: undeclared reference"

    with serving(36, check_cel=check) as server:
        api = client(server)
        for expression, expected in (("device.driver == 'x'", 201), ("nonsense", 422)):
            body = claim(f"cel-{expected}", selectors=[{"cel": {"expression": expression}}])
            assert api.ask("POST", CLAIMS, body)[0] == expected


TAINT = {"key": "k", "effect": "NoSchedule"}


def counter_set(name: str, count: int = 1) -> Spec:
    return {"name": name, "counters": {f"c{number}": {"value": "1"} for number in range(count)}}


def consumer(name: str, of: str, count: int = 1) -> Spec:
    consumed = counter_set(of, count)
    return {"name": name, "consumesCounters": [{"counterSet": consumed.pop("name"), **consumed}]}


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        pytest.param(
            {"sharedCounters": [counter_set("s")], "devices": [consumer("gpu-0", "s")]},
            [],
            ["spec"],
            id="counters beside their devices",
        ),
        pytest.param(
            {"devices": [consumer("gpu-0", "s")]},
            ["spec.devices[0].consumesCounters[0].counterSet"],
            [],
            id="counters of another slice",
        ),
        pytest.param(
            {"sharedCounters": [counter_set("s", 1)], "devices": [consumer("gpu-0", "s", 2)]},
            ["spec.devices[0].consumesCounters[0].counters[c1]"],
            ["spec"],
            id="a counter that the set lacks",
        ),
        pytest.param(
            {"sharedCounters": [counter_set(f"s{number}") for number in range(9)]},
            [],
            ["spec.sharedCounters"],
            id="many sets",
        ),
        pytest.param(
            {"devices": [{"name": "gpu-0", "taints": [{**TAINT, "key": f"k{number}"} for number in range(5)]}]},
            ["spec.devices[0].taints"],
            [],
            id="five taints",
        ),
        pytest.param(
            {"devices": [{"name": "gpu-0", "taints": [{"key": "k", "effect": "None"}]}]},
            ["spec.devices[0].taints[0].effect"],
            [],
            id="a taint without effect",
        ),
        pytest.param(
            {"devices": [{"name": f"gpu-{number}", "taints": [TAINT]} for number in range(65)]},
            [],
            ["spec.devices"],
            id="sixty-five tainted devices",
        ),
    ],
)
@pytest.mark.parametrize("minor", [34, 36])
def test_the_limits_of_slices_changed_in_1_35(
    partitionable: Mapping[int, Partner], minor: int, spec: Spec, old: list[str], new: list[str]
) -> None:
    wanted = resource_slice("", **spec)
    wanted["metadata"] = {"generateName": "slice-"}
    code, _, body = partitionable[minor].ask("POST", SLICES, wanted)
    causes = [cause["field"] for cause in body["details"]["causes"]] if code == 422 else []
    assert causes == (old if minor < 35 else new), body


@pytest.fixture(scope="module")
def partitionable() -> Iterator[Mapping[int, Partner]]:
    gates = {"DRAPartitionableDevices": True, "DRADeviceTaints": True}
    with serving(34, gates=gates) as before, serving(36, gates=gates) as after:
        yield {34: client(before), 36: client(after)}


def test_pool_names_select_slices_from_1_37() -> None:
    with serving(37) as server:
        api = client(server)
        api.ask("POST", SLICES, resource_slice("selected"))
        _, _, found = api.ask("GET", f"{SLICES}?fieldSelector=spec.pool.name%3Dnode-1")
        assert [item["metadata"]["name"] for item in found["items"]] == ["selected"]
