# SPDX-License-Identifier: Apache-2.0
"""The number of devices of each kind in a cluster: in total, in use, free, and stranded.

A kind is a model and a profile. A device is *free* if claims for a single device would get it one after the other; in a
pool with counters the scheduler's rules decide. A device is *stranded* if it is not free, but would be free if the
devices in use were placed elsewhere on the same GPU, or if a taint were removed.

A GPU is a set of counters, and a device consumes an amount of each. Devices of one kind (a MIG profile) differ in their
placement. So of two GPUs with equal parts in use, one may have space for another device and the other may not.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from ..kube.resource import AllocatedDevice, AllocationResult, Device, DeviceClaim, ResourceClaim, TaintEffect
from ..scheduler.allocator import Cluster, Features
from ..scheduler.allocator.outcome import AllocationError
from ..scheduler.allocator.pools import CounterKey, PoolKey, PoolState, PoolUsage, PoolView
from .explain import listed_taint
from .verdict import Verdict

Amounts = tuple[int, ...]
"""The amount of each counter, in the order of the counters."""

_MOST_STEPS: Final = 20_000
"""The number of steps after which a search ends with its best result. A GPU in MIG mode takes a few hundred."""

_SET_SUFFIX = "-counter-set"
_BLOCKING = {TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE}


def first_fit(devices: Sequence[Amounts], left: Amounts) -> tuple[int, ...]:
    """The devices that would be allocated one after the other, in the order of the scheduler."""
    taken = []
    for index, amounts in enumerate(devices):
        after = _minus(left, amounts)
        if after is not None:
            left = after
            taken.append(index)
    return tuple(taken)


def best_fit(total: Amounts, held: Sequence[tuple[Sequence[Amounts], int]], wanted: Sequence[Amounts]) -> int:
    """The largest number of `wanted` devices that fit beside the `held` ones: (devices of one kind, their number).

    It is 0 if the held devices do not fit at all. All placements of the held devices are tried.
    """
    bound, best, steps = len(first_fit(wanted, total)), 0, 0
    seen: set[tuple[int, int, int, Amounts]] = set()

    def place(held: Sequence[tuple[Sequence[Amounts], int]], first: int, left: Amounts) -> None:
        """Place the devices of held[0] from index `first` on, then the others."""
        nonlocal best, steps
        key = (len(held), held[0][1] if held else 0, first, left)
        steps += 1
        if key in seen or best >= bound or steps > _MOST_STEPS:
            return
        seen.add(key)
        if not held:
            best = max(best, len(first_fit(wanted, left)))
            return
        (devices, count), *others = held
        for index in range(first, len(devices)):
            after = _minus(left, devices[index])
            if after is not None:
                rest = others if count == 1 else [(devices, count - 1), *others]
                place(rest, index + 1 if count > 1 else 0, after)

    place(sorted((holding for holding in held if holding[1]), key=lambda holding: len(holding[0])), 0, total)
    return best


def _minus(left: Amounts, amounts: Amounts) -> Amounts | None:
    """The remaining amounts; None if they are not enough."""
    after = tuple([have - need for have, need in zip(left, amounts, strict=True)])
    return None if min(after, default=0) < 0 else after


@dataclass(frozen=True, slots=True, order=True)
class DeviceKind:
    """A kind of device. `model` and `profile` are empty if the driver publishes none."""

    driver: str
    model: str
    profile: str


@dataclass(frozen=True, slots=True)
class Amount:
    """The number of devices of a kind: `total` on an idle cluster, `used`, `free`, and unavailable for two reasons."""

    total: int = 0
    used: int = 0
    free: int = 0
    misplaced: int = 0
    tainted: int = 0

    @property
    def stranded(self) -> int:
        """Free devices that cannot be used: they are misplaced or tainted."""
        return self.misplaced + self.tainted

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.total + other.total,
            self.used + other.used,
            self.free + other.free,
            self.misplaced + other.misplaced,
            self.tainted + other.tainted,
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """Why devices of a GPU are stranded: its free counters, the holders of the others, and its taints."""

    gpu: str
    lost: Mapping[DeviceKind, int]
    free: tuple[str, ...]
    holders: tuple[tuple[str, str], ...]  # claim, device
    taints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolStock:
    """One pool as some nodes see it (usually one node). `problem` tells why the pool offers no devices."""

    driver: str
    pool: str
    nodes: tuple[str, ...]
    amounts: Mapping[DeviceKind, Amount] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    problem: str = ""


def totals(pools: Iterable[PoolStock]) -> dict[DeviceKind, Amount]:
    """The amounts of all pools together, by kind in order."""
    sums: dict[DeviceKind, Amount] = {}
    for pool in pools:
        for kind, amount in pool.amounts.items():
            sums[kind] = sums.get(kind, Amount()) + amount
    return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True)
class _Part:
    """Devices that draw on the same counters (usually a GPU), or the devices of a pool that draw on none."""

    name: str
    counters: tuple[CounterKey, ...]
    total: Amounts
    devices: tuple[Device, ...]
    kinds: tuple[DeviceKind, ...]
    takes: tuple[Amounts, ...]


class Stocktaker:
    """Counts the devices of pools. Equal GPUs are counted once."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._counted: dict[object, Mapping[DeviceKind, Amount]] = {}

    def count(self, cluster: Cluster, only: Set[PoolKey] | None = None) -> list[PoolStock]:
        """Every pool (or `only` these) that a node of the cluster can reach, in the order of the nodes."""
        survey = cluster.survey(self._features)
        views: dict[int, tuple[PoolView, list[str]]] = {}
        for node in cluster.nodes:
            try:
                pools = survey.view(node).pools
            except AllocationError:
                continue  # a node selector that cannot be used: the node gets no devices
            for pool in pools:
                if only is None or pool.key in only:
                    views.setdefault(id(pool), (pool, []))[1].append(node.name)
        return [self._count_pool(pool, survey.usage(pool.key), tuple(nodes)) for pool, nodes in views.values()]

    def _count_pool(self, pool: PoolView, usage: PoolUsage, nodes: tuple[str, ...]) -> PoolStock:
        if pool.state is not PoolState.COMPLETE:
            return PoolStock(pool.driver, pool.name, nodes, problem=pool.reason)
        left = pool.available(usage)
        overdrawn = sorted(f"{name}/{counter}" for (name, counter), amount in left.items() if amount < 0)
        sums: dict[DeviceKind, Amount] = {}
        gaps = []
        for part in _parts(pool, self._features):
            amounts = self._count_part(part, usage, left, bool(overdrawn))
            for kind, amount in amounts.items():
                sums[kind] = sums.get(kind, Amount()) + amount
            if lost := {kind: amount.stranded for kind, amount in amounts.items() if amount.stranded}:
                gaps.append(_gap(part, usage, lost, left))
        problem = f"more of {overdrawn[0]} is in use than there is" if overdrawn else ""
        return PoolStock(pool.driver, pool.name, nodes, sums, tuple(gaps), problem)

    def _count_part(
        self, part: _Part, usage: PoolUsage, left: Mapping[CounterKey, int], overdrawn: bool
    ) -> Mapping[DeviceKind, Amount]:
        held = tuple(index for index, device in enumerate(part.devices) if usage.is_used(device.name))
        barred = tuple(index for index, device in enumerate(part.devices) if device.taints and _taints(device))
        remaining = tuple(left[key] for key in part.counters)
        key = (part.kinds, part.takes, part.total, held, barred, remaining, overdrawn)
        if key not in self._counted:
            self._counted[key] = _count(part, frozenset(held), frozenset(barred), remaining, overdrawn)
        return self._counted[key]


def _parts(pool: PoolView, features: Features) -> Iterator[_Part]:
    """The parts of the pool that share no counters. Devices that the scheduler never allocates are not counted: these
    are devices that consume counters while the feature gate is disabled.
    """
    offered = [device for device in pool.devices if features.partitionable_devices or not device.consumes_counters]
    whole = any(len(device.consumes_counters) > 1 for device in offered)
    groups: dict[str, list[Device]] = defaultdict(list)
    for device in offered:
        drawn = device.consumes_counters
        groups["" if not drawn else pool.name if whole else drawn[0].counter_set].append(device)
    for name, devices in groups.items():
        sets = [] if not name else list(pool.counter_sets.values()) if whole else [pool.counter_sets[name]]
        total = {(set_.name, counter): amount.nanos for set_ in sets for counter, amount in set_.counters.items()}
        kinds = tuple(_kind(device, pool.driver) for device in devices)
        takes = tuple(_takes(device, total) for device in devices)
        yield _Part(name.removesuffix(_SET_SUFFIX), tuple(total), tuple(total.values()), tuple(devices), kinds, takes)


def _kind(device: Device, driver: str) -> DeviceKind:
    return DeviceKind(driver, _text(device, driver, "productName"), _text(device, driver, "profile"))


def _text(device: Device, driver: str, name: str) -> str:
    """The attribute, empty if the device has no such text."""
    value = device.attributes.get(name) or device.attributes.get(f"{driver}/{name}")
    return value if isinstance(value, str) else ""


def _takes(device: Device, total: Mapping[CounterKey, int]) -> Amounts:
    drawn = {
        (consumption.counter_set, counter): amount.nanos
        for consumption in device.consumes_counters
        for counter, amount in consumption.counters.items()
    }
    return tuple([drawn.get(key, 0) for key in total])


def _taints(device: Device) -> list[str]:
    return [listed_taint(taint) for taint in device.taints if taint.effect in _BLOCKING]


def _count(
    part: _Part, held: Set[int], barred: Set[int], left: Amounts, overdrawn: bool
) -> Mapping[DeviceKind, Amount]:
    """The devices of each kind in a part."""
    members: dict[DeviceKind, list[int]] = defaultdict(list)
    for index, kind in enumerate(part.kinds):
        members[kind].append(index)
    takes = part.takes
    amounts = {}
    in_use = {kind: sum(index in held for index in indexes) for kind, indexes in members.items()}
    placed = [([takes[index] for index in members[kind]], count) for kind, count in in_use.items()]
    for kind, indexes in members.items():
        every = [takes[index] for index in indexes]
        total = len(first_fit(every, part.total))
        if overdrawn and part.counters:
            amounts[kind] = Amount(total, in_use[kind])
            continue
        idle = [index for index in indexes if index not in held]
        reachable = len(first_fit([takes[index] for index in idle], left))
        free = len(first_fit([takes[index] for index in idle if index not in barred], left))
        best = best_fit(part.total, placed, every) if held and part.counters else reachable
        amounts[kind] = Amount(total, in_use[kind], free, max(best - reachable, 0), reachable - free)
    return amounts


def _gap(part: _Part, usage: PoolUsage, lost: Mapping[DeviceKind, int], left: Mapping[CounterKey, int]) -> Gap:
    holders = [(str(claim.metadata), device.name) for device in part.devices for claim in usage.holders(device.name)]
    taints = dict.fromkeys(text for device in part.devices for text in _taints(device))
    return Gap(part.name, lost, _free(part, left), tuple(holders), tuple(taints))


def _free(part: _Part, left: Mapping[CounterKey, int]) -> tuple[str, ...]:
    """Numbered counters with a remaining amount, as `memory-slice 1-3, 6`."""
    families: dict[str, list[int]] = {}
    for key in part.counters:
        family, _, number = key[1].rpartition("-")
        if family and number.isdecimal():
            families.setdefault(family, []).extend([int(number)] if left[key] > 0 else [])
    return tuple(f"{family} {_ranges(numbers)}" for family, numbers in families.items())


def _ranges(numbers: Iterable[int]) -> str:
    """`1-3, 6` for 1, 2, 3, 6; `none` for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """The number of free devices of a kind before and after the demands are placed."""

    kind: DeviceKind
    before: int
    after: int


def leftovers(verdicts: Iterable[Verdict], cluster: Cluster, features: Features) -> list[DeviceCount]:
    """The kinds of which fewer devices are free after the demands, in order."""
    drivers = {id(device): slice_.driver for slice_ in cluster.slices for device in slice_.devices}
    taken = [claim for verdict in verdicts for claim in _taken(verdict, drivers)]
    if not taken:
        return []
    touched = {
        (result.driver, result.pool) for claim in taken if claim.allocation for result in claim.allocation.results
    }
    takers = Stocktaker(features)
    old = totals(takers.count(cluster, touched))
    new = totals(takers.count(cluster.after(taken), touched))
    fewer = {kind: new[kind].free - amount.free for kind, amount in old.items() if new[kind].free != amount.free}
    every = totals(takers.count(cluster, _pools_with(fewer, cluster)))
    return [
        DeviceCount(kind, amount.free, amount.free + fewer[kind]) for kind, amount in every.items() if kind in fewer
    ]


def _pools_with(kinds: Iterable[DeviceKind], cluster: Cluster) -> set[PoolKey]:
    """The pools that have a device of one of the models."""
    models = {kind.model for kind in kinds}
    return {
        (slice_.driver, slice_.pool.name)
        for slice_ in cluster.slices
        if any(_text(device, slice_.driver, "productName") in models for device in slice_.devices)
    }


def _taken(verdict: Verdict, drivers: Mapping[int, str]) -> list[ResourceClaim]:
    """Claims that hold the demand's devices. Shared devices and admin access take nothing from others."""
    free = {
        (str(claim.metadata), name)
        for claim in verdict.demand.claims
        for name, required in claim.spec.requirements
        if required.admin_access
    }
    results = (
        AllocatedDevice(placed.request, drivers[id(placed.device)], placed.pool, placed.name)
        for placed in verdict.placed
        if placed.device is not None
        and (placed.claim, placed.request) not in free
        and not placed.device.allow_multiple_allocations
    )
    return [ResourceClaim(verdict.demand.pod, DeviceClaim(), AllocationResult((result,))) for result in results]
