# SPDX-License-Identifier: Apache-2.0
"""NVSwitch partitions: what Fabric Manager reports, what is published of it, and which GPUs a claim gets."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.devices import Reason, describe
from dra_driver.gpu.fabric import NO_SWITCHES, FabricCode, FabricError, Partition, SwitchFacts
from dra_driver.gpu.fabric_access import FabricAccess
from dra_driver.gpu.fabric_marks import FabricTrouble, FabricTroubles
from dra_driver.gpu.health.conditions import Reading, switch_values
from dra_driver.gpu.health.records import GpuRecord
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import Fabric, FabricState
from dra_driver.gpu.policy import GpuRule, HealthPolicy, NodePolicy
from dra_driver.gpu.simulated.board import boards
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.threads import CallLimits, NvmlThreads
from dra_driver.kube.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    ObjectMeta,
    ResourceClaim,
)
from dra_driver.kube.resource import Node as ClusterNode
from dra_driver.kube.resource.claim import DeviceConstraint
from dra_driver.scheduler.allocator import Cluster, allocate
from tests.gpu.test_view import Node, looked_at
from tests.support.hardware import ControlledFabric
from tests.support.nodes import board_inventory, make_node
from tests.support.waiting import wait_for

NODE = str(Path(__file__).parents[1] / "support/nvswitch.yaml")
FOUR, PAIR, ONE = 2, 4, 8  # the first partitions of these sizes
MACHINES = NodePolicy((GpuRule(passthrough=True),))


@pytest.fixture
def fabric(tmp_path: Path) -> ControlledFabric:
    return make_node(tmp_path, NODE).node.fabric


def refusal(call: object, *arguments: object) -> FabricCode:
    """The code that a call fails with."""
    with pytest.raises(FabricError) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value.code


def active(fabric: ControlledFabric) -> list[int]:
    """The partitions that are active."""
    return [one.id for one in fabric.supported_partitions() if one.active]


# The simulated Fabric Manager


def test_a_gpu_is_in_one_active_partition(fabric: ControlledFabric) -> None:
    fabric.activate(PAIR)
    assert [refusal(fabric.activate, one) for one in (PAIR, FOUR, ONE)] == [FabricCode.IN_USE] * 3
    fabric.activate(5)
    fabric.deactivate(PAIR)
    assert refusal(fabric.deactivate, PAIR) is FabricCode.UNINITIALIZED
    fabric.activate(ONE)
    assert active(fabric) == [5, ONE]
    assert refusal(fabric.activate, 16) is refusal(fabric.deactivate, 16) is FabricCode.BADPARAM


def test_after_a_restart_it_must_be_told_what_is_active(fabric: ControlledFabric) -> None:
    fabric.activate(PAIR)
    before = fabric.identity
    fabric.stop()
    assert fabric.identity == ""
    assert refusal(fabric.supported_partitions) is FabricCode.CONNECTION_NOT_VALID
    fabric.start()
    assert fabric.identity not in ("", before)
    assert refusal(fabric.activate, 5) is FabricCode.NOT_CONFIGURED
    assert refusal(fabric.set_activated, [PAIR, FOUR]) is FabricCode.BADPARAM
    fabric.set_activated([PAIR])
    assert active(fabric) == [PAIR]
    assert refusal(fabric.failed_gpus) is FabricCode.NOT_SUPPORTED
    fabric.start(resilient=False)
    assert active(fabric) == []


def test_other_modes_have_no_partitions(fabric: ControlledFabric) -> None:
    with fabric.changing() as state:
        state.mode = 0
    assert refusal(fabric.supported_partitions) is refusal(fabric.activate, 1) is FabricCode.NOT_SUPPORTED
    assert FabricAccess(NvmlThreads(), fabric, CallLimits()).read() == SwitchFacts(shared=False)


# Reading it


def test_a_node_without_switches_library_or_socket_is_not_noticed(
    tmp_path: Path, fabric: ControlledFabric, caplog: pytest.LogCaptureFixture
) -> None:
    fabric.stop()
    for manager in (None, fabric):
        assert FabricAccess(NvmlThreads(), manager, CallLimits()).read() == NO_SWITCHES
        assert (
            refusal(FabricAccess(NvmlThreads(), manager, CallLimits()).activate, 1) is FabricCode.CONNECTION_NOT_VALID
        )
    with looked_at(tmp_path / "other", "h100x8") as node:
        assert node.session.inventory().switches == NO_SWITCHES
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_partitions_stay_known_while_it_is_away(fabric: ControlledFabric) -> None:
    access = FabricAccess(NvmlThreads(), fabric, CallLimits())
    known = access.read()
    assert (len(known.partitions), known.shared, known.problem) == (15, True, "")
    fabric.start()
    assert "NOT_CONFIGURED, -8" in access.read().problem
    assert access.read().partitions == known.partitions
    fabric.stop()
    assert access.read().partitions == known.partitions
    fabric.start(resilient=False)
    assert access.read() == known


def test_a_call_that_hangs_is_given_up_and_later_calls_are_refused_until_it_returns(
    tmp_path: Path, fabric: ControlledFabric
) -> None:
    threads = NvmlThreads()
    access, returned = FabricAccess(threads, fabric, CallLimits(partition=0.1)), threading.Event()
    threads.listen(lambda _key: returned.set())
    hang = Fault("fmActivateFabricPartition", seconds=1000.0)
    make_node(tmp_path, NODE).node.inject(hang)
    with pytest.raises(FabricError, match=r"fmActivateFabricPartition for Fabric Manager has not returned") as raised:
        access.activate(PAIR)
    assert raised.value.code is FabricCode.TIMEOUT
    assert refusal(access.deactivate, PAIR) is refusal(access.partitions) is FabricCode.TIMEOUT
    assert "has not returned" in access.read().problem
    make_node(tmp_path, NODE).node.clear_faults()
    wait_for(returned.is_set, "the call to return")
    assert [one.id for one in access.partitions() if one.active] == [PAIR]


# What is published


def attributes(partitions: tuple[tuple[int, ...], ...], module: int = 1) -> Mapping[str, object]:
    """`partition<N>` of both forms of a GPU, which are equal."""
    inventory = board_inventory(boards()["H100-SXM5-80GB"], 2)
    facts = SwitchFacts(tuple(Partition(number, one) for number, one in enumerate(partitions, start=7)), True)
    described = describe(replace(inventory, switches=facts), MACHINES).gpus[module - 1].devices
    found = [
        {name: value for name, value in one.attributes.items() if name.startswith("partition")} for one in described
    ]
    assert len(described) == 2
    assert found[0] == found[1]
    return found[0]


def test_a_device_has_the_partitions_of_its_gpu_by_size() -> None:
    assert attributes(((1, 2), (1,), (2,))) == {"partition2": 7, "partition1": 8}
    assert attributes(((1, 2), (1,), (2,)), module=2) == {"partition2": 7, "partition1": 9}
    assert attributes(()) == attributes(((2,),)) == {}


def test_a_size_of_which_a_gpu_is_in_two_partitions_is_left_out() -> None:
    assert attributes(((1, 2), (1, 3), (1,))) == {"partition1": 9}
    inventory = board_inventory(boards()["H100-SXM5-80GB"], 1)
    facts = SwitchFacts((Partition(7, (1, 2)), Partition(8, (1, 3))), True)
    (one,) = describe(replace(inventory, switches=facts)).left_out
    assert (one.reason, one.subject) == (Reason.AMBIGUOUS_PARTITION, inventory.gpus[0].uuid)
    assert one.text == "its attribute partition2: it is in the partitions 7, 8 of 2 GPUs"


def allocated(tmp_path: Path, size: int, taken: int = 0) -> list[str]:
    """The devices that a claim for `size` GPUs of one partition gets, after one GPU and `taken` GPUs were allocated."""
    simulated = make_node(tmp_path, NODE)
    inventory = replace(simulated.inventory(), switches=simulated.node.fabric.facts)
    slices = [
        replace(one, pool=replace(one.pool, generation=1))
        for one in node_slices("node-a", "uid", describe(inventory).gpus)
    ]
    cluster = Cluster(tuple(slices), (DeviceClass(ObjectMeta(name="gpu")),), (ClusterNode(ObjectMeta(name="node-a")),))
    found: list[str] = []
    for count in [taken, size]:
        if not count:
            continue
        request = DeviceRequest("gpus", exactly=DeviceRequirements("gpu", count=count))
        constraint = DeviceConstraint(match_attribute=f"gpu.nvidia.com/partition{count}")
        claim = ResourceClaim(ObjectMeta(name=f"c{count}", namespace="d"), DeviceClaim((request,), (constraint,)))
        outcome = allocate(cluster, [claim], "node-a")
        found = [one.device for allocation in outcome.allocations for one in allocation.results]
        cluster = cluster.after(allocated=[replace(claim, allocation=one) for one in outcome.allocations])
    return sorted(found)


@pytest.mark.parametrize(
    ("size", "taken", "expected"),
    [
        (4, 0, ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]),
        (4, 1, ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]),
        (2, 1, ["gpu-1", "gpu-3"]),
        (8, 0, [f"gpu-{number}" for number in range(8)]),
        (8, 1, []),
        (3, 0, []),
    ],
)
def test_a_claim_with_the_constraint_gets_exactly_a_partition(
    tmp_path: Path, size: int, taken: int, expected: list[str]
) -> None:
    assert allocated(tmp_path, size, taken) == expected


# Health


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with looked_at(tmp_path, NODE) as node:
        yield node


def test_a_gpu_outside_of_active_partitions_has_no_taint_although_it_is_not_registered(node: Node) -> None:
    with node.session.use() as nvml:
        assert nvml.fabric(nvml.device_by_index(0)).state is FabricState.IN_PROGRESS
    assert node.taints() == {}
    uuid = node.gpu(0).uuid
    with node.simulated.fabric.changing() as state:
        state.failed, state.broken = [uuid], [PAIR]
    assert node.discovery.look_now(30)
    node.simulated.fabric.start(resilient=False)
    key = "gpu.nvidia.com/fabric"
    wait_for(
        lambda: node.taints() == {"gpu-0": [(key, "nvlink-failed")], "gpu-2": [(key, "partition-unsupported")]},
        "what Fabric Manager reports",
    )


def test_an_activation_that_failed_is_a_taint_until_it_succeeds(node: Node, tmp_path: Path) -> None:
    troubles, uuid = FabricTroubles(tmp_path / "fabric"), node.gpu(2).uuid
    troubles.set(FabricTrouble(10, (uuid,), time.time()))
    wait_for(lambda: node.taints() == {"gpu-2": [("gpu.nvidia.com/fabric", "activation-failed")]}, "the taint")
    troubles.clear(10)
    wait_for(lambda: node.taints() == {}, "no taint")


REGISTERED, UNREGISTERED = Fabric(FabricState.COMPLETED, "c", 1), Fabric(FabricState.IN_PROGRESS)


@pytest.mark.parametrize(
    ("reading", "with_partitions", "without"),
    [
        (Reading(links_up=18, fabric=REGISTERED), set(), set()),
        (Reading(links_up=17, fabric=REGISTERED), {"17-of-18"}, {"17-of-18"}),
        (Reading(links_up=0, fabric=UNREGISTERED), set(), {"0-of-18", "not-registered"}),
        (Reading(links_up=18, fabric=UNREGISTERED), set(), {"not-registered"}),
        (Reading(links_up=0, fabric=None), set(), {"0-of-18"}),
    ],
)
def test_links_of_a_gpu_with_partitions_are_judged_while_they_are_in_use(
    reading: Reading, with_partitions: set[str], without: set[str]
) -> None:
    for switches, expected in ((frozenset(), with_partitions), (None, without)):
        record, policy = GpuRecord("GPU-0", switches=switches), HealthPolicy()
        record.looked(Reading(links_up=18), 0.0, policy)
        record.looked(reading, 1.0, policy)
        assert {one.value for one in record.findings(policy)} == expected
        record.looked(Reading(links_up=18, fabric=REGISTERED), 2.0, policy)
        assert record.findings(policy) == ()


def test_only_gpus_with_partitions_have_problems_of_fabric_manager() -> None:
    gpu = board_inventory(boards()["H100-SXM5-80GB"], 1).gpus[0]
    facts = SwitchFacts((Partition(1, (2,)),), True, failed=frozenset({gpu.uuid}))
    assert switch_values(gpu, facts) is None
    assert switch_values(gpu, NO_SWITCHES) is None
    assert switch_values(gpu, replace(facts, partitions=(Partition(1, (1,)),))) == {"nvlink-failed"}
