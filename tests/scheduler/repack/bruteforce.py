# SPDX-License-Identifier: Apache-2.0
"""Plans of dra_driver.scheduler.repack, compared with trying all sequences of moves on small random clusters.

`python -m tests.scheduler.repack.bruteforce 5000 [SEED]` compares that many clusters, from a seed on. Trying knows
nothing of the code under test: it reads the counters of the slices, and goes through all states that are one move, two
moves, ... away.
"""

import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    Node,
    ObjectMeta,
    OwnerReference,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.kube.resource.codec import Decoded
from dra_driver.scheduler.allocator import Cluster, Features
from dra_driver.scheduler.pods import ClusterNode, Pod, Snapshot
from dra_driver.scheduler.pods.objects import ClaimReference
from dra_driver.scheduler.repack import GuardKind, Limits, Movability, PlanSearchResult, Space, Unit, find_plan
from tests.dryrun.clusters import node

DRIVER = "gpu.nvidia.com"
CLASS = DeviceClass(ObjectMeta(name=DRIVER), (f"device.driver == '{DRIVER}'",))
FEATURES = Features()
ROOM = {"cpu": 1 << 40, "memory": 1 << 60, "pods": 1 << 20}

Place = tuple[str, str]
"""Pool and device."""
CounterSets = frozenset[tuple[str, str]]
"""Pool and name of the counter set of a device: devices with another one never exclude it. Empty without counters."""


def claim_for(name: str, profile: str, *, owner: str = "") -> ResourceClaim:
    """A claim for one device: of a MIG profile, or a whole GPU (`gpu`)."""
    what = f"device.attributes['{DRIVER}'].type == 'gpu'"
    if profile != "gpu":
        what = f"device.attributes['{DRIVER}'].type == 'mig' && device.attributes['{DRIVER}'].profile == '{profile}'"
    request = DeviceRequest("gpu", exactly=DeviceRequirements(DRIVER, (what,)))
    owners = (OwnerReference("v1", "Pod", owner, f"uid-{owner}", controller=True),) if owner else ()
    return ResourceClaim(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", owner_references=owners),
        DeviceClaim((request,)),
    )


@dataclass(frozen=True)
class Running:
    """A pod of the random cluster."""

    name: str
    profile: str
    place: Place
    stays: bool = False


@dataclass(frozen=True)
class Example:
    """A cluster with pods, and the profile of each unit of demand."""

    objects: tuple[Decoded, ...]
    pods: tuple[Running, ...]
    wanted: tuple[str, ...]

    def snapshot(self) -> Snapshot:
        """The cluster with its pods and claims."""
        nodes = [one for one in self.objects if isinstance(one, Node)]
        slices = tuple(one for one in self.objects if isinstance(one, ResourceSlice))
        node_of = {one.pool.name: str(one.node_name) for one in slices}
        claims, pods = [], []
        for running in self.pods:
            pool, device = running.place
            claim = claim_for(f"{running.name}-gpu", running.profile, owner=running.name)
            result = AllocatedDevice("gpu", DRIVER, pool, device)
            claims.append(replace(claim, allocation=AllocationResult((result,))))
            pods.append(
                Pod(
                    "default",
                    running.name,
                    f"uid-{running.name}",
                    node_name=node_of[pool],
                    phase="Running",
                    claims=(ClaimReference(f"{running.name}-gpu", from_template=True),),
                    owner=("ReplicaSet", running.name),
                )
            )
        cluster = Cluster(slices, (CLASS,), tuple(nodes), tuple(claims))
        return Snapshot(cluster, tuple(ClusterNode(one, ROOM) for one in nodes), tuple(pods))

    def planned(self, guard: GuardKind = GuardKind.TAINTS, limits: Limits | None = None) -> PlanSearchResult:
        """The answer of the code under test."""
        staying = {running.name for running in self.pods if running.stays}
        space = Space(self.snapshot(), FEATURES, lambda pod: Movability(stays="never" if pod.name in staying else ""))
        return find_plan(space, [unit_for(profile) for profile in self.wanted], guard, limits)


def unit_for(profile: str) -> Unit:
    """A unit of demand: a claim without a pod."""
    return Unit(None, (claim_for("wanted", profile),))


class Tried:
    """All sequences of moves of an example."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self._takes: dict[Place, Mapping[tuple[str, str, str], int]] = {}
        self._totals: dict[tuple[str, str, str], int] = {}
        self._places: dict[str, dict[CounterSets, list[Place]]] = {}
        self._sets: dict[Place, CounterSets] = {}
        self._free: dict[tuple[str, CounterSets, frozenset[Place]], list[Place]] = {}
        for one in example.objects:
            if isinstance(one, ResourceSlice) and one.driver == DRIVER:
                self._read(one)

    def _read(self, slice_: ResourceSlice) -> None:
        pool = slice_.pool.name
        for counters in slice_.shared_counters:
            for name, amount in counters.counters.items():
                self._totals[pool, counters.name, name] = amount.nanos
        for device in slice_.devices:
            kind = str(device.attributes.get("profile") or "")
            if device.attributes.get("type") == "gpu":
                kind = "gpu"
            self._takes[pool, device.name] = {
                (pool, consumption.counter_set, name): amount.nanos
                for consumption in device.consumes_counters
                for name, amount in consumption.counters.items()
            }
            sets = frozenset((pool, one.counter_set) for one in device.consumes_counters)
            self._sets[pool, device.name] = sets
            self._places.setdefault(kind, {}).setdefault(sets, []).append((pool, device.name))
            assert len(device.consumes_counters) <= 1

    def profile(self, place: Place) -> str:
        """The profile of a device, or `gpu`."""
        return next(profile for profile, places in self._places.items() if place in places.get(self._sets[place], ()))

    def random_place(self, rng: random.Random, profile: str, used: Sequence[Place]) -> Place | None:
        """A free place for a device of a profile, beside those in use. None if there is none."""
        free = list(self._free_places(profile, self._by_set(used)))
        return rng.choice(free) if free else None

    def _by_set(self, places: Iterable[Place]) -> dict[CounterSets, frozenset[Place]]:
        """The places by the counter sets from which their devices take."""
        found: dict[CounterSets, set[Place]] = {}
        for place in places:
            found.setdefault(self._sets[place], set()).add(place)
        return {sets: frozenset(members) for sets, members in found.items()}

    def _free_places(self, profile: str, used: Mapping[CounterSets, frozenset[Place]]) -> Iterator[Place]:
        """The places that a device of a profile can have beside those in use."""
        for sets, places in self._places.get(profile, {}).items():
            key = (profile, sets, used.get(sets, frozenset()))
            if key not in self._free:  # few answers are needed, each of them very often
                self._free[key] = [place for place in places if self._is_enough(place, key[2])]
            yield from self._free[key]

    def _is_enough(self, place: Place, beside: frozenset[Place]) -> bool:
        left = dict(self._totals)
        for one in beside:
            for counter, amount in self._takes[one].items():
                left[counter] -= amount
        return place not in beside and all(left[counter] >= amount for counter, amount in self._takes[place].items())

    def _all_fit(self, wanted: Sequence[str], used: tuple[Place, ...]) -> bool:
        if not wanted:
            return True
        free = self._free_places(wanted[0], self._by_set(used))
        return any(self._all_fit(wanted[1:], (*used, place)) for place in free)

    def least(self, most: int) -> int | None:
        """The least number of moves, up to `most`. None if there is no sequence of so few."""
        pods = self._example.pods
        states = {tuple(pod.place for pod in pods)}
        seen = set(states)
        for moves in range(most + 1):
            if any(self._all_fit(self._example.wanted, state) for state in states):
                return moves
            states = {after for state in states for after in self._after(state)} - seen
            seen |= states
        return None

    def _after(self, state: tuple[Place, ...]) -> Iterator[tuple[Place, ...]]:
        used = self._by_set(state)
        for index, pod in enumerate(self._example.pods):
            if pod.stays:
                continue
            before, place, after = state[:index], state[index], state[index + 1 :]
            sets = self._sets[place]
            for free in self._free_places(pod.profile, {**used, sets: used[sets] - {place}}):
                yield (*before, free, *after)


@cache
def nodes(number: int, gpus: int) -> tuple[Decoded, ...]:
    """Idle nodes with A30 GPUs in MIG mode, which have four slices each."""
    return tuple(one for index in range(number) for one in node(index + 1, gpus=gpus))


@cache
def hopper_nodes(count: int) -> tuple[Decoded, ...]:
    """Nodes with 8 H100 GPUs in MIG mode, with all placements."""
    return tuple(simulated_nodes("h100x8-mig", count))


def filled(objects: tuple[Decoded, ...], rng: random.Random, pods: int, profiles: Sequence[str]) -> list[Running]:
    """Up to `pods` pods at random places."""
    empty = Tried(Example(objects, (), ()))
    running: list[Running] = []
    for number in range(pods):
        profile = rng.choice(profiles)
        place = empty.random_place(rng, profile, [pod.place for pod in running])
        if place is not None:
            running.append(Running(f"p{number}", profile, place, stays=rng.random() < 0.15))
    return running


def example(seed: int) -> Example:
    """The random cluster of a seed: up to three GPUs with four slices each, on one or two nodes."""
    rng = random.Random(seed)
    objects = nodes(*rng.choice([(1, 2), (1, 3), (2, 1), (3, 1), (2, 2)]))
    pods = filled(objects, rng, rng.randint(2, 7), ["1g.6gb", "1g.6gb", "2g.12gb"])
    wanted = rng.choice(
        [("4g.24gb",), ("2g.12gb",), ("1g.6gb", "4g.24gb"), ("2g.12gb", "2g.12gb"), ("4g.24gb", "2g.12gb")]
    )
    return Example(objects, tuple(pods), wanted)


MOST_MOVES = 4


def difference(seed: int) -> str:
    """How the plan for a random cluster differs from trying everything. Empty if it does not."""
    one = example(seed)
    least = Tried(one).least(MOST_MOVES)
    result = one.planned(limits=Limits(20_000, 80_000, MOST_MOVES))
    found = None if result.plan is None else len(result.plan.steps)
    if found != least:
        return f"seed {seed}: {found} moves are planned, and {least} are the fewest"
    if least is not None and result.distance:
        return f"seed {seed}: the plan is optimal, and its distance is said to be {result.distance}"
    if least is not None and (result.bound is None or result.bound > least):
        return f"seed {seed}: the bound {result.bound} is above {least}"
    return ""


def main(first: int, count: int) -> int:
    """Compares `count` clusters from a seed on, and prints the differences."""
    started = time.monotonic()
    differences = 0
    for seed in range(first, first + count):
        text = difference(seed)
        differences += bool(text)
        if text or (seed - first) % 100 == 99:
            print(text or f"{seed - first + 1} clusters", flush=True)
    print(f"{count} clusters, {differences} differences, {time.monotonic() - started:.0f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[1])))
