# SPDX-License-Identifier: Apache-2.0
"""What is read from the hardware, and what becomes of a GPU or a query that fails."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.devices import describe
from dra_driver.gpu.inventory import (
    Failure,
    Gpu,
    Inventory,
    architecture_name,
    brand_name,
    read_inventory,
)
from dra_driver.gpu.mig import MigInstance, PartialInstance
from dra_driver.gpu.nvml import (
    DeviceHandle,
    Fabric,
    FabricState,
    MigMode,
    Nvml,
    NvmlError,
    Placement,
    Return,
    VirtualizationMode,
)
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.gpu.simulated import SimulatedNvml
from dra_driver.gpu.simulated.board import COMPUTE_PROFILES
from dra_driver.gpu.simulated.faults import Fault
from tests.gpu.calls import make_instance, refusal
from tests.support.nodes import TestNode, make_node

VERSIONS = 'driverVersion: 570.158.01\ncudaVersion: "12.8"\n'
BOARDS = {
    "a100-40x8": (8, "NVIDIA A100-SXM4-40GB", "Ampere", (8, 0), 40960, 7),
    "a100-40x16": (16, "NVIDIA A100-SXM4-40GB", "Ampere", (8, 0), 40960, 7),
    "a100-80x8": (8, "NVIDIA A100-SXM4-80GB", "Ampere", (8, 0), 81920, 7),
    "h100x8": (8, "NVIDIA H100 80GB HBM3", "Hopper", (9, 0), 81559, 7),
    "h200x8": (8, "NVIDIA H200", "Hopper", (9, 0), 143771, 7),
    "b200x8": (8, "NVIDIA B200", "Blackwell", (10, 0), 183359, 7),
    "gb200x4": (4, "NVIDIA GB200", "Blackwell", (10, 0), 189471, 7),
    "a30x4": (4, "NVIDIA A30", "Ampere", (8, 0), 24576, 5),
    "l40sx4": (4, "NVIDIA L40S", "Ada Lovelace", (8, 9), 46068, 0),
}


def read(node: TestNode, make: Callable[[Path], Nvml] = SimulatedNvml) -> Inventory:
    """The inventory as a process that starts now reads it."""
    nvml = make(node.node.root)
    nvml.initialize()
    return read_inventory(nvml, node.sys_root)


def faulty(root: Path, node: str, *faults: Fault) -> TestNode:
    """A shipped node on which calls fail."""
    made = make_node(root, node)
    for fault in faults:
        made.node.inject(fault)
    return made


@pytest.mark.parametrize(("name", "facts"), BOARDS.items(), ids=list(BOARDS))
def test_facts_of_every_board(
    tmp_path: Path, name: str, facts: tuple[int, str, str, tuple[int, int], int, int]
) -> None:
    count, product, architecture, capability, memory, profiles = facts
    inventory = read(make_node(tmp_path, f"{name}-mixed"))
    assert inventory.failures == ()
    assert [gpu.minor for gpu in inventory.gpus] == [gpu.index for gpu in inventory.gpus] == list(range(count))
    assert len({gpu.uuid for gpu in inventory.gpus}) == count
    for gpu in inventory.gpus:
        assert (gpu.product_name, gpu.brand, gpu.architecture) == (product, "Nvidia", architecture)
        assert (gpu.compute_capability, gpu.memory) == (capability, memory << 20)
        assert (gpu.addressing_mode, gpu.problems) == ("HMM", ())
        assert gpu.pci_address is not None
        assert gpu.pcie_root is not None
        assert gpu.numa_node == (0 if gpu.index < count // 2 else 1)
        assert gpu.in_mig_mode == (bool(profiles) and gpu.index >= count // 2)
        assert gpu.mig_switchable == (architecture in ("Hopper", "Blackwell"))
        assert len(gpu.mig_profiles) == (profiles if gpu.in_mig_mode or gpu.mig_switchable else 0)


def test_profiles_come_with_every_placement(tmp_path: Path) -> None:
    gpu = read(make_node(tmp_path, "h100x8-mig")).gpus[0]
    placements = {profile.name: [(one.start, one.size) for one in profile.placements] for profile in gpu.mig_profiles}
    assert placements == {
        "1g.10gb": [(start, 1) for start in range(7)],
        "2g.20gb": [(0, 2), (2, 2), (4, 2)],
        "3g.40gb": [(0, 4), (4, 4)],
        "4g.40gb": [(0, 4)],
        "7g.80gb": [(0, 8)],
        "1g.10gb+me": [(start, 1) for start in range(7)],
        "1g.20gb": [(0, 2), (2, 2), (4, 2), (6, 2)],
    }


def test_instances_that_exist_come_with_their_devices(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mig")
    nvml, gpu = node.nvml, node.nvml.device_by_index(1)
    _, large = make_instance(nvml, gpu, 2, 4)
    _, small = make_instance(nvml, gpu, 0, 0)
    empty = nvml.create_gpu_instance(gpu, 14, Placement(2, 2))
    uuids = nvml.uuid(large), nvml.uuid(small)
    read_gpus = read(node).gpus
    found = read_gpus[1]
    assert found.mig_instances == (
        MigInstance(found.mig_device(9, Placement(4, 4)), 1, 0, uuids[0]),
        MigInstance(found.mig_device(19, Placement(0, 1)), 7, 0, uuids[1]),
    )
    number = nvml.gpu_instance_info(empty).id
    assert found.partial_instances == (PartialInstance(found.mig_device(14, Placement(2, 2)), number, ()),)
    assert [one.gpu_instance for one in found.gpu_instances] == sorted((1, number, 7))
    assert read_gpus[0].gpu_instances == ()


def test_gpu_instances_may_be_empty_or_hold_several_compute_instances(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mig")
    nvml, gpu = node.nvml, node.nvml.device_by_index(0)
    shared = nvml.create_gpu_instance(gpu, 9, Placement(4, 4))
    made = [nvml.create_compute_instance(shared, COMPUTE_PROFILES[slices]) for slices in (1, 2)]
    uuids = [nvml.uuid(nvml.compute_instance_info(one).device) for one in made]
    small = nvml.create_gpu_instance(gpu, 14, Placement(0, 2))
    part = nvml.create_compute_instance(small, COMPUTE_PROFILES[1])  # 1c.2g.20gb
    uuids.append(nvml.uuid(nvml.compute_instance_info(part).device))
    nvml.create_gpu_instance(gpu, 19, Placement(3, 1))
    found = read(node).gpus[0]
    assert found.mig_instances == ()
    assert found.partial_instances == (
        PartialInstance(found.mig_device(9, Placement(4, 4)), 1, (uuids[0], uuids[1])),
        PartialInstance(found.mig_device(14, Placement(0, 2)), 3, (uuids[2],)),
        PartialInstance(found.mig_device(19, Placement(3, 1)), 7, ()),
    )
    assert found.problems == ()


def test_a_node_of_one_fabric(tmp_path: Path) -> None:
    text = VERSIONS + "gpus: [{model: H100-SXM5-80GB, count: 2}]\nfabric: {clusterUUID: 5a1f6c1e, clique: 3}"
    (tmp_path / "node.yaml").write_text(text)
    node = make_node(tmp_path / "node", str(tmp_path / "node.yaml"))
    node.node.set_fabric(1, FabricState.IN_PROGRESS)
    assert [gpu.fabric for gpu in read(node).gpus] == [
        Fabric(FabricState.COMPLETED, "5a1f6c1e", 3),
        Fabric(FabricState.IN_PROGRESS),
    ]
    assert {gpu.fabric for gpu in read(make_node(tmp_path / "other", "h100x8")).gpus} == {None}


def test_minors_are_the_drivers_and_indexes_nvmls(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(VERSIONS + "gpus: [{model: H100-SXM5-80GB, count: 3, minors: [2, 7, 0]}]")
    gpus = read(make_node(tmp_path / "node", str(tmp_path / "node.yaml"))).gpus
    assert [(gpu.index, gpu.minor, gpu.module_id) for gpu in gpus] == [(0, 2, 1), (1, 7, 2), (2, 0, 3)]


@pytest.mark.parametrize(("name", "ids"), [("h100x8", list(range(1, 9))), ("l40sx4", [None] * 4)])
def test_module_ids_are_those_of_a_baseboard(tmp_path: Path, name: str, ids: list[int | None]) -> None:
    assert [gpu.module_id for gpu in read(make_node(tmp_path, name)).gpus] == ids


# NVLink


def groups(inventory: Inventory) -> list[list[int]]:
    """The indexes of the GPUs of each NVLink group, checked to be named after the lowest UUID in it."""
    found: dict[str, list[Gpu]] = {}
    for gpu in inventory.gpus:
        if gpu.nvlink_group is not None:
            found.setdefault(gpu.nvlink_group, []).append(gpu)
    assert all(name == min(gpu.uuid for gpu in members) for name, members in found.items())
    return [[gpu.index for gpu in members] for members in found.values()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100x8", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("a100-40x16", [list(range(16))]),
        ("h100x8-mixed", [[0, 1, 2, 3]]),
        ("h100x8-mig", []),
        ("l40sx4", []),
    ],
)
def test_whole_gpus_on_one_nvlink_switch_are_a_group(tmp_path: Path, name: str, expected: list[list[int]]) -> None:
    assert groups(read(make_node(tmp_path, name))) == expected


def test_a_gpu_whose_links_are_down_is_in_no_group(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8")
    node.node.set_nvlinks(0, up=False)
    node.node.lose_gpu(5)
    assert groups(read(node)) == [[1, 2, 3, 4, 6, 7]]


class Bridged(SimulatedNvml):
    """GPUs that are linked one by one: 0-2, 2-1, 3-5, 6-7. GPU 4 has no NVLink; with 5 that cannot even be asked."""

    def nvlink_peers(self, first: DeviceHandle, second: DeviceHandle) -> bool:
        pair = {self.minor(first), self.minor(second)}
        if pair == {4, 5}:
            raise NvmlError(Return.UNKNOWN, "nvmlDeviceGetP2PStatus")
        if 4 in pair:
            raise NvmlError(Return.NOT_SUPPORTED, "nvmlDeviceGetP2PStatus")
        return pair in ({0, 2}, {2, 1}, {3, 5}, {6, 7})


def test_a_group_is_all_that_reach_each_other_over_others(tmp_path: Path) -> None:
    inventory = read(make_node(tmp_path, "h100x8"), Bridged)
    assert groups(inventory) == [[0, 1, 2], [3, 5], [6, 7]]
    assert {gpu.index: gpu.problems for gpu in inventory.gpus if gpu.problems} == {
        5: (f"nvmlDeviceGetP2PStatus: UNKNOWN, for the NVLink to {inventory.gpus[4].uuid}",)
    }


# Failures


def test_a_lost_gpu_is_a_failure_and_the_others_are_read(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mixed")
    node.node.lose_gpu(2)
    node.node.lose_gpu(6)
    inventory = read(node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 3, 4, 5, 7]
    assert inventory.failures == (
        Failure(2, "nvmlDeviceGetHandleByIndex: GPU_IS_LOST", None, "0000:52:00.0"),
        Failure(6, "nvmlDeviceGetHandleByIndex: GPU_IS_LOST", None, "0000:d1:00.0"),
    )


def test_a_lost_gpu_that_is_not_on_the_bus_any_more_has_no_address(tmp_path: Path) -> None:
    node = make_node(tmp_path, "a30x4")
    node.node.lose_gpu(0)
    node.node.unplug(2)
    inventory = read_inventory(node.nvml, node.sys_root)
    assert [gpu.index for gpu in inventory.gpus] == [1, 3]
    assert inventory.failures == (
        Failure(0, "nvmlDeviceGetHandleByIndex: GPU_IS_LOST"),
        Failure(2, "nvmlDeviceGetHandleByIndex: GPU_IS_LOST"),
    )


@pytest.mark.parametrize(
    ("call", "known"),
    [
        ("nvmlDeviceGetHandleByIndex", False),
        ("nvmlDeviceGetUUID", False),
        ("nvmlDeviceGetMinorNumber", True),
        ("nvmlDeviceGetMigMode", True),
    ],
)
def test_a_gpu_that_cannot_be_named_or_told_whole_from_split_is_a_failure(
    tmp_path: Path, call: str, known: bool
) -> None:
    node = make_node(tmp_path, "a30x4-mig")
    uuid = node.nvml.uuid(node.nvml.device_by_index(1))
    node.node.inject(Fault(call, gpu=1, code=Return.UNKNOWN))
    inventory = read(node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 2, 3]
    assert inventory.failures == (
        Failure(1, f"{call}: UNKNOWN (injected fault)", uuid if known else None, "0000:65:00.0"),
    )


OPTIONAL = {
    "nvmlDeviceGetName": "product_name",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPciInfo": "pci_address",
    "nvmlDeviceGetAddressingMode": "addressing_mode",
    "nvmlDeviceGetModuleId": "module_id",
}


@pytest.mark.parametrize(("call", "fact"), OPTIONAL.items())
def test_a_fact_that_cannot_be_had_is_absent_and_is_a_problem(tmp_path: Path, call: str, fact: str) -> None:
    node = faulty(tmp_path, "a100-40x8", Fault(call, gpu=1, code=Return.UNKNOWN))
    first, second, *_ = read(node).gpus
    assert getattr(second, fact) is None
    assert second.problems == (f"{call}: UNKNOWN (injected fault)",)
    assert getattr(first, fact) is not None
    assert first.problems == ()


@pytest.mark.parametrize("code", [Return.NOT_SUPPORTED, Return.FUNCTION_NOT_FOUND, Return.ARGUMENT_VERSION_MISMATCH])
@pytest.mark.parametrize(("call", "fact"), OPTIONAL.items())
def test_a_fact_that_the_gpu_or_driver_does_not_know_is_no_problem(
    tmp_path: Path, call: str, fact: str, code: Return
) -> None:
    gpu = read(faulty(tmp_path, "a30x4", Fault(call, gpu=1, code=code))).gpus[1]
    assert (getattr(gpu, fact), gpu.problems) == (None, ())


@pytest.mark.parametrize(
    ("code", "problems"),
    [(Return.NOT_SUPPORTED, 0), (Return.FUNCTION_NOT_FOUND, 0), (Return.UNKNOWN, 1)],
)
def test_a_gpu_whose_virtualization_mode_cannot_be_had_is_taken_for_a_real_one(
    tmp_path: Path, code: Return, problems: int
) -> None:
    gpu = read(faulty(tmp_path, "h100x8", Fault("nvmlDeviceGetVirtualizationMode", gpu=1, code=code))).gpus[1]
    assert (gpu.is_vgpu, gpu.mig_switchable, len(gpu.problems)) == (False, True, problems)


VGPUS = """
driverVersion: 570.158.01
cudaVersion: "12.8"
gpus:
- {model: H100-SXM5-80GB}
- {model: H100-SXM5-80GB, vgpu: true}
- {model: H100-SXM5-80GB, vgpu: true, mig: true, instances: [{profile: 1g.10gb, start: 2}]}
"""


def test_a_vgpu_is_published_as_its_host_made_it(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(VGPUS, encoding="utf-8")
    node = make_node(tmp_path / "node", str(tmp_path / "node.yaml"))
    inventory = read(node)
    assert [(gpu.is_vgpu, gpu.mig_switchable) for gpu in inventory.gpus] == [
        (False, True),
        (True, False),
        (True, False),
    ]
    real, whole, split = describe(inventory, NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC),))).gpus
    assert len(real.devices) > 2
    assert [one.name for one in (*whole.devices, *split.devices)] == ["gpu-1", "gpu-2-mig-1g10gb-19-2"]


@pytest.mark.parametrize("index", [1, 2])
def test_a_virtual_machine_cannot_split_its_vgpu(tmp_path: Path, index: int) -> None:
    (tmp_path / "node.yaml").write_text(VGPUS, encoding="utf-8")
    nvml = make_node(tmp_path / "node", str(tmp_path / "node.yaml")).nvml
    gpu = nvml.device_by_index(index)
    assert nvml.virtualization_mode(gpu) == VirtualizationMode.VGPU
    assert refusal(nvml.set_mig_mode, gpu, True) is Return.NOT_SUPPORTED
    assert refusal(nvml.create_gpu_instance, gpu, 19, Placement(0, 1)) is Return.NOT_SUPPORTED
    for instance in nvml.gpu_instances(gpu, 19) if nvml.mig_mode(gpu).current else ():
        assert refusal(nvml.destroy_gpu_instance, instance) is Return.NOT_SUPPORTED


def test_a_gpu_that_cannot_be_split_has_no_mode(tmp_path: Path) -> None:
    node = faulty(tmp_path, "a30x4", Fault("nvmlDeviceGetMigMode", code=Return.NOT_SUPPORTED))
    assert {(gpu.mig_mode, gpu.in_mig_mode, gpu.problems) for gpu in read(node).gpus} == {(None, False, ())}


ALL_PROFILES = ", ".join(
    f"profile {name}" for name in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb")
)


@pytest.mark.parametrize(
    ("call", "left", "subject"),
    [
        ("nvmlDeviceGetGpuInstanceProfileInfo", 0, ", ".join(f"profile constant {number}" for number in range(18))),
        ("nvmlDeviceGetGpuInstancePossiblePlacements", 0, ALL_PROFILES),
        ("nvmlDeviceGetGpuInstances", 7, ALL_PROFILES),
        ("nvmlDeviceGetMigDeviceHandleByIndex", 7, "its MIG devices"),
    ],
)
def test_a_failing_mig_query_is_a_problem_of_that_gpu_alone(tmp_path: Path, call: str, left: int, subject: str) -> None:
    node = faulty(tmp_path, "h100x8-mig", Fault(call, gpu=1, code=Return.UNKNOWN))
    gpus = read(node).gpus
    assert len(gpus) == 8
    assert gpus[1].mig_mode == MigMode(True, True)
    assert len(gpus[1].mig_profiles) == left
    assert gpus[1].problems == (f"{call}: UNKNOWN (injected fault), for {subject}",)
    assert [len(gpu.mig_profiles) for gpu in gpus if gpu.index != 1] == [7] * 7


ONCE = {
    "nvmlDeviceGetGpuInstanceProfileInfo": ("profile constant 0", 6, 2),
    "nvmlDeviceGetGpuInstancePossiblePlacements": ("profile 1g.10gb", 6, 2),
    "nvmlDeviceGetGpuInstances": ("profile 1g.10gb", 7, 2),
    "nvmlGpuInstanceGetInfo": ("an instance of 1g.10gb", 7, 2),
    "nvmlDeviceGetGpuInstanceId": ("a MIG device", 7, 1),
}


@pytest.mark.parametrize(("call", "expected"), ONCE.items(), ids=list(ONCE))
def test_unreadable_profile_or_instance_hides_no_other(
    tmp_path: Path, call: str, expected: tuple[str, int, int]
) -> None:
    """An instance that cannot be found by its profile is found by the MIG device in it."""
    subject, profiles, with_devices = expected
    node = make_node(tmp_path, "h100x8-mig")
    for start in (0, 1):
        make_instance(node.nvml, node.nvml.device_by_index(1), 0, start)
    node.node.inject(Fault(call, gpu=1, code=Return.UNKNOWN, times=1))
    gpu = read(node).gpus[1]
    assert gpu.problems == (f"{call}: UNKNOWN (injected fault), for {subject}",)
    assert len(gpu.mig_profiles) == profiles
    assert [one.device.placement for one in gpu.gpu_instances] == [Placement(0, 1), Placement(1, 1)]
    known = (*gpu.mig_instances, *(one for one in gpu.partial_instances if one.uuids))
    assert len(known) == with_devices


class Nameless(SimulatedNvml):
    """A driver that gives no UUIDs of MIG devices."""

    def uuid(self, device: DeviceHandle) -> str:
        uuid = super().uuid(device)
        if uuid.startswith("MIG-"):
            raise NvmlError(Return.NO_DATA, "nvmlDeviceGetUUID")
        return uuid


def test_a_mig_device_without_a_uuid_is_a_problem_and_its_gpu_instance_is_known(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mig")
    make_instance(node.nvml, node.nvml.device_by_index(1), 0, 3)
    gpu = read(node, Nameless).gpus[1]
    assert gpu.problems == ("nvmlDeviceGetUUID: NO_DATA, for the MIG device in GPU instance 7",)
    assert gpu.partial_instances == (PartialInstance(gpu.mig_device(19, Placement(3, 1)), 7, ()),)


def test_an_unknown_cuda_version_is_left_out(tmp_path: Path) -> None:
    node = faulty(tmp_path, "a30x4", Fault("nvmlSystemGetCudaDriverVersion", code=Return.FUNCTION_NOT_FOUND))
    inventory = read(node)
    assert (inventory.driver_version, inventory.cuda_driver_version) == ("570.158.01", None)


@pytest.mark.parametrize("call", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"])
def test_when_the_driver_as_a_whole_fails_there_is_no_inventory(tmp_path: Path, call: str) -> None:
    node = faulty(tmp_path, "a30x4", Fault(call, code=Return.UNKNOWN))
    with pytest.raises(NvmlError, match=f"{call}: UNKNOWN"):
        read(node)


# What sysfs and /dev tell


def test_gpus_of_other_drivers_are_on_the_bus_alone(tmp_path: Path) -> None:
    node = make_node(tmp_path, "l40sx4")
    node.node.bind_driver(1, "vfio-pci")
    node.node.bind_driver(2, None)
    inventory = read(node)
    assert [(gpu.index, gpu.minor) for gpu in inventory.gpus] == [(0, 0), (1, 3)]
    assert [(gpu.position, gpu.driver) for gpu in inventory.pci_gpus] == [
        (0, "nvidia"),
        (1, "vfio-pci"),
        (2, None),
        (3, "nvidia"),
    ]
    assert inventory.failures == ()


def test_iommufd_and_product_names_are_looked_for_only_where_told(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8")
    root = node.node.driver_root
    plain = read_inventory(node.nvml, node.sys_root)
    assert (plain.iommufd, plain.pci_gpus[0].product_name) == (False, None)
    both = read_inventory(node.nvml, node.sys_root, dev_root=root, driver_root=root)
    assert (both.iommufd, both.pci_gpus[0].product_name) == (True, "GH100 [H100 SXM5 80GB]")
    (root / "dev/iommu").unlink()
    assert not read_inventory(node.nvml, node.sys_root, dev_root=root).iommufd


# Names of what NVML numbers

BRANDS = {0: "Unknown", 2: "Tesla", 5: "GeForce", 14: "Nvidia", 16: "TitanRTX", 17: "Unknown", 99: "Unknown"}
ARCHITECTURES = {6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell", 0xFFFFFFFF: "Unknown"}


@pytest.mark.parametrize(("number", "name"), BRANDS.items())
def test_brands_have_the_official_drivers_names(number: int, name: str) -> None:
    assert brand_name(number) == name


@pytest.mark.parametrize(("number", "name"), ARCHITECTURES.items())
def test_architectures_have_the_official_drivers_names(number: int, name: str) -> None:
    assert architecture_name(number) == name
