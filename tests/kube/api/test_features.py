# SPDX-License-Identifier: Apache-2.0
"""What an API server keeps of a slice is found out before anything is written."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient, newest_dialect
from dra_driver.kube.api.features import GATES, OPTIONAL, dropped, missing_gates, probe_features, without
from dra_driver.kube.resource import (
    AttributeList,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceTaint,
    ObjectMeta,
    Quantity,
    ResourcePool,
    ResourceSlice,
    TaintEffect,
)
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.names import DRIVER_NAME
from dra_driver.sandbox.apiserver import ApiServerOptions, status
from tests.support.apiserver import SLICES, connect
from tests.support.faultyserver import Alteration, FaultyServer

pytestmark = pytest.mark.cluster

NONE = SliceFeatures(False, False, False, binding_conditions=False)


def probed(client: ApiClient, *, lists: bool = False) -> SliceFeatures:
    return probe_features(client, newest_dialect(client), DRIVER_NAME, "node-a", lists=lists)


GATES_AND_FLAGS = [
    *((gate, flag) for flag, gate in GATES.items() if flag not in ("list_attributes", "partition_type")),
    ("DRAResourceClaimDeviceStatus", "binding_conditions"),
]


@pytest.mark.parametrize(("gate", "flag"), GATES_AND_FLAGS)
def test_a_gate_that_is_off_is_noticed_and_no_other(gate: str, flag: str, tmp_path: Path) -> None:
    with (
        FaultyServer(ApiServerOptions(gates={gate: False}, tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        assert probed(client) == without(SliceFeatures(), frozenset((flag,)))
        assert client.list(SLICES).items == [], "asking stores nothing"


@pytest.mark.parametrize(("on", "lists"), [(True, True), (False, False)])
def test_list_attributes_are_asked_about_when_they_are_wanted(on: bool, lists: bool, tmp_path: Path) -> None:
    with (
        FaultyServer(ApiServerOptions(gates={GATES["list_attributes"]: on}, tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        assert probed(client, lists=True).list_attributes is lists
        assert not probed(client).list_attributes


@pytest.mark.parametrize(("minor", "on", "kept"), [(37, True, True), (37, False, False), (36, False, False)])
def test_partition_type_is_kept_by_servers_with_the_gate(minor: int, on: bool, kept: bool, tmp_path: Path) -> None:
    gates = {GATES["partition_type"]: on} if minor == 37 else {}
    with (
        FaultyServer(ApiServerOptions(minor=minor, gates=gates, tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        assert probed(client) == replace(SliceFeatures(), partition_type=kept)


@pytest.mark.parametrize(
    ("minor", "version", "expected"),
    [
        (32, "v1beta1", replace(NONE, counters_beside_devices=True)),
        (33, "v1beta2", replace(NONE, counters_beside_devices=True)),
        (34, "v1", replace(NONE, counters_beside_devices=True)),
        (35, "v1", NONE),
        (36, "v1", SliceFeatures()),
        (37, "v1", SliceFeatures()),
    ],
)
def test_every_kubernetes_is_taken_as_it_comes(
    minor: int, version: str, expected: SliceFeatures, tmp_path: Path
) -> None:
    with (
        FaultyServer(ApiServerOptions(minor=minor, resource_versions=(version,), tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        assert probed(client) == expected


def test_a_server_that_refuses_to_tell_keeps_what_no_answer_lacked(tmp_path: Path) -> None:
    def refuse(_: object) -> None:
        raise status.RequestError(422, "Invalid", "a webhook denied the request")

    with (
        FaultyServer(ApiServerOptions(tls=False)) as server,
        connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        server.faults.alter(Alteration("resourceslices", refuse))
        assert probed(client, lists=True) == SliceFeatures()
        for flag in ("device_taints", "partitionable_devices"):
            suspected = frozenset((flag,))
            found = probe_features(client, newest_dialect(client), DRIVER_NAME, "node-a", suspected=suspected)
            assert found == without(SliceFeatures(), suspected)


def a_slice(*devices: Device, counters: tuple[CounterSet, ...] = ()) -> ResourceSlice:
    pool = ResourcePool("node-a", 1, 1)
    return ResourceSlice(
        ObjectMeta(name="one"), DRIVER_NAME, pool, node_name="node-a", devices=devices, shared_counters=counters
    )


ONE = {"one": Quantity.of(1)}
PLAIN = Device("gpu-0")


@pytest.mark.parametrize(
    ("sent", "stored", "flag"),
    [
        (a_slice(counters=(CounterSet("set", ONE),)), a_slice(), "partitionable_devices"),
        (
            a_slice(PLAIN, Device("gpu-1", consumes_counters=(CounterConsumption("set", ONE),))),
            a_slice(PLAIN, Device("gpu-1")),
            "partitionable_devices",
        ),
        (
            a_slice(Device("gpu-0", taints=(DeviceTaint("example.com/key", TaintEffect.NO_SCHEDULE),))),
            a_slice(PLAIN),
            "device_taints",
        ),
        (a_slice(Device("gpu-0", allow_multiple_allocations=True)), a_slice(PLAIN), "consumable_capacity"),
        (
            a_slice(Device("gpu-0", binding_conditions=("a.b/c",), binding_failure_conditions=("a.b/d",))),
            a_slice(PLAIN),
            "binding_conditions",
        ),
        (a_slice(Device("gpu-0", {"numa": AttributeList("ints", (0,))})), a_slice(PLAIN), "list_attributes"),
    ],
)
def test_features_that_an_answer_lacks_are_named(sent: ResourceSlice, stored: ResourceSlice, flag: str) -> None:
    assert dropped(sent, stored) == {flag}
    assert dropped(stored, stored) == dropped(sent, sent) == frozenset()


@pytest.mark.parametrize("wanted", [frozenset[str](), *(frozenset((flag,)) for flag in sorted(OPTIONAL)), OPTIONAL])
def test_a_gate_that_nobody_needs_is_not_missing(wanted: frozenset[str]) -> None:
    needed = {gate for flag, gate in GATES.items() if flag in wanted or flag not in OPTIONAL}
    assert set(missing_gates(NONE, wanted)) == needed
    assert missing_gates(replace(SliceFeatures(), list_attributes=True, partition_type=True), wanted) == ()
