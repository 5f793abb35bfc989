# SPDX-License-Identifier: Apache-2.0
"""What is read from the hardware, and what becomes of a GPU or a query that fails."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.inventory import (
    Failure,
    Inventory,
    MigInstance,
    architecture_name,
    brand_name,
    read_inventory,
)
from dra_driver.gpu.nvml import DeviceHandle, GpuInstanceProfile, MigMode, Nvml, NvmlError, Placement, Return
from dra_driver.gpu.simulation import SimulatedNvml
from dra_driver.gpu.simulation.faults import Fault
from tests.gpu.calls import make_instance
from tests.support.nodes import TestNode, make_node

BOARDS = {
    "a100-40x8": (8, "NVIDIA A100-SXM4-40GB", "Ampere", (8, 0), 40960, 7),
    "a100-80x8": (8, "NVIDIA A100-SXM4-80GB", "Ampere", (8, 0), 81920, 7),
    "h100x8": (8, "NVIDIA H100 80GB HBM3", "Hopper", (9, 0), 81559, 7),
    "h200x8": (8, "NVIDIA H200", "Hopper", (9, 0), 143771, 7),
    "b200x8": (8, "NVIDIA B200", "Blackwell", (10, 0), 183359, 7),
    "a30x4": (4, "NVIDIA A30", "Ampere", (8, 0), 24576, 5),
}


class OldDriver(SimulatedNvml):
    """A driver that does not name profiles."""

    def gpu_instance_profile(self, device: DeviceHandle, constant: int) -> GpuInstanceProfile:
        return replace(super().gpu_instance_profile(device, constant), name="")


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
        assert gpu.in_mig_mode == (gpu.index >= count // 2)
        assert len(gpu.mig_profiles) == (profiles if gpu.in_mig_mode else 0)


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
    assert read_gpus[1].mig_instances == (
        MigInstance(1, 9, Placement(4, 4), ((0, uuids[0]),)),
        MigInstance(nvml.gpu_instance_info(empty).id, 14, Placement(2, 2), ()),
        MigInstance(7, 19, Placement(0, 1), ((0, uuids[1]),)),
    )
    assert read_gpus[0].mig_instances == ()


# Failures


def test_a_lost_gpu_is_a_failure_and_the_others_are_read(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mixed")
    node.node.lose_gpu(2)
    node.node.lose_gpu(6)
    inventory = read(node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 3, 4, 5, 7]
    assert inventory.failures == (
        Failure(2, "nvmlDeviceGetHandleByIndex: GPU_IS_LOST"),
        Failure(6, "nvmlDeviceGetHandleByIndex: GPU_IS_LOST"),
    )


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode"]
)
def test_a_gpu_that_cannot_be_named_or_told_whole_from_split_is_a_failure(tmp_path: Path, call: str) -> None:
    node = faulty(tmp_path, "a30x4-mig", Fault(call, gpu=1, code=Return.UNKNOWN))
    inventory = read(node)
    assert [gpu.index for gpu in inventory.gpus] == [0, 2, 3]
    assert inventory.failures == (Failure(1, f"{call}: UNKNOWN (injected fault)"),)


OPTIONAL = {
    "nvmlDeviceGetName": "product_name",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPciInfo": "pci_address",
    "nvmlDeviceGetAddressingMode": "addressing_mode",
}


@pytest.mark.parametrize(("call", "fact"), OPTIONAL.items())
def test_a_fact_that_cannot_be_had_is_absent_and_is_a_problem(tmp_path: Path, call: str, fact: str) -> None:
    node = faulty(tmp_path, "a30x4", Fault(call, gpu=1, code=Return.UNKNOWN))
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


def test_a_gpu_that_cannot_be_split_has_no_mode(tmp_path: Path) -> None:
    node = faulty(tmp_path, "a30x4", Fault("nvmlDeviceGetMigMode", code=Return.NOT_SUPPORTED))
    assert {(gpu.mig_mode, gpu.in_mig_mode, gpu.problems) for gpu in read(node).gpus} == {(None, False, ())}


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("nvmlDeviceGetGpuInstanceProfileInfo", 0),
        ("nvmlDeviceGetGpuInstancePossiblePlacements", 0),
        ("nvmlDeviceGetGpuInstances", 7),
    ],
)
def test_a_failing_mig_query_is_a_problem_of_that_gpu_alone(tmp_path: Path, call: str, left: int) -> None:
    node = faulty(tmp_path, "h100x8-mig", Fault(call, gpu=1, code=Return.UNKNOWN))
    gpus = read(node).gpus
    assert len(gpus) == 8
    assert gpus[1].mig_mode == MigMode(True, True)
    assert len(gpus[1].mig_profiles) == left
    assert gpus[1].problems == (f"{call}: UNKNOWN (injected fault)",)
    assert [len(gpu.mig_profiles) for gpu in gpus if gpu.index != 1] == [7] * 7


def test_profiles_of_an_old_driver_are_named_by_their_figures(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h200x8-mig")
    assert read(node, OldDriver).gpus[0].mig_profiles[2].name == "3g.71gb"
    assert [profile.name for profile in read(node, OldDriver).gpus[0].mig_profiles] == [
        profile.name for profile in read(node).gpus[0].mig_profiles
    ]


def test_without_memory_an_old_drivers_profiles_are_a_problem_of_that_gpu_alone(tmp_path: Path) -> None:
    node = faulty(tmp_path, "a30x4-mig", Fault("nvmlDeviceGetMemoryInfo", gpu=0, code=Return.NOT_SUPPORTED))
    first, second, *_ = read(node, OldDriver).gpus
    assert first.mig_profiles == ()
    assert first.problems == ("nvmlDeviceGetMemoryInfo: NO_DATA (needed to name MIG profile 14)",)
    assert "1g.6gb" in [profile.name for profile in second.mig_profiles]


def test_an_unknown_cuda_version_is_left_out(tmp_path: Path) -> None:
    node = faulty(tmp_path, "a30x4", Fault("nvmlSystemGetCudaDriverVersion", code=Return.FUNCTION_NOT_FOUND))
    inventory = read(node)
    assert (inventory.driver_version, inventory.cuda_driver_version) == ("570.158.01", None)


@pytest.mark.parametrize("call", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"])
def test_when_the_driver_as_a_whole_fails_there_is_no_inventory(tmp_path: Path, call: str) -> None:
    node = faulty(tmp_path, "a30x4", Fault(call, code=Return.UNKNOWN))
    with pytest.raises(NvmlError, match=f"{call}: UNKNOWN"):
        read(node)


# Names of what NVML numbers

BRANDS = {0: "Unknown", 2: "Tesla", 5: "GeForce", 14: "Nvidia", 16: "TitanRTX", 17: "Unknown", 99: "Unknown"}
ARCHITECTURES = {6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell", 0xFFFFFFFF: "Unknown"}


@pytest.mark.parametrize(("number", "name"), BRANDS.items())
def test_brands_have_the_official_drivers_names(number: int, name: str) -> None:
    assert brand_name(number) == name


@pytest.mark.parametrize(("number", "name"), ARCHITECTURES.items())
def test_architectures_have_the_official_drivers_names(number: int, name: str) -> None:
    assert architecture_name(number) == name
