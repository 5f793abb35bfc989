# SPDX-License-Identifier: Apache-2.0
"""What a new process knows of what an earlier one found: as much as was published."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.health import taint
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import EventType, RecoveryAction
from dra_driver.gpu.policy import GpuRule, NodePolicy
from dra_driver.kube.resource import Device, ResourceSlice
from tests.gpu.calls import destroy_instance, make_instance
from tests.gpu.health.support import Watched, watched
from tests.support.nodes import TestNode, make_node

XID = EventType.XID
Change = Callable[[TestNode], object]


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    """Eight H100 in MIG mode."""
    return make_node(tmp_path, "h100x8-mig")


def published(one: Watched) -> tuple[ResourceSlice, ...]:
    """The node's slices with what is held now."""
    return node_slices("node-a", "uid", taint(one.node.describe(), one.monitor.findings()))


def broken(node: TestNode) -> tuple[dict[str, list[str]], tuple[ResourceSlice, ...]]:
    """A node where much is wrong: what a first process holds, and publishes. GPU 1 has an instance at 4:4."""
    gpus = [node.nvml.device_by_index(index) for index in range(3)]
    uuids = [node.nvml.uuid(gpu) for gpu in gpus]
    _, device = make_instance(node.nvml, gpus[1], 2, 4)
    with watched(node) as one:
        node.node.raise_event(uuids[0], XID, 79)
        node.node.raise_event(node.nvml.uuid(device), XID, 95)
        node.node.raise_event(uuids[2], XID, 13)
        node.node.set_recovery_action(2, RecoveryAction.GPU_RESET)
        held = {uuids[0]: ["xid=79"], uuids[1]: ["xid=95"], uuids[2]: ["recovery-action=gpu-reset", "xid=13"]}
        one.wait(held)
        return held, published(one)


def test_everything_is_remembered_before_the_first_look_and_after_it(node: TestNode) -> None:
    held, slices = broken(node)
    with watched(node, start=False) as one:
        one.monitor.restore(slices)
        assert one.held() == held
        assert published(one) == slices
        one.start()
        assert one.held() == held
        assert published(one) == slices


def test_published_health_may_be_restored_after_the_first_look(node: TestNode) -> None:
    held, slices = broken(node)
    with watched(node) as one:
        assert one.held() == {uuid: ["recovery-action=gpu-reset"] for uuid, values in held.items() if len(values) > 1}
        one.monitor.restore(slices)
        assert one.held() == held


def test_published_health_may_be_restored_before_the_gpus_are_known(node: TestNode) -> None:
    held, slices = broken(node)
    with watched(node, start=False) as one:
        inventory = one.session.inventory()
        one.monitor.watch(replace(inventory, gpus=()), NodePolicy())
        one.monitor.restore(slices)
        one.monitor.watch(inventory, NodePolicy())
        assert one.held() == held


def test_published_health_of_unwatched_gpus_is_not_restored(node: TestNode) -> None:
    held, slices = broken(node)
    first = next(iter(held))
    policy = NodePolicy(rules=(GpuRule(uuids=(first,), health=False),))
    with watched(node, policy=policy, start=False) as one:
        one.monitor.restore(slices)
        assert one.held() == {uuid: values for uuid, values in held.items() if uuid != first}


def reload_driver(node: TestNode) -> None:
    """Another version of the driver."""
    node.node.unload_driver()
    node.node.load_driver("580.65.06")


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        (lambda node: node.node.reset_gpu(2), [["xid=79"], ["xid=95"]]),
        (
            lambda node: destroy_instance(node.nvml, node.nvml.gpu_instance_by_id(node.nvml.device_by_index(1), 1)),
            [["xid=79"], ["recovery-action=gpu-reset", "xid=13"]],
        ),
        (
            lambda node: node.node.lose_gpu(0),
            [["gpu-lost=", "xid=79"], ["xid=95"], ["recovery-action=gpu-reset", "xid=13"]],
        ),
    ],
    ids=["a reset", "an instance destroyed", "a GPU lost"],
)
def test_changes_during_the_restart_are_found(node: TestNode, meanwhile: Change, left: list[list[str]]) -> None:
    _, slices = broken(node)
    with watched(node, start=False) as one:
        meanwhile(node)
        one.monitor.restore(slices)
        one.start()
        assert list(one.held().values()) == left


def test_another_driver_ends_what_events_brought(node: TestNode) -> None:
    held, slices = broken(node)
    reload_driver(node)
    with watched(node, start=False) as one:
        one.monitor.restore(slices)
        assert one.held() == held
        one.monitor.start()
        one.wait({})


def test_another_driver_is_also_noticed_when_it_runs_before_slices_are_known(node: TestNode) -> None:
    held, slices = broken(node)
    reload_driver(node)
    with watched(node) as one:
        node.node.raise_event(one_uuid := next(iter(held)), XID, 48)
        one.wait({one_uuid: ["xid=48"]})
        one.monitor.restore(slices)
        one.wait({one_uuid: ["xid=48"]})


def test_slices_that_name_no_driver_version_prove_nothing(node: TestNode) -> None:
    held, slices = broken(node)

    def nameless(device: Device) -> Device:
        return replace(device, attributes={**device.attributes, "driverVersion": "unknown"})

    with watched(node) as one:
        one.monitor.restore(replace(each, devices=tuple(map(nameless, each.devices))) for each in slices)
        assert one.held() == held


def test_taints_older_than_the_boot_are_not_restored(node: TestNode) -> None:
    _, slices = broken(node)
    ancient = [
        replace(
            one,
            devices=tuple(
                replace(
                    device, taints=tuple(replace(each, time_added="1970-01-01T00:16:39Z") for each in device.taints)
                )
                for device in one.devices
            ),
        )
        for one in slices
    ]
    with watched(node, start=False) as one:
        one.monitor.restore(ancient)
        assert one.held() == {}
