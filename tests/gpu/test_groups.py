# SPDX-License-Identifier: Apache-2.0
"""GPUs that share an IOMMU group: one vfio device if the policy gives all of them to virtual machines, else none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dra_driver.gpu.devices import Description, Reason, describe
from dra_driver.gpu.functions import PciFunction
from dra_driver.gpu.health import Finding, LostGpus, taint
from dra_driver.gpu.inventory import Failure, Inventory, PciGpu
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.mig import MigInstance
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.passthrough import VfioMark
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy, PassthroughMode
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.resource import AttributeList, Quantity, TaintEffect
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.quantity import Format
from dra_driver.kube.resource.validation import slice_problems
from dra_driver.scheduler.allocator import Features
from tests.support.allocating import NodeClaims
from tests.support.nodes import board_inventory

ONLY = GpuRule(passthrough=PassthroughMode.ONLY)
DYNAMIC = GpuRule(mig=MigPolicy.DYNAMIC)
VERSIONS = {
    "1.32": SliceFeatures(False, False, False, binding_conditions=False),
    "1.34": SliceFeatures(False, False, False, binding_conditions=False, counters_beside_devices=True),
    "1.34 with all feature gates": SliceFeatures(counters_beside_devices=True),
    "1.35": SliceFeatures(False, False, False, binding_conditions=False),
    "1.36": SliceFeatures(),
}


def node(count: int = 5, *, together: tuple[int, ...] = (1, 2)) -> Inventory:
    """H100, some of which share an IOMMU group."""
    found = board_inventory(boards()["H100-SXM5-80GB"], count)
    group = {found.pci_gpus[one].address for one in together}

    def joined(pci: PciGpu) -> PciGpu:
        if pci.address not in group:
            return pci
        return replace(pci, iommu_group=99, group_gpus=tuple(sorted(group - {pci.address})))

    return replace(found, pci_gpus=tuple(map(joined, found.pci_gpus)))


def on_bus(inventory: Inventory, index: int, **values: object) -> Inventory:
    """A GPU is different on the PCI bus."""
    changed = {index: replace(inventory.pci_gpus[index], **values)}  # type: ignore[arg-type]
    return replace(inventory, pci_gpus=tuple(changed.get(at, one) for at, one in enumerate(inventory.pci_gpus)))


def unseen(inventory: Inventory, *indexes: int, driver: str | None = "vfio-pci") -> Inventory:
    """GPUs are bound to another driver than NVIDIA's."""
    gpus = tuple(gpu for gpu in inventory.gpus if gpu.index not in indexes)
    for index in indexes:
        inventory = on_bus(inventory, index, driver=driver)
    return replace(inventory, gpus=gpus)


def with_instance(inventory: Inventory, index: int) -> Inventory:
    """An administrator has made a MIG instance."""
    gpu = inventory.gpus[index]
    made = MigInstance(gpu.mig_device(gpu.mig_profiles[0].info.id, Placement(0, 1)), 1, 0, "MIG-1")
    gpus = tuple(replace(one, mig_instances=(made,)) if one.index == index else one for one in inventory.gpus)
    return replace(inventory, gpus=gpus)


def failed(inventory: Inventory, index: int) -> Inventory:
    """NVML does not answer for a GPU."""
    lost = inventory.gpus[index]
    gpus = tuple(one for one in inventory.gpus if one is not lost)
    return replace(inventory, gpus=gpus, failures=(Failure(index, "lost", lost.uuid, lost.pci_address),))


def names(description: Description, *indexes: int) -> list[str]:
    """What these GPUs are published as."""
    wanted = tuple(f"gpu-{kind}{index}" for index in indexes for kind in ("", "vfio-"))
    every = (device.name for gpu in description.gpus for device in gpu.devices)
    return [name for name in every if name in wanted or name.startswith(tuple(f"gpu-{one}-" for one in indexes))]


@pytest.mark.parametrize("features", VERSIONS.values(), ids=list(VERSIONS))
@pytest.mark.parametrize("together", [(1, 2), (0, 1, 2, 3)])
def test_a_group_is_one_device_whatever_the_api_server_stores(
    features: SliceFeatures, together: tuple[int, ...]
) -> None:
    only = tuple(replace(ONLY, indexes=(one,)) for one in together)
    found = describe(node(together=together), NodePolicy((DYNAMIC, *only)), features=features)
    first = together[0]
    assert names(found, *together) == [f"gpu-vfio-{first}"]
    (group,) = (gpu for gpu in found.gpus if gpu.others)
    (device,) = group.devices
    assert not group.overlapping
    assert device.attributes["gpus"] == len(together)
    assert device.attributes["resource.kubernetes.io/pciBusID"] == f"0000:{0x10 + first:02x}:00.0"
    assert device.capacity["addressableMemory"].value == Quantity.of(len(together) << 37, Format.BINARY_SI)
    slices = node_slices("node-a", "uid", found.gpus, features)
    assert [str(one) for each in slices for one in slice_problems(each, features)] == []
    claims = NodeClaims(slices, Features(release="1.34" if features.counters_beside_devices else "1.36"))
    vfio = "device.attributes['gpu.nvidia.com'].type == 'vfio'"
    given = claims.allocate(vfio)
    assert given is not None
    assert given.device == device.name
    assert claims.allocate(vfio) is None


LEFT_OUT: dict[str, tuple[Callable[[], Inventory], tuple[GpuRule, ...], list[str], set[Reason]]] = {
    "not only": (node, (GpuRule(passthrough=True),), ["gpu-1", "gpu-2"], {Reason.SHARED_GROUP}),
    "one of them": (
        node,
        (GpuRule(passthrough=True), replace(ONLY, indexes=(1,))),
        ["gpu-2"],
        {Reason.SHARED_GROUP},
    ),
    "not published": (
        node,
        (ONLY, GpuRule(indexes=(2,), publish=False)),
        [],
        {Reason.SHARED_GROUP, Reason.POLICY},
    ),
    "a MIG instance": (
        lambda: with_instance(node(), 2),
        (ONLY,),
        [],
        {Reason.SHARED_GROUP, Reason.FOREIGN_INSTANCE},
    ),
    "a network card": (
        lambda: on_bus(on_bus(node(), 1, group_obstacles=("x",)), 2, group_obstacles=("x",)),
        (ONLY,),
        [],
        {Reason.SHARED_GROUP},
    ),
    "virtual functions": (
        lambda: on_bus(node(), 2, virtual_functions=4),
        (ONLY,),
        [],
        {Reason.SHARED_GROUP, Reason.VIRTUAL_FUNCTIONS},
    ),
    "another driver": (
        lambda: unseen(node(), 2, driver="nouveau"),
        (ONLY,),
        [],
        {Reason.SHARED_GROUP, Reason.OTHER_DRIVER},
    ),
    "NVML fails": (lambda: failed(node(), 2), (ONLY,), [], {Reason.SHARED_GROUP, Reason.UNREADABLE}),
    "an unknown member": (
        lambda: on_bus(node(), 1, group_gpus=("0000:99:00.0",)),
        (ONLY,),
        [],
        {Reason.SHARED_GROUP},
    ),
    "an administrator's half": (
        lambda: unseen(node(), 1),
        (GpuRule(passthrough=True),),
        ["gpu-2"],
        {Reason.SHARED_GROUP},
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT.values(), ids=list(LEFT_OUT))
def test_a_group_of_which_a_part_stays_is_not_published(
    case: tuple[Callable[[], Inventory], tuple[GpuRule, ...], list[str], set[Reason]],
) -> None:
    make, rules, left, reasons = case
    found = describe(make(), NodePolicy(rules))
    assert names(found, 1, 2) == left
    about = {"GPU-00000001-8888-4444-2222-123456789abc", "GPU-00000002-8888-4444-2222-123456789abc"}
    about |= {"0000:11:00.0", "0000:12:00.0"}
    assert {one.reason for one in found.left_out if one.subject in about} == reasons


@pytest.mark.parametrize(
    ("away", "rule", "key"),
    [
        ((1, 2), GpuRule(passthrough=True), "0000:11:00.0"),
        ((1, 2), ONLY, "0000:11:00.0"),
        ((1,), ONLY, "0000:11:00.0"),
        ((2,), ONLY, "GPU-00000001-8888-4444-2222-123456789abc"),
    ],
)
@pytest.mark.parametrize("driver", [None, "vfio-pci"])
def test_a_group_is_the_same_device_while_parts_of_it_are_bound(
    away: tuple[int, ...], rule: GpuRule, key: str, driver: str | None
) -> None:
    found = describe(unseen(node(), *away, driver=driver), NodePolicy((rule,)))
    assert names(found, 1, 2) == ["gpu-vfio-1"]
    assert [gpu.key for gpu in found.gpus if gpu.others] == [key]


def test_a_gpu_of_machines_only_needs_no_counters() -> None:
    found = describe(node(together=(1,)), NodePolicy((ONLY,)), features=VERSIONS["1.32"])
    published = [device for one in node_slices("node-a", "uid", found.gpus) for device in one.devices]
    assert [device.name for device in published] == [f"gpu-vfio-{one}" for one in range(5)]
    assert not any(device.consumes_counters or "gpus" in device.attributes for device in published)


def test_the_addresses_are_a_list_where_lists_are_stored() -> None:
    policy = NodePolicy((ONLY,), list_type_attributes=True)
    found = describe(node(), policy, features=SliceFeatures(list_attributes=True))
    (device,) = next(gpu.devices for gpu in found.gpus if gpu.others)
    assert device.attributes["pciBusIDs"] == AttributeList("strings", ("0000:11:00.0", "0000:12:00.0"))


# Health


def test_a_finding_of_any_of_the_gpus_taints_the_device() -> None:
    found = describe(node(), NodePolicy((ONLY,)))
    for index in (1, 2):
        uuid = f"GPU-{index:08x}-8888-4444-2222-123456789abc"
        finding = Finding(uuid, "gpu.nvidia.com/xid", "79", TaintEffect.NO_SCHEDULE, 1.0, "")
        tainted = [one.name for gpu in taint(found.gpus, [finding]) for one in gpu.devices if one.taints]
        assert tainted == ["gpu-vfio-1"]


def test_a_group_stays_published_while_any_of_its_gpus_is_away_and_is_tainted_if_one_is_stuck() -> None:
    lost, every, policy = LostGpus(), node(), NodePolicy((ONLY,))
    first, second = (str(every.pci_gpus[one].address) for one in (1, 2))
    marks = {
        gpu.uuid: VfioMark(address, gpu.uuid, (PciFunction(address, "nvidia"),))
        for gpu, address in zip(every.gpus[1:3], (first, second), strict=True)
    }
    (before,) = (gpu for gpu in describe(every, policy).gpus if gpu.others)
    lost.update(describe(every, policy).gpus, every, (), 0.0, 60.0, {})
    for parts in ((1,), (1, 2)):
        taken = unseen(every, *parts, driver=None)
        kept, findings = lost.update((), taken, (), 1.0, 60.0, marks)
        assert before in kept
        assert {one.gpu_uuid for one in findings} & marks.keys() == set()
    stuck = {**marks, every.gpus[2].uuid: replace(marks[every.gpus[2].uuid], stuck="it does not end")}
    kept, findings = lost.update((), unseen(every, 1, 2), (), 2.0, 60.0, stuck)
    tainted = [one.name for gpu in taint(kept, findings) for one in gpu.devices if one.taints and gpu.key == before.key]
    assert tainted == ["gpu-vfio-1"]
