# SPDX-License-Identifier: Apache-2.0
"""NVML kept initialized while drivers and GPUs come and go."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import EventType, FabricState, MigMode, Nvml, NvmlError, Placement, Return
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.pulse import GpuPulse
from dra_driver.gpu.session import Session
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.simulated.nvml import SimulatedNvml
from dra_driver.gpu.threads import CallLimits, HungError
from tests.gpu.calls import destroy_instance, make_instance, refusal
from tests.support.hardware import ControlledNode
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for


def session(node: TestNode, patience: float = 30.0, limits: CallLimits | None = None) -> Session:
    """A session with this node."""
    root = node.node.driver_root
    return Session(node.node.nvml, node.sys_root, dev_root=root, driver_root=root, patience=patience, limits=limits)


def gateway(held: Session) -> Nvml:
    """The gateway of now, which a test may keep for longer than it is good for."""
    with held.use() as nvml:
        return nvml


def admits(held: Session, generation: int) -> bool:
    """Whether this initialization can be used."""
    try:
        with held.use(generation):
            return True
    except NvmlError:
        return False


def indexes(of: Session) -> list[tuple[int, str]]:
    """Index and address of the GPUs that NVML has."""
    return [(gpu.index, str(gpu.pci_address)) for gpu in of.inventory().gpus]


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    """Four A30 in MIG mode."""
    return make_node(tmp_path, "a30x4-mig")


FIRST, SECOND, THIRD, FOURTH = "0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0"


def test_a_session_initializes_once_and_reads_everything(node: TestNode) -> None:
    held = session(node)
    assert held.generation == 0
    inventory = held.inventory()
    assert (len(inventory.gpus), len(inventory.pci_gpus), inventory.iommufd) == (4, 4, True)
    assert inventory.pci_gpus[0].product_name == "GA100GL [A30 PCIe]"
    assert gateway(held) is gateway(held)
    assert held.pulse() == held.pulse()
    assert held.generation == held.pulse().generation == 1


def test_without_a_driver_every_use_says_so_until_there_is_one(node: TestNode) -> None:
    node.node.unload_driver(Return.LIBRARY_NOT_FOUND)
    held = session(node)
    uses: list[Callable[[], object]] = [held.inventory, held.pulse, lambda: gateway(held)]
    assert [refusal(use) for use in uses * 2] == [Return.LIBRARY_NOT_FOUND] * 6
    assert held.generation == 0
    node.node.load_driver()
    assert len(held.inventory().gpus) == 4
    assert held.generation == 1


@pytest.mark.parametrize("version", [None, "580.95.05"])
def test_a_driver_that_is_loaded_anew_is_initialized_anew(node: TestNode, version: str | None) -> None:
    held = session(node)
    before, nvml = held.pulse(), gateway(held)
    node.node.load_driver(version)
    assert held.inventory().driver_version == (version or "570.158.01")
    assert gateway(held) is not nvml
    assert refusal(nvml.device_count) is Return.UNINITIALIZED
    assert held.generation == 2
    assert held.pulse() != before


def test_a_driver_that_goes_away_is_found_again(node: TestNode) -> None:
    held = session(node)
    held.inventory()
    node.node.unload_driver()
    assert refusal(held.pulse) is Return.DRIVER_NOT_LOADED
    assert refusal(held.inventory) is Return.DRIVER_NOT_LOADED
    node.node.load_driver()
    assert len(held.pulse().gpus) == 4
    assert held.generation == 2


def hide_driver(node: TestNode) -> None:
    """Make sysfs tell nothing of the driver, as where only a part of it is mounted."""
    for path in (node.sys_root / "bus/pci/drivers/nvidia", node.sys_root / "module/nvidia"):
        path.rename(path.with_name("hidden"))


@pytest.mark.parametrize("code", [Return.UNINITIALIZED, Return.LIB_RM_VERSION_MISMATCH, Return.UNKNOWN])
def test_an_error_of_the_driver_as_a_whole_is_answered_with_one_initialization(node: TestNode, code: Return) -> None:
    hide_driver(node)
    held = session(node)
    held.inventory()
    node.node.inject(Fault("nvmlSystemGetDriverVersion", code=code, times=1))
    assert len(held.inventory().gpus) == 4
    assert held.generation == 2
    node.node.inject(Fault("nvmlSystemGetDriverVersion", code=code))
    assert refusal(held.pulse) is code
    assert held.generation == 3


def test_other_errors_are_none_of_the_sessions(node: TestNode) -> None:
    held = session(node)
    held.pulse()
    node.node.inject(Fault("nvmlDeviceGetCount", code=Return.NO_PERMISSION))
    assert refusal(held.pulse) is Return.NO_PERMISSION
    assert refusal(held.inventory) is Return.NO_PERMISSION
    assert held.generation == 1


# Hot-plug


def test_a_gpu_that_is_plugged_in_is_enumerated(node: TestNode) -> None:
    node.node.unplug(1)
    held = session(node)
    assert indexes(held) == [(0, FIRST), (1, THIRD), (2, FOURTH)]
    nvml = gateway(held)
    node.node.plug(1)
    assert nvml.device_count() == 3
    assert indexes(held) == [(0, FIRST), (1, SECOND), (2, THIRD), (3, FOURTH)]
    assert held.generation == 2


def test_a_gpu_that_another_driver_takes_is_left_to_it(node: TestNode) -> None:
    held = session(node)
    assert len(held.inventory().gpus) == 4
    node.node.bind_driver(2, "vfio-pci")
    inventory = held.inventory()
    assert [gpu.pci_address for gpu in inventory.gpus] == [FIRST, SECOND, FOURTH]
    assert inventory.failures == ()
    assert [gpu.driver for gpu in inventory.pci_gpus] == ["nvidia", "nvidia", "vfio-pci", "nvidia"]
    node.node.bind_driver(2, "nvidia")
    assert len(held.inventory().gpus) == 4
    assert held.generation == 3


def test_the_next_initialization_waits_for_those_who_are_in_the_midst_of_something(node: TestNode) -> None:
    held = session(node)
    with ThreadPoolExecutor() as pool:
        with held.use() as nvml:
            gpu = nvml.device_by_index(0)
            node.node.bind_driver(2, "vfio-pci")
            pulse = pool.submit(held.pulse)
            wait_for(lambda: not admits(held, 1), "the change to be noticed")
            make_instance(nvml, gpu, 0, 0)
        assert [one.problem for one in pulse.result(timeout=60).gpus] == [None, None, None]
    assert refusal(nvml.device_count) is Return.UNINITIALIZED
    assert held.generation == 2


def test_session_does_not_wait_for_ever(node: TestNode) -> None:
    held = session(node, patience=0.05)
    with held.use() as hung:
        node.node.unplug(1)
        assert len(held.pulse().gpus) == 3
        assert refusal(hung.device_count) is Return.UNINITIALIZED
    node.node.inject(Fault("nvmlShutdown", seconds=1000.0, times=1))
    node.node.plug(1)
    assert len(held.pulse().gpus) == 4
    assert held.generation == 3


def test_an_initialization_is_used_as_long_as_it_is_trusted(node: TestNode) -> None:
    held = session(node)
    assert not held.is_current(1)
    assert not admits(held, 1)
    held.pulse()
    held.distrust(0)
    assert held.is_current(1)
    assert admits(held, 1)
    held.distrust(1)
    assert not held.is_current(1)
    assert not admits(held, 1)
    held.pulse()
    assert not admits(held, 1)
    assert admits(held, 2)


def test_letting_go_after_the_driver_went_is_no_error(node: TestNode) -> None:
    held = session(node)
    nvml = gateway(held)
    node.node.unload_driver()
    assert refusal(held.pulse) is Return.DRIVER_NOT_LOADED
    assert refusal(nvml.device_count) is Return.UNINITIALIZED


class Overtaken(SimulatedNvml):
    """Calls `meanwhile` while the inventory is read, after NVML was initialized."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def cuda_driver_version(self) -> int:
        self.meanwhile()
        return super().cuda_driver_version()


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci"])
def test_a_gpu_that_is_bound_by_hand_meanwhile_is_the_same_for_nvml_and_on_the_bus(node: TestNode, driver: str) -> None:
    reads: list[int] = []

    def bind() -> None:
        reads.append(len(reads))
        if len(reads) == 1:
            node.node.bind_driver(1, driver)

    def made() -> Nvml:
        nvml = Overtaken(node.node.driver_root.parent)
        nvml.meanwhile = bind
        return nvml

    node.node.bind_driver(1, "vfio-pci" if driver == "nvidia" else "nvidia")
    inventory = Session(made, node.sys_root).inventory()
    on_bus = {one.address for one in inventory.pci_gpus if one.driver == "nvidia"}
    assert on_bus == {one.pci_address for one in inventory.gpus}
    assert not inventory.failures
    assert len(on_bus) == 3 + (driver == "nvidia")
    assert reads == [0, 1]


def test_threads_share_one_initialization_through_every_change(node: TestNode) -> None:
    held = session(node)
    stop = threading.Event()
    errors: list[NvmlError] = []

    def work() -> None:
        while not stop.is_set():
            try:
                inventory = held.inventory()
                with held.use() as nvml:
                    assert nvml.device_count() in (3, 4)
                assert len(inventory.gpus) + len(inventory.failures) in (3, 4)
            except NvmlError as error:
                errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for _ in range(5):
        node.node.unplug(1)
        held.pulse()
        node.node.plug(1)
        held.pulse()
    stop.set()
    for worker in workers:
        worker.join()
    assert errors == []
    assert [gpu.problem for gpu in held.pulse().gpus] == [None] * 4


def test_a_gpu_that_was_out_for_a_moment_nobody_looked_is_there(node: TestNode) -> None:
    held = session(node)
    held.pulse()
    node.node.unplug(1)
    node.node.plug(1)
    assert [gpu.problem for gpu in held.pulse().gpus] == [None] * 4
    assert held.generation == 2


# Lost GPUs


def test_a_gpu_that_stays_lost_is_tried_once(node: TestNode) -> None:
    held = session(node)
    held.pulse()
    node.node.lose_gpu(1)
    for _ in range(3):
        assert [gpu.problem for gpu in held.pulse().gpus] == [None, Return.GPU_IS_LOST, None, None]
    assert held.generation == 2
    node.node.reset_gpu(1)
    assert [gpu.problem for gpu in held.pulse().gpus] == [None] * 4


def test_a_lost_gpu_keeps_its_uuid(node: TestNode) -> None:
    held = session(node)
    uuids = [gpu.uuid for gpu in held.inventory().gpus]
    node.node.lose_gpu(3)
    (failure,) = held.inventory().failures
    assert (failure.index, failure.uuid, failure.pci_address) == (3, uuids[3], FOURTH)
    node.node.unplug(0)
    (failure,) = held.inventory().failures
    assert (failure.index, failure.uuid, failure.pci_address) == (2, uuids[3], FOURTH)


def test_gpu_that_was_lost_before_its_first_reading_has_no_uuid(node: TestNode) -> None:
    node.node.lose_gpu(3)
    (failure,) = session(node).inventory().failures
    assert (failure.uuid, failure.pci_address) == (None, FOURTH)


@pytest.mark.parametrize(("call", "hangs"), [("nvmlDeviceGetUUID", True), ("nvmlDeviceGetMigMode", False)])
def test_no_gpu_is_searched_by_its_uuid_while_another_call_hangs(node: TestNode, call: str, hangs: bool) -> None:
    """NVML would ask all GPUs up to the one that is searched."""
    held = session(node, limits=CallLimits(look=0.5))
    minors = {gpu.uuid: gpu.minor for gpu in held.inventory().gpus}
    held.distrust(held.generation)
    node.node.inject(Fault(call, gpu=2, seconds=10**6), Fault("nvmlDeviceGetHandleByUUID", times=1))
    generation = held.pulse().generation
    answers = held.gpus(dict.fromkeys(minors, lambda nvml, gpu: nvml.minor(gpu)), generation)
    hung = [uuid for uuid, answer in answers.items() if isinstance(answer, HungError)]
    assert hung == [uuid for uuid in list(minors)[2:3] if hangs]
    assert {uuid: answer for uuid, answer in answers.items() if uuid not in hung}.items() <= minors.items()
    assert "nvmlDeviceGetHandleByUUID" in {fault.call for fault in node.node.faults()}
    node.node.clear_faults()
    held.close()


# Pulses


def test_a_pulse_has_what_tells_one_node_from_another(node: TestNode) -> None:
    held = session(node)
    nvml = gateway(held)
    gpu = nvml.device_by_index(0)
    make_instance(nvml, gpu, 1, 2)
    nvml.create_gpu_instance(gpu, 14, Placement(0, 1))
    pulse = held.pulse()
    assert pulse.gpus[0] == GpuPulse(
        index=0,
        uuid=nvml.uuid(gpu),
        mig_mode=MigMode(True, True),
        instances=((1, 5, Placement(2, 2)), (3, 14, Placement(0, 1))),
        computes=((1, 0),),
    )
    assert pulse.pci_gpus == ((FIRST, "nvidia"), (SECOND, "nvidia"), (THIRD, "nvidia"), (FOURTH, "nvidia"))


def fill(node: TestNode) -> None:
    """Make a compute instance."""
    gpu = node.nvml.device_by_index(1)
    (instance,) = node.nvml.gpu_instances(gpu, 14)
    node.nvml.create_compute_instance(instance, 0)


def switch_off(node: TestNode) -> None:
    """Leave MIG mode."""
    assert node.nvml.set_mig_mode(node.nvml.device_by_index(3), False) is None


CHANGES: dict[str, Callable[[TestNode], object]] = {
    "a GPU instance": lambda node: node.nvml.create_gpu_instance(node.nvml.device_by_index(0), 14, Placement(1, 1)),
    "a compute instance": fill,
    "the MIG mode": switch_off,
    "a lost GPU": lambda node: node.node.lose_gpu(2),
    "a GPU of another driver": lambda node: node.node.bind_driver(3, "vfio-pci"),
    "an unplugged GPU": lambda node: node.node.unplug(0),
    "a reset that takes instances": lambda node: node.node.reset_gpu(1),
    "a driver that was loaded anew": lambda node: node.node.load_driver(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_pulse_changes_with_the_hardware(node: TestNode, change: Callable[[TestNode], object]) -> None:
    node.nvml.create_gpu_instance(node.nvml.device_by_index(1), 14, Placement(1, 1))
    held = session(node)
    before = held.pulse()
    assert held.pulse() == before
    change(node)
    after = held.pulse()
    assert after != before
    assert held.pulse() == after


def test_a_pulse_is_the_same_when_all_is_as_before(node: TestNode) -> None:
    held = session(node)
    before = held.pulse()
    instance, _ = make_instance(node.nvml, node.nvml.device_by_index(0), 0, 0)
    assert held.pulse() != before
    destroy_instance(node.nvml, instance)
    assert held.pulse() == before


def test_a_pulse_asks_little(tmp_path: Path) -> None:
    """A GPU that is not split costs three calls, and every pulse one more for the driver and one for the count."""
    node = make_node(tmp_path, "a100-40x16")
    held = session(node)
    held.pulse()
    for call in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetName"):
        node.node.inject(Fault(call, code=Return.UNKNOWN))
    assert [gpu.problem for gpu in held.pulse().gpus] == [None] * 16


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.set_fabric(1),
        lambda node: node.set_fabric(1, status=Return.UNKNOWN),
        lambda node: node.set_clique("a", 2),
    ],
    ids=["joined", "failed", "moved"],
)
def test_a_pulse_shows_the_fabric(tmp_path: Path, change: Callable[[ControlledNode], object]) -> None:
    node = make_node(tmp_path, "gb200x4")
    node.node.set_fabric(1, FabricState.IN_PROGRESS)
    held = session(node)
    before = held.pulse()
    node.node.set_fabric(2, health_mask=1)
    assert held.pulse() == before, "health is not described"
    change(node.node)
    assert held.pulse() != before


def test_a_gpu_without_mig_has_a_pulse(tmp_path: Path) -> None:
    held = session(make_node(tmp_path, "l40sx4"))
    assert [(gpu.mig_mode, gpu.problem) for gpu in held.pulse().gpus] == [(None, None)] * 4


def test_event_sets_end_with_their_initialization(node: TestNode) -> None:
    held = session(node)
    nvml = gateway(held)
    events = nvml.event_set()
    nvml.register_events(nvml.device_by_index(0), EventType.XID, events)
    node.node.unplug(1)
    held.pulse()
    assert refusal(nvml.wait_event, events, 0) is Return.UNINITIALIZED


def test_looks_are_frequent_once_a_gpu_was_given_to_a_virtual_machine(tmp_path: Path) -> None:
    node, marks = make_node(tmp_path / "node", "h100x8"), VfioMarks(tmp_path / "vfio")
    session = Session(node.node.nvml, node.sys_root, taken=marks)
    seldom = session.watch_seconds
    with marks.letting_go(60):
        pass
    assert session.watch_seconds < seldom
    assert Session(node.node.nvml, node.sys_root).watch_seconds == seldom
