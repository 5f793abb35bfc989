# SPDX-License-Identifier: Apache-2.0
"""What is free is what the scheduler would give; what is stranded is what another order on the GPU would free."""

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.dryrun.snapshot import encoded
from dra_driver.dryrun.stock import Amount, DeviceKind, PoolStock, Stocktaker, best_fit, first_fit, totals
from dra_driver.kube.resource import Device, DeviceTaint, ResourceSlice, TaintEffect
from dra_driver.kube.resource.codec import Decoded
from dra_driver.scheduler.allocator import Features
from tests.support import examples

from .clusters import DRIVER, cluster, devices_of, holding, node, wanting
from .conftest import DryRun, Write, gpu, slice_of
from .test_replicas import placed_one_by_one

A30 = "NVIDIA A30"
NODE = node(1)
DEVICES = {device.name: device for one in NODE if isinstance(one, ResourceSlice) for device in one.devices}
PROFILES = sorted({profile for _, _, profile in devices_of(NODE)})


def stock_of(*objects: Decoded) -> list[PoolStock]:
    return Stocktaker(Features()).count(cluster(objects))


def profile_of(name: str) -> str:
    return str(DEVICES[name].attributes["profile"])


def together(devices: Sequence[Device]) -> bool:
    """Whether devices can be in use at once."""
    (total,) = (one for slice_ in NODE if isinstance(slice_, ResourceSlice) for one in slice_.shared_counters)
    drawn: Counter[str] = Counter()
    for device in devices:
        for name, amount in device.consumes_counters[0].counters.items():
            drawn[name] += amount.nanos
    return all(amount <= total.counters[name].nanos for name, amount in drawn.items())


def most_beside(held: Sequence[str], profile: str) -> int:
    """By trying every place for everything: the most of the profile beside devices of the same profiles as `held`."""
    places = [[one for one in DEVICES if profile_of(one) == profile_of(name)] for name in held]
    wanted = [one for one in DEVICES if profile_of(one) == profile]
    return max(
        count
        for placed in itertools.product(*places)
        if len(set(placed)) == len(placed) and together([DEVICES[name] for name in placed])
        for count in range(len(wanted) + 1)
        for more in itertools.combinations(set(wanted) - set(placed), count)
        if together([DEVICES[name] for name in (*placed, *more)])
    )


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(sorted(DEVICES)), max_size=4, unique=True))
def test_free_and_stranded_are_what_trying_finds(held: list[str]) -> None:
    claims = [holding(name, "new-a30-1", name) for name in held]
    (pool,) = stock_of(*NODE, *claims)
    fits = together([DEVICES[name] for name in held])
    assert bool(pool.problem) is not fits
    for profile in PROFILES:
        amount = pool.amounts[DeviceKind(DRIVER, A30, profile)]
        wanted = wanting(profile)
        assert amount.total == placed_one_by_one(wanted, NODE).total()
        assert amount.used == sum(profile_of(name) == profile for name in held)
        assert amount.free == placed_one_by_one(wanted, [*NODE, *claims]).total()
        assert amount.stranded == (most_beside(held, profile) - amount.free if fits else 0)


def test_a_gap_says_what_is_free_and_who_holds_the_rest() -> None:
    one, other = "gpu-0-mig-1g6gb-14-1", "gpu-0-mig-1g6gb-14-2"
    (pool,) = stock_of(*NODE, holding("one", "new-a30-1", one), holding("other", "new-a30-1", other))
    (gap,) = pool.gaps
    assert gap.gpu == "gpu-0"
    assert gap.free == ("memory-slice 0, 3",)
    assert gap.holders == (("default/other", other), ("default/one", one)), "in the order of the devices"
    assert {kind.profile: count for kind, count in gap.lost.items()} == {"2g.12gb": 1, "2g.12gb+me": 1}


def tainted(objects: Sequence[Decoded], name: str, effect: TaintEffect) -> list[Decoded]:
    """The objects with a taint on one device."""
    taint = DeviceTaint(f"{DRIVER}/xid", effect, "79")

    def one_tainted(device: Device) -> Device:
        return replace(device, taints=(taint,)) if device.name == name else device

    return [
        replace(one, devices=tuple(map(one_tainted, one.devices))) if isinstance(one, ResourceSlice) else one
        for one in objects
    ]


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (TaintEffect.NO_SCHEDULE, Amount(total=4, free=3, tainted=1)),
        (TaintEffect.NO_EXECUTE, Amount(total=4, free=3, tainted=1)),
        (TaintEffect.NONE, Amount(total=4, free=4)),
    ],
)
def test_a_taint_strands_a_device(effect: TaintEffect, expected: Amount) -> None:
    (pool,) = stock_of(*tainted(NODE, "gpu-0-mig-1g6gb-14-2", effect))
    assert pool.amounts[DeviceKind(DRIVER, A30, "1g.6gb")] == expected
    assert [gap.taints for gap in pool.gaps] == ([(f"health: {DRIVER}/xid=79:{effect}",)] if expected.tainted else [])


def test_whole_gpus_are_counted_one_by_one() -> None:
    whole = node(1, gpus=3, mig=False)
    pools = stock_of(*whole, holding("one", "new-a30-1", "gpu-1"))
    assert totals(pools) == {DeviceKind(DRIVER, A30, ""): Amount(total=3, used=1, free=2)}


def test_an_unfinished_pool_offers_nothing() -> None:
    first, *others = (one for one in NODE if isinstance(one, ResourceSlice))
    assert others
    pools = stock_of(*others)
    assert [bool(pool.problem) for pool in pools] == [True]
    assert "slices of generation" in pools[0].problem
    assert totals(pools) == {}
    assert first.shared_counters


def test_only_some_pools_are_counted_when_asked_so() -> None:
    both = cluster([*node(1), *node(2)])
    found = Stocktaker(Features()).count(both, {(DRIVER, "new-a30-2")})
    assert [pool.nodes for pool in found] == [("new-a30-2",)]


def test_the_best_places_are_found_where_the_first_are_not() -> None:
    slots = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    halves = [(1, 1, 0, 0), (0, 0, 1, 1)]
    total = (1, 1, 1, 1)
    assert first_fit(halves, (1, 0, 0, 1)) == ()
    assert best_fit(total, [(slots, 2)], halves) == 1
    assert best_fit(total, [(slots, 1), (halves, 1)], slots) == 1
    assert best_fit(total, [(slots, 3), (halves, 1)], slots) == 0


CLUSTER = [slice_of("node-a", gpu("gpu-0"), gpu("gpu-1")), slice_of("node-b", gpu("gpu-0", "NVIDIA L4"))]


def test_the_command_adds_up_what_nodes_have(dryrun: DryRun, write: Write) -> None:
    file = write("slices.json", {"apiVersion": "v1", "kind": "List", "items": CLUSTER})
    code, out, _ = dryrun("capacity", "--slices", file)
    assert code == 0
    assert [line.split(maxsplit=5) for line in out.splitlines()[3:]] == [
        ["2", "0", "2", "0", "-", "NVIDIA H100 80GB HBM3"],
        ["1", "0", "1", "0", "-", "NVIDIA L4"],
    ]
    code, out, _ = dryrun("capacity", "--slices", file, "-o", "wide", "--drain", "node-a")
    assert code == 0
    assert "simulating node node-a drained" in out
    assert out.splitlines()[3].startswith("NODE    TOTAL"), "a pool that is named as its node is not repeated"
    assert [line.split()[:2] for line in out.splitlines()[4:]] == [["node-b", "1"]]


def test_the_command_tells_programs_everything(dryrun: DryRun) -> None:
    code, out, _ = dryrun("capacity", "--with-node", "a30x4-mig", "-o", "json")
    assert code == 0
    found = json.loads(out)
    assert found["assumptions"] == ["1 additional node of type a30x4-mig"]
    kinds = {one["profile"]: (one["total"], one["free"], one["stranded"]) for one in found["kinds"]}
    assert kinds["1g.6gb"] == (16, 16, 0)
    (pool,) = found["pools"]
    assert (pool["nodes"], pool["problem"], pool["stranded"]) == (["new-a30x4-mig-1"], None, [])


def slotted(number: int, profile: str, start: int, size: int) -> dict[str, Any]:
    """A device of GPU `number` that takes `size` memory slices from `start` on."""
    return {
        "name": f"gpu-{number}-{profile}-{start}",
        "attributes": {"productName": {"string": "X"}, "profile": {"string": profile}},
        "consumesCounters": [
            {
                "counterSet": f"gpu-{number}-counter-set",
                "counters": {f"memory-slice-{at}": {"value": "1"} for at in range(start, start + size)},
            }
        ],
    }


def test_gpus_of_which_the_same_is_said_are_named_together(dryrun: DryRun, write: Write) -> None:
    places = [("one", 0, 1), ("one", 1, 1), ("one", 2, 1), ("two", 0, 2), ("two", 1, 2)]
    counters = slice_of("n")
    counters["metadata"]["name"] = "n-counters"
    devices = slice_of("n", *(slotted(number, *place) for number in (0, 1) for place in places))
    counters["spec"]["sharedCounters"] = [
        {"name": f"gpu-{number}-counter-set", "counters": {f"memory-slice-{at}": {"value": "1"} for at in range(3)}}
        for number in (0, 1)
    ]
    for one in (counters, devices):
        one["spec"]["pool"]["resourceSliceCount"] = 2
    held = list(encoded([holding("c", "n", "gpu-0-one-1", "gpu-1-one-1")]))
    file = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": [counters, devices, *held]})
    _, out, _ = dryrun("capacity", "--slices", file)
    assert out.splitlines()[-1].strip() == (
        "n gpu-0, n gpu-1: 1 x two; free memory-slice 0, 2; the rest held by default/c, on the first gpu-0-one-1"
    )
    _, out, _ = dryrun("capacity", "--slices", file, "-o", "wide")
    assert [line.strip().partition(":")[0] for line in out.splitlines()[-2:]] == ["n gpu-0", "n gpu-1"]
    _, out, _ = dryrun("capacity", "--slices", file, "-o", "json")
    (pool,) = json.loads(out)["pools"]
    assert pool["stranded"][0] == {
        "gpu": "gpu-0",
        "lost": [{"model": "X", "profile": "two", "devices": 1}],
        "free": ["memory-slice 0, 2"],
        "heldBy": [{"claim": "default/c", "device": "gpu-0-one-1"}],
        "taints": [],
    }
