# SPDX-License-Identifier: Apache-2.0
"""The counters that devices of a pool share, as vectors of integers while a search runs.

Follows Kubernetes' structured allocator, which looks at all counters of a pool for every candidate: one overdrawn
counter blocks every device of the pool that consumes any. The compatibility groups of the devices that use a counter
set are compared at the same place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...kube.resource import Device
from .pools import CounterKey, PoolUsage, PoolView

_UNLIMITED = 1 << 200
"""The value of a counter that the pool does not define. Such a counter is never checked."""


@dataclass(frozen=True, slots=True)
class UsedGroups:
    """The compatibility groups of all devices that use a counter set, or of one device."""

    common: frozenset[str]
    """The groups that all devices have. Empty if a device declares no groups."""
    any_declared: bool

    @staticmethod
    def of(groups: Sequence[str]) -> "UsedGroups":
        """Those of one device, which declares these groups."""
        return UsedGroups(frozenset(groups), bool(groups))

    def __and__(self, other: "UsedGroups") -> "UsedGroups":
        return UsedGroups(self.common & other.common, self.any_declared or other.any_declared)

    @property
    def are_compatible(self) -> bool:
        """Whether all have a group in common, or none declares any."""
        return bool(self.common) or not self.any_declared


class CountersLeft:
    """The rest of the counters of one pool, or of several pools that Kubernetes confuses."""

    __slots__ = ("groups", "index", "left")

    def __init__(self) -> None:
        self.groups: dict[str, list[UsedGroups]] = {}
        """For each counter set in use, the groups of its devices. Each pick adds one entry."""
        self.index: dict[CounterKey, int] = {}
        self.left: list[int] | None = None
        """Set by the first charge. The totals of its pool are used for all."""

    def groups_with(self, counter_set: str, own: UsedGroups) -> UsedGroups:
        """The groups of all devices that use the counter set, and of one more device."""
        used = self.groups.get(counter_set)
        return used[-1] & own if used else own

    def use_groups(self, counter_set: str, own: UsedGroups) -> None:
        """Adds a device that uses the counter set."""
        self.groups.setdefault(counter_set, []).append(self.groups_with(counter_set, own))


class Totals:
    """The rest of the counters of one pool before the search. Read it only after the ledger's index is complete."""

    def __init__(self, ledger: CountersLeft, left: Mapping[CounterKey, int]) -> None:
        self._ledger = ledger
        self._left = left

    @cached_property
    def vector(self) -> tuple[int, ...]:
        """By the ledger's index."""
        return tuple(self._left.get(key, _UNLIMITED) for key in self._ledger.index)

    @cached_property
    def is_overdrawn(self) -> bool:
        """Whether a counter is negative, so that no device with counters can be picked."""
        return min(self.vector, default=0) < 0


@dataclass(eq=False, slots=True)
class Charge:
    """The counters that a device takes from a ledger: (index, amount in billionths). `totals` are those of its pool."""

    ledger: CountersLeft
    totals: Totals
    items: tuple[tuple[int, int], ...]
    groups: tuple[tuple[str, UsedGroups], ...] = ()
    """The compatibility groups of the device for each counter set; empty if they are not compared."""

    def reserve(self) -> bool:
        """Reserves the counters, or none of them if any counter of the ledger would become negative, or if the device
        has no group in common with the others.
        """
        if self.groups and not all(self.ledger.groups_with(name, own).are_compatible for name, own in self.groups):
            return False
        left = self.ledger.left
        if left is None:
            left = self.ledger.left = list(self.totals.vector)
        for index, amount in self.items:
            left[index] -= amount
        if min(left, default=0) >= 0:
            for name, own in self.groups:
                self.ledger.use_groups(name, own)
            return True
        for index, amount in self.items:
            left[index] += amount
        return False

    def release(self) -> None:
        """Gives back the counters that `reserve` took."""
        left = self.ledger.left
        assert left is not None
        for index, amount in self.items:
            left[index] += amount
        for name, _ in self.groups:
            self.ledger.groups[name].pop()

    def fits_alone(self) -> bool:
        """Whether `reserve` would succeed if nothing else had been reserved."""
        if self.totals.is_overdrawn:
            return False
        vector = self.totals.vector
        for index, amount in self.items:  # noqa: SIM110 - `all` takes twice as long, for every device of every search
            if vector[index] < amount:
                return False
        return True

    def overdrawn(self) -> list[CounterKey]:
        """The counters that keep `reserve` from succeeding."""
        after = list(self.totals.vector if self.ledger.left is None else self.ledger.left)
        for index, amount in self.items:
            after[index] -= amount
        return [key for key, index in self.ledger.index.items() if after[index] < 0]


@dataclass(slots=True)
class Counters:
    """The ledgers of the pools that a node sees."""

    by_name: bool
    """Whether pools of several drivers with one name share a ledger."""
    compares_groups: bool = False
    """Whether compatibility groups are compared."""
    _ledgers: dict[object, CountersLeft] = field(default_factory=dict)

    def charges(self, pool: PoolView, usage: PoolUsage) -> list[Charge | None]:
        """What each device of the pool consumes, None for a device without counters.

        `usage` is what allocated claims hold.
        """
        left = pool.available(usage)
        ledger = self._ledgers.setdefault(pool.name if self.by_name else pool.key, CountersLeft())
        is_first = not ledger.index
        for key in left:
            ledger.index.setdefault(key, len(ledger.index))
        totals = Totals(ledger, left)
        if self.compares_groups:
            for device in pool.held(usage):
                for name, own in _groups(device):
                    ledger.use_groups(name, own)
        consumption = pool.consumption
        if not is_first:  # the ledger numbers the counters of several pools
            places = [ledger.index[key] for key in pool.counters]
            consumption = tuple(tuple((places[number], amount) for number, amount in items) for items in consumption)
        return [
            Charge(ledger, totals, items, tuple(_groups(device)) if self.compares_groups else ())
            if device.consumes_counters
            else None
            for device, items in zip(pool.devices, consumption, strict=True)
        ]


def _groups(device: Device) -> Iterable[tuple[str, UsedGroups]]:
    for consumption in device.consumes_counters:
        yield consumption.counter_set, UsedGroups.of(consumption.compatibility_groups)
