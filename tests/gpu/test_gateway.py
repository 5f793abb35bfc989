# SPDX-License-Identifier: Apache-2.0
"""The NVML of a simulated node: what each call answers, and with which code it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import (
    Architecture,
    ComputeInstanceProfile,
    Fabric,
    FabricState,
    GpuInstance,
    MigMode,
    Placement,
    Return,
)
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.gpu.simulated.board import COMPUTE_PROFILES
from dra_driver.gpu.simulated.description import parse_description
from tests.gpu.calls import destroy_instance, make_instance, refusal
from tests.support.nodes import TestNode, make_node

Call = tuple[Callable[..., object], object]

FABRIC_NODE = """
driverVersion: 580.95.05
cudaVersion: "13.0"
gpus: [{model: H100-SXM5-80GB}]
fabric: {clusterUUID: 5a1f6c1e-8a4c-4d0e-9c57-2f9a1f0f7a11, clique: 3}
"""


@pytest.fixture
def split(tmp_path: Path) -> TestNode:
    """Eight H100 in MIG mode."""
    return make_node(tmp_path, "h100x8-mig")


# The system and its GPUs


def test_nothing_answers_before_initialization_or_after_shutdown(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "a30x4").node.nvml()
    assert refusal(nvml.device_count) is Return.UNINITIALIZED
    nvml.initialize()
    assert nvml.device_count() == 4
    assert refusal(nvml.initialize) is Return.ALREADY_INITIALIZED
    nvml.shutdown()
    assert refusal(nvml.driver_version) is Return.UNINITIALIZED
    assert refusal(nvml.device_by_uuid, "GPU-x") is Return.UNINITIALIZED


def test_without_a_node_there_is_no_library(tmp_path: Path) -> None:
    assert refusal(SimulatedNode(tmp_path).nvml().initialize) is Return.LIBRARY_NOT_FOUND


@pytest.mark.parametrize(("node", "driver", "cuda"), [("h100x8", "570.158.01", 12080), ("b200x8", "580.95.05", 13000)])
def test_versions_are_those_of_the_description(tmp_path: Path, node: str, driver: str, cuda: int) -> None:
    nvml = make_node(tmp_path, node).nvml
    assert (nvml.driver_version(), nvml.cuda_driver_version()) == (driver, cuda)


def test_a_gpu_tells_what_it_is(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "h100x8").nvml
    gpu = nvml.device_by_index(3)
    assert nvml.name(gpu) == "NVIDIA H100 80GB HBM3"
    assert nvml.minor(gpu) == 3
    assert nvml.brand(gpu) == 14
    assert nvml.architecture(gpu) == Architecture.HOPPER
    assert nvml.compute_capability(gpu) == (9, 0)
    assert nvml.memory_total(gpu) == 81559 << 20
    assert nvml.pci_address(gpu) == "0000:61:00.0"
    assert nvml.module_id(gpu) == 4
    assert nvml.addressing_mode(gpu) == "HMM"
    assert nvml.mig_mode(gpu) == MigMode(False, False)
    assert nvml.compute_processes(gpu) == ()
    assert nvml.nvlinks(gpu) == (True,) * 18
    assert nvml.fabric(gpu) == Fabric(FabricState.NOT_SUPPORTED)


def test_a_gpu_on_a_card_of_its_own_has_no_links(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "a30x4").nvml
    assert nvml.nvlinks(nvml.device_by_index(0)) == ()


def test_gpus_of_a_fabric_have_registered(tmp_path: Path) -> None:
    node = SimulatedNode.create(tmp_path, parse_description(FABRIC_NODE, ""), "node-a")
    nvml = node.nvml()
    nvml.initialize()
    fabric = nvml.fabric(nvml.device_by_index(0))
    assert fabric == Fabric(FabricState.COMPLETED, "5a1f6c1e-8a4c-4d0e-9c57-2f9a1f0f7a11", 3)


def test_a_handle_is_found_by_index_and_by_uuid(split: TestNode) -> None:
    nvml = split.nvml
    gpu = nvml.device_by_index(5)
    assert nvml.device_by_uuid(nvml.uuid(gpu)) == gpu
    _, device = make_instance(nvml, gpu, 1, 2)
    assert nvml.uuid(device).startswith("MIG-")
    assert nvml.device_by_uuid(nvml.uuid(device)) == device
    assert refusal(nvml.device_by_index, 8) is Return.INVALID_ARGUMENT
    assert refusal(nvml.device_by_index, -1) is Return.INVALID_ARGUMENT
    assert refusal(nvml.device_by_uuid, "GPU-00000000-0000-0000-0000-000000000000") is Return.NOT_FOUND


def test_uuids_stay_the_same_and_differ_between_nodes_with_one_description(tmp_path: Path) -> None:
    first, second = (make_node(tmp_path / name, "h100x8", name).nvml for name in ("node-a", "node-b"))
    uuids = [nvml.uuid(nvml.device_by_index(index)) for nvml in (first, second) for index in range(8)]
    assert len(set(uuids)) == 16
    again = make_node(tmp_path / "node-a", "h100x8", "node-a").nvml
    assert [again.uuid(again.device_by_index(index)) for index in range(8)] == uuids[:8]


def test_a_folder_holds_one_node(tmp_path: Path) -> None:
    make_node(tmp_path, "h100x8")
    with pytest.raises(ValueError, match="holds another simulated node; remove the folder or choose another"):
        make_node(tmp_path, "h200x8")


def test_a_node_of_another_version_is_refused(tmp_path: Path) -> None:
    make_node(tmp_path, "h100x8")
    (tmp_path / "state/system.json").write_text('{"identity": "node-a"}')
    with pytest.raises(ValueError, match="another version of the driver made it; remove the folder"):
        make_node(tmp_path, "h100x8")


# MIG


def test_profiles_that_a_gpu_lacks_are_not_supported(split: TestNode) -> None:
    gpu = split.nvml.device_by_index(0)
    assert split.nvml.gpu_instance_profile(gpu, 9).name == "1g.20gb"
    for constant in (5, 6, 8, 17, 99):
        assert refusal(split.nvml.gpu_instance_profile, gpu, constant) is Return.NOT_SUPPORTED


@pytest.mark.parametrize("name", ["a100-40x8", "h100x8"])
def test_without_mig_mode_profiles_are_known_and_instances_not_supported(tmp_path: Path, name: str) -> None:
    nvml = make_node(tmp_path, name).nvml
    gpu = nvml.device_by_index(0)
    assert nvml.gpu_instance_profile(gpu, 0).id == 19
    assert nvml.mig_devices(gpu) == ()
    assert refusal(nvml.gpu_instances, gpu, 19) is Return.NOT_SUPPORTED
    assert refusal(nvml.gpu_instance_by_id, gpu, 7) is Return.NOT_SUPPORTED
    assert refusal(nvml.create_gpu_instance, gpu, 19, Placement(0, 1)) is Return.NOT_SUPPORTED


def test_since_hopper_placements_are_known_without_mig_mode(tmp_path: Path) -> None:
    older, newer = (make_node(tmp_path / name, name).nvml for name in ("a100-40x8", "h100x8"))
    assert refusal(older.gpu_instance_placements, older.device_by_index(0), 9) is Return.NOT_SUPPORTED
    assert newer.gpu_instance_placements(newer.device_by_index(0), 9) == (Placement(0, 4), Placement(4, 4))


def test_a_gpu_without_mig_has_neither_mode_nor_profiles(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "l40sx4").nvml
    gpu = nvml.device_by_index(0)
    assert refusal(nvml.mig_mode, gpu) is Return.NOT_SUPPORTED
    assert refusal(nvml.set_mig_mode, gpu, True) is Return.NOT_SUPPORTED
    assert refusal(nvml.gpu_instance_profile, gpu, 0) is Return.NOT_SUPPORTED
    assert nvml.mig_devices(gpu) == ()


def test_an_instance_is_made_found_and_destroyed(split: TestNode) -> None:
    nvml, gpu = split.nvml, split.nvml.device_by_index(1)
    instance, device = make_instance(nvml, gpu, 2, 4)
    info = nvml.gpu_instance_info(instance)
    assert info == GpuInstance(1, 9, Placement(4, 4))
    assert nvml.gpu_instances(gpu, 9) == (instance,)
    assert nvml.gpu_instances(gpu, 19) == ()
    assert nvml.gpu_instance_by_id(gpu, info.id) == instance
    assert nvml.mig_devices(gpu) == (device,)
    assert nvml.mig_instance_ids(device) == (1, 0)
    (compute,) = nvml.compute_instances(instance, COMPUTE_PROFILES[3])
    assert nvml.compute_instances(instance, COMPUTE_PROFILES[1]) == ()
    assert nvml.compute_instance_info(compute).device == device

    assert refusal(nvml.destroy_gpu_instance, instance) is Return.IN_USE
    nvml.destroy_compute_instance(compute)
    assert nvml.mig_devices(gpu) == ()
    nvml.destroy_gpu_instance(instance)
    assert nvml.gpu_instances(gpu, 9) == ()
    gone: list[Call] = [
        (nvml.gpu_instance_info, instance),
        (nvml.destroy_gpu_instance, instance),
        (nvml.compute_instance_info, compute),
        (nvml.destroy_compute_instance, compute),
        (nvml.uuid, device),
        (nvml.mig_instance_ids, device),
    ]
    for call, handle in gone:
        assert refusal(call, handle) is Return.NOT_FOUND
    assert refusal(nvml.gpu_instance_by_id, gpu, info.id) is Return.NOT_FOUND


def test_compute_profiles_are_those_that_fit(split: TestNode) -> None:
    nvml = split.nvml
    instance, _ = make_instance(nvml, nvml.device_by_index(0), 3, 0)
    found = [nvml.compute_instance_profile(instance, constant) for constant in (0, 1, 2, 3)]
    assert found == [ComputeInstanceProfile(i, i, i + 1, 4 // (i + 1)) for i in range(4)]
    for constant in (4, 5, 6, 99):
        assert refusal(nvml.compute_instance_profile, instance, constant) is Return.NOT_SUPPORTED


def test_the_same_instance_made_again_has_the_same_uuid(split: TestNode) -> None:
    """The driver derives MIG UUIDs from the GPU and the ids of the instances."""
    nvml, gpu = split.nvml, split.nvml.device_by_index(0)
    uuids = []
    for _ in range(2):
        instance, device = make_instance(nvml, gpu, 0, 3)
        uuids.append(nvml.uuid(device))
        destroy_instance(nvml, instance)
    assert uuids[0] == uuids[1]


def test_handles_of_one_kind_are_not_taken_for_another(split: TestNode) -> None:
    nvml, gpu = split.nvml, split.nvml.device_by_index(0)
    instance, device = make_instance(nvml, gpu, 0, 0)
    mistaken: list[Call] = [
        (nvml.minor, device),
        (nvml.mig_mode, device),
        (nvml.mig_instance_ids, gpu),
        (nvml.gpu_instance_info, gpu),
        (nvml.destroy_gpu_instance, device),
        (nvml.compute_instance_info, instance),
    ]
    for call, handle in mistaken:
        assert refusal(call, handle) is Return.INVALID_ARGUMENT


def test_another_gateway_sees_the_same_hardware(split: TestNode) -> None:
    instance, device = make_instance(split.nvml, split.nvml.device_by_index(2), 1, 0)
    other = split.node.nvml()
    other.initialize()
    gpu = other.device_by_index(2)
    assert [other.uuid(one) for one in other.mig_devices(gpu)] == [split.nvml.uuid(device)]
    other.destroy_compute_instance(other.compute_instances(other.gpu_instances(gpu, 14)[0], 1)[0])
    split.nvml.destroy_gpu_instance(instance)
    assert other.gpu_instances(gpu, 14) == ()


def test_gpus_are_split_independently(split: TestNode) -> None:
    nvml = split.nvml
    for index in range(8):
        make_instance(nvml, nvml.device_by_index(index), 4, 0)
    assert [len(nvml.mig_devices(nvml.device_by_index(index))) for index in range(8)] == [1] * 8
    ids = {nvml.uuid(nvml.mig_devices(nvml.device_by_index(index))[0]) for index in range(8)}
    assert len(ids) == 8


def test_described_instances_are_there_from_the_start(tmp_path: Path) -> None:
    text = FABRIC_NODE.replace(
        "80GB}", "80GB, mig: true, instances: [{profile: 3g.40gb, start: 4}, {profile: 1g.10gb}]}"
    )
    node = SimulatedNode.create(tmp_path, parse_description(text, ""), "node-a")
    nvml = node.nvml()
    nvml.initialize()
    gpu = nvml.device_by_index(0)
    ids = [nvml.mig_instance_ids(device) for device in nvml.mig_devices(gpu)]
    assert ids == [(1, 0), (7, 0)]
    assert nvml.gpu_instance_info(nvml.gpu_instance_by_id(gpu, 1)).placement == Placement(4, 4)


def test_the_mode_is_changed_and_kept(split: TestNode) -> None:
    nvml, gpu = split.nvml, split.nvml.device_by_index(0)
    instance, _ = make_instance(nvml, gpu, 0, 0)
    assert refusal(nvml.set_mig_mode, gpu, False) is Return.IN_USE
    destroy_instance(nvml, instance)
    assert nvml.set_mig_mode(gpu, False) is None
    again = split.node.nvml()
    again.initialize()
    assert again.mig_mode(gpu) == MigMode(False, False)
