# SPDX-License-Identifier: Apache-2.0
"""How a node's devices are laid out in slices."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.gpu.simulated import shipped_nodes
from dra_driver.gpu.simulated.board import BoardModel, boards
from dra_driver.kube.api import ApiClient
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.codec import V1, decode_slice, encode_slice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.limits import COUNTER_SETS_PER_SLICE
from dra_driver.kube.resource.names import is_subdomain
from dra_driver.kube.resource.validation import slice_problems
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.apiserver import SLICES, connect
from tests.support.nodes import board_inventory, make_node, mig_instances

H100 = boards()["H100-SXM5-80GB"]
EVERYTHING = NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC, passthrough=True, shares=4),))
OLD = SliceFeatures(counters_beside_devices=True)
Release = tuple[ApiClient, SliceFeatures]
SIXTEEN_GPUS = """
driverVersion: 580.95.05
cudaVersion: "13.0"
gpus:
- {model: B200-SXM6-180GB, count: 16, mig: true}
"""


def names(one: ResourceSlice) -> list[str]:
    """The devices of a slice."""
    return [device.name for device in one.devices]


def one_of_each() -> tuple[GpuDevices, ...]:
    """GPUs 0 and 1 can be split and whole, 2 is whole, 3 has a MIG device that an administrator made."""
    inventory = board_inventory(H100, 4)
    split = board_inventory(H100, 4, mig=True).gpus[3]
    seven = next(profile for profile in H100.profiles if profile.info.name == "7g.80gb")
    made = replace(split, mig_instances=mig_instances(split, [(seven, seven.placements[0])]))
    rules = (GpuRule(indexes=(0, 1), mig=MigPolicy.DYNAMIC),)
    return describe(replace(inventory, gpus=(*inventory.gpus[:3], made)), NodePolicy(rules)).gpus


@pytest.mark.parametrize("name", [base + mode for base in shipped_nodes() for mode in ("", "-mig", "-mixed")])
def test_every_shipped_node_gives_slices_that_the_api_server_takes(tmp_path: Path, name: str) -> None:
    slices = node_slices("node-a", "uid", make_node(tmp_path, name).describe())
    assert [str(problem) for one in slices for problem in slice_problems(one)] == []


@pytest.mark.parametrize("features", [SliceFeatures(), OLD], ids=["apart", "beside"])
def test_a_node_without_gpus_has_one_empty_slice(features: SliceFeatures) -> None:
    (only,) = node_slices("node-a", "uid", (), features)
    assert only.devices == ()
    assert only.pool.resource_slice_count == 1


def test_whole_gpus_come_before_each_split_gpu(tmp_path: Path) -> None:
    slices = node_slices("node-a", "uid", make_node(tmp_path, "h100x8-mixed").describe())
    counters, whole, *split = slices
    assert [counter_set.name for counter_set in counters.shared_counters] == [f"gpu-{i}-counter-set" for i in range(8)]
    assert counters.devices == ()
    assert names(whole) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [{device.name.split("-mig-")[0] for device in one.devices} for one in split] == [
        {f"gpu-{i}"} for i in range(4, 8)
    ]


def test_gpus_without_placements_come_first_and_whole_gpus_are_in_reverse_order_of_mig() -> None:
    counters, ready, *split = node_slices("node-a", "uid", one_of_each())
    assert len(counters.shared_counters) == 4
    assert names(ready) == ["gpu-2", "gpu-1", "gpu-0", "gpu-3-mig-7g80gb-0-0"]
    assert [names(one)[0].split("-mig-")[0] for one in split] == ["gpu-0", "gpu-1"]


def test_names_keep_the_order_and_belong_to_the_node(tmp_path: Path) -> None:
    slices = node_slices("node-a", "the-uid", make_node(tmp_path, "h100x8-mig").describe())
    names = [one.metadata.name for one in slices]
    assert names == sorted(names)
    assert names[0] == "00000-gpu.nvidia.com-node-a"
    assert {(owner.kind, owner.uid, owner.controller) for one in slices for owner in one.metadata.owner_references} == {
        ("Node", "the-uid", True)
    }
    assert {one.pool.resource_slice_count for one in slices} == {len(slices)}


LONG = [
    "a" * 232,
    "a" * 233,
    "a" * 232 + "b",
    *(f"{'a' * 200}{'.' * dot}{'b' * (52 - dot)}" for dot in (0, 1)),
    *(f"{'a' * length}.{'b' * 30}" for length in range(212, 220)),
]


@pytest.mark.parametrize("node", LONG, ids=range(len(LONG)))
def test_whatever_the_node_is_called_names_are_those_of_objects_in_order(node: str) -> None:
    made = [one.metadata.name for one in node_slices(node, "uid", one_of_each())]
    assert all(is_subdomain(name) for name in made)
    assert made == sorted(set(made))
    assert made == [one.metadata.name for one in node_slices(node, "another", one_of_each())]


def test_nodes_have_slices_of_their_own_however_alike_their_names_are() -> None:
    made = [one.metadata.name for node in LONG for one in node_slices(node, "uid", one_of_each())]
    assert len(made) == len(set(made))


def test_more_than_eight_counter_sets_go_into_two_slices(tmp_path: Path) -> None:
    description = tmp_path / "sixteen.yaml"
    description.write_text(SIXTEEN_GPUS)
    slices = node_slices("node-a", "uid", make_node(tmp_path / "node", str(description)).describe())
    assert [len(one.shared_counters) for one in slices if one.shared_counters] == [8, 8]
    assert [str(problem) for one in slices for problem in slice_problems(one)] == []


def test_before_1_35_counters_stand_in_the_slice_of_their_gpu() -> None:
    slices = node_slices("node-a", "uid", one_of_each(), OLD)
    assert [[one.name for one in slice_.shared_counters] for slice_ in slices] == [
        ["gpu-2-counter-set"],
        ["gpu-3-counter-set"],
        ["gpu-0-counter-set"],
        ["gpu-1-counter-set"],
    ]
    assert [names(one)[0] for one in slices] == ["gpu-2", "gpu-3-mig-7g80gb-0-0", "gpu-0", "gpu-1"]


def test_before_1_35_a_pool_without_counters_has_its_gpus_in_one_slice() -> None:
    whole = describe(board_inventory(H100, 4)).gpus
    (only,) = node_slices("node-a", "uid", whole, OLD)
    assert names(only) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


@pytest.fixture(scope="module", params=[34, 37], ids=["1.34", "1.37"])
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """An embedded API server that keeps every field, and what it wants."""
    minor: int = request.param
    gates = {"DRAPartitionableDevices": True, "DRADeviceTaints": True, "DRAConsumableCapacity": True}
    with ApiServer(ApiServerOptions(minor=minor, gates=gates, tls=False)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path_factory.mktemp("server") / "kubeconfig")
        with connect(kubeconfig) as client:
            yield client, SliceFeatures(counters_beside_devices=minor < 35)


@pytest.mark.cluster
@pytest.mark.parametrize("model", boards().values(), ids=list(boards()))
def test_api_servers_old_and_new_keep_all_of_it(model: BoardModel, release: Release) -> None:
    """Of slices that differ only in the GPU, one is sent."""
    client, features = release
    gpus = COUNTER_SETS_PER_SLICE + 1
    described = describe(board_inventory(model, gpus), EVERYTHING, features=features)
    slices = node_slices("node-a", "uid", described.gpus, features)
    for one in {(len(one.devices), len(one.shared_counters)): one for one in slices}.values():
        sent = replace(one, pool=replace(one.pool, generation=1))
        answer = decode_slice(client.create(SLICES, encode_slice(sent, V1), dry_run=True), V1, strict=False)
        assert (answer.devices, answer.shared_counters) == (sent.devices, sent.shared_counters)


def test_slices_with_mig_devices_name_their_profile_where_the_server_keeps_it() -> None:
    kept = SliceFeatures(partition_type=True)
    slices = node_slices("node-a", "uid", one_of_each(), kept)
    assert {one.partition_type_attribute for one in slices if one.devices} == {"gpu.nvidia.com/profile"}
    assert {one.partition_type_attribute for one in slices if not one.devices} == {None}
    without = tuple(replace(one, partition_type_attribute=None) for one in slices)
    assert node_slices("node-a", "uid", one_of_each(), SliceFeatures()) == without
    assert decode_slice(encode_slice(slices[-1], V1), V1) == slices[-1]


def test_slices_without_mig_devices_name_no_attribute() -> None:
    gpus = describe(board_inventory(H100, 2)).gpus
    slices = node_slices("node-a", "uid", gpus, SliceFeatures(partition_type=True))
    assert [one.partition_type_attribute for one in slices] == [None]
