# SPDX-License-Identifier: Apache-2.0
"""Pools as one node sees them, and which of their devices allocated claims hold.

The views follow the pool gathering of Kubernetes' structured allocator: generations, completeness, validity, and the
order of devices. Most nodes see most pools in the same way, so a view depends on the slices that are relevant for the
node and not on the node. The values that expressions read, and attributes of unusual types, are converted to keys that
can be compared. What claims hold follows the claim tracker of kube-scheduler's DynamicResources plugin. A device is
known by driver, pool and name, whatever slice or generation lists it.
"""

import enum
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import cast

from ...kube.resource import (
    AttributeValue,
    CounterSet,
    Device,
    DeviceCapacity,
    RequestPolicy,
    ResourceClaim,
    ResourceSlice,
    Version,
)
from ..cel import Reads
from .capacity import has_all_left
from .features import Features
from .nodes import Place, place

PoolKey = tuple[str, str]
"""(driver, pool name)."""

_SCALARS = frozenset({str, int, bool})
_HASHED_APART = frozenset({str, Version, type(None)})

CounterKey = tuple[str, str]
"""(counter set, counter)."""


@dataclass(slots=True)
class PoolUsage:
    """The devices of one pool that allocated claims hold, by device name. Not changed after it was built."""

    whole: dict[str, list[ResourceClaim]] = field(default_factory=dict)
    """Devices that are held as a whole, and their claims."""
    shared: dict[str, list[ResourceClaim]] = field(default_factory=dict)
    """Devices of which shares are held, and their claims."""
    consumed: dict[str, dict[str, int]] = field(default_factory=dict)
    """The sums of recorded consumed capacity, in billionths, by device."""

    def is_used(self, device: str) -> bool:
        """Whether the device or a share of it is held, so that its counters are consumed."""
        return device in self.whole or device in self.shared

    def holders(self, device: str) -> tuple[ResourceClaim, ...]:
        """The claims that hold the device or shares of it."""
        return (*self.whole.get(device, ()), *self.shared.get(device, ()))

    @property
    def claims(self) -> Iterable[ResourceClaim]:
        """Every claim that holds a device of the pool, once."""
        held = (*self.whole.values(), *self.shared.values())
        return {id(claim): claim for claims in held for claim in claims}.values()


NOTHING = PoolUsage()


def usage_of(claims: Iterable[ResourceClaim], *, shares: bool) -> Mapping[PoolKey, PoolUsage]:
    """The devices that the allocated claims hold.

    Without `shares` (feature gate off), a share holds the whole device.
    """
    pools: dict[PoolKey, PoolUsage] = {}
    for claim in claims:
        if claim.allocation is None:
            continue
        for result in claim.allocation.results:
            if result.admin_access:
                continue
            pool = pools.setdefault((result.driver, result.pool), PoolUsage())
            if not shares or result.share_id is None:
                pool.whole.setdefault(result.device, []).append(claim)
                continue
            pool.shared.setdefault(result.device, []).append(claim)
            if result.consumed_capacity:
                sums = pool.consumed.setdefault(result.device, {})
                for name, amount in result.consumed_capacity.items():
                    sums[name] = sums.get(name, 0) + amount.nanos
    return pools


def pools_of(claims: Iterable[ResourceClaim]) -> frozenset[PoolKey]:
    """The pools of which `claims` hold devices."""
    allocations = (claim.allocation for claim in claims if claim.allocation is not None)
    return frozenset((result.driver, result.pool) for allocation in allocations for result in allocation.results)


def usage_after(
    usage: Mapping[PoolKey, PoolUsage],
    allocated: Iterable[ResourceClaim],
    released: Collection[ResourceClaim],
    *,
    shares: bool,
) -> Mapping[PoolKey, PoolUsage]:
    """`usage_of`, after some claims were allocated and others released. Only their pools are counted again."""
    more = list(allocated)
    gone = set(map(id, released))
    touched = pools_of((*more, *released))
    holders = {id(claim): claim for key in touched for claim in usage.get(key, NOTHING).claims}
    kept = [claim for claim in holders.values() if id(claim) not in gone]
    counted = usage_of((*kept, *more), shares=shares)
    return {**usage, **{key: counted.get(key, NOTHING) for key in touched}}


def read_values(pool: "PoolView", reads: Reads) -> list[Hashable]:
    """A key for each device of the pool. Devices with equal keys have equal values of everything that is read."""
    if reads.everything:
        return [(repr(device.attributes), _written_capacities(device)) for device in pool.devices]
    columns = [pool.attribute_column(key) for key in published_keys(reads.attributes, pool.driver)]
    columns += [capacity_column(pool.devices, key) for key in published_keys(reads.capacities, pool.driver)]
    return list(zip(*columns, strict=True)) if columns else [()] * len(pool.devices)


def capacity_column(devices: Sequence[Device], key: str) -> Sequence[Hashable]:
    """The capacity published as `key`, for each device. Expressions may tell 1Gi from 1073741824."""
    return [_written(device.capacity.get(key)) for device in devices]


def published_keys(names: frozenset[tuple[str, str]], driver: str) -> list[str]:
    """The keys under which devices of `driver` may publish: its own domain can be left out."""
    return [key for domain, identifier in sorted(names) for key in keys_of(domain, identifier, driver)]


@lru_cache(maxsize=4096)
def keys_of(domain: str, identifier: str, driver: str) -> tuple[str, ...]:
    """The keys under which devices of `driver` may publish one attribute or capacity."""
    qualified = f"{domain}/{identifier}"
    return (qualified, identifier) if domain == driver else (qualified,)


def distinguishable(values: Sequence[AttributeValue | None]) -> Sequence[Hashable]:
    """Keys for the values. True and 1 have different keys. Lists and malformed attributes have keys too."""
    if _HASHED_APART.issuperset(map(type, values)):
        return cast(Sequence[Hashable], values)
    return [None if value is None else repr(value) for value in values]


def odd_devices(devices: Sequence[Device]) -> frozenset[int]:
    """The indexes of devices with an attribute that may make every expression fail, even if it is not read.

    These attributes are lists, attributes with no value or several values, and invalid versions.
    """
    return frozenset(
        [
            index
            for index, device in enumerate(devices)
            for value in device.attributes.values()
            if type(value) not in _SCALARS and _is_odd(value)
        ]
    )


def _is_odd(value: AttributeValue) -> bool:
    return not (isinstance(value, Version) and _is_strict(value.text))


@lru_cache(maxsize=4096)
def _is_strict(version: str) -> bool:
    return Version(version).is_strict


def _written(capacity: DeviceCapacity | None) -> Hashable:
    return None if capacity is None else (capacity.value.nanos, capacity.value.format)


def _written_capacities(device: Device) -> Hashable:
    return tuple([(name, _written(capacity)) for name, capacity in device.capacity.items()])


@dataclass(frozen=True, slots=True)
class DeviceKinds:
    """The devices of a pool that expressions which read certain values can tell apart.

    `firsts` has the index of the first device of each kind, by what expressions read of it. `numbers` has the position
    of each device's kind in `firsts`.
    """

    firsts: Mapping[Hashable, int]
    numbers: Sequence[int]


class PoolState(enum.Enum):
    """Whether the devices of a pool are available."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INVALID = "invalid"


@dataclass(frozen=True, eq=False)
class PoolView:
    """One pool, as the nodes for which the same slices are relevant see it.

    `slices` contain the available devices, in order. `elsewhere` are the slices of the same generation for other nodes,
    whose devices consume the same counters. Both are empty unless the state is COMPLETE.
    """

    key: PoolKey
    state: PoolState = PoolState.COMPLETE
    reason: str = ""
    slices: tuple[ResourceSlice, ...] = ()
    elsewhere: tuple[ResourceSlice, ...] = ()
    counter_sets: Mapping[str, CounterSet] = field(default_factory=dict)
    _columns: dict[str, Sequence[Hashable]] = field(default_factory=dict, init=False, repr=False)
    _kinds: dict[Reads, DeviceKinds] = field(default_factory=dict, init=False, repr=False)

    @property
    def content(self) -> Hashable:
        """Equal for views with the same slices, as long as these exist."""
        slices = (tuple(map(id, some)) for some in (self.slices, self.elsewhere, self.counter_sets.values()))
        return (self.key, self.state, self.reason, *slices)

    @property
    def driver(self) -> str:
        """The driver that publishes the pool."""
        return self.key[0]

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self.key[1]

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The available devices, in the order of the search."""
        return tuple(chain.from_iterable(slice_.devices for slice_ in self.slices))

    @cached_property
    def counters(self) -> Mapping[CounterKey, int]:
        """The number of each counter, in order."""
        keys = ((name, counter) for name, counters in self.counter_sets.items() for counter in counters.counters)
        return {key: number for number, key in enumerate(keys)}

    @cached_property
    def consumption(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The counters that each device consumes: (number, amount in billionths)."""
        numbers = self.counters
        return tuple(
            [
                tuple(
                    [
                        (numbers[consumption.counter_set, counter], amount.nanos)
                        for consumption in device.consumes_counters
                        for counter, amount in consumption.counters.items()
                    ]
                )
                for device in self.devices
            ]
        )

    @cached_property
    def whole(self) -> tuple[bool, ...]:
        """For each device, whether a request without capacities takes all of it (`has_all_left`)."""
        return tuple(has_all_left(device) for device in self.devices)

    @cached_property
    def adds_to_counters(self) -> bool:
        """Whether a device consumes a negative amount."""
        return any(amount < 0 for amounts in self.consumption for _, amount in amounts)

    @cached_property
    def attribute_keys(self) -> frozenset[str]:
        """The keys under which any device publishes an attribute."""
        return frozenset([key for device in self.devices for key in device.attributes])

    def attribute_column(self, key: str) -> Sequence[Hashable]:
        """The attribute published as `key`, for each device. Computed once."""
        if key not in self._columns:
            self._columns[key] = distinguishable([device.attributes.get(key) for device in self.devices])
        return self._columns[key]

    def kinds(self, reads: Reads) -> DeviceKinds:
        """The kinds of devices for expressions that read these values. Each odd device is one. Computed once."""
        if reads not in self._kinds:
            odd, firsts, places, numbers = self.odd_devices, dict[Hashable, int](), dict[Hashable, int](), list[int]()
            for index, (device, values) in enumerate(zip(self.devices, read_values(self, reads), strict=True)):
                kind = (device.allow_multiple_allocations, values, index if index in odd else None)
                firsts.setdefault(kind, index)
                numbers.append(places.setdefault(kind, len(places)))
            self._kinds[reads] = DeviceKinds(firsts, numbers)
        return self._kinds[reads]

    @cached_property
    def odd_devices(self) -> frozenset[int]:
        """The indexes of devices for which every expression may fail, whatever it reads."""
        return odd_devices(self.devices)

    @cached_property
    def facts(self) -> Hashable:
        """The properties that every claim depends on, without the use. Equal for pools with equal devices."""
        return (
            self.driver,
            self.state,
            tuple([(len(slice_.devices), *_place_facts(slice_)) for slice_ in self.slices]),
            tuple([_device_facts(device) for device in self.devices]),
            tuple([(index, repr(self.devices[index].attributes)) for index in sorted(self.odd_devices)]),
        )

    @cached_property
    def has_binding_conditions(self) -> bool:
        """Whether a device has binding conditions. Such pools are searched last."""
        return any(device.binding_conditions for device in self.devices)

    @cached_property
    def places(self) -> Mapping[int, Place]:
        """The places of devices that name their own place, by index."""
        places: dict[int, Place] = {}
        first = 0
        for slice_ in self.slices:
            if slice_.per_device_node_selection:
                places.update((first + index, place(device)) for index, device in enumerate(slice_.devices))
            first += len(slice_.devices)
        return places

    def slice_of(self, device: int) -> ResourceSlice:
        """The slice that lists the device with that index in `devices`."""
        ends = list(accumulate(len(slice_.devices) for slice_ in self.slices))
        return self.slices[bisect_right(ends, device)]

    def available(self, usage: PoolUsage) -> dict[CounterKey, int]:
        """The rest of each counter, in billionths. Negative if the use exceeds the total."""
        left = {
            (name, counter): amount.nanos
            for name, counters in self.counter_sets.items()
            for counter, amount in counters.counters.items()
        }
        if not left or not (usage.whole or usage.shared):
            return left
        for device in self.held(usage):
            for consumption in device.consumes_counters:
                for counter, amount in consumption.counters.items():
                    left[consumption.counter_set, counter] -= amount.nanos
        return left

    def held(self, usage: PoolUsage) -> Iterator[Device]:
        """The devices of the pool that are held completely or in part, including devices of other nodes."""
        for slice_ in chain(self.slices, self.elsewhere):
            yield from (device for device in slice_.devices if usage.is_used(device.name))


def _device_facts(device: Device) -> Hashable:
    shared = device.allow_multiple_allocations
    policies = [capacity for capacity in device.capacity.values() if capacity.request_policy is not None]
    return (
        tuple(
            [
                (
                    taken.counter_set,
                    taken.compatibility_groups,
                    *taken.counters,
                    *[amount.nanos for amount in taken.counters.values()],
                )
                for taken in device.consumes_counters
            ]
        ),
        device.taints,
        shared,
        bool(device.binding_conditions),
        device.binds_to_node,
        *_place_facts(device),
        capacity_facts(device) if shared or policies else None,
    )


def capacity_facts(device: Device) -> Hashable:
    """The amounts of a device, with their notations and policies. Allocations contain them."""
    return tuple(
        [
            (name, capacity.value.nanos, capacity.value.format, _policy_facts(capacity.request_policy))
            for name, capacity in device.capacity.items()
        ]
    )


def _policy_facts(policy: RequestPolicy | None) -> Hashable:
    if policy is None:
        return None
    valid = policy.valid_range
    amounts = [policy.default, *policy.valid_values]
    amounts += [] if valid is None else [valid.minimum, valid.maximum, valid.step]
    return (valid is None, *[None if amount is None else (amount.nanos, amount.format) for amount in amounts])


def _place_facts(where: Device | ResourceSlice) -> tuple[bool, int]:
    """The properties that determine whether the node selector of an allocation can be written."""
    return where.node_name is not None, len(where.node_selector.terms) if where.node_selector is not None else 0


def pool_view(
    key: PoolKey, relevant: Sequence[ResourceSlice], pool: Sequence[ResourceSlice], features: Features
) -> PoolView | None:
    """The view of a pool for nodes to which the slices `relevant` apply. None if the scheduler ignores the pool.

    `pool` are all its slices, of every node and generation.
    """
    generation = max(slice_.pool.generation for slice_ in relevant)
    current = [slice_ for slice_ in relevant if slice_.pool.generation == generation]
    wanted = current[0].pool.resource_slice_count
    elsewhere: list[ResourceSlice] = []
    if len(current) != wanted:
        if any(slice_.pool.generation > generation for slice_ in pool):
            return None
        every = [slice_ for slice_ in pool if slice_.pool.generation == generation]
        if len(every) != wanted:
            reason = f"it has {len(every)} slices of generation {generation} instead of {wanted}"
            return PoolView(key, PoolState.INCOMPLETE, reason)
        here = {slice_.metadata.name for slice_ in current}
        elsewhere = [slice_ for slice_ in every if slice_.metadata.name not in here]
    # Kubernetes' oldest allocator keeps the order of its informer instead, which is random.
    current.sort(key=lambda slice_: slice_.metadata.name)
    if not features.partitionable_devices:
        reason = _repeated("devices", (device.name for slice_ in current for device in slice_.devices))
        return PoolView(key, PoolState.INVALID, reason) if reason else PoolView(key, slices=tuple(current))
    return _with_counters(key, current, elsewhere, features)


def _with_counters(
    key: PoolKey, current: list[ResourceSlice], elsewhere: list[ResourceSlice], features: Features
) -> PoolView:
    beside = features.counters_beside_devices
    offering = tuple(slice_ for slice_ in current if beside or not slice_.shared_counters)
    declared = [counters for slice_ in chain(current, elsewhere) for counters in slice_.shared_counters]
    sets = {counters.name: counters for counters in declared}
    reason = (
        _repeated("devices", (device.name for slice_ in offering for device in slice_.devices))
        or _repeated("counter sets", (counters.name for counters in declared))
        or _undefined_counter(sets, chain(current, elsewhere))
    )
    if reason:
        return PoolView(key, PoolState.INVALID, reason)
    others = tuple(slice_ for slice_ in elsewhere if beside or not slice_.shared_counters)
    return PoolView(key, slices=offering, elsewhere=others, counter_sets=sets)


def _repeated(what: str, names: Iterable[str]) -> str:
    every = list(names)
    seen = set(every)
    if len(every) == len(seen):
        return ""
    name = next(name for name in sorted(seen) if every.count(name) > 1)
    return f"it has {every.count(name)} {what} named {name}"


def _undefined_counter(sets: Mapping[str, CounterSet], slices: Iterable[ResourceSlice]) -> str:
    defined = {name: frozenset(counters.counters) for name, counters in sets.items()}
    for slice_ in slices:
        for device in slice_.devices:
            for consumption in device.consumes_counters:
                name = consumption.counter_set
                if name not in defined:
                    return f"its device {device.name} consumes counter set {name}, which it does not define"
                if not defined[name].issuperset(consumption.counters):
                    undefined = min(consumption.counters.keys() - defined[name])
                    return f"its device {device.name} consumes counter {undefined}, which set {name} does not have"
    return ""
