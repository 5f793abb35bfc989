# SPDX-License-Identifier: Apache-2.0
"""What kubelet hears of the devices of a node follows the hardware and the policy, as the slices do."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra_driver.gpu.devices import describe
from dra_driver.gpu.health import HealthMonitor, MonitorTiming
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement, RecoveryAction
from dra_driver.gpu.policy import PolicyFile
from dra_driver.gpu.session import Session
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.view import HardwareView, Looks
from kubeletplugin.kubelet.health import HealthStatus, device_healths
from tests.support.waiting import wait_for

from ..inside import ApiServer, Plugin

GONE = "gpu-lost: "


@dataclass
class Node:
    """A simulated node, and what is told of its devices."""

    plugin: Plugin
    policy: Path
    devices: HardwareView
    is_doubted: bool = True
    changes: list[None] = field(default_factory=list)

    def told(self, device: str) -> tuple[HealthStatus, str] | None:
        """What kubelet is told of a device; None when it is told of no such device."""
        problem = self.devices.problem if self.is_doubted else None
        found = {one.device: one for one in device_healths("node-a", self.devices.published(), 1.0, problem)}
        return (found[device].status, found[device].message) if device in found else None

    def is_told(self, device: str, status: HealthStatus, text: str = "") -> bool:
        told = self.told(device)
        return told is not None and told[0] is status and text in told[1]

    def wait_told(self, device: str, status: HealthStatus, text: str = "") -> None:
        wait_for(lambda: self.is_told(device, status, text), f"{device} to be {status.name}")

    def attributes(self, device: str) -> set[str]:
        gpus, _ = self.devices.published()
        return {name for gpu in gpus for one in gpu.devices if one.name == device for name in one.attributes}

    def set_policy(self, text: str) -> None:
        """As kubelet changes a ConfigMap: nobody ever sees half of it."""
        new = self.policy.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.policy)


@contextlib.contextmanager
def looked_at(folder: Path, policy: str = "", looks: Looks | None = None) -> Iterator[Node]:
    plugin = Plugin(folder, ApiServer(), start=False)
    file = folder / "policy.yaml"
    file.write_text(policy, encoding="utf-8")
    session = Session(plugin.node.nvml, plugin.sys_root)
    marks = plugin.place.marked
    monitor = HealthMonitor(session, marks=marks, timing=MonitorTiming(wait=0.05, look=0.1))
    looks = looks or Looks(poll=0.02, everything=3600, patience=0.1)
    policy_file = PolicyFile(file, "node-a")
    devices = HardwareView(session, marks=marks, policy=policy_file.current, health=monitor, looks=looks)
    node = Node(plugin, file, devices)
    devices.on_change = lambda: node.changes.append(None)
    devices.start()
    monitor.start()
    try:
        wait_for(lambda: devices.problem is None and node.is_told("gpu-1", HealthStatus.HEALTHY), "the first look")
        yield node
    finally:
        devices.stop()
        monitor.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with looked_at(tmp_path) as node:
        yield node


def test_a_gpu_that_the_policy_leaves_alone_is_unhealthy_no_more(node: Node) -> None:
    node.plugin.node.set_recovery_action(1, RecoveryAction.GPU_RESET)
    node.wait_told("gpu-1", HealthStatus.UNHEALTHY, "recovery-action")
    before = len(node.changes)
    node.set_policy("gpus: [{match: {indexes: [1]}, health: false}]")
    node.wait_told("gpu-1", HealthStatus.HEALTHY)
    wait_for(lambda: len(node.changes) > before, "kubelet to be told")
    node.set_policy("")
    node.wait_told("gpu-1", HealthStatus.UNHEALTHY, "recovery-action")


def test_an_instance_made_by_hand_is_told_of_where_only_such_are_published(tmp_path: Path) -> None:
    name = "gpu-5-mig-3g40gb-9-4"
    with looked_at(tmp_path, "gpus: [{mig: static}]") as node:
        assert node.told(name) is None
        uuid = node.plugin.make_by_hand(name)
        node.wait_told(name, HealthStatus.HEALTHY)
        assert {"uuid", "profile", "parentUUID"} <= node.attributes(name)
        assert uuid.startswith("MIG-")


def test_a_gpu_that_is_unplugged_is_unhealthy_until_it_is_withdrawn_or_back(node: Node) -> None:
    node.plugin.node.unplug(1)
    node.wait_told("gpu-1", HealthStatus.UNHEALTHY, GONE)
    node.wait_told("gpu-0", HealthStatus.HEALTHY)
    node.plugin.node.plug(1)
    node.wait_told("gpu-1", HealthStatus.HEALTHY)
    node.plugin.node.unplug(1)
    node.wait_told("gpu-1", HealthStatus.UNHEALTHY, GONE)
    node.set_policy("health: {withdrawAfterSeconds: 0.2}")
    wait_for(lambda: node.told("gpu-1") is None, "the GPU to be withdrawn")


def test_why_a_gpu_is_gone_is_said_once(node: Node) -> None:
    node.plugin.node.lose_gpu(1)
    node.wait_told("gpu-1", HealthStatus.UNHEALTHY, "gpu-lost")
    for _ in range(20):
        assert node.devices.look_now(30)
        told = node.told("gpu-1")
        assert told is not None
        assert told[1].count("gpu-lost") == 1


def test_the_gpus_of_a_driver_that_stays_away_are_lost_and_come_back(node: Node) -> None:
    node.plugin.node.unload_driver()
    node.wait_told("gpu-1", HealthStatus.UNHEALTHY, GONE)
    node.wait_told("gpu-5-mig-3g40gb-9-4", HealthStatus.UNHEALTHY, GONE)
    assert "DRIVER_NOT_LOADED" in str(node.devices.problem)
    node.plugin.node.load_driver()
    node.wait_told("gpu-1", HealthStatus.HEALTHY)
    node.wait_told("gpu-5-mig-3g40gb-9-4", HealthStatus.HEALTHY)


def test_devices_of_a_driver_that_fails_for_a_while_are_unknown(tmp_path: Path) -> None:
    with looked_at(tmp_path, looks=Looks(poll=0.02, everything=3600, patience=3600)) as node:
        node.plugin.node.unload_driver()
        node.wait_told("gpu-1", HealthStatus.UNKNOWN, "DRIVER_NOT_LOADED")
        node.plugin.node.load_driver()
        node.wait_told("gpu-1", HealthStatus.HEALTHY)


def test_a_gpu_that_vanished_before_the_process_began_is_told_of_too(node: Node) -> None:
    inventory = read_inventory(node.plugin.nvml, node.plugin.sys_root)
    node.plugin.node.unplug(1)
    with looked_at_again(node) as again:
        assert again.told("gpu-1") is None
        again.devices.adopt(node_slices("node-a", "uid", describe(inventory).gpus))
        again.wait_told("gpu-1", HealthStatus.UNHEALTHY, GONE)


@contextlib.contextmanager
def looked_at_again(node: Node) -> Iterator[Node]:
    """As the next process would, beginning with the first look."""
    session = Session(node.plugin.node.nvml, node.plugin.sys_root)
    marks = node.plugin.place.marked
    monitor = HealthMonitor(session, marks=marks)
    devices = HardwareView(
        session,
        marks=marks,
        policy=PolicyFile(node.policy, "node-a").current,
        health=monitor,
    )
    again = Node(node.plugin, node.policy, devices, is_doubted=False)
    devices.start()
    try:
        again.wait_told("gpu-0", HealthStatus.HEALTHY)
        yield again
    finally:
        devices.stop()


def test_an_instance_made_for_a_claim_makes_no_difference(node: Node) -> None:
    name = "gpu-5-mig-3g40gb-9-4"
    before = node.devices.published()
    gpu = node.plugin.gpu(5)
    profile = next(one for one in gpu.mig_profiles if one.name == "3g.40gb")
    node.plugin.place.instances.set(MigDevice(gpu.uuid, profile.info.id, Placement(4, 4)))
    node.plugin.make_by_hand(name)
    assert node.devices.look_now(30)

    def published() -> list[object]:
        return [(gpu.key, gpu.devices) for gpu in node.devices.published()[0]]

    assert published() == [(gpu.key, gpu.devices) for gpu in before[0]]


def test_a_look_can_be_asked_for_and_waited_for(tmp_path: Path) -> None:
    with looked_at(tmp_path, looks=Looks(poll=3600)) as node:
        name = "gpu-5-mig-3g40gb-9-4"
        node.plugin.make_by_hand(name)
        assert "uuid" not in node.attributes(name)
        assert node.devices.look_now(30)
        assert "uuid" in node.attributes(name)


def test_a_driver_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    with looked_at(tmp_path, looks=Looks(poll=3600)) as node:
        node.plugin.node.inject(Fault("nvmlDeviceGetCount", seconds=1000.0))
        assert not node.devices.look_now(0.1)
        assert node.is_told("gpu-1", HealthStatus.HEALTHY)
