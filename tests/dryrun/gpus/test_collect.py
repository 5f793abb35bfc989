# SPDX-License-Identifier: Apache-2.0
"""The users and the states of GPUs, from slices, claims and pods as an API server has them."""

from typing import Any

import pytest

from dra_driver.dryrun.gpus.collect import used_nodes
from dra_driver.dryrun.gpus.model import GpuUsage, UsedGpu, UsedNode
from dra_driver.dryrun.gpus.users import ConsumerPod
from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
    DeviceClaim,
    ObjectMeta,
    Quantity,
    ResourceClaim,
)
from dra_driver.kube.resource.codec import Decoded, decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.conftest import gpu, slice_of

DRIVER = "gpu.nvidia.com"
MIG = "new-h100x8-mixed-1"
SHARES = "new-l40sx4-shares-1"
MACHINES = "new-a100-80x4-vfio-1"


def holding(pool: str, *devices: str, name: str = "claim", admin: bool = False) -> ResourceClaim:
    """A claim in namespace `ns` for pod `pod`, which holds devices."""
    results = tuple(AllocatedDevice("gpu", DRIVER, pool, device, admin_access=admin) for device in devices)
    meta = ObjectMeta(name, "ns", creation_timestamp="2026-01-01T00:00:00Z")
    return ResourceClaim(meta, DeviceClaim(), AllocationResult(results), (ConsumerReference("pods", "pod", "uid"),))


def sharing(device: str, memory: str, number: int) -> ResourceClaim:
    amounts = {"memory": Quantity.parse(memory), "shares": Quantity.of(1)}
    result = AllocatedDevice("gpu", DRIVER, SHARES, device, share_id=f"share-{number}", consumed_capacity=amounts)
    return ResourceClaim(ObjectMeta(f"claim-{number}", "ns"), DeviceClaim(), AllocationResult((result,)))


def pod(uid: str = "uid", **owner: str) -> ConsumerPod:
    metadata: dict[str, Any] = {"name": "pod", "namespace": "ns", "uid": uid}
    if owner:
        metadata["ownerReferences"] = [{"controller": True, **owner}]
    metadata["labels"] = {"pod-template-hash": "5d4f"}
    return ConsumerPod.of_object({"metadata": metadata, "status": {"startTime": "2026-01-02T00:00:00Z"}})


def node_of(objects: list[Decoded], *pods: ConsumerPod) -> UsedNode:
    (node,) = used_nodes(objects, pods, Features())
    return node


def gpus_of(objects: list[Decoded], *pods: ConsumerPod) -> dict[str, UsedGpu]:
    return {gpu.name: gpu for gpu in node_of(objects, *pods).gpus}


def test_mig_devices_and_their_whole_gpu_are_one_gpu() -> None:
    node = node_of(simulated_nodes("h100x8-mixed", 1))
    assert [gpu.name for gpu in node.gpus] == [f"gpu-{number}" for number in range(8)]
    assert {gpu.state for gpu in node.gpus} == {GpuUsage.FREE}
    assert node.gpus[0].free == ("whole",)
    assert "3g.40gb" in node.gpus[4].free


def test_a_gpu_with_one_mig_device_in_use_is_partly_used() -> None:
    claim = holding(MIG, "gpu-4-mig-3g40gb-9-4")
    found = gpus_of([*simulated_nodes("h100x8-mixed", 1), claim], pod())["gpu-4"]
    assert found.state is GpuUsage.PARTLY
    assert "3g.40gb" in found.free
    assert "7g.80gb" not in found.free
    ((device, use),) = found.uses
    assert (device.kind, use.pods) == ("3g.40gb", ("ns/pod",))
    assert [(cell.first, cell.count, cell.label) for cell in found.picture.cells] == [(0, 4, ""), (4, 4, "3g.40gb")]


def test_a_gpu_whose_memory_slices_are_in_use_is_used() -> None:
    claim = holding(MIG, "gpu-4-mig-3g40gb-9-4", "gpu-4-mig-3g40gb-9-0")
    assert gpus_of([*simulated_nodes("h100x8-mixed", 1), claim])["gpu-4"].state is GpuUsage.USED


def test_a_shared_gpu_is_partly_used_until_its_memory_is_consumed() -> None:
    objects = simulated_nodes("l40sx4-shares", 1)
    partly = gpus_of([*objects, sharing("gpu-0", "10Gi", 1)])["gpu-0"]
    assert (partly.state, partly.free) == (GpuUsage.PARTLY, ("share",))
    assert [dict(use.amounts) for _, use in partly.uses] == [{"memory": "10Gi", "shares": "1"}]
    shares = [sharing("gpu-0", "10Gi", number) for number in range(4)]
    assert gpus_of([*objects, *shares])["gpu-0"].state is GpuUsage.USED


def test_a_gpu_in_a_virtual_machine_is_used_as_a_whole() -> None:
    found = gpus_of([*simulated_nodes("a100-80x4-vfio", 1), holding(MACHINES, "gpu-vfio-1")])
    assert sorted(found) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert found["gpu-1"].state is GpuUsage.USED
    assert [device.kind for device, _ in found["gpu-1"].uses] == ["passthrough"]
    assert found["gpu-0"].free == ("whole", "passthrough")


def test_admin_access_takes_nothing_from_others() -> None:
    claim = holding("node-1", "gpu-0", admin=True)
    found = gpus_of([decode(slice_of("node-1", gpu("gpu-0"))), claim])["gpu-0"]
    assert found.state is GpuUsage.FREE
    assert [use.admin for _, use in found.uses] == [True]


@pytest.mark.parametrize(
    ("taint", "state", "unhealthy"),
    [
        ({"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}, GpuUsage.UNAVAILABLE, True),
        ({"key": "gpu.nvidia.com/xid", "value": "13", "effect": "None"}, GpuUsage.FREE, False),
        ({"key": "example.com/reserved", "effect": "NoExecute"}, GpuUsage.UNAVAILABLE, False),
    ],
)
def test_taints_keep_claims_away_and_tell_of_faults(taint: dict[str, str], state: GpuUsage, unhealthy: bool) -> None:
    device = {**gpu("gpu-0"), "taints": [{**taint, "timeAdded": "2026-01-03T00:00:00Z"}]}
    found = gpus_of([decode(slice_of("node-1", device))])["gpu-0"]
    assert found.state is state
    assert found.is_unhealthy is unhealthy
    assert [taint.since for taint in found.taints] == ["2026-01-03T00:00:00Z"]


def use_of(*pods: ConsumerPod) -> tuple[str, str]:
    claim = holding("node-1", "gpu-0")
    ((_, use),) = gpus_of([decode(slice_of("node-1", gpu("gpu-0"))), claim], *pods)["gpu-0"].uses
    return use.owner, use.since


def test_the_owner_of_a_replica_set_is_its_deployment() -> None:
    assert use_of(pod(kind="ReplicaSet", name="web-5d4f"))[0] == "Deployment web"
    assert use_of(pod(kind="ReplicaSet", name="alone"))[0] == "ReplicaSet alone"
    assert use_of(pod(kind="Job", name="train"))[0] == "Job train"


def test_a_use_begins_when_the_pod_started() -> None:
    assert use_of(pod())[1] == "2026-01-02T00:00:00Z"


def test_a_use_without_a_known_pod_begins_when_the_claim_was_created() -> None:
    assert use_of() == ("", "2026-01-01T00:00:00Z")


def test_a_pod_that_was_created_again_under_its_name_is_not_the_user() -> None:
    assert use_of(pod("another", kind="Job", name="train")) == ("", "2026-01-01T00:00:00Z")


def test_devices_of_other_drivers_are_counted_apart() -> None:
    value = slice_of("node-1", {"name": "nic-0"}, {"name": "nic-1"})
    value["spec"]["driver"] = "dra.net"
    claim = holding("node-1", "nic-0")
    result = AllocatedDevice("nic", "dra.net", "node-1", "nic-0")
    node = node_of([decode(value), ResourceClaim(claim.metadata, claim.spec, AllocationResult((result,)))])
    (others,) = node.others
    assert (node.gpus, others.driver, others.total, others.in_use) == ((), "dra.net", 2, 1)


def test_a_pool_that_is_not_complete_is_named_with_the_reason() -> None:
    value = slice_of("node-1", gpu("gpu-0"))
    value["spec"]["pool"]["resourceSliceCount"] = 2
    node = node_of([decode(value)])
    assert node.gpus == ()
    assert node.problems == ("nothing of pool node-1 of gpu.nvidia.com: it has 1 slices of generation 1 instead of 2",)


def test_slices_of_an_earlier_generation_do_not_count() -> None:
    old, new = slice_of("node-1", gpu("gpu-0"), gpu("gpu-1")), slice_of("node-1", gpu("gpu-0"))
    old["metadata"]["name"] = "old"
    new["spec"]["pool"]["generation"] = 2
    assert [found.name for found in node_of([decode(old), decode(new)]).gpus] == ["gpu-0"]
