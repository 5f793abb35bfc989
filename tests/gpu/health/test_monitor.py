# SPDX-License-Identifier: Apache-2.0
"""The thread that watches: events and states of simulated GPUs, and everything that can go wrong on the way."""

import threading
from pathlib import Path

import pytest

from dra_driver.gpu.health import HealthMonitor, MonitorTiming
from dra_driver.gpu.nvml import EventType, FabricState, Placement, RecoveryAction, RemappedRows, Return
from dra_driver.gpu.policy import GpuRule, HealthPolicy, NodePolicy
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.simulated.store import StateFolder
from dra_driver.kube.resource import TaintEffect
from tests.gpu.calls import destroy_instance, make_instance
from tests.gpu.health.support import QUICK, watched
from tests.support.clock import Clock
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

XID = EventType.XID
BY_EVENTS = MonitorTiming(wait=0.02, look=3600.0, settle=3600.0)
"""Looks once, and then hears only events."""


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    """Eight H100."""
    return make_node(tmp_path, "h100x8")


@pytest.fixture
def split(tmp_path: Path) -> TestNode:
    """Eight H100 in MIG mode."""
    return make_node(tmp_path, "h100x8-mig")


# Events


def test_an_error_is_told_of_its_gpu_and_of_no_other(node: TestNode) -> None:
    with watched(node, timing=BY_EVENTS) as one:
        node.node.raise_event(one.uuid(2), XID, 48)
        one.wait({one.uuid(2): ["xid=48"]})
        (finding,) = one.monitor.findings()
        assert (finding.effect, finding.since, finding.placement) == (TaintEffect.NO_SCHEDULE, 1_000_000.0, None)
        node.node.raise_event(one.uuid(5), EventType.DOUBLE_BIT_ECC, 1)
        one.wait({one.uuid(2): ["xid=48"], one.uuid(5): ["ecc=double-bit"]})


def test_repeated_event_is_not_reported_again(node: TestNode) -> None:
    with watched(node, timing=BY_EVENTS) as one:
        for number in (13, 13, 13, 31):
            node.node.raise_event(one.uuid(0), XID, number)
        wait_for(lambda: len(one.changes) == 2, "two changes")
        assert [[finding.value for finding in change] for change in one.changes] == [["13"], ["13", "31"]]


def test_an_error_of_a_mig_instance_is_told_with_its_memory_slices(split: TestNode) -> None:
    with watched(split, timing=BY_EVENTS) as one:
        gpu = split.nvml.device_by_index(1)
        _, device = make_instance(split.nvml, gpu, 2, 4)  # 3g.40gb
        split.node.raise_event(split.nvml.uuid(device), XID, 94)
        split.node.raise_event(one.uuid(1), XID, 119)
        one.wait({one.uuid(1): ["xid=119", "xid=94"]})
        places = {finding.value: finding.placement for finding in one.monitor.findings()}
        assert places == {"119": None, "94": Placement(4, 4)}


def test_an_error_goes_with_the_mig_instance_it_was_confined_to(split: TestNode) -> None:
    with watched(split) as one:
        gpu = split.nvml.device_by_index(1)
        instance, device = make_instance(split.nvml, gpu, 2, 4)
        other, _ = make_instance(split.nvml, gpu, 0, 0)
        split.node.raise_event(split.nvml.uuid(device), XID, 95)
        one.wait({one.uuid(1): ["xid=95"]})
        destroy_instance(split.nvml, other)
        one.looked()
        assert one.held() == {one.uuid(1): ["xid=95"]}
        destroy_instance(split.nvml, instance)
        one.wait({})


def test_an_error_of_a_mig_instance_that_is_gone_already_taints_nothing(split: TestNode) -> None:
    instance, device = make_instance(split.nvml, split.nvml.device_by_index(1), 2, 4)
    with watched(split, timing=BY_EVENTS) as one:
        split.node.inject(Fault("nvmlDeviceGetGpuInstanceById", code=Return.NOT_FOUND, times=1))
        split.node.raise_event(split.nvml.uuid(device), XID, 94)
        split.node.raise_event(one.uuid(2), XID, 79)
        one.wait({one.uuid(2): ["xid=79"]})
    destroy_instance(split.nvml, instance)


def test_an_error_whose_mig_instance_cannot_be_found_out_counts_for_the_whole_gpu(split: TestNode) -> None:
    _, device = make_instance(split.nvml, split.nvml.device_by_index(1), 2, 4)
    with watched(split, timing=BY_EVENTS) as one:
        split.node.inject(Fault("nvmlDeviceGetGpuInstanceById", code=Return.UNKNOWN, times=1))
        split.node.raise_event(split.nvml.uuid(device), XID, 94)
        one.wait({one.uuid(1): ["xid=94"]})
        assert one.monitor.findings()[0].placement is None


# States


def test_states_are_told_and_go_when_they_are_good_again(node: TestNode) -> None:
    hardware = node.node
    with watched(node) as one:
        hardware.set_recovery_action(0, RecoveryAction.DRAIN_P2P)
        hardware.set_remapped_rows(1, RemappedRows(0, 1, pending=True, failed=False))
        hardware.set_nvlinks(2, up=False)
        hardware.set_remapped_rows(4, RemappedRows(0, 1, pending=False, failed=True))
        one.wait(
            {
                one.uuid(0): ["recovery-action=drain-p2p"],
                one.uuid(1): ["row-remap=pending"],
                one.uuid(2): ["nvlink=0-of-18"],
                one.uuid(4): ["row-remap=failed"],
            }
        )
        hardware.set_recovery_action(0, RecoveryAction.NONE)
        hardware.reset_gpu(1)
        hardware.set_nvlinks(2, up=True)
        hardware.set_remapped_rows(4, RemappedRows(0, 0, pending=False, failed=False))
        one.wait({})


def test_a_gpu_that_leaves_the_fabric_is_told(tmp_path: Path) -> None:
    node = make_node(tmp_path, "b200x8")
    with watched(node) as one:
        node.node.set_fabric(3, FabricState.IN_PROGRESS)
        one.wait({one.uuid(3): ["fabric=not-registered"]})
        node.node.set_fabric(3, None)
        one.wait({})


def test_a_lost_gpu_is_told_and_the_others_are_watched_on(node: TestNode) -> None:
    with watched(node) as one:
        uuids = [one.uuid(index) for index in range(8)]
        node.node.raise_event(uuids[2], XID, 79)
        one.wait({uuids[2]: ["xid=79"]})
        node.node.lose_gpu(2)
        one.wait({uuids[2]: ["gpu-lost=", "xid=79"]})
        node.node.raise_event(uuids[3], XID, 48)
        one.wait({uuids[2]: ["gpu-lost=", "xid=79"], uuids[3]: ["xid=48"]})
        node.node.reset_gpu(2)
        one.wait({uuids[3]: ["xid=48"]})
        node.node.raise_event(uuids[2], XID, 31)
        one.wait({uuids[2]: ["xid=31"], uuids[3]: ["xid=48"]})


def test_an_event_brings_the_next_look_forward(node: TestNode) -> None:
    timing = MonitorTiming(wait=0.02, look=3600.0, settle=0.0)
    with watched(node, timing=timing) as one:
        node.node.set_recovery_action(6, RecoveryAction.GPU_RESET)
        node.node.raise_event(one.uuid(6), XID, 154)
        one.wait({one.uuid(6): ["recovery-action=gpu-reset"]})


# One bad GPU of eight


def test_a_gpu_that_cannot_be_watched_is_told_and_hides_no_other(node: TestNode) -> None:
    node.node.inject(Fault("nvmlDeviceRegisterEvents", gpu=3, code=Return.UNKNOWN))
    with watched(node) as one:
        bad, good = (node.nvml.uuid(node.nvml.device_by_index(index)) for index in (3, 4))
        one.wait({bad: ["unmonitored="]})
        assert one.monitor.findings()[0].effect is TaintEffect.NONE
        node.node.raise_event(good, XID, 79)
        one.wait({bad: ["unmonitored="], good: ["xid=79"]})
        node.node.clear_faults()
        one.wait({good: ["xid=79"]})
        node.node.raise_event(bad, XID, 79)
        one.wait({bad: ["xid=79"], good: ["xid=79"]})


def test_a_query_that_a_gpu_does_not_answer_says_nothing_and_hides_nothing(node: TestNode) -> None:
    node.node.inject(Fault("nvmlDeviceGetRemappedRows", gpu=3, code=Return.UNKNOWN))
    node.node.inject(Fault("nvmlDeviceGetFieldValues", code=Return.NOT_SUPPORTED))
    with watched(node) as one:
        assert one.held() == {}
        node.node.set_nvlinks(3, up=False)
        one.wait({one.uuid(3): ["nvlink=0-of-18"]})


# The driver


def test_a_driver_that_goes_and_comes_back_is_survived_and_ends_what_events_brought(node: TestNode) -> None:
    with watched(node) as one:
        uuids = [one.uuid(index) for index in range(8)]
        node.node.raise_event(uuids[0], XID, 79)
        one.wait({uuids[0]: ["xid=79"]})
        node.node.unload_driver()
        one.wait({uuid: ["unmonitored=", *(["xid=79"] if uuid == uuids[0] else [])] for uuid in uuids})
        node.node.load_driver()
        one.wait({})
        node.node.raise_event(uuids[1], XID, 48)
        one.wait({uuids[1]: ["xid=48"]})


def test_a_monitor_may_begin_before_the_driver(node: TestNode) -> None:
    with watched(node, start=False) as one:
        uuid = one.uuid(0)
        node.node.unload_driver()
        one.monitor.start()
        wait_for(one.monitor.findings, "unmonitored GPUs")
        node.node.load_driver()
        one.wait({})
        node.node.raise_event(uuid, XID, 48)
        one.wait({uuid: ["xid=48"]})


def test_a_reload_between_two_calls_is_noticed(node: TestNode) -> None:
    with watched(node) as one:
        uuid = one.uuid(0)
        node.node.raise_event(uuid, XID, 79)
        one.wait({uuid: ["xid=79"]})
        node.node.unload_driver()
        node.node.load_driver("580.65.06")
        one.wait({})


def test_events_are_heard_after_nvml_was_initialized_anew(node: TestNode) -> None:
    with watched(node) as one:
        uuid = one.uuid(0)
        node.node.raise_event(uuid, XID, 79)
        one.wait({uuid: ["xid=79"]})
        before = one.session.generation
        one.session.distrust(before)
        wait_for(lambda: one.session.generation > before, "another initialization")
        one.looked()
        node.node.raise_event(uuid, XID, 48)
        one.wait({uuid: ["xid=48", "xid=79"]})


def test_a_wait_that_always_fails_is_not_tried_without_a_pause(node: TestNode) -> None:
    with watched(node) as one:
        uuids = [one.uuid(index) for index in range(8)]
        node.node.inject(Fault("nvmlEventSetWait", code=Return.UNKNOWN, times=10_000))
        one.wait({uuid: ["unmonitored="] for uuid in uuids})
        (fault,) = StateFolder(node.node.root / "state").read_system().faults
        assert fault.times > 9_900
        node.node.set_nvlinks(1, up=False)  # what can be seen is seen all the same
        wait_for(lambda: one.held()[uuids[1]] == ["nvlink=0-of-18", "unmonitored="], "the state of links")
        node.node.set_nvlinks(1, up=True)
        node.node.clear_faults()
        one.wait({})


def test_a_call_that_hangs_blocks_nobody(node: TestNode) -> None:
    others = set(threading.enumerate())
    with watched(node) as one:
        node.node.raise_event(one.uuid(0), XID, 79)
        one.wait({one.uuid(0): ["xid=79"]})
        before = one.monitor.findings()
        node.node.inject(Fault("nvmlSystemGetDriverVersion", seconds=1.0, times=1))
        wait_for(lambda: one.monitor.seconds_since_look > 5 * QUICK.look, "a look that hangs")
        assert one.monitor.findings() == before
        one.monitor.watch(one.session.inventory(), NodePolicy(health=HealthPolicy(effect=TaintEffect.NO_EXECUTE)))
        assert [finding.effect for finding in one.monitor.findings()] == [TaintEffect.NO_EXECUTE]
        (thread,) = (one for one in set(threading.enumerate()) - others if one.name == "watch GPUs")
        one.monitor.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_a_monitor_that_never_began_can_be_stopped(node: TestNode) -> None:
    with watched(node, start=False) as one:
        assert isinstance(one.monitor, HealthMonitor)


# What is watched


def test_a_gpu_is_watched_as_the_policy_says_at_the_time(node: TestNode) -> None:
    unwatched = NodePolicy(rules=(GpuRule(indexes=(0,), health=False),))
    with watched(node, policy=unwatched) as one:
        for index in (0, 1):
            node.node.raise_event(one.uuid(index), XID, 79)
        one.wait({one.uuid(1): ["xid=79"]})
        one.monitor.watch(one.session.inventory(), NodePolicy())
        one.looked()
        node.node.raise_event(one.uuid(0), XID, 48)
        one.wait({one.uuid(0): ["xid=48"], one.uuid(1): ["xid=79"]})
        one.monitor.watch(one.session.inventory(), unwatched)
        assert one.held() == {one.uuid(1): ["xid=79"]}


def test_a_vanished_gpu_is_lost_until_it_is_withdrawn(node: TestNode) -> None:
    clock = Clock()
    with watched(node, clock=clock) as one:
        uuid = one.uuid(7)
        node.node.raise_event(uuid, XID, 79)
        one.wait({uuid: ["xid=79"]})
        node.node.unplug(7)
        one.wait({uuid: ["gpu-lost=", "xid=79"]})
        one.monitor.watch(one.session.inventory(), NodePolicy())
        one.looked()
        assert one.held() == {uuid: ["gpu-lost=", "xid=79"]}
        clock.now += 300.0
        one.wait({})


def test_a_gpu_that_another_kernel_driver_took_is_not_lost(node: TestNode) -> None:
    with watched(node) as one:
        node.node.raise_event(one.uuid(7), XID, 79)
        one.wait({one.uuid(7): ["xid=79"]})
        node.node.bind_driver(7, "vfio-pci")
        wait_for(lambda: len(one.session.inventory().gpus) == 7, "an inventory without it")
        one.monitor.watch(one.session.inventory(), NodePolicy())
        assert one.held() == {}


def test_errors_of_applications_pass_when_it_was_quiet(node: TestNode) -> None:
    clock = Clock()
    with watched(node, clock=clock) as one:
        node.node.raise_event(one.uuid(0), XID, 13)
        node.node.raise_event(one.uuid(0), XID, 79)
        one.wait({one.uuid(0): ["xid=13", "xid=79"]})
        clock.now += 600.0
        one.wait({one.uuid(0): ["xid=79"]})
