# SPDX-License-Identifier: Apache-2.0
"""Every model, in every way its GPUs can be offered: the objects are valid, and what is allocated can be made."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dra_driver.gpu.devices import GpuDevices, describe, device_targets
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy, ShareMode
from dra_driver.gpu.simulated.board import Board, BoardModel, boards
from dra_driver.gpu.simulated.state import BoardState
from dra_driver.kube.api import ApiClient
from dra_driver.kube.resource import Device, ResourceSlice
from dra_driver.kube.resource.codec import V1, V1BETA1, V1BETA2, decode_slice, encode_slice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.limits import ATTRIBUTE_VALUES_PER_DEVICE, ATTRIBUTES_AND_CAPACITIES_PER_DEVICE
from dra_driver.kube.resource.validation import slice_problems
from tests.support import examples
from tests.support.allocating import NodeClaims
from tests.support.apiserver import SLICES
from tests.support.geometries import one_of_each_geometry
from tests.support.nodes import board_inventory, mig_instances
from tests.support.schemas import validate_slices

NAMES = (
    "A30-PCIE-24GB",
    "A100-SXM4-40GB",
    "A100-SXM4-80GB",
    "H100-SXM5-80GB",
    "H200-SXM5-141GB",
    "B200-SXM6-180GB",
    "L40S-PCIE-48GB",
)
MODELS = [boards()[name] for name in NAMES]
SPLITTABLE = [model for model in MODELS if model.profiles]
RUNS = examples(300)
LISTS = SliceFeatures(list_attributes=True)


def policy(mig: MigPolicy, *, passthrough: bool = False, shares: ShareMode | int = ShareMode.DISABLED) -> NodePolicy:
    """The same for all GPUs."""
    rule = GpuRule(mig=mig, passthrough=passthrough, shares=shares)
    return NodePolicy((rule,), list_type_attributes=True)


WAYS = {
    "auto": (False, policy(MigPolicy.AUTO)),
    "auto in MIG mode": (True, policy(MigPolicy.AUTO)),
    "static": (True, policy(MigPolicy.STATIC)),
    "dynamic": (False, policy(MigPolicy.DYNAMIC)),
    "passthrough": (False, policy(MigPolicy.AUTO, passthrough=True)),
    "all at once": (False, policy(MigPolicy.DYNAMIC, passthrough=True, shares=4)),
    "all at once in MIG mode": (True, policy(MigPolicy.DYNAMIC, passthrough=True, shares=4)),
}
"""Whether MIG mode is on, and what is wanted."""


def hardware(model: BoardModel, way: str, count: int) -> Inventory:
    """A node in which, where the way is static, an administrator made a large and a small instance on each GPU."""
    mig, _ = WAYS[way]
    inventory = board_inventory(model, count, mig=mig)
    if way != "static" or not model.profiles:
        return inventory
    large = next(one for one in reversed(model.profiles) if one.placements[0].size == model.memory_slices // 2)
    made = [(large, large.placements[0]), (model.profiles[0], model.profiles[0].placements[-1])]
    gpus = tuple(replace(gpu, mig_instances=mig_instances(gpu, made)) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus)


def published(model: BoardModel, way: str, count: int, features: SliceFeatures = LISTS) -> tuple[ResourceSlice, ...]:
    """The slices of such a node."""
    described = describe(hardware(model, way, count), WAYS[way][1], features=features)
    slices = node_slices("node-a", "uid", described.gpus, features)
    return tuple(replace(one, pool=replace(one.pool, generation=1)) for one in slices)


def devices(slices: Sequence[ResourceSlice]) -> list[Device]:
    """Those of all slices, in their order."""
    return [device for one in slices for device in one.devices]


def kinds(slices: Sequence[ResourceSlice]) -> set[str]:
    """The types of devices that there are, MIG devices that exist and those that can be made apart."""
    types = [(str(device.attributes["type"]), "uuid" in device.attributes) for device in devices(slices)]
    return {"static" if kind == "mig" and exists else kind for kind, exists in types}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_every_way_is_as_the_published_schemas_say(model: BoardModel, way: str) -> None:
    slices = published(model, way, 1)
    for dialect in (V1, V1BETA2, V1BETA1):
        validate_slices([encode_slice(one, dialect) for one in slices], "1.37")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_every_way_keeps_the_limits_of_the_api(model: BoardModel, way: str) -> None:
    count = 16
    slices = published(model, way, count)
    assert [str(problem) for one in slices for problem in slice_problems(one)] == []
    names = [device.name for device in devices(slices)]
    assert len(set(names)) == len(names) >= count
    assert set(names) <= device_targets(hardware(model, way, count)).keys()


@pytest.mark.cluster
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_api_server_keeps_all_fields_of_published_slices(model: BoardModel, way: str, client: ApiClient) -> None:
    for one in published(model, way, 2, SliceFeatures()):
        answer = decode_slice(client.create(SLICES, encode_slice(one, V1), dry_run=True), V1, strict=False)
        assert (answer.devices, answer.shared_counters) == (one.devices, one.shared_counters)


@pytest.mark.parametrize("model", SPLITTABLE, ids=lambda model: model.model)
def test_kinds_of_devices_depend_on_the_policy_and_the_model(model: BoardModel) -> None:
    switchable = board_inventory(model, 1).gpus[0].mig_switchable
    offered = {way: kinds(published(model, way, 1)) for way in WAYS}
    assert offered == {
        "auto": {"gpu"},
        "auto in MIG mode": {"mig"},
        "static": {"static"},
        "dynamic": {"gpu", "mig"} if switchable else {"gpu"},
        "passthrough": {"gpu", "vfio"},
        "all at once": {"gpu", "mig", "vfio"} if switchable else {"gpu", "vfio"},
        "all at once in MIG mode": {"gpu", "mig", "vfio"} if switchable else {"mig", "vfio"},
    }


def test_a_gpu_without_mig_is_whole_in_every_way() -> None:
    model = boards()["L40S-PCIE-48GB"]
    for way in WAYS:
        wants_vfio = WAYS[way][1].rules[0].passthrough
        assert kinds(published(model, way, 1)) == ({"gpu", "vfio"} if wants_vfio else {"gpu"})


@pytest.mark.parametrize("model", SPLITTABLE, ids=lambda model: model.model)
def test_no_device_says_more_than_the_api_allows(model: BoardModel) -> None:
    """With everything known and everything wanted, and all memory slices in one MIG device that exists."""
    inventory = board_inventory(model, 1, mig=True)
    largest = max(model.profiles, key=lambda profile: profile.placements[0].size)
    gpu = replace(inventory.gpus[0], mig_instances=mig_instances(inventory.gpus[0], [(largest, largest.placements[0])]))
    everything = policy(MigPolicy.DYNAMIC, passthrough=True, shares=4)
    for facts in (inventory, replace(inventory, gpus=(gpu,))):
        for described in describe(facts, everything, features=LISTS).gpus:
            for device in described.devices:
                said = len(device.attributes) + len(device.capacity)
                assert said <= ATTRIBUTES_AND_CAPACITIES_PER_DEVICE
                assert len(device.attributes) <= ATTRIBUTE_VALUES_PER_DEVICE


@pytest.mark.parametrize("model", one_of_each_geometry(SPLITTABLE), ids=lambda model: model.model)
def test_whatever_is_allocated_in_any_order_can_be_made_and_nothing_is_withheld(model: BoardModel) -> None:
    inventory = board_inventory(model, 1, mig=True)
    (gpu,) = describe(inventory, policy(MigPolicy.DYNAMIC)).gpus
    targets = device_targets(inventory)
    chance = random.Random(model.model)
    outcomes = set()
    for _ in range(RUNS):
        held = allocate_all(gpu, chance.sample(gpu.devices, len(gpu.devices)))
        outcomes.add(frozenset(held))
        if "gpu-0" in held:
            assert held == ["gpu-0"]
            continue
        board = Board(model, BoardState(mig_current=True, mig_pending=True))
        for name in held:
            mig = targets[name]
            assert isinstance(mig, MigDevice)
            board.create_gpu_instance(mig.profile_id, mig.placement)
        assert could_still_make(board) == []
    assert len(outcomes) > 10


def allocate_all(gpu: GpuDevices, order: Sequence[Device]) -> list[str]:
    """Devices in the order of the list, as the scheduler gives them away until nothing fits."""
    counters, first, *_ = node_slices("node-a", "uid", (gpu,))
    pool = replace(first.pool, resource_slice_count=2)
    claims = NodeClaims((replace(counters, pool=pool), replace(first, pool=pool, devices=tuple(order))))
    names = []
    while (result := claims.allocate()) is not None:
        names.append(result.device)
    return names


def could_still_make(board: Board) -> list[str]:
    """The placements that the board would still take."""
    found = []
    for profile in board.model.profiles:
        for placement in profile.placements:
            try:
                board.create_gpu_instance(profile.info.id, placement)
                found.append(f"{profile.info.name} at {placement}")
            except NvmlError as error:
                if error.code is not Return.INSUFFICIENT_RESOURCES:
                    raise
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_forms_of_one_gpu_exclude_each_other(model: BoardModel, way: str) -> None:
    slices = published(model, way, 1, SliceFeatures())
    selector = "device.attributes['gpu.nvidia.com'].type == '{}'"
    for first in kinds(slices) - {"static"}:
        claims = NodeClaims(slices)
        assert claims.allocate(selector.format(first)) is not None
        for other in {"gpu", "vfio", "mig"} - {first}:
            assert claims.allocate(selector.format(other)) is None


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_four_claims_share_a_device_and_no_fifth(model: BoardModel, way: str) -> None:
    _, wanted = WAYS[way]
    shared = NodePolicy(tuple(replace(rule, shares=4, passthrough=False) for rule in wanted.rules))
    described = describe(hardware(model, way, 1), shared)
    for device in described.gpus[0].devices[:1]:
        gpu = replace(described.gpus[0], devices=(device,))
        claims = NodeClaims(node_slices("node-a", "uid", (gpu,)))
        assert claims.room() == 4


@pytest.mark.parametrize("model", SPLITTABLE, ids=lambda model: model.model)
def test_instances_made_for_claims_stay_on_offer_as_what_they_were_claimed_as(model: BoardModel) -> None:
    inventory = board_inventory(model, 1, mig=True)
    smallest = model.profiles[0]
    instances = mig_instances(inventory.gpus[0], [(smallest, smallest.placements[0])])
    gpu = replace(inventory.gpus[0], mig_instances=instances)
    owned = frozenset({gpu.mig_device(smallest.info.id, smallest.placements[0])})
    assert describe(replace(inventory, gpus=(gpu,)), owned=owned).gpus[0].devices == describe(inventory).gpus[0].devices
