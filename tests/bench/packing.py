# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.packing [MODEL...]`: how many more large MIG profiles fit after a random day.

Claims for MIG devices and whole GPUs come and go on a node with eight GPUs. kube-scheduler's choice is the first device
that fits (dra_driver.scheduler.allocator, as Kubernetes 1.36 does it), so only the order in which devices are listed
differs: ours, and the official driver's (a slice a GPU by PCI address, in it the whole GPU, then MIG devices by name).
Both nodes hold the same claims: one that either cannot take is taken by neither, and counted. At each checkpoint every
large kind is claimed until nothing fits, for itself, and all are given back.

The claims are drawn with a seed: times between arrivals and lifetimes are exponential, `load` is the part of all
memory slices that would be in use if every claim were taken.
"""

import heapq
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.gpu.devices import GPU_TYPE, MIG_TYPE, GpuDevices, describe
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.gpu.simulated.board import BoardModel, ProfileModel, boards
from dra_driver.kube.resource import AllocatedDevice, ResourceSlice
from tests.support.allocating import NodeClaims
from tests.support.nodes import board_inventory

WHOLE = "whole"
MIXES: dict[str, Callable[[ProfileModel], float]] = {
    "inference": lambda profile: 8.0 / profile.info.slice_count**1.5,
    "even": lambda profile: 1.0,
    "training": lambda profile: float(profile.info.slice_count),
    "halves": lambda profile: {1: 1.0, 3: 2.0}.get(profile.info.slice_count, 0.0),
}
"""How often a profile is claimed, by the kind of day. Profiles that fill a GPU are not; whole GPUs are, at times."""
LOADS = (0.5, 0.7)
SEEDS = range(5)
MODELS = ("A30-PCIE-24GB", "A100-SXM4-40GB", "H100-SXM5-80GB")  # later ones have the placements of H100


@dataclass(frozen=True)
class Day:
    """What happens."""

    model: BoardModel
    mix: str
    load: float
    seed: int
    gpus: int = 8
    arrivals: int = 300
    warm_up: int = 60
    checkpoint: int = 40


@dataclass
class Result:
    """By driver: how many more of each large kind fit, summed over the checkpoints, and claims that only it takes."""

    ours: Counter[str] = field(default_factory=Counter)
    official: Counter[str] = field(default_factory=Counter)
    only_ours: int = 0
    only_official: int = 0

    def add(self, other: "Result") -> None:
        self.ours.update(other.ours)
        self.official.update(other.official)
        self.only_ours += other.only_ours
        self.only_official += other.only_official


def devices(model: BoardModel, count: int) -> Sequence[GpuDevices]:
    """Whole GPUs and placements at once where MIG mode can be switched, else GPUs in MIG mode."""
    inventory = board_inventory(model, count)
    if not inventory.gpus[0].mig_switchable:
        inventory = board_inventory(model, count, mig=True)
    return describe(inventory, NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC),))).gpus


def official_slices(gpus: Sequence[GpuDevices]) -> Sequence[ResourceSlice]:
    """The same devices as the official driver lists them."""
    counters, first, *_ = node_slices("node-a", "uid", gpus)
    pool = replace(first.pool, resource_slice_count=len(gpus) + 1)
    each = [
        replace(
            first,
            metadata=replace(first.metadata, name=f"{index:05x}-official"),
            pool=pool,
            devices=tuple(sorted(gpu.devices, key=lambda device: device.name)),
        )
        for index, gpu in enumerate(gpus, start=1)
    ]
    return [replace(counters, pool=pool), *each]


def kinds(model: BoardModel) -> dict[str, str]:
    """The CEL expression of everything that can be claimed, by name."""
    attributes = "device.attributes['gpu.nvidia.com']"
    offered = {device.attributes["type"] for device in devices(model, 1)[0].devices}
    assert offered <= {GPU_TYPE, MIG_TYPE}
    found = {
        profile.info.name: f"{attributes}.type == 'mig' && {attributes}.profile == '{profile.info.name}'"
        for profile in model.profiles
    }
    return found | ({WHOLE: f"{attributes}.type == 'gpu'"} if GPU_TYPE in offered else {})


def large(model: BoardModel) -> list[str]:
    """Profiles of half a GPU and more, and whole GPUs."""
    found = [one.info.name for one in model.profiles if one.placements[0].size * 2 >= model.memory_slices]
    return [*found, *(kind for kind in kinds(model) if kind == WHOLE)]


def arrivals(day: Day) -> Iterator[tuple[float, float, str]]:
    """(when, how long, what)."""
    chance = random.Random(f"{day.mix} {day.load} {day.seed}")
    sizes = {one.info.name: one.placements[0].size for one in day.model.profiles}
    often = {
        one.info.name: MIXES[day.mix](one) * (0.25 if one.info.instance_count == 1 and one.info.slice_count < 4 else 1)
        for one in day.model.profiles
        if one.placements[0].size < day.model.memory_slices
    }
    if WHOLE in kinds(day.model):
        sizes[WHOLE], often[WHOLE] = day.model.memory_slices, 0.05 * sum(often.values())
    mean = sum(sizes[kind] * weight for kind, weight in often.items()) / sum(often.values())
    rate = day.load * day.gpus * day.model.memory_slices / mean
    now = 0.0
    for _ in range(day.arrivals):
        now += chance.expovariate(rate)
        (kind,) = chance.choices(list(often), list(often.values()))
        yield now, chance.expovariate(1.0), kind


def run(day: Day) -> Result:
    """One day on both nodes."""
    gpus, selectors, result = devices(day.model, day.gpus), kinds(day.model), Result()
    ours, official = NodeClaims(node_slices("node-a", "uid", gpus)), NodeClaims(official_slices(gpus))
    leaving: list[tuple[float, int, AllocatedDevice, AllocatedDevice]] = []
    for number, (now, lasts, kind) in enumerate(arrivals(day)):
        while leaving and leaving[0][0] <= now:
            _, _, mine, theirs = heapq.heappop(leaving)
            ours.release(mine)
            official.release(theirs)
        got, would = ours.allocate(selectors[kind]), official.allocate(selectors[kind])
        if got is not None and would is not None:
            heapq.heappush(leaving, (now + lasts, number, got, would))
        elif got is not None:
            ours.release(got)
            result.only_ours += 1
        elif would is not None:
            official.release(would)
            result.only_official += 1
        if number >= day.warm_up and number % day.checkpoint == 0:
            for one in large(day.model):
                result.ours[one] += ours.room(selectors[one])
                result.official[one] += official.room(selectors[one])
    return result


def main(models: Sequence[str]) -> None:
    unknown = set(models) - set(boards())
    if unknown:
        sys.exit(f"no model {sorted(unknown)[0]!r} (there are {', '.join(boards())})")
    began = time.perf_counter()
    print(f"{'':36}{'more that fit: ours / official':>34}   claims that only one takes")
    for model in (boards()[name] for name in models or MODELS):
        total = Result()
        for mix in MIXES:
            result = Result()
            for load, seed in itertools.product(LOADS, SEEDS):
                result.add(run(Day(model, mix, load, seed)))
            total.add(result)
            _print(model, mix, result)
        _print(model, "all days", total)
        for kind in large(model):
            print(f"{'':18}{kind:18}{total.ours[kind]:12} / {total.official[kind]}")
    print(f"{time.perf_counter() - began:.0f} s")


def _print(model: BoardModel, mix: str, result: Result) -> None:
    mine, theirs = result.ours.total(), result.official.total()
    more = 100 * (mine - theirs) / theirs
    only = f"{result.only_ours} / {result.only_official}"
    print(f"{model.model:18}{mix:18}{mine:12} / {theirs:<8}{more:+8.1f} %   {only:>12}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
