# SPDX-License-Identifier: Apache-2.0
"""Things that happen to simulated hardware: busy, lost and reset GPUs, absent drivers, calls that fail."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import (
    DeviceHandle,
    Fabric,
    FabricState,
    MigMode,
    Nvml,
    NvmlError,
    Placement,
    RecoveryAction,
    RemappedRows,
    Return,
)
from dra_driver.gpu.simulated.description import parse_description
from dra_driver.gpu.simulated.faults import Fault
from tests.gpu.calls import destroy_instance, make_instance, refusal, the_compute_instance
from tests.support.hardware import ControlledNode
from tests.support.nodes import TestNode, make_node

FAULTY_NODE = """
driverVersion: 570.158.01
cudaVersion: "12.8"
gpus: [{model: H100-SXM5-80GB, count: 2, mig: true}]
faults: [{call: nvmlDeviceGetName, gpu: 1, code: UNKNOWN}]
"""


@pytest.fixture
def split(tmp_path: Path) -> TestNode:
    """Eight H100 in MIG mode."""
    return make_node(tmp_path, "h100x8-mig")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until it is told to stop."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def outcomes(nvml: Nvml, gpu: DeviceHandle, count: int) -> list[str]:
    """What asking for a GPU's name gives, `count` times."""
    results = []
    for _ in range(count):
        try:
            results.append(nvml.name(gpu))
        except NvmlError as error:
            results.append(error.code.name)
    return results


# Processes


@pytest.mark.node
def test_a_busy_gpu_lists_its_processes_and_keeps_its_mode(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    node = make_node(tmp_path, "h100x8")
    nvml, gpu = node.nvml, node.nvml.device_by_index(0)
    node.node.occupy(nvml.uuid(gpu), process.pid)
    assert nvml.compute_processes(gpu) == (process.pid,)
    assert nvml.compute_processes(nvml.device_by_index(1)) == ()
    assert nvml.set_mig_mode(gpu, True) is Return.IN_USE
    assert nvml.mig_mode(gpu) == MigMode(False, True)
    node.node.vacate(process.pid)
    assert nvml.compute_processes(gpu) == ()
    node.node.reset_gpu(0)
    assert nvml.mig_mode(gpu) == MigMode(True, True)


@pytest.mark.node
def test_a_busy_mig_device_stays_until_its_process_ends(split: TestNode, process: subprocess.Popen[bytes]) -> None:
    nvml = split.nvml
    instance, device = make_instance(nvml, nvml.device_by_index(0), 0, 0)
    _, idle = make_instance(nvml, nvml.device_by_index(0), 0, 1)
    split.node.occupy(nvml.uuid(device), process.pid)
    assert nvml.compute_processes(device) == (process.pid,)
    assert nvml.compute_processes(idle) == ()
    assert refusal(nvml.destroy_compute_instance, the_compute_instance(nvml, instance)) is Return.IN_USE
    process.kill()
    process.wait()
    assert nvml.compute_processes(device) == ()
    destroy_instance(nvml, instance)


@pytest.mark.node
def test_a_process_that_ended_is_gone_even_if_nobody_asked_for_its_status(
    split: TestNode, process: subprocess.Popen[bytes]
) -> None:
    nvml = split.nvml
    gpu = nvml.device_by_index(0)
    split.node.occupy(nvml.uuid(gpu), process.pid)
    process.kill()
    for line in iter(lambda: Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8"), ""):
        if line.rpartition(")")[2].split()[0] == "Z":
            break
    assert nvml.compute_processes(gpu) == ()
    split.node.reset_gpu(0)


@pytest.mark.node
def test_a_reset_while_a_process_runs_changes_nothing(split: TestNode, process: subprocess.Popen[bytes]) -> None:
    nvml, node = split.nvml, split.node
    gpu = nvml.device_by_index(0)
    _, device = make_instance(nvml, gpu, 0, 0)
    node.occupy(nvml.uuid(device), process.pid)
    files = sorted(node.driver_root.rglob("*"))
    assert refusal(node.reset_gpu, 0) is Return.IN_USE
    assert nvml.mig_devices(gpu) == (device,)
    assert sorted(node.driver_root.rglob("*")) == files


def test_only_devices_that_exist_can_be_occupied(split: TestNode) -> None:
    with pytest.raises(LookupError, match="no device MIG-x on the simulated node in "):
        split.node.occupy("MIG-x", 1)


# Lost and reset GPUs


def test_a_lost_gpu_answers_nothing_and_the_others_go_on(split: TestNode) -> None:
    nvml, node = split.nvml, split.node
    gpu, other = nvml.device_by_index(2), nvml.device_by_index(3)
    uuid = nvml.uuid(gpu)
    instance, device = make_instance(nvml, gpu, 0, 0)
    make_instance(nvml, other, 0, 0)
    node.lose_gpu(2)
    assert nvml.device_count() == 8
    calls = [
        nvml.uuid,
        nvml.minor,
        nvml.name,
        nvml.pci_address,
        nvml.memory_total,
        nvml.mig_mode,
        nvml.mig_devices,
        nvml.fabric,
    ]
    assert [refusal(call, gpu) for call in calls] == [Return.GPU_IS_LOST] * len(calls)
    assert refusal(nvml.device_by_index, 2) is Return.GPU_IS_LOST
    assert refusal(nvml.device_by_uuid, uuid) is Return.GPU_IS_LOST
    assert refusal(nvml.uuid, device) is Return.GPU_IS_LOST
    assert refusal(nvml.destroy_gpu_instance, instance) is Return.GPU_IS_LOST
    assert refusal(nvml.create_gpu_instance, gpu, 19, Placement(1, 1)) is Return.GPU_IS_LOST
    assert len(nvml.mig_devices(other)) == 1


def test_a_reset_brings_a_lost_gpu_back_empty(split: TestNode) -> None:
    nvml, node = split.nvml, split.node
    gpu = nvml.device_by_index(2)
    make_instance(nvml, gpu, 0, 0)
    node.lose_gpu(2)
    node.reset_gpu(2)
    assert nvml.mig_mode(gpu) == MigMode(True, True)
    assert nvml.mig_devices(gpu) == ()
    make_instance(nvml, gpu, 4, 0)


# GPUs that come and go


def addresses(nvml: Nvml) -> list[str]:
    """Where the GPUs are that NVML has, by its indexes."""
    return [nvml.pci_address(nvml.device_by_index(index)) for index in range(nvml.device_count())]


FIRST, SECOND, THIRD, FOURTH = "0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0"


@pytest.fixture
def four(tmp_path: Path) -> TestNode:
    """Four A30 in MIG mode."""
    return make_node(tmp_path, "a30x4-mig")


def test_gpus_are_enumerated_by_the_initialization(four: TestNode) -> None:
    nvml, node = four.nvml, four.node
    gpu = nvml.device_by_index(1)
    uuid = nvml.uuid(gpu)
    node.unplug(1)
    assert nvml.device_count() == 4
    assert refusal(nvml.uuid, gpu) is Return.GPU_IS_LOST
    assert refusal(nvml.device_by_index, 1) is Return.GPU_IS_LOST
    fresh = node.nvml()
    fresh.initialize()
    assert addresses(fresh) == [FIRST, THIRD, FOURTH]
    assert [fresh.minor(fresh.device_by_index(index)) for index in range(3)] == [0, 2, 3]
    assert refusal(fresh.device_by_uuid, uuid) is Return.NOT_FOUND
    assert refusal(fresh.device_by_index, 3) is Return.INVALID_ARGUMENT
    node.plug(1)
    assert addresses(fresh) == [FIRST, THIRD, FOURTH]
    assert refusal(nvml.uuid, gpu) is Return.GPU_IS_LOST
    again = node.nvml()
    again.initialize()
    assert addresses(again) == [FIRST, SECOND, THIRD, FOURTH]
    assert again.uuid(again.device_by_index(1)) == uuid


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_a_gpu_of_another_driver_is_not_nvmls(four: TestNode, driver: str | None) -> None:
    nvml, node = four.nvml, four.node
    make_instance(nvml, nvml.device_by_index(2), 0, 0)
    node.bind_driver(2, driver)
    assert refusal(nvml.device_by_index, 2) is Return.GPU_IS_LOST
    fresh = node.nvml()
    fresh.initialize()
    assert addresses(fresh) == [FIRST, SECOND, FOURTH]
    node.bind_driver(2, "nvidia")
    again = node.nvml()
    again.initialize()
    assert again.mig_devices(again.device_by_index(2)) == ()
    assert again.mig_mode(again.device_by_index(2)) == MigMode(True, True)


@pytest.mark.node
def test_a_busy_gpu_is_not_given_to_another_driver(four: TestNode, process: subprocess.Popen[bytes]) -> None:
    nvml, node = four.nvml, four.node
    gpu = nvml.device_by_index(0)
    node.occupy(nvml.uuid(gpu), process.pid)
    files = sorted(node.driver_root.rglob("*"))
    assert refusal(node.bind_driver, 0, "vfio-pci") is Return.IN_USE
    assert (nvml.compute_processes(gpu), sorted(node.driver_root.rglob("*"))) == ((process.pid,), files)
    node.unplug(0)
    with pytest.raises(LookupError, match="GPU 0 is not plugged in"):
        node.bind_driver(0, "nvidia")


def test_a_gpu_that_is_put_in_while_no_driver_is_loaded_is_found_by_the_next(four: TestNode) -> None:
    node = four.node
    node.unplug(3)
    node.bind_driver(0, "vfio-pci")
    node.unload_driver()
    node.plug(3)
    node.load_driver()
    fresh = node.nvml()
    fresh.initialize()
    assert addresses(fresh) == [SECOND, THIRD, FOURTH]


# Health


def test_a_healthy_gpu_says_so(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "h100x8").nvml
    gpu, other = nvml.device_by_index(0), nvml.device_by_index(1)
    assert nvml.remapped_rows(gpu) == RemappedRows(0, 0, pending=False, failed=False)
    assert nvml.recovery_action(gpu) is RecoveryAction.NONE
    assert nvml.nvlink_peers(gpu, other)
    assert not nvml.nvlink_peers(gpu, gpu)
    assert refusal(nvml.retired_pages_pending, gpu) is Return.NOT_SUPPORTED


def test_memory_of_older_gpus_is_retired_by_pages(tmp_path: Path) -> None:
    node = ControlledNode.create(
        tmp_path, parse_description(FAULTY_NODE.replace("H100-SXM5-80GB, count: 2, mig: true", "T4-PCIE-16GB"), ""), ""
    )
    nvml = node.nvml()
    nvml.initialize()
    gpu = nvml.device_by_index(0)
    assert not nvml.retired_pages_pending(gpu)
    assert refusal(nvml.remapped_rows, gpu) is Return.NOT_SUPPORTED
    node.set_retired_pages_pending(0, True)
    assert nvml.retired_pages_pending(gpu)
    node.reset_gpu(0)
    assert not nvml.retired_pages_pending(gpu)


def test_gpu_whose_nvlinks_are_down_is_no_peer(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8")
    nvml = node.nvml
    gpus = [nvml.device_by_index(index) for index in range(3)]
    node.node.set_nvlinks(0, up=False)
    assert nvml.nvlinks(gpus[0]) == (False,) * 18
    assert [nvml.nvlink_peers(*pair) for pair in ((gpus[0], gpus[1]), (gpus[1], gpus[2]))] == [False, True]
    node.node.set_nvlinks(0, up=True)
    assert nvml.nvlink_peers(gpus[1], gpus[0])


def test_split_gpus_have_no_peers(split: TestNode) -> None:
    nvml = split.nvml
    assert nvml.set_mig_mode(nvml.device_by_index(0), False) is None
    assert not nvml.nvlink_peers(nvml.device_by_index(0), nvml.device_by_index(1))
    assert all(nvml.nvlinks(nvml.device_by_index(0)))


FABRIC_NODE = FAULTY_NODE + "fabric: {clusterUUID: 5a1f6c1e, clique: 3}\n"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Fabric(FabricState.COMPLETED, "5a1f6c1e", 3, 0, 9)),
        (FabricState.COMPLETED, Fabric(FabricState.COMPLETED, "5a1f6c1e", 3, 0, 9)),
        (FabricState.IN_PROGRESS, Fabric(FabricState.IN_PROGRESS, health_mask=9)),
        (FabricState.NOT_STARTED, Fabric(FabricState.NOT_STARTED, health_mask=9)),
    ],
)
def test_a_fabric_may_be_ill(tmp_path: Path, state: FabricState | None, expected: Fabric) -> None:
    node = ControlledNode.create(tmp_path, parse_description(FABRIC_NODE, ""), "")
    nvml = node.nvml()
    nvml.initialize()
    node.set_fabric(0, state, health_mask=9)
    assert [nvml.fabric(nvml.device_by_index(index)) for index in (0, 1)] == [
        expected,
        Fabric(FabricState.COMPLETED, "5a1f6c1e", 3),
    ]
    node.set_fabric(0, FabricState.COMPLETED, status=Return.NOT_READY)
    assert nvml.fabric(nvml.device_by_index(0)).status == Return.NOT_READY


@pytest.mark.parametrize("action", RecoveryAction)
def test_a_reset_repairs_what_a_reset_can(tmp_path: Path, action: RecoveryAction) -> None:
    node = make_node(tmp_path, "h100x8")
    nvml, gpu = node.nvml, node.nvml.device_by_index(4)
    node.node.set_remapped_rows(4, RemappedRows(3, 2, pending=True, failed=True))
    node.node.set_recovery_action(4, action)
    node.node.set_nvlinks(4, up=False)
    node.node.set_fabric(4, FabricState.NOT_STARTED)
    assert (nvml.remapped_rows(gpu), nvml.recovery_action(gpu)) == (RemappedRows(3, 2, True, True), action)
    node.node.reset_gpu(4)
    assert nvml.remapped_rows(gpu) == RemappedRows(3, 2, pending=False, failed=True)
    resets = (RecoveryAction.GPU_RESET, RecoveryAction.DRAIN_P2P, RecoveryAction.DRAIN_AND_RESET)
    assert nvml.recovery_action(gpu) is (RecoveryAction.NONE if action in resets else action)
    assert all(nvml.nvlinks(gpu))
    assert nvml.fabric(gpu).state is FabricState.NOT_SUPPORTED


# The driver


@pytest.mark.parametrize("code", [Return.DRIVER_NOT_LOADED, Return.LIBRARY_NOT_FOUND, Return.LIB_RM_VERSION_MISMATCH])
def test_without_a_driver_every_call_fails_alike(split: TestNode, code: Return) -> None:
    nvml, node = split.nvml, split.node
    gpu = nvml.device_by_index(0)
    make_instance(nvml, gpu, 0, 0)
    node.unload_driver(code)
    assert refusal(node.nvml().initialize) is code
    assert refusal(nvml.device_count) is code
    assert refusal(nvml.mig_devices, gpu) is code
    assert refusal(nvml.create_gpu_instance, gpu, 19, Placement(0, 1)) is code
    node.load_driver()
    again = node.nvml()
    again.initialize()
    assert again.mig_devices(gpu) == ()
    assert again.mig_mode(gpu) == MigMode(True, True)


def test_a_driver_that_was_loaded_anew_knows_nothing_of_earlier_initializations(split: TestNode) -> None:
    nvml, node = split.nvml, split.node
    gpu = nvml.device_by_index(0)
    node.load_driver()
    assert [refusal(call) for call in (nvml.device_count, nvml.driver_version)] == [Return.UNKNOWN] * 2
    assert refusal(nvml.uuid, gpu) is Return.UNKNOWN
    assert refusal(nvml.shutdown) is Return.UNKNOWN
    nvml.initialize()
    assert nvml.device_count() == 8


def test_an_upgraded_driver_has_another_version_and_other_libraries(split: TestNode) -> None:
    node = split.node
    node.load_driver("580.95.05")
    nvml = node.nvml()
    nvml.initialize()
    assert nvml.driver_version() == "580.95.05"
    libraries = node.driver_root / "usr/lib/x86_64-linux-gnu"
    assert (libraries / "libcuda.so").resolve().name == "libcuda.so.580.95.05"
    assert list(libraries.glob("*570*")) == []
    node.load_driver()
    again = node.nvml()
    again.initialize()
    assert again.driver_version() == "580.95.05"


# Calls that fail


def test_faults_of_the_description_strike_from_the_start(tmp_path: Path) -> None:
    node = ControlledNode.create(tmp_path, parse_description(FAULTY_NODE, ""), "node-a")
    nvml = node.nvml()
    nvml.initialize()
    assert nvml.name(nvml.device_by_index(0)).startswith("NVIDIA")
    assert refusal(nvml.name, nvml.device_by_index(1)) is Return.UNKNOWN


def test_a_fault_strikes_as_often_as_it_says_whoever_calls(split: TestNode) -> None:
    split.node.inject(Fault("nvmlDeviceGetName", code=Return.TIMEOUT, times=3))
    other = split.node.nvml()
    other.initialize()
    gpu = split.nvml.device_by_index(0)
    assert outcomes(split.nvml, gpu, 2) + outcomes(other, gpu, 2) == ["TIMEOUT"] * 3 + ["NVIDIA H100 80GB HBM3"]


def test_a_fault_without_a_count_strikes_until_it_is_cleared(split: TestNode) -> None:
    gpu = split.nvml.device_by_index(0)
    split.node.inject(Fault("nvmlDeviceGetName", gpu=0, code=Return.UNKNOWN))
    assert outcomes(split.nvml, gpu, 4) == ["UNKNOWN"] * 4
    assert outcomes(split.nvml, split.nvml.device_by_index(1), 1) == ["NVIDIA H100 80GB HBM3"]
    split.node.clear_faults()
    assert outcomes(split.nvml, gpu, 1) == ["NVIDIA H100 80GB HBM3"]


def test_the_first_fault_that_hits_counts_and_the_next_follows(split: TestNode) -> None:
    for code in (Return.IN_USE, Return.NO_DATA):
        split.node.inject(Fault("nvmlDeviceGetName", code=code, times=1))
    assert outcomes(split.nvml, split.nvml.device_by_index(0), 3) == ["IN_USE", "NO_DATA", "NVIDIA H100 80GB HBM3"]


def test_changes_are_seen_however_fast_they_follow_each_other(split: TestNode) -> None:
    """A gateway must not take an older state for the newest because both were written within a clock tick."""
    gpu = split.nvml.device_by_index(0)
    for _ in range(100):
        for code in (Return.UNKNOWN, Return.NO_DATA):
            split.node.clear_faults()
            split.node.inject(Fault("nvmlDeviceGetName", code=code))
            assert outcomes(split.nvml, gpu, 1) == [code.name]


def test_a_call_that_fails_has_changed_nothing(split: TestNode) -> None:
    nvml, gpu = split.nvml, split.nvml.device_by_index(0)
    split.node.inject(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", code=Return.UNKNOWN, times=1))
    split.node.inject(Fault("nvmlGpuInstanceDestroy", code=Return.IN_USE, times=1))
    assert refusal(nvml.create_gpu_instance, gpu, 19, Placement(0, 1)) is Return.UNKNOWN
    assert nvml.gpu_instances(gpu, 19) == ()
    instance = nvml.create_gpu_instance(gpu, 19, Placement(0, 1))
    assert refusal(nvml.destroy_gpu_instance, instance) is Return.IN_USE
    assert nvml.gpu_instances(gpu, 19) == (instance,)
    nvml.destroy_gpu_instance(instance)


def test_a_slow_call_takes_at_least_its_time_and_then_succeeds(split: TestNode) -> None:
    gpu = split.nvml.device_by_index(0)
    split.node.inject(Fault("nvmlDeviceGetName", seconds=0.05, times=1))
    began = time.monotonic()
    assert outcomes(split.nvml, gpu, 1) == ["NVIDIA H100 80GB HBM3"]
    assert time.monotonic() - began >= 0.05


def test_a_look_up_by_uuid_uses_a_fault_up_once(split: TestNode) -> None:
    nvml = split.nvml
    uuid = nvml.uuid(nvml.device_by_index(7))
    split.node.inject(Fault("nvmlDeviceGetHandleByUUID", code=Return.UNKNOWN, times=2))
    assert [refusal(nvml.device_by_uuid, uuid) for _ in range(2)] == [Return.UNKNOWN] * 2
    assert nvml.device_by_uuid(uuid) == nvml.device_by_index(7)


def test_initialization_may_fail_once(split: TestNode) -> None:
    split.node.inject(Fault("nvmlInitWithFlags", code=Return.DRIVER_NOT_LOADED, times=1))
    nvml = split.node.nvml()
    assert refusal(nvml.initialize) is Return.DRIVER_NOT_LOADED
    assert refusal(nvml.device_count) is Return.UNINITIALIZED
    nvml.initialize()
    assert nvml.device_count() == 8
