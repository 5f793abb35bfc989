# SPDX-License-Identifier: Apache-2.0
"""The utilization that cluster-autoscaler computes from our slices (tests/support/autoscaler.py). The counters for it
change no decision of the scheduler.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from dra_driver.dryrun.nodetypes import node_types, simulated_nodes
from dra_driver.gpu.devices import describe
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.gpu.simulated import shipped_nodes
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.kube.resource.codec import V1, encode_slice
from dra_driver.names import DRIVER_NAME
from dra_driver.scheduler.allocator import Cluster, Features, allocate
from tests.docs.commands import ROOT
from tests.support import examples
from tests.support.allocating import NodeClaims
from tests.support.autoscaler import utilization
from tests.support.nodes import board_inventory, mig_instances

NODES = [name + suffix for name in shipped_nodes() for suffix in node_types() if suffix != "-vgpu"] + ["l40sx4-vgpu"]
MIG = "device.attributes['gpu.nvidia.com'].type == 'mig'"
PAGE = (ROOT / "docs/how-to/autoscaling.md").read_text(encoding="utf-8")


@lru_cache(maxsize=len(NODES))
def pool_of(kind: str) -> tuple[ResourceSlice, ...]:
    """The GPU pool of a built-in node."""
    made = simulated_nodes(kind, 1)
    return tuple(one for one in made if isinstance(one, ResourceSlice) and one.driver == DRIVER_NAME)


@lru_cache(maxsize=len(NODES))
def all_allocated(kind: str) -> tuple[str, ...]:
    """The devices that claims for one device each hold when nothing more fits on a built-in node."""
    claims, names = NodeClaims(pool_of(kind)), []
    while (result := claims.allocate()) is not None:
        names.append(result.device)
    return tuple(names)


def encoded(slices: Iterable[ResourceSlice]) -> list[dict[str, Any]]:
    """The slices as cluster-autoscaler reads them."""
    return [encode_slice(one, V1) for one in slices]


def gpu_number(device: str) -> int:
    """The number in the name of a device: the minor number of its GPU, or its position on the bus."""
    return int(device.removeprefix("gpu-vfio-").removeprefix("gpu-").split("-")[0])


@pytest.mark.parametrize("kind", NODES)
def test_the_utilization_of_every_built_in_node_is_the_part_of_its_gpus_in_use(kind: str) -> None:
    slices = pool_of(kind)
    held = all_allocated(kind)
    gpus = len({gpu_number(name) for name in held})
    first_half = [name for name in held if gpu_number(name) < gpus // 2]
    published = encoded(slices)
    assert utilization(published, []) == 0
    assert utilization(published, first_half) == pytest.approx(gpus // 2 / gpus)
    assert utilization(published, held) == pytest.approx(1)


@pytest.mark.parametrize("kind", [kind for kind in NODES if kind.endswith("-mixed")])
def test_counter_sets_of_equal_gpus_are_equal(kind: str) -> None:
    sets = [counter_set for one in pool_of(kind) for counter_set in one.shared_counters]
    assert all(one.counters == sets[0].counters for one in sets)


def test_every_gpu_of_a_pool_with_counters_has_a_counter_set() -> None:
    """Also GPUs with MIG devices of an administrator, and GPUs of another model."""
    inventory = board_inventory(boards()["H100-SXM5-80GB"], 4, mig=True)
    whole = board_inventory(boards()["L40S-PCIE-48GB"], 4).gpus[3]
    split = inventory.gpus[2]
    large = split.mig_profiles[-1]
    static = replace(split, mig_instances=mig_instances(split, [(large, large.placements[0])]))  # type: ignore[list-item]
    gpus = (*inventory.gpus[:2], static, whole)
    rules = NodePolicy((GpuRule(indexes=(2,), mig=MigPolicy.STATIC),))
    slices = node_slices("node-a", "uid", describe(replace(inventory, gpus=gpus, pci_gpus=()), rules).gpus)
    sets = {one.name: one.counters for each in slices for one in each.shared_counters}
    assert list(sets) == [f"gpu-{number}-counter-set" for number in range(4)]
    assert sets["gpu-2-counter-set"] == sets["gpu-0-counter-set"]
    assert {name: str(amount) for name, amount in sets["gpu-3-counter-set"].items()} == {"memory": "46068Mi"}
    held = [device.name for one in slices for device in one.devices if gpu_number(device.name) >= 2]
    assert len(held) == 2
    slices = tuple(replace(one, pool=replace(one.pool, generation=1)) for one in slices)
    assert utilization(encoded(slices), held) == pytest.approx(0.5)


ROWS = [
    ("`h100x8`, one GPU", "h100x8", lambda held: held[:1], 1 / 8),
    ("`h100x8`, four GPUs", "h100x8", lambda held: held[:4], 4 / 8),
    ("`h100x8-mixed`, the four whole GPUs", "h100x8-mixed", lambda held: held[:4], 4 / 8),
    ("`h100x8-mixed`, everything", "h100x8-mixed", lambda held: held, 1),
    ("`h100x8-mig`, one small MIG device", "h100x8-mig", lambda held: held[:1], 1 / 8),
    (
        "`h100x8-mig`, one small MIG device on each of four GPUs",
        "h100x8-mig",
        lambda held: [next(name for name in held if gpu_number(name) == number) for number in range(4)],
        4 / 8,
    ),
    ("`h100x8-mig`, everything", "h100x8-mig", lambda held: held, 1),
]


@pytest.mark.parametrize(("words", "kind", "choose", "result"), ROWS, ids=[row[0] for row in ROWS])
def test_the_page_tells_the_utilization(words: str, kind: str, choose: object, result: float) -> None:
    assert callable(choose)
    slices = pool_of(kind)
    assert utilization(encoded(slices), choose(all_allocated(kind))) == pytest.approx(result)
    assert f"| {words} | {result:g} |\n" in PAGE


def without_needless_counters(slices: Sequence[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    """The pool without the counter sets of GPUs whose devices do not exclude each other."""
    names = [one.counter_set for each in slices for device in each.devices for one in device.consumes_counters]
    needed = {name for name in names if names.count(name) > 1}
    return tuple(
        replace(
            one,
            shared_counters=tuple(each for each in one.shared_counters if each.name in needed),
            devices=tuple(
                replace(
                    device,
                    consumes_counters=tuple(each for each in device.consumes_counters if each.counter_set in needed),
                )
                for device in one.devices
            ),
        )
        for one in slices
    )


CONSTRAINTS = ("gpu.nvidia.com/parentUUID", "gpu.nvidia.com/nvlinkGroup", "resource.kubernetes.io/numaNode")


def random_claim(chance: random.Random, number: int) -> ResourceClaim:
    """A claim for up to three requests, some with a constraint."""
    requests = tuple(
        DeviceRequest(f"r{index}", exactly=DeviceRequirements("any", selectors, count=chance.choice((1, 1, 1, 2))))
        for index, selectors in enumerate(
            chance.choice(((), (MIG,), (MIG.replace("== 'mig'", "== 'gpu'"),))) for _ in range(chance.randint(1, 3))
        )
    )
    constraints = (DeviceConstraint(match_attribute=chance.choice(CONSTRAINTS)),) if chance.random() < 0.5 else ()
    return ResourceClaim(ObjectMeta(f"claim-{number}", "default"), DeviceClaim(requests, constraints))


def decisions(slices: Sequence[ResourceSlice], features: Features, seed: str) -> list[tuple[str, ...]]:
    """The devices of one claim after the other; some claims are deleted meanwhile."""
    chance, held, found = random.Random(seed), [], []
    node = Node(ObjectMeta(slices[0].pool.name))
    cluster = Cluster(tuple(slices), (DeviceClass(ObjectMeta("any")),), (node,))
    for number in range(12):
        claim = random_claim(chance, number)
        outcome = allocate(cluster, [claim], node.name, features)
        devices: list[str] = []
        for allocation in outcome.allocations or ():
            held.append(replace(claim, allocation=allocation))
            cluster = cluster.after(allocated=held[-1:])
            devices += [result.device for result in allocation.results]
        found.append(tuple(devices))
        if held and chance.random() < 0.3:
            cluster = cluster.after(released=[held.pop(chance.randrange(len(held)))])
    return found


@pytest.mark.parametrize(
    "features",
    [Features(release="1.37"), Features(without_defects=frozenset({"refused_keep_counters"}))],
    ids=["1.37", "1.36 with the fix of kubernetes#140436"],
)
@pytest.mark.parametrize("kind", ["h100x8-mixed", "a30x4-mixed"])
def test_counters_of_whole_gpus_change_no_decision_of_the_scheduler(kind: str, features: Features) -> None:
    slices = pool_of(kind)
    before = without_needless_counters(slices)
    assert before != slices
    outcomes = set()
    for seed in range(examples(10)):
        found = decisions(slices, features, f"{kind} {seed}")
        assert found == decisions(before, features, f"{kind} {seed}")
        outcomes.add(tuple(found))
    assert len(outcomes) > 1
