# SPDX-License-Identifier: Apache-2.0
"""What the node has is known again within a few looks, whatever happens to its hardware."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_driver.gpu.devices import Description, LeftOut, Reason
from dra_driver.gpu.fabric_marks import FabricTroubles
from dra_driver.gpu.health import HealthMonitor, MonitorTiming
from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import EventType, NvmlError, Placement, Return
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy import PolicyFile
from dra_driver.gpu.profiles import whole_compute_profile
from dra_driver.gpu.session import Session
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.view import HardwareView, Looks
from dra_driver.kube.resource import Device, TaintEffect
from dra_driver.kube.resource.device import SliceFeatures
from tests.support.clock import Clock
from tests.support.hardware import ControlledNode
from tests.support.nodes import make_node
from tests.support.waiting import wait_for

EVERYTHING = SliceFeatures()
WHOLE, SPLIT = 1, 5  # indexes: GPUs 0 to 3 are whole, 4 to 7 in MIG mode
LOST = "gpu.nvidia.com/gpu-lost"


@dataclass
class Node:
    """A simulated node that is being looked at all the time."""

    simulated: ControlledNode
    marks: MigMarks
    policy: Path
    discovery: HardwareView
    session: Session
    health: HealthMonitor
    changes: int = 0

    def describe(self, features: SliceFeatures = EVERYTHING) -> Description:
        return self.discovery.describe(features)

    def devices(self, features: SliceFeatures = EVERYTHING) -> dict[str, Device]:
        return {device.name: device for gpu in self.describe(features).gpus for device in gpu.devices}

    def uuid(self, name: str) -> str:
        """The UUID of a MIG device, once it exists; as long as it is half made there is none of that name."""

        def uuid() -> str:
            device = self.devices().get(name)
            return "" if device is None else str(device.attributes.get("uuid", ""))

        return wait_for(uuid, f"{name} to exist")

    def taints(self, features: SliceFeatures = EVERYTHING) -> dict[str, list[tuple[str, str]]]:
        """(key, value) of the taints of each tainted device."""
        devices = self.devices(features).values()
        return {one.name: [(taint.key, taint.value) for taint in one.taints] for one in devices if one.taints}

    def look(self) -> None:
        """Look at the hardware, and describe it, since when GPUs count as missed."""
        assert self.discovery.look_now(60)
        self.describe()

    def wait_for_health(self) -> None:
        """Wait until the health monitor has read all GPUs, beginning after this call: for the second look that ends."""
        for _ in range(2):
            self._wait_for_health_since(time.monotonic())

    def _wait_for_health_since(self, moment: float) -> None:
        wait_for(lambda: time.monotonic() - self.health.seconds_since_look > moment, "a look at the health")

    def left_out(self) -> list[Reason]:
        return sorted({one.reason for one in self.describe().left_out})

    def tainted_by_xid(self, uuid: str, xid: int) -> dict[str, list[tuple[str, str]]]:
        """The taints once an XID was heard of. Nobody hears those of before the GPU was listened to."""

        def struck() -> dict[str, list[tuple[str, str]]]:
            self.simulated.raise_event(uuid, EventType.XID, xid)
            return self.taints()

        return wait_for(struck, "the taint")

    def replace_policy(self, text: str) -> None:
        """As kubelet changes a ConfigMap: nobody ever sees half of it."""
        new = self.policy.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.policy)

    def gpu(self, index: int) -> Gpu:
        return next(gpu for gpu in self.session.inventory().gpus if gpu.index == index)

    def create(self, index: int, profile: str, start: int) -> MigDevice:
        """Make a MIG instance by hand."""
        gpu = self.gpu(index)
        info = next(one for one in gpu.mig_profiles if one.name == profile)
        placement = next(one for one in info.placements if one.start == start)
        with self.session.use() as nvml:
            instance = nvml.create_gpu_instance(nvml.device_by_uuid(gpu.uuid), info.info.id, placement)
            nvml.create_compute_instance(instance, whole_compute_profile(nvml, instance, info.info.slice_count))
        return MigDevice(gpu.uuid, info.info.id, placement)


@contextlib.contextmanager
def looked_at(
    folder: Path,
    name: str,
    policy: str = "",
    patience: float = 0.1,
    *,
    poll: float = 0.02,
    everything: float = 3600.0,
    session_type: type[Session] = Session,
    clock: Callable[[], float] = time.time,
) -> Iterator[Node]:
    simulated = make_node(folder / "node", name).node
    manager = simulated.fabric if simulated.fabric.exists else None
    session = session_type(simulated.nvml, simulated.driver_root / "sys", fabric_manager=manager)
    marks, file = MigMarks(folder / "marks"), folder / "policy.yaml"
    file.write_text(policy, encoding="utf-8")
    both = NodeMarks(marks, VfioMarks(folder / "vfio"))
    health = HealthMonitor(session, marks=both, clock=clock, timing=MonitorTiming(wait=0.05, look=0.1))
    discovery = HardwareView(
        session,
        marks=both,
        troubles=FabricTroubles(folder / "fabric"),
        policy=PolicyFile(file, "node-a").current,
        health=health,
        looks=Looks(first=0.02, poll=poll, everything=everything, patience=patience),
        clock=clock,
    )
    node = Node(simulated, marks, file, discovery, session, health)

    def changed() -> None:
        node.changes += 1

    discovery.on_change = changed
    discovery.start()
    health.start()
    try:
        wait_for(lambda: discovery.problem is None, "the first look")
        node.describe()  # as the publisher does: only what was published can be missed
        yield node
    finally:
        discovery.stop()
        health.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with looked_at(tmp_path, "h100x8-mixed") as node:
        yield node


def of(index: int, names: set[str]) -> set[str]:
    """The devices of one GPU."""
    return {name for name in names if name == f"gpu-{index}" or name.startswith(f"gpu-{index}-")}


def of_gpu(description: Description, uuid: str) -> tuple[object, ...]:
    """What is published of one GPU."""
    (gpu,) = (one for one in description.gpus if one.key == uuid)
    return gpu.devices, gpu.counter_set, gpu.placements


def test_nothing_is_known_before_the_first_look(tmp_path: Path) -> None:
    simulated = make_node(tmp_path / "node", "h100x8").node
    simulated.unload_driver()
    session = Session(simulated.nvml, simulated.driver_root / "sys")
    marks = NodeMarks(MigMarks(tmp_path / "marks"), VfioMarks(tmp_path / "vfio"))
    discovery = HardwareView(
        session,
        marks=marks,
        policy=PolicyFile(_empty(tmp_path / "policy"), "node-a").current,
        health=HealthMonitor(session, marks=marks),
    )
    discovery.look()
    assert "DRIVER_NOT_LOADED" in str(discovery.problem)
    with pytest.raises(NvmlError, match="DRIVER_NOT_LOADED"):
        discovery.describe(EVERYTHING)
    simulated.load_driver()
    discovery.look()
    assert discovery.problem is None
    assert len(discovery.describe(EVERYTHING).gpus) == 8


def _empty(file: Path) -> Path:
    file.touch()
    return file


def test_a_gpu_that_is_plugged_in_is_published(node: Node) -> None:
    node.simulated.unplug(WHOLE)
    # The monitor may notice first that it cannot watch the GPU.
    wait_for(lambda: node.taints() == {f"gpu-{WHOLE}": [(LOST, "")]}, "the GPU to be missed")
    node.simulated.plug(WHOLE)
    wait_for(lambda: not node.taints(), "the GPU to be seen again")
    assert f"gpu-{WHOLE}" in node.devices()


def test_a_gpu_that_vanished_is_withdrawn_after_a_while(tmp_path: Path) -> None:
    clock = Clock(time.time())
    with looked_at(tmp_path, "h100x8-mixed", "health: {withdrawAfterSeconds: 300}", clock=clock) as node:
        seen = node.changes

        def is_told() -> bool:
            """As the publisher does, which describes only when it is told to."""
            nonlocal seen
            before, seen = seen, node.changes
            return before != seen

        node.simulated.lose_gpu(SPLIT)
        wait_for(lambda: is_told() and len(of(SPLIT, set(node.taints()))) == 25, "the taint of its devices")
        node.look()
        clock.now += 300
        wait_for(lambda: is_told() and not of(SPLIT, set(node.devices())), "word that its devices are to go")
        assert len(node.devices()) == 4 + 3 * 25


@pytest.mark.parametrize("effect", [TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE])
def test_a_gpu_that_is_gone_has_one_taint_which_gets_no_weaker_until_it_goes(
    tmp_path: Path, effect: TaintEffect
) -> None:
    """Health and the memory of what was published both know of it, each in its own time."""
    policy = f"health: {{withdrawAfterSeconds: 300, effect: {effect}}}"
    clock = Clock(time.time())
    with looked_at(tmp_path, "h100x8-mixed", policy, clock=clock) as node:
        node.simulated.unplug(WHOLE)
        seen: list[list[str] | None] = []

        def effects() -> list[str] | None:
            """Those of its taints, or None for a GPU that is not published."""
            device = node.devices().get(f"gpu-{WHOLE}")
            seen.append(None if device is None else [taint.effect for taint in device.taints if taint.key == LOST])
            return seen[-1]

        wait_for(lambda: effects() == [effect], "the taint")
        node.look()
        node.wait_for_health()
        clock.now += 300
        wait_for(lambda: effects() is None, "the GPU to be withdrawn")
    steps = [each for each, _ in itertools.groupby(seen) if each]
    assert steps in ([[effect]], [[TaintEffect.NO_SCHEDULE], [effect]])


def test_mig_mode_switched_by_hand_changes_what_is_published(node: Node) -> None:
    with node.session.use() as nvml:
        assert nvml.set_mig_mode(nvml.device_by_index(WHOLE), True) is None
    wait_for(lambda: len(of(WHOLE, set(node.devices()))) == 25, "the placements")
    assert f"gpu-{WHOLE}" not in node.devices()
    assert not node.taints()


def test_a_mig_instance_made_by_hand_becomes_a_static_device(node: Node) -> None:
    node.create(SPLIT, "3g.40gb", 4)
    name = f"gpu-{SPLIT}-mig-3g40gb-9-4"
    node.uuid(name)
    assert not node.devices()[name].consumes_counters
    assert f"gpu-{SPLIT}-mig-7g80gb-0-0" not in node.devices(), "what overlaps is withheld"
    assert f"gpu-{SPLIT}-mig-3g40gb-9-0" in node.devices()
    assert node.left_out() == [Reason.FOREIGN_INSTANCE]


def test_an_instance_made_for_a_claim_changes_nothing(node: Node) -> None:
    before = node.describe()
    gpu = node.gpu(SPLIT)
    profile = next(one for one in gpu.mig_profiles if one.name == "3g.40gb")
    node.marks.set(MigDevice(gpu.uuid, profile.info.id, Placement(4, 4)))
    changes = node.changes
    place = node.create(SPLIT, "3g.40gb", 4)
    node.create(6, "1g.10gb", 6)  # a foreign one, to see that looks go on
    wait_for(lambda: node.changes > changes, "the foreign one to be seen")
    assert of_gpu(node.describe(), place.gpu_uuid) == of_gpu(before, place.gpu_uuid)


def test_a_driver_that_is_loaded_anew_is_found(node: Node) -> None:
    node.simulated.unload_driver()
    wait_for(lambda: len(node.taints()) == len(node.devices()), "all GPUs to be missed")
    assert "DRIVER_NOT_LOADED" in str(node.discovery.problem)
    node.simulated.load_driver("580.95.5")
    wait_for(lambda: node.discovery.problem is None and not node.taints(), "the GPUs to be back")
    assert {str(device.attributes["driverVersion"]) for device in node.devices().values()} == {"580.95.5"}


def test_a_driver_that_fails_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    with looked_at(tmp_path, "h100x8-mixed", patience=3600) as node:
        before = node.describe()
        node.simulated.inject(Fault("nvmlDeviceGetCount", code=Return.UNKNOWN, times=6))
        wait_for(lambda: node.discovery.problem, "a failing look")
        assert node.describe() == before
        wait_for(lambda: node.discovery.problem is None, "a good look")
        assert node.describe() == before


def test_start_and_end_of_failing_looks_are_reported(tmp_path: Path) -> None:
    with looked_at(tmp_path, "h100x8-mixed", patience=3600) as node:
        before = wait_for(lambda: node.changes, "the report of the first look")
        node.simulated.inject(Fault("nvmlDeviceGetCount", code=Return.UNKNOWN, times=6))
        wait_for(lambda: node.changes > before, "the report of a failing look")
        wait_for(lambda: node.changes > before + 1, "the report of a good look")


def test_a_gpu_given_to_another_driver_is_not_missed(node: Node) -> None:
    node.simulated.bind_driver(WHOLE, "vfio-pci")
    wait_for(lambda: f"gpu-{WHOLE}" not in node.devices(), "the GPU to go")
    assert not node.taints()
    node.simulated.bind_driver(WHOLE, "nvidia")
    wait_for(lambda: f"gpu-{WHOLE}" in node.devices(), "the GPU to be back")


def test_the_policy_is_read_anew_when_it_changes(node: Node) -> None:
    everything, changes = set(node.devices()), node.changes
    node.replace_policy("gpus: [{match: {indexes: [1]}, publish: false}, {match: {indexes: [0]}, mig: dynamic}]")
    wait_for(lambda: f"gpu-{WHOLE}" not in node.devices(), "the GPU to go")
    assert len(of(0, set(node.devices()))) == 26, "whole and every placement"
    assert not node.taints()
    assert Reason.POLICY in node.left_out()
    wait_for(lambda: node.changes > changes, "the publisher to be told")
    node.replace_policy("gpus: [{match: {indexs: [1]}}]")
    assert f"gpu-{WHOLE}" not in node.devices(), "the old policy holds"
    node.replace_policy("")
    wait_for(lambda: set(node.devices()) == everything, "all devices to be back")


def test_an_xid_taints_the_instance_that_it_is_about_and_what_overlaps(node: Node) -> None:
    node.create(SPLIT, "1g.10gb", 6)
    name = f"gpu-{SPLIT}-mig-1g10gb-19-6"
    taints = node.tainted_by_xid(node.uuid(name), 94)
    assert taints == {name: [("gpu.nvidia.com/xid", "94")]}


def test_without_taints_an_ill_gpu_is_withdrawn(node: Node) -> None:
    node.tainted_by_xid(node.gpu(WHOLE).uuid, 79)
    features = SliceFeatures(device_taints=False)
    assert f"gpu-{WHOLE}" not in node.devices(features)
    assert Reason.TAINTED in {one.reason for one in node.describe(features).left_out}


def test_unreadable_gpu_hides_no_other(tmp_path: Path) -> None:
    with looked_at(tmp_path, "h100x8-mixed") as node:
        healthy = set(node.devices())
        node.simulated.inject(Fault("nvmlDeviceGetUUID", gpu=SPLIT, code=Return.UNKNOWN))
        bad = wait_for(
            lambda: [one for one in node.describe().left_out if one.reason is Reason.UNREADABLE], "the bad one"
        )
        assert len(bad) == 1
        assert isinstance(bad[0], LeftOut)
        assert healthy - of(SPLIT, healthy) <= set(node.devices())
