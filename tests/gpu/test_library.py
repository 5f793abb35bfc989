# SPDX-License-Identifier: Apache-2.0
"""The real gateway against an NVML of our own (nvml_stub.c): arguments, structures, handles and errors."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.memory_limits import NO_LIMIT, MemoryLimits
from dra_driver.gpu.nvml import (
    NO_INSTANCE,
    ComputeInstanceProfile,
    ComputeMode,
    EventType,
    Fabric,
    FabricState,
    GpuInstance,
    GpuInstanceProfile,
    MigMode,
    Placement,
    RecoveryAction,
    RemappedRows,
    Return,
    VirtualizationMode,
)
from dra_driver.gpu.nvml_library import NvmlLibrary
from dra_driver.gpu.profiles import supported_profiles
from dra_driver.gpu.vgpus import VgpuType, VgpuTypes
from tests.gpu.stub import Session, build, failure, needs_compiler, process

pytestmark = pytest.mark.node

UUID = "GPU-00000000-0000-0000-0000-000000000000"
ONE_SLICE = GpuInstanceProfile(
    constant=0, id=19, name="1g.10gb", slice_count=1, instance_count=7, memory_mib=9984, multiprocessors=16,
    copy_engines=1, decoders=2, encoders=3, jpeg_engines=4, ofa_engines=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with a driver of today."""
    root = build(tmp_path_factory.mktemp("driver"))
    with process() as executor:
        yield Session(executor, root)


@pytest.fixture(scope="module")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with a driver that lacks the newer calls."""
    root = build(tmp_path_factory.mktemp("old-driver"), "-DOLD_DRIVER")
    with process() as executor:
        yield Session(executor, root)


# The system and its GPUs


def system(nvml: NvmlLibrary) -> tuple[str, int, int]:
    """What there is."""
    return nvml.driver_version(), nvml.cuda_driver_version(), nvml.device_count()


@needs_compiler
def test_the_system(driver: Session) -> None:
    assert driver(system) == ("570.158.01", 12080, 3)


def facts(nvml: NvmlLibrary) -> dict[str, object]:
    """All about GPU 0."""
    gpu = nvml.device_by_index(0)
    return {
        "uuid": nvml.uuid(gpu),
        "minor": nvml.minor(gpu),
        "name": nvml.name(gpu),
        "brand": nvml.brand(gpu),
        "architecture": nvml.architecture(gpu),
        "capability": nvml.compute_capability(gpu),
        "memory": nvml.memory_total(gpu),
        "pci": nvml.pci_address(gpu),
        "module": nvml.module_id(gpu),
        "addressing": nvml.addressing_mode(gpu),
        "virtualization": [nvml.virtualization_mode(nvml.device_by_index(index)) for index in (0, 2)],
        "links": [nvml.nvlinks(nvml.device_by_index(index)) for index in (0, 2)],
        "fabric": nvml.fabric(gpu),
        "processes": nvml.compute_processes(gpu),
    }


@needs_compiler
def test_facts_of_a_gpu(driver: Session) -> None:
    found = driver(facts)
    assert found == {
        "uuid": UUID,
        "minor": 4,
        "name": "NVIDIA H100 80GB HBM3",
        "brand": 14,
        "architecture": 9,
        "capability": (9, 1),
        "memory": 81559 << 20,
        "pci": "0010:3b:1c.0",
        "module": 7,
        "addressing": "ATS",
        "virtualization": [VirtualizationMode.PASSTHROUGH, 9],
        "links": [(True, True, True, False, *[True] * 8), ()],
        "fabric": Fabric(FabricState.COMPLETED, "10111213-1415-1617-1819-1a1b1c1d1e1f", 5, 0, 1),
        "processes": (41, 42),
    }


def vgpus(nvml: NvmlLibrary) -> list[VgpuTypes]:
    """The vGPU types of GPU 0, which has the heterogeneous mode, and of GPU 2."""
    return [nvml.vgpu_types(nvml.device_by_index(index)) for index in (0, 2)]


@needs_compiler
def test_vgpu_types_have_placements_if_several_types_can_be_on_a_gpu(driver: Session, old_driver: Session) -> None:
    small, large = (
        VgpuType(1100, "L40S-1Q", 1 << 30, 1, (0, 47)),
        VgpuType(1106, "RTX-Pro-6000-Blackwell-DC-24Q", 24 << 30, 24, (0, 24)),
    )
    same = replace(small, starts=tuple(range(32))), replace(large, size=1, starts=(0, 1))
    assert driver(vgpus) == [VgpuTypes(True, (small, large)), VgpuTypes(False, same)]
    parts = replace(same[1], id=1150)  # an old driver does not tell which types are parts of MIG instances
    assert old_driver(vgpus) == [VgpuTypes(False, (same[0], parts, same[1]))] * 2


def by_uuid(nvml: NvmlLibrary) -> tuple[int, object]:
    """The minor of the GPU with a UUID, and what becomes of a wrong one."""
    return nvml.minor(nvml.device_by_uuid(UUID[:-1] + "2")), failure(nvml.device_by_uuid, "GPU-nonsense")


@needs_compiler
def test_a_gpu_is_found_by_its_uuid(driver: Session) -> None:
    assert driver(by_uuid) == (6, (Return.NOT_FOUND, "nvmlDeviceGetHandleByUUID: NOT_FOUND"))


# Errors


def errors(nvml: NvmlLibrary) -> list[object]:
    """What calls fail with: of a lost GPU, of one that is too new, and with wrong arguments."""
    lost, new = nvml.device_by_index(1), nvml.device_by_index(2)
    return [
        failure(nvml.uuid, lost),
        failure(nvml.mig_mode, lost),
        failure(nvml.name, new),
        failure(nvml.memory_total, new),
        failure(nvml.mig_mode, new),
        failure(nvml.fabric, new),
        failure(nvml.device_by_index, 3),
        failure(nvml.nvlinks, lost),
        failure(nvml.gpu_instance_profile, nvml.device_by_index(0), 2),
        failure(nvml.gpu_instance_profile, nvml.device_by_index(0), 18),
    ]


@needs_compiler
def test_errors_have_their_code_and_the_name_of_the_call(driver: Session) -> None:
    assert driver(errors) == [
        (Return.GPU_IS_LOST, "nvmlDeviceGetUUID: GPU_IS_LOST"),
        (Return.GPU_IS_LOST, "nvmlDeviceGetMigMode: GPU_IS_LOST"),
        (Return.UNKNOWN, "nvmlDeviceGetName: UNKNOWN (code 777)"),
        (Return.NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo: NOT_SUPPORTED"),
        (Return.NOT_SUPPORTED, "nvmlDeviceGetMigMode: NOT_SUPPORTED"),
        (Return.UNKNOWN, "nvmlDeviceGetGpuFabricInfoV: UNKNOWN (state 9)"),
        (Return.INVALID_ARGUMENT, "nvmlDeviceGetHandleByIndex: INVALID_ARGUMENT"),
        (Return.GPU_IS_LOST, "nvmlDeviceGetNvLinkState: GPU_IS_LOST"),
        (Return.NOT_SUPPORTED, "nvmlDeviceGetGpuInstanceProfileInfo: NOT_SUPPORTED"),
        (Return.INVALID_ARGUMENT, "nvmlDeviceGetGpuInstanceProfileInfo: INVALID_ARGUMENT"),
    ]


def novelties(nvml: NvmlLibrary) -> tuple[object, ...]:
    """What a newer GPU says that we have no name for."""
    gpu = nvml.device_by_index(2)
    return nvml.brand(gpu), nvml.addressing_mode(gpu), nvml.compute_processes(gpu)


@needs_compiler
def test_answers_without_a_name_are_passed_on(driver: Session) -> None:
    assert driver(novelties) == (99, "7", ())


def health(nvml: NvmlLibrary) -> list[object]:
    """What is asked about the health of GPU 0, and of one that answers otherwise."""
    gpu, other = nvml.device_by_index(0), nvml.device_by_index(2)
    return [
        (nvml.remapped_rows(gpu), failure(nvml.remapped_rows, other)),
        (failure(nvml.retired_pages_pending, gpu), nvml.retired_pages_pending(other)),
        (nvml.recovery_action(gpu), failure(nvml.recovery_action, other)),
        (nvml.nvlink_peers(gpu, other), nvml.nvlink_peers(other, gpu), failure(nvml.nvlink_peers, gpu, gpu)),
    ]


@needs_compiler
def test_health(driver: Session) -> None:
    assert driver(health) == [
        (RemappedRows(4, 3, True, False), (Return.NOT_SUPPORTED, "nvmlDeviceGetRemappedRows: NOT_SUPPORTED")),
        ((Return.NOT_SUPPORTED, "nvmlDeviceGetRetiredPagesPendingStatus: NOT_SUPPORTED"), True),
        (RecoveryAction.DRAIN_AND_RESET, (Return.UNKNOWN, "nvmlDeviceGetFieldValues: UNKNOWN (recovery action 99)")),
        (True, False, (Return.INVALID_ARGUMENT, "nvmlDeviceGetP2PStatus: INVALID_ARGUMENT")),
    ]


def modules(nvml: NvmlLibrary) -> list[int]:
    """Module ids, asked for by several threads at once."""
    gpu = nvml.device_by_index(0)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(nvml.module_id(gpu))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*found, *([] if failure(nvml.module_id, nvml.device_by_index(2)) else [-1])]


@needs_compiler
def test_threads_may_ask_at_once(driver: Session) -> None:
    assert driver(modules) == [7] * 8


# MIG


def profiles(nvml: NvmlLibrary) -> list[GpuInstanceProfile]:
    """The profiles that GPU 0 has."""
    return supported_profiles(nvml, nvml.device_by_index(0))


@needs_compiler
def test_profiles_with_the_drivers_names(driver: Session) -> None:
    first, second = driver(profiles)
    assert first == ONE_SLICE
    assert (second.constant, second.id, second.name, second.memory_mib) == (1, 14, "2g.20gb", 20096)


def missing(nvml: NvmlLibrary) -> object:
    """A call, and a field of another, that an old driver lacks."""
    gpu = nvml.device_by_index(0)
    return [failure(nvml.addressing_mode, gpu), failure(nvml.recovery_action, gpu)]


@needs_compiler
def test_missing_functions_of_an_older_driver_are_errors(old_driver: Session) -> None:
    assert old_driver(missing) == [
        (Return.FUNCTION_NOT_FOUND, "nvmlDeviceGetAddressingMode: FUNCTION_NOT_FOUND"),
        (Return.NOT_SUPPORTED, "nvmlDeviceGetFieldValues: NOT_SUPPORTED (recovery action)"),
    ]


def mode(nvml: NvmlLibrary) -> list[object]:
    """Switching MIG mode on and off."""
    gpu = nvml.device_by_index(0)
    before = failure(nvml.gpu_instance_placements, gpu, 19), nvml.mig_devices(gpu)
    on = nvml.set_mig_mode(gpu, True), nvml.mig_mode(gpu)
    return [before, on, (nvml.set_mig_mode(gpu, False), nvml.mig_mode(gpu))]


@needs_compiler
def test_mig_mode_and_why_it_stays_pending(tmp_path: Path) -> None:
    with process() as executor:
        assert Session(executor, build(tmp_path))(mode) == [
            ((Return.NOT_SUPPORTED, "nvmlDeviceGetGpuInstancePossiblePlacements: NOT_SUPPORTED"), ()),
            (None, MigMode(True, True)),
            (Return.IN_USE, MigMode(True, False)),
        ]


def compute_modes(nvml: NvmlLibrary) -> list[object]:
    """The mode of a GPU before and after it is set, a mode that there is not, and one while the GPU is in MIG mode."""
    gpu = nvml.device_by_index(0)
    before = nvml.compute_mode(gpu)
    nvml.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    after = nvml.compute_mode(gpu)
    invalid = failure(nvml.set_compute_mode, gpu, 9)
    nvml.set_mig_mode(gpu, True)
    return [before, after, invalid, failure(nvml.set_compute_mode, gpu, ComputeMode.DEFAULT)]


@needs_compiler
def test_compute_mode(tmp_path: Path) -> None:
    with process() as executor:
        assert Session(executor, build(tmp_path))(compute_modes) == [
            ComputeMode.DEFAULT,
            ComputeMode.EXCLUSIVE_PROCESS,
            (Return.INVALID_ARGUMENT, "nvmlDeviceSetComputeMode: INVALID_ARGUMENT"),
            (Return.NOT_SUPPORTED, "nvmlDeviceSetComputeMode: NOT_SUPPORTED"),
        ]


def memory_limits(nvml: NvmlLibrary) -> list[object]:
    """The limits of two cgroups after one was limited, and limits that there cannot be."""
    gpu = nvml.device_by_index(0)
    one, two = "/sys/fs/cgroup/\xfc", "/sys/fs/cgroup/two"
    nvml.set_memory_limits(gpu, one, MemoryLimits(hard=3 << 40, soft=1 << 40))
    invalid = failure(nvml.set_memory_limits, gpu, two, MemoryLimits(hard=1, soft=2))
    return [nvml.memory_limits(gpu, one), nvml.memory_limits(gpu, two), invalid]


@needs_compiler
def test_memory_limits(driver: Session) -> None:
    assert driver(memory_limits) == [
        MemoryLimits(hard=3 << 40, soft=1 << 40, used=7),
        MemoryLimits(hard=NO_LIMIT, soft=0, used=7),
        (Return.INVALID_ARGUMENT, "nvmlDeviceSetMemoryLimits_v1: INVALID_ARGUMENT"),
    ]


@needs_compiler
def test_an_old_driver_has_no_memory_limits(old_driver: Session) -> None:
    assert old_driver(limits_of_old_driver) == [
        (Return.FUNCTION_NOT_FOUND, "nvmlDeviceGetMemoryLimits_v1: FUNCTION_NOT_FOUND"),
        (Return.FUNCTION_NOT_FOUND, "nvmlDeviceSetMemoryLimits_v1: FUNCTION_NOT_FOUND"),
    ]


def limits_of_old_driver(nvml: NvmlLibrary) -> list[object]:
    """The errors of both calls."""
    gpu = nvml.device_by_index(0)
    return [failure(nvml.memory_limits, gpu, "/x"), failure(nvml.set_memory_limits, gpu, "/x", MemoryLimits())]


def placements(nvml: NvmlLibrary) -> list[tuple[Placement, ...]]:
    """Where instances of two profiles could be, and of one that is unknown."""
    gpu = nvml.device_by_index(0)
    nvml.set_mig_mode(gpu, True)
    return [nvml.gpu_instance_placements(gpu, profile) for profile in (19, 14, 99)]


@needs_compiler
def test_placements_are_as_many_as_the_driver_says(driver: Session) -> None:
    assert driver(placements) == [
        tuple(Placement(start, 1) for start in range(7)),
        (Placement(0, 2), Placement(2, 2), Placement(4, 2)),
        (),
    ]


def instances(nvml: NvmlLibrary) -> dict[str, object]:
    """A MIG device is made, looked at from all sides, and destroyed; another one of the GPU is left alone."""
    gpu = nvml.device_by_index(0)
    nvml.set_mig_mode(gpu, True)
    other = nvml.create_gpu_instance(gpu, 19, Placement(6, 1))
    made = nvml.create_gpu_instance(gpu, 14, Placement(2, 2))
    seen: dict[str, object] = {
        "info": nvml.gpu_instance_info(made),
        "taken": failure(nvml.create_gpu_instance, gpu, 19, Placement(3, 1)),
        "listed": [nvml.gpu_instance_info(one).id for one in nvml.gpu_instances(gpu, 14)],
        "by id": nvml.gpu_instance_info(nvml.gpu_instance_by_id(gpu, 2)).profile_id,
        "no such id": failure(nvml.gpu_instance_by_id, gpu, 5),
        "compute profile": nvml.compute_instance_profile(made, 1),
        "no such compute profile": failure(nvml.compute_instance_profile, made, 2),
        "no compute instance": nvml.compute_instances(made, 21),
    }
    compute = nvml.create_compute_instance(made, 21)
    info = nvml.compute_instance_info(compute)
    device = info.device
    uuid = nvml.uuid(device)
    seen |= {
        "compute": (info.id, info.profile_id),
        "computes": [nvml.compute_instance_info(one).id for one in nvml.compute_instances(made, 21)],
        "uuid": uuid,
        "ids": nvml.mig_instance_ids(device),
        "ids by uuid": nvml.mig_instance_ids(nvml.device_by_uuid(uuid)),
        "devices": [nvml.uuid(one) for one in nvml.mig_devices(gpu)],
        "not a MIG device": failure(nvml.mig_instance_ids, gpu),
        "busy": failure(nvml.destroy_gpu_instance, made),
    }
    nvml.destroy_compute_instance(compute)
    nvml.destroy_gpu_instance(made)
    seen["gone"] = failure(nvml.gpu_instance_info, made), nvml.mig_devices(gpu), nvml.gpu_instances(gpu, 14)
    seen["left"] = nvml.gpu_instance_info(other)
    nvml.destroy_gpu_instance(other)
    return seen


@needs_compiler
def test_instances_are_made_seen_and_destroyed(driver: Session) -> None:
    assert driver(instances) == {
        "info": GpuInstance(2, 14, Placement(2, 2)),
        "taken": (
            Return.INSUFFICIENT_RESOURCES,
            "nvmlDeviceCreateGpuInstanceWithPlacement: INSUFFICIENT_RESOURCES",
        ),
        "listed": [2],
        "by id": 14,
        "no such id": (Return.NOT_FOUND, "nvmlDeviceGetGpuInstanceById: NOT_FOUND"),
        "compute profile": ComputeInstanceProfile(constant=1, id=21, slice_count=2, instance_count=1),
        "no such compute profile": (
            Return.NOT_SUPPORTED,
            "nvmlGpuInstanceGetComputeInstanceProfileInfo: NOT_SUPPORTED",
        ),
        "no compute instance": (),
        "compute": (0, 21),
        "computes": [0],
        "uuid": "MIG-00000000-0000-0000-0000-000000000002",
        "ids": (2, 0),
        "ids by uuid": (2, 0),
        "devices": ["MIG-00000000-0000-0000-0000-000000000002"],
        "not a MIG device": (Return.INVALID_ARGUMENT, "nvmlDeviceGetGpuInstanceId: INVALID_ARGUMENT"),
        "busy": (Return.IN_USE, "nvmlGpuInstanceDestroy: IN_USE"),
        "gone": ((Return.NOT_FOUND, "nvmlGpuInstanceGetInfo: NOT_FOUND"), (), ()),
        "left": GpuInstance(1, 19, Placement(6, 1)),
    }


# Events


def events(nvml: NvmlLibrary) -> list[object]:
    """Everything that an event set reports."""
    gpu, deaf = nvml.device_by_index(0), nvml.device_by_index(2)
    waiting = nvml.event_set()
    registered = [nvml.register_events(one, EventType.XID | EventType.FATAL_POISON, waiting) for one in (gpu, deaf)]
    event = nvml.wait_event(waiting, 250)
    assert event is not None
    seen: list[object] = [
        registered,
        (nvml.uuid(event.device), event.type, event.data, event.gpu_instance, event.compute_instance),
        failure(nvml.wait_event, waiting, 250),
        nvml.wait_event(waiting, 250),
        nvml.wait_event(waiting, 250),
    ]
    nvml.free_event_set(waiting)
    return seen


@needs_compiler
def test_events_of_what_the_gpu_supports_then_errors_then_nothing(driver: Session) -> None:
    assert driver(events) == [
        [EventType.XID, EventType(0)],
        (UUID, EventType.XID, 79, 3, 0),
        (Return.UNKNOWN, "nvmlEventSetWait_v2: UNKNOWN (code 777)"),
        None,
        None,
    ]
    assert NO_INSTANCE == 0xFFFFFFFF
