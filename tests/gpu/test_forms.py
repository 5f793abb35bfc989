# SPDX-License-Identifier: Apache-2.0
"""Which forms of a GPU are on offer: by its MIG mode, what is on it, what is wanted, and what the API server keeps."""

from dataclasses import dataclass, field, replace

import pytest

from dra_driver.gpu.devices import (
    AVAILABLE,
    UNAVAILABLE,
    Description,
    Reason,
    describe,
    device_targets,
    without_tainted,
)
from dra_driver.gpu.inventory import Failure, Gpu, Inventory, MigProfile, PciGpu
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.mig import MigDevice, MigInstance, PartialInstance
from dra_driver.gpu.nvml import GpuInstanceProfile, MigMode, Placement
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy, ShareMode
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.resource import AttributeList, CounterSet, DeviceTaint, Quantity, TaintEffect
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.validation import slice_problems
from tests.support.allocating import NodeClaims
from tests.support.nodes import board_gpu, mig_device, on_bus

HALF = GpuInstanceProfile(0, 19, "1g.40gb", 1, 2, 40000, 60, 1, 1, 0, 1, 0)
MEDIA = replace(HALF, id=20, name="1g.40gb+me", instance_count=1, ofa_engines=1)
FULL = GpuInstanceProfile(4, 0, "2g.80gb", 2, 1, 80000, 120, 2, 2, 0, 2, 1)
PROFILES = (
    MigProfile("1g.40gb", HALF, (Placement(0, 1), Placement(1, 1))),
    MigProfile("1g.40gb+me", MEDIA, (Placement(0, 1), Placement(1, 1))),
    MigProfile("2g.80gb", FULL, (Placement(0, 2),)),
)
OFF = replace(board_gpu(boards()["H100-SXM5-80GB"], 0), mig_profiles=PROFILES)
ON = replace(OFF, mig_mode=MigMode(True, True))
OLD_OFF = replace(OFF, mig_switchable=False, mig_profiles=())
OLD_ON = replace(ON, mig_switchable=False)

ALL = ["1g.40gb at 1", "1g.40gb at 0", "1g.40gb+me at 1", "1g.40gb+me at 0", "2g.80gb at 0"]
NO_COUNTERS = SliceFeatures(partitionable_devices=False)


def instance(profile: GpuInstanceProfile, start: int, size: int = 1) -> MigInstance:
    """A GPU instance that is one MIG device."""
    return MigInstance(mig_device(OFF, profile, Placement(start, size)), start + 1, 0, f"MIG-{start}-0")


def partial(profile: GpuInstanceProfile, size: int, computes: int) -> PartialInstance:
    """A GPU instance with that many compute instances, none of which fills it."""
    device = mig_device(OFF, profile, Placement(0, size))
    return PartialInstance(device, 1, tuple(f"MIG-{number}" for number in range(computes)))


def holding(gpu: Gpu, *instances: MigInstance | PartialInstance) -> Gpu:
    return replace(
        gpu,
        mig_instances=tuple(one for one in instances if isinstance(one, MigInstance)),
        partial_instances=tuple(one for one in instances if isinstance(one, PartialInstance)),
    )


def claimed(one: MigInstance) -> frozenset[MigDevice]:
    """The instance was made for a claim."""
    return frozenset({one.device})


def offered(description: Description) -> list[str]:
    """What there is, in words."""
    found = []
    for gpu in description.gpus:
        for device in gpu.devices:
            if device.attributes["type"] == "mig":
                start = gpu.placements[device.name].start
                exists = "existing " if "uuid" in device.attributes else ""
                found.append(f"{exists}{device.attributes['profile']} at {start}")
            else:
                found.append("whole" if device.attributes["type"] == "gpu" else "vfio")
    return found


SMALL, RARE = instance(HALF, 0), instance(MEDIA, 0)
WIDE = instance(FULL, 0, 2)
UNKNOWN = MigInstance(MigDevice(OFF.uuid, 99, Placement(0, 1), OFF.minor), 7, 0, "MIG-7")


@dataclass(frozen=True)
class Case:
    """A GPU, what is wanted, and what should be on offer."""

    gpu: Gpu
    offered: list[str]
    mig: MigPolicy = MigPolicy.AUTO
    passthrough: bool = False
    owned: frozenset[MigDevice] = frozenset()
    features: SliceFeatures = field(default_factory=SliceFeatures)
    left_out: list[Reason] = field(default_factory=list)

    def describe(self) -> Description:
        policy = NodePolicy((GpuRule(mig=self.mig, passthrough=self.passthrough),))
        return describe(node(self.gpu), policy, self.owned, self.features)


def node(*gpus: Gpu) -> Inventory:
    """A node with these GPUs, all on the bus."""
    return Inventory("570.158.01", 12080, gpus, pci_gpus=tuple(map(on_bus, gpus)), iommufd=True)


AUTO, STATIC, DYNAMIC = MigPolicy
CASES = {
    "auto, off": Case(OFF, ["whole"]),
    "auto, on": Case(ON, ALL),
    "static, off": Case(OFF, ["whole"], STATIC),
    "static, on, nothing made": Case(ON, [], STATIC, left_out=[Reason.NO_MIG_DEVICES]),
    "static, on": Case(holding(ON, SMALL), ["existing 1g.40gb at 0"], STATIC),
    "static, on, one is a claim's": Case(
        holding(ON, SMALL, instance(HALF, 1)), ["existing 1g.40gb at 1"], STATIC, owned=claimed(SMALL)
    ),
    "dynamic, off": Case(OFF, ["whole", *ALL], DYNAMIC),
    "dynamic, on": Case(ON, ["whole", *ALL], DYNAMIC),
    "dynamic, before Hopper, off": Case(OLD_OFF, ["whole"], DYNAMIC),
    "dynamic, before Hopper, on": Case(OLD_ON, ALL, DYNAMIC),
    "dynamic, profiles unknown": Case(replace(OFF, mig_profiles=()), ["whole"], DYNAMIC),
    "on, profiles unknown": Case(replace(ON, mig_profiles=()), [], left_out=[Reason.NO_MIG_PROFILES]),
    "a claim's instance": Case(holding(ON, SMALL), ALL, owned=claimed(SMALL)),
    "a claim's instance, dynamic": Case(holding(ON, SMALL), ["whole", *ALL], DYNAMIC, owned=claimed(SMALL)),
    "a foreign instance": Case(
        holding(ON, SMALL),
        ["existing 1g.40gb at 0", "1g.40gb at 1", "1g.40gb+me at 1"],
        left_out=[Reason.FOREIGN_INSTANCE],
    ),
    "a foreign instance with the only engine": Case(
        holding(ON, RARE), ["existing 1g.40gb+me at 0", "1g.40gb at 1"], left_out=[Reason.FOREIGN_INSTANCE]
    ),
    "a foreign instance beside a claim's": Case(
        holding(ON, SMALL, instance(HALF, 1)),
        ["existing 1g.40gb at 1", "1g.40gb at 0", "1g.40gb+me at 0"],
        owned=claimed(SMALL),
        left_out=[Reason.FOREIGN_INSTANCE],
    ),
    "a foreign instance, dynamic": Case(
        holding(ON, SMALL),
        ["existing 1g.40gb at 0", "1g.40gb at 1", "1g.40gb+me at 1"],
        DYNAMIC,
        left_out=[Reason.FOREIGN_INSTANCE],
    ),
    "a foreign instance that takes all": Case(
        holding(ON, WIDE), ["existing 2g.80gb at 0"], left_out=[Reason.FOREIGN_INSTANCE]
    ),
    "a foreign instance without a compute instance": Case(
        holding(ON, partial(HALF, 1, computes=0)),
        ["1g.40gb at 1", "1g.40gb+me at 1"],
        left_out=[Reason.PARTIAL_INSTANCE, Reason.FOREIGN_INSTANCE],
    ),
    "a foreign instance with two compute instances": Case(
        holding(ON, partial(FULL, 2, computes=2)), [], left_out=[Reason.PARTIAL_INSTANCE, Reason.FOREIGN_INSTANCE]
    ),
    "a foreign instance with a compute instance that is smaller": Case(
        holding(ON, partial(FULL, 2, computes=1)),
        [],
        left_out=[Reason.PARTIAL_INSTANCE, Reason.FOREIGN_INSTANCE],
    ),
    "a foreign instance of an unknown profile": Case(
        holding(ON, UNKNOWN), [], left_out=[Reason.UNREADABLE, Reason.FOREIGN_INSTANCE]
    ),
    "a claim's instance of an unknown profile": Case(
        holding(ON, UNKNOWN), [], passthrough=True, owned=claimed(UNKNOWN), left_out=[Reason.FOREIGN_INSTANCE] * 2
    ),
    "passthrough, off": Case(OFF, ["whole", "vfio"], passthrough=True),
    "passthrough, on": Case(ON, [*ALL, "vfio"], passthrough=True),
    "passthrough, dynamic": Case(OFF, ["whole", *ALL, "vfio"], DYNAMIC, passthrough=True),
    "passthrough, a foreign instance": Case(
        holding(ON, WIDE),
        ["existing 2g.80gb at 0"],
        passthrough=True,
        left_out=[Reason.FOREIGN_INSTANCE, Reason.FOREIGN_INSTANCE],
    ),
    "passthrough, static, a claim's instance is left": Case(
        holding(ON, SMALL), [], STATIC, passthrough=True, owned=claimed(SMALL), left_out=[Reason.FOREIGN_INSTANCE]
    ),
    "a vGPU, off": Case(replace(OFF, is_vgpu=True, mig_switchable=False), ["whole"]),
    "a vGPU, off, dynamic": Case(
        replace(OFF, is_vgpu=True, mig_switchable=False), ["whole"], DYNAMIC, left_out=[Reason.VGPU]
    ),
    "a vGPU that its host did not split": Case(replace(ON, is_vgpu=True), [], left_out=[Reason.VGPU]),
    "a vGPU that its host split": Case(
        holding(replace(ON, is_vgpu=True), SMALL), ["existing 1g.40gb at 0"], DYNAMIC, left_out=[Reason.VGPU]
    ),
    "a vGPU that its host split, static": Case(
        holding(replace(ON, is_vgpu=True), SMALL), ["existing 1g.40gb at 0"], STATIC
    ),
    "a vGPU of a kind without MIG, dynamic": Case(
        replace(OFF, is_vgpu=True, mig_switchable=False, mig_mode=None), ["whole"], DYNAMIC
    ),
    "no counters, off": Case(OFF, ["whole"], features=NO_COUNTERS),
    "no counters, on": Case(ON, [], features=NO_COUNTERS, left_out=[Reason.NO_PARTITIONABLE_DEVICES]),
    "no counters, dynamic, off": Case(
        OFF, ["whole"], DYNAMIC, features=NO_COUNTERS, left_out=[Reason.NO_PARTITIONABLE_DEVICES]
    ),
    "no counters, a foreign instance": Case(
        holding(ON, SMALL),
        ["existing 1g.40gb at 0"],
        DYNAMIC,
        features=NO_COUNTERS,
        left_out=[Reason.NO_PARTITIONABLE_DEVICES],
    ),
    "no counters, a claim's instance": Case(
        holding(ON, SMALL),
        [],
        DYNAMIC,
        owned=claimed(SMALL),
        features=NO_COUNTERS,
        left_out=[Reason.NO_PARTITIONABLE_DEVICES],
    ),
    "no counters, passthrough": Case(
        OFF, ["whole"], passthrough=True, features=NO_COUNTERS, left_out=[Reason.NO_PARTITIONABLE_DEVICES]
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_forms_are_published_or_left_out_with_a_reason(case: Case) -> None:
    description = case.describe()
    assert sorted(offered(description)) == sorted(case.offered)
    assert [one.reason for one in description.left_out] == case.left_out
    assert {one.subject for one in description.left_out} <= {OFF.uuid}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_no_two_claims_get_what_excludes_each_other(case: Case) -> None:
    """Whichever is claimed first, what is left is on other memory slices, and nothing is beside a whole GPU."""
    description = case.describe()
    for first in (device.name for gpu in description.gpus for device in gpu.devices):
        placements = description.gpus[0].placements
        slices = node_slices("node-a", "uid", description.gpus)
        reordered = [
            replace(one, devices=tuple(sorted(one.devices, key=lambda device: device.name != first))) for one in slices
        ]
        reordered.sort(key=lambda one: not any(device.name == first for device in one.devices))
        named = [replace(one, metadata=replace(one.metadata, name=f"{index}")) for index, one in enumerate(reordered)]
        claims = NodeClaims(named)
        held = []
        while (result := claims.allocate()) is not None:
            held.append(result.device)
        assert held[0] == first
        taken = [index for name in held if name in placements for index in run(placements[name])]
        assert len(taken) == len(set(taken))
        if first not in placements:
            assert held == [first]


def run(placement: Placement) -> range:
    return range(placement.start, placement.start + placement.size)


def test_a_policy_leaves_gpus_out_and_says_so() -> None:
    other = replace(board_gpu(boards()["L40S-PCIE-48GB"], 1))
    policy = NodePolicy((GpuRule(publish=False), GpuRule(models=("NVIDIA L40S",), publish=True)))
    description = describe(node(OFF, other), policy)
    assert [gpu.key for gpu in description.gpus] == [other.uuid]
    assert [(one.subject, one.reason) for one in description.left_out] == [(OFF.uuid, Reason.POLICY)]
    assert str(description.left_out[0]) == f"{OFF.uuid}: the GPU: the policy says publish: false"


def test_a_gpu_that_cannot_be_read_is_left_out_with_what_nvml_said() -> None:
    failures = (
        Failure(0, "it is lost", "GPU-7", "0000:17:00.0"),
        Failure(1, "no UUID", None, "0000:18:00.0"),
        Failure(2, "no handle"),
    )
    description = describe(replace(node(), failures=failures))
    assert [(one.subject, one.reason, one.text) for one in description.left_out] == [
        ("GPU-7", Reason.UNREADABLE, "the GPU: it is lost"),
        ("0000:18:00.0", Reason.UNREADABLE, "the GPU: no UUID"),
        ("GPU 2", Reason.UNREADABLE, "the GPU: no handle"),
    ]


@pytest.mark.parametrize(
    ("driver", "group", "passthrough", "offers", "reason"),
    [
        ("vfio-pci", 4, True, True, None),
        ("nvgrace_gpu_vfio_pci", 4, True, True, None),
        (None, 4, True, True, None),
        ("vfio-pci", None, True, False, Reason.NO_IOMMU),
        ("vfio-pci", 4, False, False, Reason.POLICY),
        ("nouveau", 4, True, False, Reason.OTHER_DRIVER),
        ("nvidia", 4, True, False, Reason.UNREADABLE),
    ],
)
def test_a_gpu_that_nvml_does_not_see_is_at_most_a_vfio_device(
    driver: str | None, group: int | None, passthrough: bool, offers: bool, reason: Reason | None
) -> None:
    pci = replace(on_bus(OFF, driver), iommu_group=group)
    inventory = Inventory("570.158.01", 12080, (), pci_gpus=(pci,))
    description = describe(inventory, NodePolicy((GpuRule(passthrough=passthrough),)))
    assert offered(description) == (["vfio"] if offers else [])
    assert [one.reason for one in description.left_out] == ([] if reason is None else [reason])
    if offers:
        (gpu,) = description.gpus
        assert gpu.key == pci.address
        assert gpu.counter_set == CounterSet("gpu-vfio-0-counter-set", {"gpu": Quantity.of(1)})


WAITING = NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC, passthrough=True, binding_conditions=True),))
EVERY_FORM = Inventory(
    "570.158.01",
    12080,
    (OFF, replace(holding(ON, SMALL), uuid="GPU-1", index=1, minor=1, pci_address="0000:11:00.0")),
    pci_gpus=(on_bus(OFF), replace(on_bus(OFF, "vfio-pci"), address="0000:18:00.0", position=2)),
)


def test_the_scheduler_waits_for_the_plugin_with_every_form_where_that_is_wanted() -> None:
    description = describe(EVERY_FORM, WAITING)
    assert {"whole", "vfio", "1g.40gb at 0", "existing 1g.40gb at 0"} <= set(offered(description))
    assert len(description.gpus) == 3
    found = {
        (one.binding_conditions, one.binding_failure_conditions) for gpu in description.gpus for one in gpu.devices
    }
    assert found == {((AVAILABLE,), (UNAVAILABLE,))}
    slices = node_slices("node-a", "uid", description.gpus)
    assert [str(problem) for one in slices for problem in slice_problems(one)] == []


def test_gpu_without_binding_conditions_in_the_policy_has_none() -> None:
    policy = replace(WAITING, rules=(*WAITING.rules, GpuRule(indexes=(0,), binding_conditions=False)))
    whole, *others = describe(EVERY_FORM, policy).gpus
    assert [any(one.binding_conditions for one in gpu.devices) for gpu in (whole, *others)] == [False, True, True]


def test_a_server_without_binding_conditions_gets_none_and_it_is_said_for_each_gpu() -> None:
    description = describe(EVERY_FORM, WAITING, features=SliceFeatures(binding_conditions=False))
    without = describe(EVERY_FORM, replace(WAITING, rules=(replace(WAITING.rules[0], binding_conditions=None),)))
    assert description.gpus == without.gpus
    said = [one.subject for one in description.left_out if one.reason is Reason.NO_BINDING_CONDITIONS]
    assert said == [gpu.key for gpu in description.gpus]


def test_a_failed_gpu_is_reported_once_although_the_bus_shows_it() -> None:
    failure = Failure(0, "it is lost", OFF.uuid, OFF.pci_address)
    inventory = Inventory("570.158.01", 12080, (), (failure,), (on_bus(OFF),))
    assert [one.text for one in describe(inventory).left_out] == ["the GPU: it is lost"]


def test_a_gpu_whose_address_nvml_does_not_tell_is_not_missed_on_the_bus() -> None:
    inventory = replace(node(OFF), gpus=(replace(OFF, pci_address=None),))
    assert describe(inventory).left_out == ()


@pytest.mark.parametrize(
    ("pci", "reason"), [((), Reason.UNREADABLE), ((replace(on_bus(OFF), iommu_group=None),), Reason.NO_IOMMU)]
)
def test_passthrough_needs_the_bus_and_an_iommu(pci: tuple[PciGpu, ...], reason: Reason) -> None:
    description = describe(replace(node(OFF), pci_gpus=pci), NodePolicy((GpuRule(passthrough=True),)))
    assert offered(description) == ["whole"]
    assert [one.reason for one in description.left_out] == [reason]
    assert not description.gpus[0].overlapping


def test_a_vfio_device_is_the_same_whichever_driver_has_the_gpu() -> None:
    policy = NodePolicy((GpuRule(passthrough=True),))
    (both,) = describe(node(replace(OFF, module_id=None)), policy).gpus
    alone = describe(Inventory("570.158.01", 12080, (), pci_gpus=(on_bus(OFF, "vfio-pci"),), iommufd=True), policy)
    ours, theirs = both.devices[-1], alone.gpus[0].devices[0]
    assert (ours.name, ours.attributes, ours.capacity) == (theirs.name, theirs.attributes, theirs.capacity)
    assert ours.name == "gpu-vfio-0"
    assert ours.attributes == {
        "type": "vfio",
        "uuid": "f65ec820-3536-50aa-833a-70a3039b4742",
        "deviceID": "0x2330",
        "vendorID": "0x10de",
        "productName": "GH100 [H100 SXM5 80GB]",
        "model": "H100-SXM5-80GB",
        "iommuFDEnabled": True,
        "resource.kubernetes.io/pciBusID": "0000:10:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:10",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert {name: str(one.value) for name, one in ours.capacity.items()} == {"addressableMemory": "128Gi"}


def test_the_whole_gpu_and_its_vfio_device_consume_the_same_counters() -> None:
    (gpu,) = Case(OFF, [], passthrough=True).describe().gpus
    assert gpu.overlapping
    assert gpu.counter_set is not None
    for device in gpu.devices:
        (consumption,) = device.consumes_counters
        assert consumption.counters == gpu.counter_set.counters


def test_a_gpu_that_can_also_be_split_has_the_capacities_of_its_largest_profile() -> None:
    (gpu,) = Case(OFF, [], DYNAMIC).describe().gpus
    assert {name: str(one.value) for name, one in gpu.devices[0].capacity.items()} == {
        "memory": "80000Mi",
        "multiprocessors": "120",
        "copyEngines": "2",
        "decoders": "2",
        "encoders": "0",
        "jpegEngines": "2",
        "ofaEngines": "1",
    }


def test_an_existing_mig_device_has_its_uuid_and_its_memory_slices() -> None:
    (gpu,) = Case(holding(ON, instance(FULL, 0, 2)), [], STATIC).describe().gpus
    (device,) = gpu.devices
    assert device.attributes["uuid"] == "MIG-0-0"
    assert device.attributes["parentUUID"] == OFF.uuid
    assert {name for name in device.capacity if name.startswith("memorySlice")} == {"memorySlice0", "memorySlice1"}
    assert not gpu.overlapping
    (consumption,) = device.consumes_counters
    assert {name for name in consumption.counters if "slice" in name} == {"memory-slice-0", "memory-slice-1"}


def test_names_stand_for_the_same_whatever_is_published() -> None:
    inventory = node(holding(ON, SMALL))
    targets = device_targets(inventory)
    assert set(targets) == {
        "gpu-0",
        "gpu-vfio-0",
        *(f"gpu-0-mig-1g40gb-19-{start}" for start in (0, 1)),
        *(f"gpu-0-mig-1g40gb-me-20-{start}" for start in (0, 1)),
        "gpu-0-mig-2g80gb-0-0",
    }
    assert targets["gpu-0"] == inventory.gpus[0]
    assert targets["gpu-vfio-0"] == inventory.pci_gpus[0]


@pytest.mark.parametrize(
    ("wanted", "keeps", "numa", "left_out"),
    [
        (False, True, 0, []),
        (True, True, AttributeList("ints", (0,)), []),
        (True, False, 0, [Reason.NO_LIST_ATTRIBUTES]),
    ],
)
def test_numa_nodes_are_a_list_where_both_sides_want_it(
    wanted: bool, keeps: bool, numa: object, left_out: list[Reason]
) -> None:
    policy = NodePolicy((GpuRule(passthrough=True),), list_type_attributes=wanted)
    description = describe(node(OFF), policy, features=SliceFeatures(list_attributes=keeps))
    devices = description.gpus[0].devices
    assert [device.attributes["resource.kubernetes.io/numaNode"] for device in devices] == [numa, numa]
    assert [one.reason for one in description.left_out] == left_out


MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Gi')) > 0"


@pytest.mark.parametrize("mig", [AUTO, DYNAMIC])
@pytest.mark.parametrize(("shares", "claims"), [(ShareMode.DISABLED, 1), (ShareMode.MEMORY, 1), (1, 1), (3, 3)])
def test_claims_share_a_whole_gpu_as_the_policy_says(mig: MigPolicy, shares: ShareMode | int, claims: int) -> None:
    description = describe(node(OFF), NodePolicy((GpuRule(mig=mig, shares=shares),)))
    whole = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
    assert NodeClaims(node_slices("node-a", "uid", description.gpus)).room(whole) == claims


def test_without_limit_a_gpu_is_shared_as_often_as_wanted() -> None:
    description = describe(node(OFF), NodePolicy((GpuRule(shares=ShareMode.UNLIMITED),)))
    claims = NodeClaims(node_slices("node-a", "uid", description.gpus))
    assert all(claims.allocate(MEMORY) is not None for _ in range(20))


@pytest.mark.parametrize(
    ("shares", "default", "least"),
    [(ShareMode.UNLIMITED, "0", "0"), (ShareMode.MEMORY, "81559Mi", "1Mi"), (4, "0", "0")],
)
def test_memory_is_asked_for_as_with_the_official_driver(shares: ShareMode | int, default: str, least: str) -> None:
    odd = replace(OFF, memory=(81559 << 20) + 12345)
    (gpu,) = describe(node(odd), NodePolicy((GpuRule(shares=shares),))).gpus
    memory = gpu.devices[0].capacity["memory"]
    policy = memory.request_policy
    assert policy is not None
    assert policy.valid_range is not None
    written = [memory.value, policy.default, policy.valid_range.minimum, policy.valid_range.maximum]
    assert list(map(str, written)) == ["81559Mi", default, least, "81559Mi"]
    assert str(policy.valid_range.step) == "1Mi"
    assert gpu.devices[0].allow_multiple_allocations


def test_a_gpu_of_unknown_memory_is_not_shared_by_memory() -> None:
    description = describe(node(replace(OFF, memory=None)), NodePolicy((GpuRule(shares=ShareMode.MEMORY),)))
    assert not description.gpus[0].devices[0].allow_multiple_allocations


def test_nothing_is_shared_where_the_api_server_keeps_no_policies() -> None:
    policy = NodePolicy((GpuRule(shares=4, mig=DYNAMIC),))
    description = describe(node(OFF), policy, features=SliceFeatures(consumable_capacity=False))
    assert not any(device.allow_multiple_allocations for device in description.gpus[0].devices)
    assert all(one.request_policy is None for device in description.gpus[0].devices for one in device.capacity.values())
    assert [one.reason for one in description.left_out] == [Reason.NO_CONSUMABLE_CAPACITY]


def test_a_vfio_device_is_never_shared() -> None:
    policy = NodePolicy((GpuRule(shares=4, passthrough=True),))
    whole, vfio = describe(node(OFF), policy).gpus[0].devices
    assert (whole.allow_multiple_allocations, vfio.allow_multiple_allocations) == (True, False)


@pytest.mark.parametrize(
    ("effect", "kept"),
    [
        (TaintEffect.NONE, ["existing 1g.40gb at 0", "1g.40gb at 1", "1g.40gb+me at 1"]),
        (TaintEffect.NO_SCHEDULE, ["existing 1g.40gb at 0"]),
    ],
)
def test_without_taints_what_should_have_one_goes_with_all_that_shares_counters(
    effect: TaintEffect, kept: list[str]
) -> None:
    (gpu,) = Case(holding(ON, SMALL), []).describe().gpus
    taints = (DeviceTaint("gpu.nvidia.com/xid", effect, "48"),)
    devices = tuple(
        replace(device, taints=taints) if gpu.placements[device.name] == Placement(1, 1) else device
        for device in gpu.devices[:2]
    )
    description = without_tainted([replace(gpu, devices=(*devices, *gpu.devices[2:]))])
    assert offered(description) == kept
    assert not any(device.taints for one in description.gpus for device in one.devices)
    assert [one.reason for one in description.left_out] == ([] if len(kept) > 1 else [Reason.TAINTED])
    assert all(one.overlapping == (len(kept) > 1) for one in description.gpus)
