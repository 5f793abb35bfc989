# SPDX-License-Identifier: Apache-2.0
"""GPUs on hosts with NVIDIA's vGPU manager: what is found, and what is published of it under which policy."""

import json
import random
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.errors import DescriptionError
from dra_driver.gpu.devices import Description, Reason, VgpuDevice, describe, device_targets
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.ownership import Owned
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.gpu.simulated.description import decode_description, encode_description, parse_description
from dra_driver.gpu.vgpus import VgpuFramework, VgpuHost, VgpuPlace, VgpuTypes, can_create, existing_vgpus
from dra_driver.kube.resource import Device, Quantity
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.validation import slice_problems
from tests.gpu.test_view import looked_at
from tests.support.allocating import NodeClaims
from tests.support.nodes import make_node

VFIO, MIXED = "{framework: vfio, functions: 16}", "{framework: vfio, functions: 16, mixed: true}"
NO_COUNTERS = SliceFeatures(partitionable_devices=False)
TEN = "b0e0d5b2-0000-4000-8000-00000000000a"


def write_node(folder: Path, host: str, board: str = "L40S-PCIE-48GB") -> str:
    """The file of a node with one GPU, whose host is this."""
    file = folder / "vgpus.yaml"
    gpu = f"{{model: {board}, pciAddresses: ['0000:41:00.0']{f', vgpuHost: {host}' if host else ''}}}"
    file.write_text(f"driverVersion: 570.158.01\ncudaVersion: '12.8'\ngpus: [{gpu}]\n")
    return str(file)


def inventory(folder: Path, host: str, board: str = "L40S-PCIE-48GB") -> Inventory:
    return make_node(folder / "node", write_node(folder, host, board)).inventory()


def host_of(found: Inventory) -> VgpuHost:
    (gpu,) = found.gpus
    assert gpu.vgpu_host is not None
    return gpu.vgpu_host


def published(
    found: Inventory,
    *types: str,
    owned: Set[Owned] = frozenset(),
    features: SliceFeatures | None = None,
    passthrough: bool = False,
) -> Description:
    policy = NodePolicy((GpuRule(vgpu_types=types, mig=MigPolicy.DYNAMIC, passthrough=passthrough),))
    return describe(found, policy, owned, features or SliceFeatures())


def devices(description: Description) -> dict[str, Device]:
    return {one.name: one for gpu in description.gpus for one in gpu.devices}


def reasons(description: Description) -> list[Reason]:
    return [one.reason for one in description.left_out]


def with_vgpus(found: Inventory, *places: VgpuPlace) -> Inventory:
    (gpu,) = found.gpus
    return replace(found, gpus=(replace(gpu, vgpu_host=replace(host_of(found), existing=places)),))


# What is found


def test_virtual_functions_are_found_in_their_order_with_the_types_of_nvml(tmp_path: Path) -> None:
    host = host_of(inventory(tmp_path, VFIO))
    assert (host.framework, len(host.functions), host.existing, host.problem) == (VgpuFramework.VFIO, 16, (), "")
    assert host.functions[:5] == ("0000:41:00.4", "0000:41:00.5", "0000:41:00.6", "0000:41:00.7", "0000:41:01.0")
    assert {one.name: len(one.starts) for one in host.types.types} == {
        "L40S-1Q": 32, "L40S-2Q": 24, "L40S-4Q": 12, "L40S-8Q": 6, "L40S-12Q": 4, "L40S-16Q": 3, "L40S-24Q": 2,
        "L40S-48Q": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("host", "board", "functions"),
    [
        ("{framework: mdev}", "T4-PCIE-16GB", ("0000:41:00.0",)),
        ("{framework: mdev, functions: 2}", "A30-PCIE-24GB", ("0000:41:00.4", "0000:41:00.5")),
    ],
)
def test_mediated_devices_are_on_the_gpu_or_on_its_functions(
    tmp_path: Path, host: str, board: str, functions: tuple[str, ...]
) -> None:
    found = host_of(inventory(tmp_path, host, board))
    assert (found.framework, found.functions) == (VgpuFramework.MDEV, functions)
    place = VgpuPlace("GPU-1", functions[0], found.types.types[0].id, TEN)
    assert can_create(tmp_path / "node/driver/sys", place)
    assert not can_create(tmp_path / "node/driver/sys", replace(place, type_id=1))


def test_an_ordinary_driver_has_no_vgpus_whatever_the_policy_says(tmp_path: Path) -> None:
    description = published(inventory(tmp_path, ""), "12Q")
    assert list(devices(description)) == ["gpu-0"]
    assert reasons(description) == [Reason.VGPU_HOST]


def test_existing_vgpus_are_found_on_their_functions(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", write_node(tmp_path, VFIO))
    (node.sys_root / "bus/pci/devices/0000:41:01.0/nvidia/current_vgpu_type").write_text("1104\n")
    (gpu,) = node.inventory().gpus
    place = VgpuPlace(gpu.uuid, "0000:41:01.0", 1104)
    assert host_of(node.inventory()).existing == (place,)
    assert not can_create(node.sys_root, replace(place, type_id=7))
    assert existing_vgpus(node.sys_root, gpu.uuid, "0000:43:00.0") == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("nvidia", "enable the virtual functions with sriov-manage -e"),
        ("iommu_group", "0000:41:00.4 has no IOMMU group"),
        ("group", "cannot get 0000:41:00.4: its IOMMU group 1000 also has 0000:41:00.5"),
    ],
)
def test_functions_that_cannot_be_given_away_are_a_problem(tmp_path: Path, change: str, problem: str) -> None:
    node = make_node(tmp_path / "node", write_node(tmp_path, VFIO))
    functions = [node.sys_root / "bus/pci/devices" / one for one in host_of(node.inventory()).functions]
    for one in functions if change == "nvidia" else ():
        (one / "nvidia").rename(one / "gone")
    if change == "iommu_group":
        (functions[0] / "iommu_group").unlink()
    if change == "group":
        (functions[0] / "iommu_group/devices" / functions[1].name).symlink_to(functions[1].resolve())
    description = published(node.inventory(), "12Q")
    assert not description.gpus
    assert problem in str(description.left_out[0])


def test_the_description_of_a_simulated_host_is_checked_and_kept(tmp_path: Path) -> None:
    text = Path(write_node(tmp_path, MIXED)).read_text()
    node = parse_description(text, "node")
    assert decode_description(json.loads(json.dumps(encode_description(node)))) == node
    for wrong in ("{framework: grid}", "{framework: vfio}", "{framework: mdev, functions: 33}"):
        with pytest.raises(DescriptionError, match="vgpuHost"):
            parse_description(text.replace(MIXED, wrong), "node")


# What is published


def test_a_gpu_without_a_type_in_the_policy_is_nothing_for_containers(tmp_path: Path) -> None:
    description = published(inventory(tmp_path, VFIO))
    assert (description.gpus, reasons(description)) == ((), [Reason.VGPU_HOST])


@pytest.mark.parametrize("name", ["12Q", "L40S-12Q"])
def test_each_vgpu_that_fits_is_a_device(tmp_path: Path, name: str) -> None:
    description = published(inventory(tmp_path, VFIO), name, features=NO_COUNTERS)
    found = devices(description)
    assert sorted(found) == [f"gpu-0-vgpu-12q-1104-{number}" for number in range(4)]
    device = found["gpu-0-vgpu-12q-1104-1"]
    wanted = {
        "type": "vgpu",
        "vgpuType": "L40S-12Q",
        "profile": "12Q",
        "resource.kubernetes.io/pciBusID": "0000:41:00.5",
    }
    assert wanted.items() <= device.attributes.items()
    assert str(device.attributes["parentUUID"]).startswith("GPU-")
    assert "mdevUUID" not in device.attributes
    assert device.capacity["memory"].value == Quantity.parse("12Gi")
    slices = node_slices("node-a", "uid", description.gpus, NO_COUNTERS)
    assert not any(each.consumes_counters for one in slices for each in one.devices)


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (("12Q", "24Q"), "all vGPUs of the GPU must have one type"),
        (("13Q",), "it has no type 13Q (it has L40S-1Q, "),
    ],
)
def test_types_that_a_gpu_cannot_have_are_left_out(tmp_path: Path, types: tuple[str, ...], said: str) -> None:
    description = published(inventory(tmp_path, VFIO), *types)
    assert (description.gpus, reasons(description)) == ((), [Reason.VGPU_TYPES])
    assert said in description.left_out[0].text


def test_passthrough_and_vgpus_of_a_gpu_exclude_each_other(tmp_path: Path) -> None:
    found = inventory(tmp_path, "{framework: mdev}", "T4-PCIE-16GB")
    description = published(found, "4Q", passthrough=True)
    claims = NodeClaims(node_slices("node-a", "uid", description.gpus))
    vgpu, vfio = (f"device.attributes['gpu.nvidia.com'].type == '{kind}'" for kind in ("vgpu", "vfio"))
    assert (claims.room(vgpu), claims.room(vfio)) == (4, 1)
    taken = claims.allocate(vgpu)
    assert (claims.room(vgpu), claims.room(vfio)) == (3, 0)
    assert taken is not None
    claims.release(taken)
    assert claims.allocate(vfio) is not None
    assert claims.room(vgpu) == 0


def test_without_counters_the_policys_vgpus_are_published_and_the_whole_gpu_is_not(tmp_path: Path) -> None:
    found = inventory(tmp_path, "{framework: mdev}", "T4-PCIE-16GB")
    description = published(found, "4Q", passthrough=True, features=NO_COUNTERS)
    assert len(devices(description)) == 4
    assert reasons(description) == [Reason.NO_PARTITIONABLE_DEVICES]
    assert list(devices(published(found, passthrough=True, features=NO_COUNTERS))) == ["gpu-vfio-0"]


def test_a_board_with_virtual_functions_is_not_given_away_as_a_whole(tmp_path: Path) -> None:
    description = published(inventory(tmp_path, VFIO), "24Q", passthrough=True)
    assert (len(devices(description)), reasons(description)) == (2, [Reason.VIRTUAL_FUNCTIONS])


@pytest.mark.parametrize("seed", range(5))
def test_vgpus_of_several_types_never_overlap_and_have_functions_of_their_own(tmp_path: Path, seed: int) -> None:
    found, random_order = inventory(tmp_path, MIXED), random.Random(seed)
    types = random_order.sample(["4Q", "8Q", "12Q", "16Q", "24Q", "48Q"], 3)
    description = published(found, *types)
    slices = node_slices("node-a", "uid", description.gpus)
    assert not [problem for one in slices for problem in slice_problems(one)]
    claims, targets = NodeClaims(slices), device_targets(found)
    taken: list[VgpuDevice] = []
    while left := [name for name in types if claims.room(f"device.attributes['gpu.nvidia.com'].profile == '{name}'")]:
        got = claims.allocate(f"device.attributes['gpu.nvidia.com'].profile == '{random_order.choice(left)}'")
        assert got is not None
        target = targets[got.device]
        assert isinstance(target, VgpuDevice)
        taken.append(target)
    units = [unit for one in taken for unit in range(one.start or 0, (one.start or 0) + one.type.size)]
    assert len(units) == len(set(units))
    assert len({one.place.address for one in taken}) == len(taken)
    smallest = min(one.type.size for one in taken)
    free = sorted(set(range(48)) - set(units))
    assert not any(set(range(start, start + smallest)) <= set(free) for start in range(0, 48, smallest))


def test_several_types_need_counters_and_not_too_many_of_them(tmp_path: Path) -> None:
    found = inventory(tmp_path, MIXED)
    assert reasons(published(found, "12Q", "24Q", features=NO_COUNTERS)) == [Reason.NO_PARTITIONABLE_DEVICES]
    assert reasons(published(found, "1Q", "24Q")) == []
    host = host_of(found)
    crowded = tuple(replace(one, starts=tuple(range(48))) for one in host.types.types)
    many = replace(host, functions=tuple(map(str, range(48))), types=VgpuTypes(True, crowded))
    wide = replace(found, gpus=(replace(found.gpus[0], vgpu_host=many),))
    assert reasons(published(wide, "1Q", "24Q")) == [Reason.VGPU_TYPES]


def test_placements_of_one_type_may_overlap(tmp_path: Path) -> None:
    found = inventory(tmp_path, MIXED)
    host = host_of(found)
    wide = replace(host, types=VgpuTypes(True, (replace(host.types.types[6], starts=(0, 12, 24)),)))
    overlapping = replace(found, gpus=(replace(found.gpus[0], vgpu_host=wide),))
    claims = NodeClaims(node_slices("node-a", "uid", published(overlapping, "24Q").gpus))
    assert claims.room("true") == 2
    assert reasons(published(overlapping, "24Q", features=NO_COUNTERS)) == [Reason.NO_PARTITIONABLE_DEVICES]


# vGPUs that are there


def test_mediated_device_whose_type_cannot_be_read_is_no_vgpu(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", write_node(tmp_path, "{framework: mdev}", "T4-PCIE-16GB"))
    function = node.sys_root / "bus/pci/devices/0000:41:00.0"
    found = function.resolve() / TEN
    found.mkdir()
    link = node.sys_root / "bus/mdev/devices" / TEN
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(found)
    assert existing_vgpus(node.sys_root, "GPU-1", "0000:41:00.0") == ()
    (found / "mdev_type").symlink_to(function.resolve() / "mdev_supported_types/nvidia-222")
    assert existing_vgpus(node.sys_root, "GPU-1", "0000:41:00.0") == (VgpuPlace("GPU-1", "0000:41:00.0", 222, TEN),)


def test_vgpus_of_an_administrator_are_published_as_they_are_and_nothing_beside_them(tmp_path: Path) -> None:
    found = inventory(tmp_path, "{framework: mdev}", "T4-PCIE-16GB")
    place = VgpuPlace(found.gpus[0].uuid, "0000:41:00.0", 1102, TEN)
    description = published(with_vgpus(found, place, replace(place, type_id=7)), "4Q", passthrough=True)
    name = f"gpu-0-vgpu-4q-{TEN}"
    assert devices(description)[name].attributes["mdevUUID"] == TEN
    assert len(devices(description)) == 1
    assert not description.gpus[0].overlapping
    assert reasons(description) == [Reason.POLICY, Reason.FOREIGN_VGPU, Reason.FOREIGN_VGPU]
    target = device_targets(with_vgpus(found, place))[name]
    assert isinstance(target, VgpuDevice)
    assert (target.place, target.start) == (place, None)


def test_a_function_that_an_administrator_made_a_vgpu_is_named_after_its_address(tmp_path: Path) -> None:
    found = inventory(tmp_path, VFIO)
    made = with_vgpus(found, VgpuPlace(found.gpus[0].uuid, "0000:41:01.0", 1106))
    assert list(devices(published(made, "24Q"))) == ["gpu-0-vgpu-24q-0000-41-01-0"]
    for types in ((), ("12Q",)):
        assert "of type L40S-24Q: the policy does not name it" in str(published(made, *types).left_out[0])


def test_vgpus_of_claims_change_nothing(tmp_path: Path) -> None:
    found = inventory(tmp_path, VFIO)
    place = VgpuPlace(found.gpus[0].uuid, "0000:41:00.4", 1104)
    assert published(with_vgpus(found, place), "12Q", owned={place}) == replace(
        published(found, "12Q"), gpus=published(with_vgpus(found, place), "12Q", owned={place}).gpus
    )
    assert devices(published(with_vgpus(found, place), "12Q", owned={place})) == devices(published(found, "12Q"))


def test_vgpus_of_claims_whose_type_is_no_longer_wanted_keep_others_back(tmp_path: Path) -> None:
    found = inventory(tmp_path, "{framework: mdev}", "T4-PCIE-16GB")
    place = VgpuPlace(found.gpus[0].uuid, "0000:41:00.0", 1102, TEN)
    for types in ((), ("8Q",)):
        description = published(with_vgpus(found, place), *types, owned={place}, passthrough=True)
        assert (description.gpus, reasons(description)) == ((), [Reason.VGPU_TYPES])


# The view of the node


def test_the_view_notices_vgpus_of_an_administrator_at_its_next_look(tmp_path: Path) -> None:
    with looked_at(tmp_path, write_node(tmp_path, VFIO), "gpus:\n- {vgpuTypes: [12Q]}\n") as node:
        before, marks = set(node.devices()), VfioMarks(tmp_path / "vfio").vgpus
        file = node.simulated.driver_root / "sys/bus/pci/devices/0000:41:00.5/nvidia/current_vgpu_type"
        place = VgpuPlace(node.gpu(0).uuid, "0000:41:00.5", 1104)
        marks.set(place)
        file.write_text("1104\n")
        assert node.discovery.look_now(30)
        assert set(node.devices()) == before
        marks.clear(place)
        assert node.discovery.look_now(30)
        assert set(node.devices()) == {"gpu-0-vgpu-12q-0000-41-00-5"}
        file.write_text("0\n")
        assert node.discovery.look_now(30)
        assert set(node.devices()) == before
